"""The closed loop with real PyTorch programs in a lab: advice is applied, verified, kept or undone.

Programs of training_program.py that take values from `slurm_energy.adjusted` run as jobs of a lab, see
diagnosis_programs.py: two runs as they are, `senergy diagnose --apply`, and runs until senergyctld has
decided. Each program has one cause that can be shown on CPUs. In one of them a lock lets one worker prepare a
sample at a time, so that more workers do not help.

Prints a table with predicted and measured changes, and `CLAIM program_loop_right ratio=... target=>=1`.
Needs root, and PyTorch for /usr/bin/python3 (Debian: python3-torch).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import at_least, publish
from diagnosis_programs import (
    CPU_SHARE,
    CPUS,
    NODE,
    PROGRAM,
    PYTHON,
    SLOW_DISK,
    THRESHOLDS,
    DiagnosedProgram,
    ProgramLab,
    missing_requirement,
    set_disk,
    write_data,
)

from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.specification import LabSpec

RUNS_BEFORE, MAX_RUNS = 2, 3
READS_PER_S = 300
DECISION_S = 180.0


@dataclass(frozen=True)
class LoopCase:
    """A program and the decision that is right about its adjustment."""

    name: str
    permission: str
    options: str
    expected: str = "kept"
    ranks: int = 1


def cases(folder: Path) -> list[LoopCase]:
    """Return the programs."""
    (folder / "lock").touch()
    slow = "--model perceptron --width 256 --batch 32 --transform-ms 4 --workers 1"
    disk = f"--workers 2 --file {folder}/data --read-kib 32 --control-group {SLOW_DISK}/cgroup.procs"
    saved = f"--checkpoint {folder}/model.pt --checkpoint-every 1"
    return [
        LoopCase("too few workers", "workers=0..2", slow),
        LoopCase("workers that wait for a lock", "workers=0..2", f"{slow} --lock {folder}/lock", "undone"),
        LoopCase("slow disk", "stage-data", f"--model convolution --width 12 --batch 48 {disk}"),
        LoopCase("tiny batch", "batch-size=1..64", "--model perceptron --width 500 --batch 2 --workers 1"),
        LoopCase(
            "checkpoint in every step", "checkpoint-interval", f"--model perceptron --width 900 {saved}"
        ),
        LoopCase("uneven ranks", "balance", "--width 12 --batch 64 --slow-batch 320", ranks=2),
        LoopCase("slow exchange", "accumulation", "--model perceptron --width 1500 --batch 16", ranks=2),
    ]


def play(lab: ProgramLab, case: LoopCase, folder: Path, seconds: int) -> dict[str, Any]:
    """Run the loop for one program and return its last trial, or its findings if no advice can be applied."""
    launch = ""
    options: tuple[str, ...] = ()
    if case.ranks > 1:
        cpus = CPUS // case.ranks
        launch = f"srun -n{case.ranks} -c{cpus} "
        options = (f"--ntasks={case.ranks}", f"--cpus-per-task={cpus}")
    command = f"{launch}{PYTHON} {PROGRAM} --adjusted --seconds {seconds} {case.options}"
    program = DiagnosedProgram(case.name, (), command, options)
    for number in range(RUNS_BEFORE):
        job_id = lab.job(program, folder / f"before-{number}.log")
    diagnosis = lab.diagnosis(job_id)
    lab.run("senergy", "diagnose", job_id, "--apply", "--permit", case.permission, check=False)
    if not json.loads(lab.run("senergy", "diagnose", job_id, "--adjustments", "--json"))["trials"]:
        kinds = ", ".join(finding["kind"] for finding in diagnosis["findings"])
        reason = f"no adjustment proposed; findings: {kinds or 'none'}"
        return {"state": "none", "decision": {"reason": reason}}
    for number in range(MAX_RUNS):
        lab.job(program, folder / f"after-{number}.log")
        trial = decided(lab, job_id, number + 1)
        if trial["state"] != "pending":
            break
    return trial


def decided(lab: ProgramLab, job_id: str, runs: int) -> dict[str, Any]:
    """Return the last trial of a job's program, as soon as it covers some runs."""
    deadline = time.monotonic() + DECISION_S
    while True:
        answer = json.loads(lab.run("senergy", "diagnose", job_id, "--adjustments", "--json"))
        trial: dict[str, Any] = answer["trials"][-1]
        if trial["state"] != "pending" or len(trial["after"]) >= runs or time.monotonic() > deadline:
            return trial
        time.sleep(2)


@contextmanager
def running_lab() -> Iterator[tuple[ProgramLab, Path]]:
    """Context manager that yields a lab and a folder."""
    SLOW_DISK.mkdir(exist_ok=True)
    set_disk(READS_PER_S)
    nodes = (nodes_file.NodeSpec("n1", "xeon-8358", overrides=NODE),)
    energy = {"diagnosis": {"thresholds": THRESHOLDS}, "controller": {"enrich_interval_s": 5.0}}
    place = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-lab-"))
    with tempfile.TemporaryDirectory(prefix="senergy-loop-") as name:
        write_data(Path(name) / "data")
        try:
            spec = LabSpec(nodes, energy=energy, accounting=False, cpu_share=CPU_SHARE)
            yield ProgramLab(lifecycle.up(place, spec)), Path(name)
        finally:
            lifecycle.down(place)
            SLOW_DISK.rmdir()


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * (ratio - 1):+.0f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=22, help="duration of each run")
    parser.add_argument("--only", metavar="PATTERN", default="", help="only programs whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write the trials to a file")
    args = parser.parse_args()
    if (missing := missing_requirement()) is not None:
        print(f"diagnosis_loop_programs.py: {missing}", file=sys.stderr)
        return 1
    trials: list[dict[str, Any]] = []
    right = 0
    with running_lab() as (lab, folder):
        print("| program | predicted time, energy | measured time, energy | noise | decision |")
        print("|---|---|---|---|---|")
        selected = [case for case in cases(folder) if re.search(args.only, case.name)]
        for case in selected:
            trial = play(lab, case, folder, args.seconds)
            trials.append(trial | {"case": case.name})
            decision = trial["decision"] or {}
            right += trial["state"] == case.expected
            predicted = [percent(trial.get(f"predicted_{one}_ratio")) for one in ("time", "energy")]
            measured = [percent(decision.get(f"measured_{one}_ratio")) for one in ("time", "energy")]
            noise = decision.get("noise")
            cells = f"{', '.join(predicted)} | {', '.join(measured)} | {percent(noise and 1 + noise)}"
            print(f"| {case.name} | {cells} | {trial['state']}: {decision.get('reason')} |", flush=True)
    if args.details:
        Path(args.details).write_text(json.dumps(trials, indent=1) + "\n")
    return publish([at_least("program_loop_right", right / len(selected), 1.0)], args.json)


if __name__ == "__main__":
    sys.exit(main())
