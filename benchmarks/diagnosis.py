"""Benchmark of the diagnosis's step recorder: its cost for a training loop.

The cost of PyTorch's profiler is measured for comparison. A small convolutional network trains on the
CPU with one thread. Its steps take about 10 or 100 ms of processor time, depending on the batch size.
The variants of instrumentation are:

- `placebo`: no instrumentation. It shows the noise of the paired differences.
- `callbacks`: `slurm_energy.watch(loader, model, optimizer)`, reporting to a socket like
  senergyd's.
- `events`: `callbacks` with an event file.
- `profiler`: `torch.profiler.profile` over the instrumented steps.

Each variant runs in a separate process. The process also trains the same model in a bare loop, which
has no instrumentation. Groups of successive steps (blocks) with and without the variant alternate in
random order, so that other load of the machine affects both equally. The bare blocks run between two
steps of the instrumented loop, when no hook is attached. malloc returns no memory to the kernel,
because page faults vary more than the cost to be measured.

The cost is measured in two ways:

- The paired measurement compares neighbouring blocks. It is the trimmed mean of their
  differences with its 95 % interval (bootstrap), for wall time and for the processor time of all
  threads. Blocks last 50 ms or one step, so that slow changes of the machine cancel. The recorder is
  active for half of the time only. Its periodic work is therefore done half as often for this
  measurement.
- The own time is the time that the functions of the recorder take within the same training, as
  medians of each function. It does not include the calls of the hooks by PyTorch.

The claims (comparisons with targets) use the own time. The paired differences must not contradict the
own time: the interval of the processor time must not lie above the target and above the interval of
the placebo. `CLAIM diagnosis_resolution_10ms` states whether the machine was idle enough to detect
0.5 % of the processor time. Its ratio is half the width of the placebo's interval. The benchmark
takes a quarter of an hour on an idle machine.

The program prints `CLAIM diagnosis_callbacks_10ms ratio=... target=<=0.005` and similar lines. It
needs an interpreter with PyTorch: --python, by default this one or /usr/bin/python3 (Debian:
python3-torch).
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from claims import Claim, at_most, claim, publish

TARGETS = {"callbacks": 0.005, "events": 0.01}
RESOLUTION = 0.005
PROFILER = "profiler"
PROFILER_SHARE = 0.25
"""The profiler runs for a quarter of the time: its cost is large."""
BLOCK_MS, PROFILER_BLOCK_MS = 50, 200
WARM_UP_BLOCKS = 10
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
        "--seconds", type=float, default=120, help="duration of a variant and length (default 120)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS_MS, help="lengths of steps in ms")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--python", help="interpreter with PyTorch")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument("--seed", type=int, default=1, help="order of the variants (default 1)")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        variant, length_ms = arguments.run
        pairs = run_pairs(variant, int(length_ms), arguments.seconds, arguments.seed)
        own_us = None if variant in (PROFILER, PLACEBO) else own_time_us(int(length_ms), arguments.seconds)
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
    for length_ms in arguments.lengths:
        noise = 0.0
        print(f"steps of about {length_ms} ms, {arguments.seconds:g} s per variant", flush=True)
        for name in arguments.variants:
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
                entry = claim(f"diagnosis_profiler_is_dearer_{length_ms}ms", cpu["mean"], ">0.005", True)
                entry["holds"] = cpu["mean"] > TARGETS["callbacks"]
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
    return f"{result['mean'] * 100:+6.2f} % [{result['low'] * 100:+.2f}, {result['high'] * 100:+.2f}]"


def overhead(pairs: list[Pair], index: int) -> dict[str, float]:
    """Return the mean relative overhead of an instrumentation, and the 95 % interval of this mean.

    The training runs in blocks of steps, alternately with and without the instrumentation. The time of
    each block with the instrumentation is compared with the time of the neighbouring block without it.
    """
    ratios = [ours[index] / bare[index] - 1 for bare, ours in pairs]
    order = random.Random(1)
    means = sorted(trimmed_mean(order.choices(ratios, k=len(ratios))) for _ in range(1000))
    return {"mean": trimmed_mean(ratios), "low": means[25], "high": means[974]}


def trimmed_mean(values: list[float]) -> float:
    """Return the mean of values after removing the lowest and the highest fifth of them."""
    ascending, cut = sorted(values), len(values) // 5
    return statistics.fmean(ascending[cut : len(ascending) - cut])


def measure(variant: str, length_ms: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the cost of one variant of instrumentation of a training loop.

    The variant runs in turns with the loop without instrumentation, in a separate process. Return the
    measured times as a JSON object.
    """
    here = Path(__file__).resolve()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(responding_socket(folder / "agent.sock"))
        (folder / "energy.toml").write_text(f'[agent]\nsocket = "{folder}/agent.sock"\n')
        environment = os.environ | {
            "PYTHONPATH": str(here.parent.parent),
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
            "SENERGY_CONFIG": str(folder / "energy.toml"),
            "SLURM_JOB_ID": "12",
            "SENERGY_EVENTS_DIR": str(folder) if variant == "events" else "",
        }
        command = [arguments.python, str(here), "--run", variant, str(length_ms)]
        command += ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
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


