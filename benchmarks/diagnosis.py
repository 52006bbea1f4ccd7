"""Cost of the application layer of the diagnosis for a training loop, beside the PyTorch profiler.

A small convolutional network trains on the CPU with one thread, in steps of about 10 and 100 ms (another
batch size). Each variant runs in a process of its own, in turns with the bare loop on an equal model: a block
of steps bare, a block with the variant, in random order, so that other load of the machine meets both alike.

    placebo    an equal model without anything: the noise of the paired differences
    callbacks  `slurm_energy.watch(loader, model, optimizer)`, reporting to a socket like that of senergyd
    events     the same with an event file
    profiler   `torch.profiler.profile` over the block

Two measurements. Paired: the median of the differences between neighbouring blocks and its 95 % interval
(bootstrap), for wall time and for the processor time of all threads. On a busy machine it is wide. Own time:
the time spent in the functions of the recorder, within the same training, as medians of each function; it
omits the calls of the hooks by PyTorch. The claims use the own time, and the paired differences must not
contradict it: the interval of the processor time must not lie above the target and above that of the placebo.
`CLAIM diagnosis_resolution_10ms` says whether the machine was idle enough to see 0.5 % in the processor time:
half of the placebo's interval. The whole takes about seven minutes on an idle machine.

Prints `CLAIM diagnosis_callbacks_10ms ratio=... target=<=0.005` and the like. Needs an interpreter with
PyTorch: --python, by default this one or /usr/bin/python3 (Debian: python3-torch).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from claims import Claim, at_most, claim, publish

TARGETS = {"callbacks": 0.005, "events": 0.01}
RESOLUTION = 0.005
PROFILER = "profiler"
PROFILER_ROUNDS = 4
"""The profiler runs in one of four rounds: its cost is large."""
PLACEBO = "placebo"
VARIANTS = (PLACEBO, "callbacks", "events", PROFILER)
LENGTHS_MS = (10, 100)
SEED_TABLE = (
    ("nvidia-smi / DCGM", "low", "< 1 %", "suitable"),
    ("PyTorch Profiler", "high", "+42 %", "development only"),
    ("Nsight Systems", "high", "+3-6 %", "periodic sampling"),
    ("Nsight Compute", "very high", "disruptive", "not suitable"),
)
"""Table 1 of the source document on profiling (section 2.2)."""

Pair = tuple[tuple[float, float], tuple[float, float]]
"""Wall and processor seconds per step of a bare block, and of the block of the variant beside it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=100, help="pairs of blocks per variant and length (default 100)"
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a block (default 0.2)")
    parser.add_argument("--python", help="interpreter with PyTorch")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument("--seed", type=int, default=1, help="order of the variants (default 1)")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        variant, length_ms = arguments.run
        pairs = run_pairs(variant, int(length_ms), arguments.rounds, arguments.seconds, arguments.seed)
        own_us = None if variant in (PROFILER, PLACEBO) else own_time_us(int(length_ms), arguments.rounds)
        print(json.dumps({"pairs": pairs, "own_us": own_us}))
        return 0
    arguments.python = arguments.python or python_with_torch()
    if arguments.python is None:
        print("no interpreter with PyTorch: name one with --python", file=sys.stderr)
        return 1
    return publish(measure_all(arguments), arguments.json)


def python_with_torch() -> str | None:
    """Return an interpreter that has PyTorch; None if there is none."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    debian = "/usr/bin/python3"
    check = [debian, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
    with contextlib.suppress(OSError):
        if subprocess.run(check, check=False).returncode == 0:
            return debian
    return None


def measure_all(arguments: argparse.Namespace) -> Iterator[Claim]:
    for length_ms in LENGTHS_MS:
        noise = 0.0
        print(f"steps of about {length_ms} ms, {arguments.rounds} pairs of blocks", flush=True)
        for name in VARIANTS:
            result = measure(name, length_ms, arguments)
            bare_ms = statistics.median(bare[0] for bare, _ in result["pairs"]) * 1e3
            wall, cpu = (overhead(result["pairs"], index) for index in (0, 1))
            own_us = result["own_us"]
            own = None if own_us is None else own_us * 1e-3 / length_ms
            text = "" if own is None else f"  own time {own_us:.1f} us = {own * 100:.3f} %"
            print(
                f"  {name:<10} bare {bare_ms:6.2f} ms  wall {percent(wall)}  processor {percent(cpu)}{text}"
            )
            details = {"wall": wall, "processor": cpu, "bare_ms": bare_ms, "own_us": own_us}
            if name == PLACEBO:
                noise = cpu["high"]
                half = (cpu["high"] - cpu["low"]) / 2
                yield at_most(f"diagnosis_resolution_{length_ms}ms", round(half, 5), RESOLUTION) | details
                continue
            if own is None:
                entry = claim(f"diagnosis_profiler_is_dearer_{length_ms}ms", cpu["median"], ">0.005", True)
                entry["holds"] = cpu["median"] > TARGETS["callbacks"]
            else:
                entry = at_most(f"diagnosis_{name}_{length_ms}ms", own, TARGETS[name])
                if cpu["low"] > max(noise, TARGETS[name]):
                    entry["holds"] = False
                entry["ratio"] = round(own, 5)
            yield entry | details
    print("Table 1 of the source document:")
    for tool, granularity, cost, use in SEED_TABLE:
        print(f"  {tool:<18} {granularity:<10} {cost:<11} {use}")


def percent(result: dict[str, float]) -> str:
    return f"{result['median'] * 100:+6.2f} % [{result['low'] * 100:+.2f}, {result['high'] * 100:+.2f}]"


def overhead(pairs: list[Pair], index: int) -> dict[str, float]:
    """Return the median relative difference to the bare block beside it, and its 95 % interval."""
    ratios = [ours[index] / bare[index] - 1 for bare, ours in pairs]
    order = random.Random(1)
    medians = sorted(statistics.median(order.choices(ratios, k=len(ratios))) for _ in range(1000))
    return {"median": statistics.median(ratios), "low": medians[25], "high": medians[974]}


def measure(variant: str, length_ms: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a variant beside the bare loop in a process of its own."""
    here = Path(__file__).resolve()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(responding_socket(folder / "agent.sock"))
        (folder / "energy.toml").write_text(f'[agent]\nsocket = "{folder}/agent.sock"\n')
        environment = os.environ | {
            "PYTHONPATH": str(here.parent.parent),
            "OMP_NUM_THREADS": "1",
            "SENERGY_CONFIG": str(folder / "energy.toml"),
            "SLURM_JOB_ID": "12",
            "SENERGY_EVENTS_DIR": str(folder) if variant == "events" else "",
        }
        command = [arguments.python, str(here), "--run", variant, str(length_ms)]
        rounds = arguments.rounds // PROFILER_ROUNDS if variant == PROFILER else arguments.rounds
        command += ["--rounds", str(max(1, rounds))]
        for name in ("seconds", "seed"):
            command += [f"--{name}", str(getattr(arguments, name))]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


