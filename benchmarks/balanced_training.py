"""Balanced data-parallel training on three lab nodes of the relative speeds 1 : 0.6 : 0.3, under real Slurm.

    .venv/bin/python benchmarks/balanced_training.py [--python PROGRAM] [--scenario NAME] [--json FILE]

Runs examples/training/balanced.sbatch with equal shares, on the fast node alone, and balanced; caps the fast
node and removes the slow one while a program trains. Energy is that of all three nodes in the lab's model,
also of idle ones. `--scenario network` runs the table over latency and bandwidth. Needs root and PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claims import Claim, at_least, at_most, publish

from slurm_energy_lab import client
from slurm_energy_lab.cluster import layout, lifecycle, processes
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.nodes_file import NodeSpec
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.interconnect.links import LinkSpec
from slurm_energy_lab.reading_thread import ReadingThread

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/training/balanced.py"
SCRIPT = ROOT / "examples/training/balanced.sbatch"
SPEEDS = (1.0, 0.6, 0.3)
ONE_PACKAGE = {"cpu.packages": 1, "cpu.numa_nodes": 1}
SMALL = {"cpu.core_dynamic_watts": 2.3, "cpu.core_leakage_watts": 0.35, "cpu.idle_watts": 24.0}
OVERRIDES = (
    {},
    {**ONE_PACKAGE, "memory.total_mb": 262144},
    {**ONE_PACKAGE, **SMALL, "cpu.awake_watts": 23.0, "memory.total_mb": 131072},
)
CPU_SHARE = 0.4
WEIGHT = 20000
"""Weight of the lab's control group, so that a busy machine does not keep the nodes below their quota."""
TICK_S = 0.2
EPOCH = ("--side", "64", "--samples", "1280", "--global-batch", "128")
STEPS_OF_EPOCH = 10
CHANGE = re.compile(r"balanced: epoch (\d+), step (\d+): samples ([\d ]+),")
NETWORKS = (
    LinkSpec(0.05, 1e9),
    LinkSpec(0.0002, 1e8),
    LinkSpec(0.01, 1e9),
    LinkSpec(0.0, 1e9),
    LinkSpec(0.0002, 1e10),
)
OUTPUTS = ("--outputs", "32")