def run_pairs(variant: str, length_ms: int, seconds: float, seed: int) -> list[Pair]:
    """Measure training steps with and without instrumentation, in pairs of short blocks.

    A block is a sequence of training steps. Each pair has one block with the instrumentation and one
    without, in random order. Return the seconds per step of both blocks of each pair.

    Args:
        variant: kind of the instrumentation.
        length_ms: length of a training step in ms.
        seconds: approximate duration of the whole measurement.
        seed: seed of the random order within the pairs.
    """
    training = Training(length_ms)
    training.calibrate()
    order, pairs = random.Random(seed), []
    if variant == PROFILER:
        count = max(1, PROFILER_BLOCK_MS // length_ms)
        for _ in range(round(PROFILER_SHARE * seconds * 500 / length_ms / count)):
            names = order.sample(("bare", variant), 2)
            results = {name: measured(getattr(training, f"run_{name}"), count) for name in names}
            pairs.append((results["bare"], results[variant]))
        return pairs
    count = max(1, BLOCK_MS // length_ms)
    rounds = round(seconds * 500 / length_ms / count)
    double_intervals(length_ms)

    def batches() -> Iterator[Any]:
        for number in range(-WARM_UP_BLOCKS, rounds):
            is_bare_first = order.random() < 0.5
            if is_bare_first:
                bare = measured(training.run_bare, count)
            start = clocks()
            yield from itertools.repeat(training.batch, count)
            watched = per_step(start, count)
            if not is_bare_first:
                bare = measured(training.run_bare, count)
            if number >= 0:
                pairs.append((bare, watched))

    training.run_watched(batches(), variant != PLACEBO)
    return pairs


def double_intervals(length_ms: int) -> None:
    """Double the intervals at which the recorder of training steps does its periodic work.

    The benchmark runs only half of the steps with the recorder. With the doubled intervals, the recorder
    works as often per recorded step as in a normal program.

    The recorder treats steps above a certain duration (long steps) in a special way. In this benchmark,
    the measured time of a step would include the preceding steps without the recorder. Therefore, if
    `length_ms` is below this duration, no step is treated as a long step.
    """
    from slurm_energy.profiling import loop_report, progress, step_recorder, torch_phases

    names = {
        loop_report: ("_REPORT_NS", "_COLLECT_NS"),
        progress: ("_MIN_INTERVAL_S", "_DOCUMENT_INTERVAL_S"),
        step_recorder: ("_PERIOD_NS",),
        torch_phases: ("_TIMED_EVERY_NS",),
    }
    for module, constants in names.items():
        for name in constants:
            setattr(module, name, 2 * getattr(module, name))
    if length_ms * 1_000_000 < torch_phases._LONG_STEP_NS:
        torch_phases._LONG_STEP_NS = 1 << 62  # a step with the bare steps before it is no long one


def measured(run: Callable[[int], None], count: int) -> tuple[float, float]:
    """Execute `run` with `count` steps, and return the wall-clock and processor seconds per step."""
    start = clocks()
    run(count)
    return per_step(start, count)


def clocks() -> tuple[float, float]:
    """Return seconds of the wall clock and of the processor time of all threads."""
    return time.perf_counter(), time.process_time()


def per_step(start: tuple[float, float], count: int) -> tuple[float, float]:
    cpu_s, wall_s = time.process_time() - start[1], time.perf_counter() - start[0]
    return wall_s / count, cpu_s / count


def own_time_us(length_ms: int, seconds: float) -> float:
    """Return the microseconds per training step that the recorder of step times itself takes.

    For each function of the recorder, the result includes its median duration times its calls per step. The
    median is used because other programs interrupt some calls. The time between the end of one loop body and
    the start of the next is spent in the loop itself.
    """
    import slurm_energy
    from slurm_energy.profiling.loop_report import LoopReport
    from slurm_energy.profiling.torch_phases import TorchPhases

    times: dict[str, list[float]] = collections.defaultdict(list)
    nested_s = 0.0

    def timed(owner: type, name: str) -> None:
        function = getattr(owner, name)

        def method(*arguments: Any) -> Any:
            nonlocal nested_s
            start = time.perf_counter()
            result = function(*arguments)
            duration_s = time.perf_counter() - start
            times[name].append(duration_s)
            nested_s += duration_s
            return result

        setattr(owner, name, method)

    for name in ("forward", "backward", "optimizer"):
        timed(TorchPhases, f"_begin_{name}")
        timed(TorchPhases, f"_end_{name}")
    timed(TorchPhases, "begin_step")
    timed(TorchPhases, "end_step")
    timed(LoopReport, "send")
    training, count = Training(length_ms), max(100, round(seconds * 200 / length_ms))
    training.calibrate()
    end_s, nested_s = 0.0, 0.0
    for inputs, labels in slurm_energy.watch([training.batch] * count, training.model, training.optimizer):
        if end_s:
            times["loop"].append(time.perf_counter() - end_s - nested_s)
        training.step(inputs, labels, training.optimizer.step)
        end_s, nested_s = time.perf_counter(), 0.0
    return sum(statistics.median(values) * len(values) for values in times.values()) / count * 1e6


class Training:
    """Training of a small network on the CPU.

    Args:
        length_ms: processor time of a step in milliseconds.
    """

    def __init__(self, length_ms: int) -> None:
        import torch
        from torch import nn

        self._length_ms = length_ms
        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
        self.batch = torch.randn(4 * length_ms, 1, 28, 28), torch.randint(0, 10, (4 * length_ms,))
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self._bare_step = self.optimizer.step  # the recorder replaces it in PyTorch 1

    def calibrate(self) -> None:
        """Choose the batch size for which a training step takes `length_ms` of CPU time on this machine."""
        import torch

        for _ in range(3):
            cpu_s = statistics.median(measured(self.run_bare, 1)[1] for _ in range(9))
            size = max(1, round(len(self.batch[0]) * self._length_ms * 1e-3 / cpu_s))
            self.batch = torch.randn(size, 1, 28, 28), torch.randint(0, 10, (size,))

    def run_bare(self, count: int) -> None:
        """Run `count` training steps without instrumentation, as the reference of the benchmark."""
        for _ in range(count):
            self.step(*self.batch, self._bare_step)

    def run_profiler(self, count: int) -> None:
        """Run steps under the PyTorch profiler."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]):
            self.run_bare(count)

    def run_watched(self, batches: Iterable[Any], is_recorded: bool) -> None:
        """Train over all batches, with the recorder of steps or without it.

        The loop is the same in both cases, so that the cost of the recorder can be measured.
        """
        import slurm_energy

        if is_recorded:
            batches = slurm_energy.watch(batches, self.model, self.optimizer)
        for inputs, labels in batches:
            self.step(inputs, labels, self.optimizer.step)

    def step(self, inputs: Any, labels: Any, optimizer_step: Callable[[], Any]) -> None:
        """Run one step of the training."""
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), labels).backward()
        optimizer_step()


if __name__ == "__main__":
    sys.exit(main())
