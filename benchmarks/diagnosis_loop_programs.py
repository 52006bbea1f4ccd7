"""The closed loop with real PyTorch programs in a lab: advice is applied, verified, kept or undone.

Programs of training_program.py that take their number of loader processes from `slurm_energy.adjusted` run
as jobs of a lab, see diagnosis_programs.py: two runs as they are, `senergy diagnose --apply`, and further
runs until senergyctld has decided. The first program has too few workers. In the second one a lock lets one
worker prepare a sample at a time, so that more of them do not help.

Prints a table with predicted and measured changes, and `CLAIM program_loop_right ratio=... target=>=1`.
Needs root, and PyTorch for /usr/bin/python3 (Debian: python3-torch).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import at_least, publish
from diagnosis_programs import CPU_SHARE, NODE, PROGRAM, PYTHON, THRESHOLDS, Program, ProgramLab

from slurm_energy_lab.cluster import layout, lifecycle, nodes_file
from slurm_energy_lab.cluster.specification import LabSpec

RUNS_BEFORE, MAX_RUNS = 2, 3
DECISION_S = 180.0


@dataclass(frozen=True)
class LoopCase:
    """A program and the decision that is right about its adjustment."""

    name: str
    options: str
    expected: str


def cases(folder: Path) -> list[LoopCase]:
    """Return the programs."""
    (folder / "lock").touch()
    slow = "--model perceptron --width 256 --batch 32 --transform-ms 4 --workers 1 --adjusted"
    return [
        LoopCase("too few workers", slow, "kept"),
        LoopCase("workers that wait for a lock", f"{slow} --lock {folder}/lock", "undone"),
    ]


def play(lab: ProgramLab, case: LoopCase, folder: Path, seconds: int) -> dict[str, Any]:
    """Run the loop for one program and return its last trial."""
    command = f"{PYTHON} {PROGRAM} --seconds {seconds} {case.options}"
    program = Program(case.name, (), command)
    for number in range(RUNS_BEFORE):
        job_id = lab.job(program, folder / f"before-{number}.log")
    lab.diagnosis(job_id)
    lab.run("senergy", "diagnose", job_id, "--apply", "--permit", "workers=0..2")
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
    nodes = (nodes_file.NodeSpec("n1", "xeon-8358", overrides=NODE),)
    energy = {"diagnosis": {"thresholds": THRESHOLDS}, "controller": {"enrich_interval_s": 5.0}}
    place = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-lab-"))
    with tempfile.TemporaryDirectory(prefix="senergy-loop-") as name:
        try:
            spec = LabSpec(nodes, energy=energy, accounting=False, cpu_share=CPU_SHARE)
            yield ProgramLab(lifecycle.up(place, spec)), Path(name)
        finally:
            lifecycle.down(place)


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * (ratio - 1):+.0f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=22, help="duration of each run")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write the trials to a file")
    args = parser.parse_args()
    trials: list[dict[str, Any]] = []
    right = 0
    with running_lab() as (lab, folder):
        print("| program | predicted time, energy | measured time, energy | noise | decision |")
        print("|---|---|---|---|---|")
        selected = cases(folder)
        for case in selected:
            trial = play(lab, case, folder, args.seconds)
            trials.append(trial | {"case": case.name})
            decision = trial["decision"] or {}
            right += trial["state"] == case.expected
            predicted = [percent(trial[f"predicted_{one}_ratio"]) for one in ("time", "energy")]
            measured = [percent(decision.get(f"measured_{one}_ratio")) for one in ("time", "energy")]
            noise = decision.get("noise")
            cells = f"{', '.join(predicted)} | {', '.join(measured)} | {percent(noise and 1 + noise)}"
            print(f"| {case.name} | {cells} | {trial['state']}: {decision.get('reason')} |", flush=True)
    if args.details:
        Path(args.details).write_text(json.dumps(trials, indent=1) + "\n")
    return publish([at_least("program_loop_right", right / len(selected), 1.0)], args.json)


if __name__ == "__main__":
    sys.exit(main())