@dataclass
class TrainingRun:
    """A finished job.

    Attributes:
        epochs: lines that the program printed.
        changes: epoch, step and samples of each change of shares.
        joules: energy of the three nodes in each epoch.
        output: all output.
    """

    epochs: list[dict[str, Any]]
    changes: list[tuple[int, int, tuple[int, ...]]]
    output: str
    joules: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median seconds of the epochs after the first two, in which the shares settle."""
        return statistics.median(line["seconds"] for line in self.epochs[2:])

    @property
    def energy_joules(self) -> float:
        """Median energy of the same epochs."""
        return statistics.median(self.joules[2:])


class TrainingLab:
    """A lab of three unlike nodes in which training jobs run one after another."""

    def __init__(self, lab: Lab, place: layout.LabLayout, python: str, folder: Path) -> None:
        self.lab, self.place, self.python, self.folder = lab, place, python, folder
        shutil.copy(EXAMPLE, folder)  # the checkpoints of the jobs are written next to it

    def submit(self, arguments: Sequence[str], nodes: str = "n1,n2,n3") -> tuple[subprocess.Popen[str], Path]:
        """Submit a training job and return the process that waits for it, and the file of its output."""
        number = len(list(self.folder.glob("*.out")))
        output = self.folder / f"{number}.out"
        output.touch()
        count = nodes.count(",") + 1
        argv = ["sbatch", "-W", f"--nodelist={nodes}", f"--nodes={count}", f"--output={output}", str(SCRIPT)]
        own = {"PYTHON": self.python, "PYTHONPATH": str(ROOT)}
        if count == 1:
            own["SENERGY_TRAINING_RESTARTS"] = "1"
        environment = {**os.environ, **self.lab.environment(), **own}
        # The script is copied by Slurm; the program is found in the working directory.
        process = subprocess.Popen([*argv, *EPOCH, *arguments], env=environment, cwd=self.folder, text=True)
        return process, output

    def watts(self) -> float:
        """Return the true power of the three nodes."""
        paths = [self.place.emulator_socket(name) for name in self.lab.nodes]
        return sum(float(client.truth(path)["power_watts"]["node"]) for path in paths)

    def run(self, arguments: Sequence[str], nodes: str = "n1,n2,n3", act: Any = None) -> TrainingRun:
        """Run a training job to its end.

        Args:
            arguments: further arguments of the example.
            nodes: nodes of the job.
            act: called with the output file while the job runs; None to only wait.
        """
        with ReadingThread(self.watts, TICK_S, time.time) as readings:
            process, output = self.submit(arguments, nodes)
            if act is not None:
                act(output)
            process.wait(timeout=600)
        text = output.read_text()
        epochs = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if not epochs:
            raise SystemExit(f"the job printed no epoch:\n{text}")
        changes = [
            (int(epoch), int(step), tuple(map(int, counts.split())))
            for epoch, step, counts in CHANGE.findall(text)
        ]
        run = TrainingRun(epochs, changes, text)
        run.joules = [self._joules(readings.readings, line) for line in epochs]
        return run

    @staticmethod
    def _joules(readings: Sequence[tuple[float, float]], line: dict[str, Any]) -> float:
        start, end = line["end_unix"] - line["seconds"], line["end_unix"]
        watts = [value for moment, value in readings if start <= moment <= end]
        return statistics.mean(watts) * line["seconds"]


@contextlib.contextmanager
def training_lab(links: LinkSpec, python: str) -> Iterator[TrainingLab]:
    """Bring up the lab for a block."""
    nodes = tuple(
        NodeSpec(f"n{number}", "xeon-8358", overrides, speed)
        for number, (speed, overrides) in enumerate(zip(SPEEDS, OVERRIDES, strict=True), 1)
    )
    with tempfile.TemporaryDirectory(prefix="senergy-balanced-", dir="/var/tmp") as folder:
        place = layout.locate_lab(Path(folder) / "lab")
        spec = LabSpec(nodes, accounting=False, cpu_share=CPU_SHARE, links=links)
        lab = lifecycle.up(place, spec)
        try:
            weight = Path("/sys/fs/cgroup/cpu") / place.cgroup / "cpu.shares"
            if weight.exists():
                weight.write_text(str(WEIGHT))
            yield TrainingLab(lab, place, python, Path(folder))
        finally:
            lifecycle.down(place)


def wait_for_epochs(output: Path, count: int) -> None:
    """Wait until the program has printed a number of epochs."""
    deadline_s = time.monotonic() + 300
    while output.read_text().count('{"epoch"') < count:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no epoch {count}:\n{output.read_text()}")
        time.sleep(0.1)


def shares_and_energy(lab: TrainingLab) -> Iterator[Claim]:
    """Yield the claims about time and energy of balanced shares."""
    runs = {
        "fast node": lab.run(["--epochs", "4", "--goal", "time"], "n1"),
        "equal": lab.run(["--epochs", "4", "--goal", "time", "--equal"]),
        "time": lab.run(["--epochs", "8", "--goal", "time"]),
        "edp": lab.run(["--epochs", "8", "--goal", "edp"]),
    }
    for name, run in runs.items():
        last = run.epochs[-1]["samples"]
        print(
            f"{name:<10} {run.seconds:7.2f} s/epoch {run.energy_joules:8.0f} J/epoch samples {last}",
            flush=True,
        )
    ideal_s = runs["fast node"].seconds / sum(SPEEDS)
    balanced = runs["time"]
    yield at_most("balanced_time_to_ideal", balanced.seconds / ideal_s, 1.1)
    yield at_least("equal_to_balanced_time", runs["equal"].seconds / balanced.seconds, 1.8)
    for name in ("equal", "fast node"):
        saving = 1 - balanced.energy_joules / runs[name].energy_joules
        yield at_least(f"balanced_energy_saving_over_{name.replace(' ', '_')}", saving, 0.2)


def capped_node(lab: TrainingLab) -> Iterator[Claim]:
    """Yield the claim about a node that is capped while it trains."""

    def cap(output: Path) -> None:
        wait_for_epochs(output, 4)
        files = "/sys/class/powercap/intel-rapl:[01]/constraint_0_power_limit_uw"
        command = f"for file in {files}; do echo 75000000 > $file; done"
        argv = [sys.executable, "-m", "slurm_energy.cli.main", "lab", "exec", "n1", "sh", "-c", command]
        own = {**os.environ, **lab.lab.environment(), "SENERGY_LAB_DIR": str(lab.place.root)}
        subprocess.run(argv, env=own, check=True)

    run = lab.run(["--epochs", "8", "--goal", "time"], act=cap)
    before = run.epochs[3]["samples"]
    after = [change for change in run.changes if change[0] >= 4 and change[2][0] < 0.85 * before[0]]
    steps = (after[0][0] - 4) * STEPS_OF_EPOCH + after[0][1] if after else 1000
    print(f"cap of the fast node: samples {before} before, {run.epochs[-1]['samples']} after", flush=True)
    yield at_most("steps_until_a_capped_node_is_rebalanced", steps, 20)


def lost_node(lab: TrainingLab) -> Iterator[Claim]:
    """Yield the claim about a node that is lost while it trains."""

    def lose(output: Path) -> None:
        wait_for_epochs(output, 3)
        pid = processes.SupervisorClient(lab.place.supervisor_socket("n3")).pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    run = lab.run(["--epochs", "6", "--goal", "time", "--checkpoint-every-s", "3"], act=lose)
    epochs = [line["epoch"] for line in run.epochs]
    print(f"lost node: epochs {epochs}, samples {run.epochs[-1]['samples']}", flush=True)
    print("\n".join(line for line in run.output.splitlines() if line.startswith("restart")), flush=True)
    # The epochs before the last checkpoint are not repeated: at most one epoch line appears twice.
    repeated = len(epochs) - len(set(epochs))
    done = epochs[-1] == 5 and len(run.epochs[-1]["samples"]) == 2
    yield at_most("epochs_repeated_after_a_lost_node", repeated if done else 100, 1)


def network_table(python: str, points: Sequence[LinkSpec]) -> Iterator[Claim]:
    """Yield the claims about the number of nodes that the goal function chooses.

    The run on one node does not depend on the network and takes place once.
    """
    alone: TrainingRun | None = None
    for links in points:
        with training_lab(links, python) as lab:
            name = f"{links.latency_s * 1e3:g} ms, {(links.bits_per_s or 0) / 1e6:g} Mb/s"
            alone = alone or lab.run(["--epochs", "4", "--goal", "time", *OUTPUTS], "n1")
            runs = {1: alone}
            for count, nodes in ((2, "n1,n2"), (3, "n1,n2,n3")):
                runs[count] = lab.run(["--epochs", "4", "--goal", "time", "--all-ranks", *OUTPUTS], nodes)
            free = lab.run(["--epochs", "6", "--goal", "time", *OUTPUTS])
        for count, run in runs.items():
            print(f"{name}: {count} nodes {run.seconds:.2f} s {run.energy_joules:.0f} J", flush=True)
        times = {count: run.seconds for count, run in runs.items()}
        chosen = sum(1 for count in free.epochs[-1]["samples"] if count)
        best = min(times, key=times.__getitem__)
        figures = f"{free.seconds:.2f} s {free.energy_joules:.0f} J"
        print(f"{name}: chooses {chosen} nodes, {figures}, best {best}", flush=True)
        label = f"chosen_to_best_{links.latency_s * 1e3:g}ms_{(links.bits_per_s or 0) / 1e6:g}mbit"
        yield at_most(label, times[chosen] / times[best], 1.1)


SCENARIOS = {"shares": shares_and_energy, "cap": capped_node, "loss": lost_node}


def main() -> int:
    """Run the benchmark and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python with PyTorch")
    parser.add_argument("--scenario", choices=(*SCENARIOS, "network"), help="all but network")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.scenario == "network":
        return publish(network_table(arguments.python, NETWORKS), arguments.json)
    with training_lab(LinkSpec(0.0002, 1e9), arguments.python) as lab:
        names = [arguments.scenario] if arguments.scenario else SCENARIOS
        claims = [part for name in names for part in SCENARIOS[name](lab)]
        return publish(claims, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