@contextlib.contextmanager
def responding_socket(path: Path) -> Iterator[None]:
    """Respond to progress reports like senergyd, from a thread of this process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    try:
        yield
    finally:
        listener.close()


def accept(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=respond, args=(connection,), daemon=True).start()


def respond(connection: socket.socket) -> None:
    response = json.dumps({"ok": True, "interval_s": 0.5, "steps_bytes": 48 * 1024}).encode() + b"\n"
    with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
        for _ in lines:
            connection.sendall(response)


def run_pairs(variant: str, length_ms: int, rounds: int, seconds: float, seed: int) -> list[Pair]:
    """Run blocks of steps bare and with a variant in turn; return their seconds per step."""
    training = Training(length_ms, variant)
    training.calibrate()
    training.run("bare", 3)
    wall, _ = training.run("bare", 5)
    count = max(10 if length_ms < 50 else 3, round(seconds / wall))
    training.run(variant, count)
    order, pairs = random.Random(seed), []
    for _ in range(rounds):
        names = order.sample(("bare", variant), 2)
        results = {name: training.run(name, count) for name in names}
        pairs.append((results["bare"], results[variant]))
    return pairs


def own_time_us(length_ms: int, rounds: int) -> float:
    """Return the microseconds per step that a watched training spends in the recorder.

    Of each function the median counts, times its calls per step, because other programs interrupt some calls.
    The time between the end of a body and the next one is that of the loop itself.
    """
    import slurm_energy
    from slurm_energy.profiling.step_recorder import StepRecorder
    from slurm_energy.profiling.torch_phases import TorchPhases

    times: dict[str, list[float]] = collections.defaultdict(list)

    def timed(owner: type, name: str) -> None:
        function = getattr(owner, name)

        def method(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            times[name].append(time.perf_counter() - start)
            return result

        setattr(owner, name, method)

    for name in ("forward", "backward", "optimizer"):
        timed(TorchPhases, f"_begin_{name}")
        timed(TorchPhases, f"_end_{name}")
    timed(StepRecorder, "collect")
    training, count = Training(length_ms, "callbacks"), max(100, rounds * 1000 // (length_ms * 5))
    training.calibrate()
    ended_s = None
    for inputs, labels in slurm_energy.watch([training.batch] * count, training.model, training.optimizer):
        if ended_s is not None:
            times["loop"].append(time.perf_counter() - ended_s)
        training.step(inputs, labels)
        ended_s = time.perf_counter()
    return sum(statistics.median(values) * len(values) for values in times.values()) / count * 1e6


class Training:
    """Training of a small network on the CPU.

    Args:
        length_ms: length of a step in milliseconds.
        variant: what the second, equal model is for.
    """

    def __init__(self, length_ms: int, variant: str) -> None:
        import torch
        from torch import nn

        self._length_ms, self._variant = length_ms, variant
        self.watched = self._watched_steps()
        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
        self.batch = torch.randn(4 * length_ms, 1, 28, 28), torch.randint(0, 10, (4 * length_ms,))
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def calibrate(self) -> None:
        """Choose the batch size with which a step has its length on this machine now."""
        import torch

        for _ in range(3):
            wall_s = statistics.median(self.run("bare", 1)[0] for _ in range(9))
            size = max(1, round(len(self.batch[0]) * self._length_ms * 1e-3 / wall_s))
            self.batch = torch.randn(size, 1, 28, 28), torch.randint(0, 10, (size,))

    def run(self, variant: str, count: int) -> tuple[float, float]:
        """Run steps; return the wall and processor seconds of each."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        if variant == PROFILER:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU]):
                for _ in range(count):
                    self.step(*self.batch)
        elif variant == "bare":
            for _ in range(count):
                self.step(*self.batch)
        else:
            for _ in range(count):
                next(self.watched)
        cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - start_s
        return wall_s / count, cpu_s / count

    def _watched_steps(self) -> Iterator[None]:
        """Train without end under the recorder; each item is a step. It is a model of its own."""
        import slurm_energy

        other = Training(self._length_ms, self._variant)
        batches: Iterable[Any] = itertools.repeat(self.batch)
        if self._variant != PLACEBO:
            batches = slurm_energy.watch(batches, other.model, other.optimizer)
        for inputs, labels in batches:
            other.step(inputs, labels)
            yield

    def step(self, inputs: Any, labels: Any) -> None:
        """Run one step of the training."""
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), labels).backward()
        self.optimizer.step()


if __name__ == "__main__":
    sys.exit(main())
