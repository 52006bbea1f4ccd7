"""Lab with three unlike nodes, on which the benchmark balanced_training.py runs training jobs.

The module also stores finished runs in a file, so that they are not repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy_lab import client
from slurm_energy_lab.cluster import layout, lifecycle
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.nodes_file import NodeSpec
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.interconnect.links import LinkSpec
from slurm_energy_lab.reading_thread import ReadingThread

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/training/balanced.py"
SCRIPT = ROOT / "examples/training/balanced.sbatch"
ONE_PACKAGE = {"cpu.packages": 1, "cpu.numa_nodes": 1}
SMALL = {"cpu.core_dynamic_watts": 2.3, "cpu.core_leakage_watts": 0.35, "cpu.idle_watts": 24.0}
OVERRIDES: tuple[dict[str, Any], ...] = (
    {},
    {**ONE_PACKAGE, "memory.total_mb": 262144},
    {**ONE_PACKAGE, **SMALL, "cpu.awake_watts": 23.0, "memory.total_mb": 131072},
)
CPU_SHARE = 0.4
WEIGHT = 20000
"""Weight of the lab's control group, so that a busy machine does not keep the nodes below their quota."""
TICK_S = 0.2
EPOCH = ("--side", "64", "--samples", "2560", "--global-batch", "256")
CHANGE = re.compile(r"balanced: epoch (\d+), step (\d+): samples ([\d ]+),")
ALL_NODES = "n1,n2,n3"

Row = dict[str, Any]


@dataclass
class TrainingRun:
    """Output and energy of a finished training job on three nodes.

    Attributes:
        epochs: lines that the program printed.
        changes: changes of the division of a batch among the nodes. Each entry has the epoch, the step, and
            the samples of each node.
        joules: energy of the three nodes in each epoch.
        output: all output.
    """

    epochs: list[dict[str, Any]]
    changes: list[tuple[int, int, tuple[int, ...]]]
    output: str
    joules: list[float] = field(default_factory=list)

    def row(self) -> Row:
        """Return the median time and energy per epoch, and the samples that each node got last.

        The medians are taken over the second half of the epochs. In the first half, the nodes' shares of the
        samples still change.
        """
        half = len(self.epochs) // 2
        return {
            "seconds": statistics.median(line["seconds"] for line in self.epochs[half:]),
            "joules": statistics.median(self.joules[half:]),
            "samples": self.epochs[-1]["samples"],
        }


class TrainingLab:
    """An emulated cluster of three unequal nodes, in which training jobs run one after another."""

    def __init__(self, lab: Lab, place: layout.LabLayout, python: str, folder: Path) -> None:
        self.lab, self.place, self.python, self.folder = lab, place, python, folder
        shutil.copy(EXAMPLE, folder)  # the checkpoints of the jobs are written next to it

    def submit(self, arguments: Sequence[str], nodes: str = ALL_NODES) -> tuple[subprocess.Popen[str], Path]:
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

    def run(self, arguments: Sequence[str], nodes: str = ALL_NODES, act: Any = None) -> TrainingRun:
        """Run a training job to its end.

        Args:
            arguments: further arguments of the training program.
            nodes: nodes of the job.
            act: called with the output file while the job runs; None to only wait.
        """
        with ReadingThread(self.watts, TICK_S, time.time) as readings:
            process, output = self.submit(arguments, nodes)
            if act is not None:
                act(output)
            process.wait(timeout=600)
        text = output.read_text(errors="replace")
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
        return statistics.mean(watts) * float(line["seconds"])


@contextlib.contextmanager
def training_lab(links: LinkSpec, speeds: Sequence[float], python: str) -> Iterator[TrainingLab]:
    """Context manager that runs a lab with nodes of unequal speed for training programs."""
    nodes = tuple(
        NodeSpec(f"n{number}", "xeon-8358", overrides, speed)
        for number, (speed, overrides) in enumerate(zip(speeds, OVERRIDES, strict=True), 1)
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


class TrainingRuns:
    """Training runs of the benchmark, stored in a file with one JSON object per line.

    A run that is stored in the file is not repeated. A lab is started only when a run needs it.

    Args:
        path: the file.
        python: a Python with PyTorch.
    """

    def __init__(self, path: Path, python: str) -> None:
        self._path, self._python = path, python
        self._rows: dict[str, Row] = {}
        with contextlib.suppress(FileNotFoundError):
            text = path.read_text()
            if text and not text.endswith("\n"):
                path.write_text(text + "\n")  # an interrupt cut the last line off
            for line in text.splitlines():
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    self._rows[row["key"]] = row
        self._stack = contextlib.ExitStack()
        self._lab: tuple[tuple[LinkSpec, tuple[float, ...]], TrainingLab] | None = None

    def __enter__(self) -> TrainingRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def row(
        self,
        name: str,
        links: LinkSpec,
        speeds: tuple[float, ...],
        run: Callable[[TrainingLab], Row],
    ) -> Row:
        """Return a stored run of a training job. If it is not stored, run the job in a lab and store it.

        A lab is a cluster of emulated nodes.

        Args:
            name: name of the run, unique for its network and speeds.
            links: network of the lab.
            speeds: relative speeds of the lab's nodes.
            run: runs the job and returns the values to store.
        """
        rate = "unlimited" if links.bits_per_s is None else f"{links.bits_per_s / 1e6:g} Mb/s"
        key = f"{name} at {links.latency_s * 1e3:g} ms, {rate}, speeds {speeds}"
        if key not in self._rows:
            if self._lab is None or self._lab[0] != (links, speeds):
                self._stack.close()
                lab = self._stack.enter_context(training_lab(links, speeds, self._python))
                self._lab = (links, speeds), lab
            self._rows[key] = {"key": key, "load": os.getloadavg()[0], **run(self._lab[1])}
            with self._path.open("a") as file:
                file.write(json.dumps(self._rows[key]) + "\n")
        row = self._rows[key]
        if "seconds" in row:
            print(
                f"{key}: {row['seconds']:.2f} s {row['joules']:.0f} J, samples {row['samples']}", flush=True
            )
        return row
