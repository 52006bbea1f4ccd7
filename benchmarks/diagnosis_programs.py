"""Benchmark: how often `senergy diagnose` names the planted cause of real PyTorch programs.

Each program wastes time for a cause that is planted on purpose. For healthy programs, the command
must name no cause. A lab with one emulated node of 4 CPUs runs each program as a job of its own. The
signals of the job are sampled every second. slurmctld, senergyctld and senergyd are real, the
hardware is emulated, and the training (training_program.py) really runs on the CPUs of this machine.

There are several sets of parameters of the programs. A set is called a half. The halves differ in
model, batch, durations and strength of the causes. Rules and programs were changed until they worked
on halves A to D. Halves E, F and I were defined before their first run. The causes of halves C to I
take at least 15 % of the time of an idle machine, and the steps of these halves are short. The
programs run for less than a minute. Therefore the lab's thresholds for times are shorter than the
defaults. All other thresholds are the defaults.

The benchmark prints a table per half, `CLAIM program_cause_first_A ratio=... target=>=0.9` and `CLAIM
program_false_findings_A ratio=... target=<=0.1`. It needs root, and PyTorch for this interpreter or
for /usr/bin/python3 (Debian: python3-torch). The slow disk is a limit of reads by the kernel's blkio
controller (version 1).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import Claim, at_least, at_most, publish
from diagnosis import python_with_torch
from diagnosis_halves import HALVES, Half

from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

PYTHON = python_with_torch()
PROGRAM = Path(__file__).resolve().parent / "training_program.py"
CPUS, CPU_SHARE = (
    4,
    4.0,
)  # equal: the lab would scale the CPU time of control groups, but not that of processes
NODE = {
    "cpu.packages": 1,
    "cpu.cores_per_package": CPUS,
    "cpu.threads_per_core": 1,
    "cpu.numa_nodes": 1,
    "cpu.turbo_bins": [[CPUS, 3400000]],
}
THRESHOLDS = {"minimum_time": 10, "idle_tail": 10, "idle_stretch": 15}
SLOW_DISK = Path("/sys/fs/cgroup/blkio/senergy-slow-disk")
DATA_MIB = 64

_FINAL = ("COMPLETED", "FAILED", "TIMEOUT")


@dataclass(frozen=True)
class DiagnosedProgram:
    """A job of the test corpus, in which a cause of lost time may be planted on purpose.

    Attributes:
        name: description of the program's behaviour.
        expected: kinds of findings that name the planted cause; empty for a healthy job.
        command: shell command of the job.
        options: options of sbatch.
    """

    name: str
    expected: tuple[str, ...]
    command: str
    options: tuple[str, ...] = ()


def programs(half: Half, folder: Path) -> list[DiagnosedProgram]:
    """Return the test programs for the benchmark of the diagnosis.

    Each program has at most one cause of waste, which was planted on purpose.

    Args:
        half: one of two sets of parameters of the programs.
        folder: folder for the files of the programs.
    """

    def training(options: str, seconds: float = half.seconds, launch: str = "") -> str:
        return f"{launch}{PYTHON} {PROGRAM} --seconds {seconds} {options}"

    usual = f"{half.model} --batch {half.batch}"
    two_ranks, launch = ("--ntasks=2", f"--cpus-per-task={CPUS // 2}"), f"srun -n2 -c{CPUS // 2} "
    disk = f"--workers 2 --file {folder}/data --read-kib {half.read_kib}"
    disk += f" --control-group {SLOW_DISK}/cgroup.procs"
    failing = training(f"{usual} --nan-at {half.nan_at}")
    return [
        DiagnosedProgram(
            "slow disk",
            ("data-stall-io",),
            training(f"{usual} {disk}"),
        ),
        DiagnosedProgram(
            "too few workers",
            ("data-stall-cpu",),
            training(f"{usual} --workers 1 --transform-ms {half.transform_ms}"),
        ),
        DiagnosedProgram("tiny batch", ("small-batch",), training(f"{half.tiny_model} --workers 1")),
        DiagnosedProgram(
            "oversubscribed CPUs",
            ("cpu-contention",),
            training(f"{usual} --workers {half.workers} --transform-ms {half.workers_ms} --threads {CPUS}"),
        ),
        DiagnosedProgram(
            "checkpoint in every step",
            ("checkpoint-stall",),
            training(
                f"{half.checkpoint_model} --checkpoint {folder}/model.pt"
                f" --checkpoint-every {half.checkpoint_every}"
            ),
        ),
        DiagnosedProgram(
            "uneven ranks",
            ("load-imbalance", "straggler"),
            training(f"{usual} --slow-batch {half.slow_batch}", launch=launch),
            two_ranks,
        ),
        DiagnosedProgram(
            "NaN and three restarts",
            ("early-failure",),
            f"for run in 1 2 3; do {failing} && exit 0; done; exit 1",
        ),
        DiagnosedProgram("idle tail", ("idle-tail",), f"{training(usual, 15)}; sleep {half.idle_s}"),
        DiagnosedProgram(
            "forgotten interactive job", ("idle-allocation",), f"sleep {half.idle_s}", ("interactive",)
        ),
        DiagnosedProgram("healthy training", (), training(f"{usual} --workers 1")),
        DiagnosedProgram("healthy training without recorder", (), training(f"{usual} --no-recorder")),
        DiagnosedProgram("healthy training of two ranks", (), training(usual, launch=launch), two_ranks),
        DiagnosedProgram(
            "healthy training with checkpoints",
            (),
            training(f"{usual} --checkpoint {folder}/model.pt --checkpoint-every 100"),
        ),
    ]


class ProgramLab:
    """A running lab (cluster of emulated nodes) in which the benchmark runs and diagnoses programs.

    Args:
        lab: the lab.
    """

    def __init__(self, lab: Lab) -> None:
        self.environment = {**os.environ, **lab.environment(), "PYTHONPATH": str(PROGRAM.parent.parent)}
        self.environment.pop("OMP_NUM_THREADS", None)

    def run(self, *argv: str, check: bool = True, timeout_s: float = 60) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(argv)}: {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def job(self, program: DiagnosedProgram, log: Path) -> str:
        """Run a job to its end and return its id."""
        options = ["--exclusive", "--energy-signals=1s", "--time=5", f"--job-name={log.stem}"]
        if "interactive" in program.options:
            argv = ["salloc", *options, "bash", "-c", f'{program.command}; echo "$SLURM_JOB_ID" > {log}']
            self.run(*argv, timeout_s=300)
            return log.read_text().strip()
        output = (f"--output={log}", "--parsable")
        argv = ["sbatch", *options, *output, *program.options, "--wrap", program.command]
        job_id = self.run(*argv).strip()
        deadline = time.monotonic() + 400
        while self.run("squeue", "--noheader", "--format=%i").strip():
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {job_id} has not ended after 400 s")
            time.sleep(0.5)
        return job_id

    def diagnosis(self, job_id: str) -> dict[str, Any]:
        """Return the diagnosis of a job that has ended, as soon as its observation has arrived."""
        deadline = time.monotonic() + 60
        while True:
            text = self.run("senergy", "diagnose", job_id, "--json", check=time.monotonic() > deadline)
            result = json.loads(text) if text else {}
            if result and result["summary"]["signals"] and result["job"]["state"] in _FINAL:
                return dict(result)
            if time.monotonic() > deadline:
                raise RuntimeError(f"job {job_id}: no signals and state arrived within 60 s")
            time.sleep(1)


def evaluate(
    name: str, selected: list[DiagnosedProgram], lab: ProgramLab, folder: Path, only: str | None
) -> list[dict[str, Any]]:
    """Run and diagnose the test programs of one set (half), and print a table row for each program."""
    print(
        f"\nhalf {name}\n\n| program | planted cause | findings, first to last | right |\n|---|---|---|---|"
    )
    rows = []
    for number, program in enumerate(selected):
        if only and not re.search(only, program.name):
            continue
        log = folder / f"{name}-{number}.log"
        job_id = lab.job(program, log)
        diagnosis = lab.diagnosis(job_id)
        found = [finding["kind"] for finding in diagnosis["findings"]]
        is_right = (
            found[0] in program.expected if program.expected and found else found == list(program.expected)
        )
        rows.append(
            {
                "half": name,
                "program": program.name,
                "expected": program.expected,
                "findings": found,
                "right": is_right,
                "diagnosis": diagnosis,
                "output": log.read_text()[-2000:],
            }
        )
        expected, listed = (" or ".join(kinds) or "none" for kinds in (program.expected, found))
        print(f"| {program.name} | {expected} | {listed} | {'yes' if is_right else 'no'} |", flush=True)
    return rows


def claims_of(name: str, rows: list[dict[str, Any]]) -> Iterator[Claim]:
    planted = [row["right"] for row in rows if row["expected"]]
    healthy = [row["right"] for row in rows if not row["expected"]]
    if planted:
        yield at_least(f"program_cause_first_{name}", sum(planted) / len(planted), 0.9)
    if healthy:
        yield at_most(f"program_false_findings_{name}", 1 - sum(healthy) / len(healthy), 0.1)


def set_disk(reads_per_s: int) -> None:
    """Limit the read operations per second on the disk of the temporary folder.

    The limit applies to the processes in the control group.
    """
    device = Path(tempfile.gettempdir()).stat().st_dev
    line = f"{os.major(device)}:{os.minor(device)} {reads_per_s}"
    (SLOW_DISK / "blkio.throttle.read_iops_device").write_text(line)


def write_data(path: Path) -> None:
    """Write a file of random data that is on the disk but not in the page cache."""
    with path.open("wb") as file:
        file.write(os.urandom(DATA_MIB << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def running_lab() -> Iterator[tuple[ProgramLab, Path]]:
    """Context manager that yields a lab and a folder with data that are not in the page cache."""
    nodes = (nodes_file.NodeSpec("n1", "xeon-8358", overrides=NODE),)
    energy: Mapping[str, Any] = {"diagnosis": {"thresholds": THRESHOLDS}}
    with tempfile.TemporaryDirectory(prefix="senergy-programs-") as name:
        folder = Path(name)
        write_data(folder / "data")
        SLOW_DISK.mkdir(exist_ok=True)
        place = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-lab-"))
        try:
            spec = LabSpec(nodes, energy=energy, accounting=False, cpu_share=CPU_SHARE)
            yield ProgramLab(lifecycle.up(place, spec)), folder
        finally:
            lifecycle.down(place)
            SLOW_DISK.rmdir()


def missing_requirement() -> str | None:
    """Return what this machine lacks to run the benchmark; None if it lacks nothing."""
    if os.geteuid():
        return "it needs root"
    if not (SLOW_DISK.parent / "blkio.throttle.read_iops_device").exists():
        return f"the slow disk needs the blkio controller of control groups, version 1, at {SLOW_DISK.parent}"
    if PYTHON is None:
        return "no interpreter has PyTorch: install python3-torch"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all")
    parser.add_argument("--only", metavar="PATTERN", help="only programs whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write all diagnoses to a file")
    args = parser.parse_args()
    if (missing := missing_requirement()) is not None:
        print(f"diagnosis_programs.py: {missing}", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    with running_lab() as (lab, folder):
        for name in HALVES if args.half == "all" else (args.half,):
            set_disk(HALVES[name].reads_per_s)
            found = evaluate(name, programs(HALVES[name], folder), lab, folder, args.only)
            rows += found
            claims += claims_of(name, found)
    if args.details:
        Path(args.details).write_text(json.dumps(rows, indent=1) + "\n")
    return publish(claims, args.json)


if __name__ == "__main__":
    sys.exit(main())
