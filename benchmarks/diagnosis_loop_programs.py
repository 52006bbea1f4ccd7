"""Test of the whole loop of diagnosis: advice, adjusted runs and verification.

The programs are real PyTorch programs in a lab. They are variants of training_program.py that take values
from `slurm_energy.adjusted`, see diagnosis_programs.py. Each program first runs twice as a job without
adjustment. `senergy diagnose --apply` then applies the advice. Further runs follow until senergyctld keeps
or undoes the advice. The programs take turns. Each program has one cause of lost time that can be shown on
CPUs (diagnosis_loop_cases.py). For two programs the advice does not help. In the first one, a lock lets only
one worker at a time prepare a sample. In the second one, a checkpoint holds all results since the last
checkpoint.

The benchmark prints a table with predicted and measured changes, `CLAIM program_loop_improved_H ratio=...
target=>=0.8` and `CLAIM program_loop_undone_H ratio=... target=>=1`. H is the half (set of
parameters) that was run. The benchmark needs root, and PyTorch for this interpreter or for /usr/bin/python3
(Debian: python3-torch).
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
from pathlib import Path
from typing import Any

from claims import Claim, at_least, publish
from diagnosis_loop_cases import HALVES, LoopCase, loop_cases
from diagnosis_programs import (
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

RUNS_BEFORE, MAX_ROUNDS = 2, 11
DECISION_S = 180.0
CPUS = 2
"""CPUs of the emulated node. The machine needs as many."""
NODE = {
    "cpu.packages": 1,
    "cpu.cores_per_package": CPUS,
    "cpu.threads_per_core": 1,
    "cpu.numa_nodes": 1,
    "cpu.turbo_bins": [[CPUS, 3400000]],
}


class PlayedCase:
    """A test program that is diagnosed, adjusted and verified in the lab.

    The program has a deliberate cause of lost time (planted cause), which the diagnosis must find.

    Args:
        case: description of the program and of its planted cause.
        seconds: duration of its training in each run.
    """

    def __init__(self, case: LoopCase, seconds: int) -> None:
        launch = ""
        options: tuple[str, ...] = ()
        if case.ranks > 1:
            cpus = CPUS // case.ranks
            launch = f"srun -n{case.ranks} -c{cpus} "
            options = (f"--ntasks={case.ranks}", f"--cpus-per-task={cpus}")
        command = f"{launch}{PYTHON} {PROGRAM} --adjusted --seconds {seconds} {case.options}"
        self.case = case
        self._program = DiagnosedProgram(case.name, (), command, options)
        self._jobs: list[str] = []
        self._runs_after = 0
        self.trial: dict[str, Any] = {"state": "none", "decision": None}
        self.findings = ""

    @property
    def is_pending(self) -> bool:
        """Whether senergyctld has not yet decided the trial of an adjustment and waits for further runs."""
        return bool(self.trial["state"] == "pending")

    @property
    def is_right(self) -> bool:
        """Whether the trial of the advice has ended with the decision that is right for this program."""
        return bool(self.trial["state"] == self.case.expected)

    def run(self, lab: ProgramLab, folder: Path) -> None:
        """Run the program once."""
        log = folder / f"{self.case.name.replace(' ', '-')}-{len(self._jobs)}.log"
        self._jobs.append(lab.job(self._program, log))
        self._runs_after += self.is_pending

    def apply(self, lab: ProgramLab) -> None:
        """Apply the advice of the diagnosis about the last run.

        If the application starts a trial (a check of the advice in the next runs), the trial is stored.
        """
        diagnosis = lab.diagnosis(self._jobs[-1])
        self.findings = ", ".join(finding["kind"] for finding in diagnosis["findings"])
        permit = ("--permit", self.case.permission)
        lab.run("senergy", "diagnose", self._jobs[-1], "--apply", *permit, check=False)
        if trials := self._trials(lab):
            self.trial = trials[-1]

    def await_decision(self, lab: ProgramLab) -> None:
        """Wait until senergyctld has decided whether the advice of the diagnosis helps the program.

        The wait also ends if all runs of the program have been compared or the time is over.
        """
        deadline = time.monotonic() + DECISION_S
        while self.is_pending:
            self.trial = self._trials(lab)[-1]
            compared = len(self.trial["after"]) + self.trial["controls"]
            if compared >= self._runs_after or time.monotonic() > deadline:
                return
            time.sleep(2)

    def row(self) -> str:
        """Return one row of the result table as Markdown: a program, its trial and the decision."""
        trial, decision = self.trial, self.trial["decision"] or {}
        if trial["state"] == "none":
            return f"| {self.case.name} | none | | | | | findings: {self.findings or 'none'} |"
        values = ", ".join(f"{one['kind']} {one['new']}" for one in trial["adjustments"])
        predicted = [percent(trial.get(f"predicted_{one}_ratio")) for one in ("time", "energy")]
        measured = [percent(decision.get(f"measured_{one}_ratio")) for one in ("time", "energy")]
        runs = f"{len(trial['before'])}, {len(trial['after'])}"
        noise = decision.get("noise")
        error = "unknown" if noise is None else f"{100 * noise:.0f} %"
        cells = (self.case.name, values, ", ".join(predicted), ", ".join(measured), error, runs)
        return f"| {' | '.join(cells)} | {trial['state']}: {decision.get('reason')} |"

    def _trials(self, lab: ProgramLab) -> list[dict[str, Any]]:
        answer = json.loads(lab.run("senergy", "diagnose", self._jobs[-1], "--adjustments", "--json"))
        return list(answer["trials"])


def percent(ratio: float | None) -> str:
    """Return a ratio as a change in percent."""
    return "unknown" if ratio is None else f"{100 * (ratio - 1):+.0f} %"


def play(lab: ProgramLab, cases: list[LoopCase], folder: Path, seconds: int, rounds: int) -> list[PlayedCase]:
    """Run and diagnose all programs of the benchmark, and apply the advice to their next runs.

    The programs take turns. A phase in which the machine is slow therefore affects all programs alike.
    """
    played = [PlayedCase(case, seconds) for case in cases]
    for _ in range(RUNS_BEFORE):
        for one in played:
            one.run(lab, folder)
    for one in played:
        one.apply(lab)
        print(f"{one.case.name}: {one.findings}", file=sys.stderr, flush=True)
    for _ in range(rounds):
        pending = [one for one in played if one.is_pending]
        for one in pending:
            one.run(lab, folder)
        for one in pending:
            one.await_decision(lab)
            if not one.is_pending:
                print(one.row(), file=sys.stderr, flush=True)
    return played


@contextmanager
def running_lab(reads_per_s: int) -> Iterator[tuple[ProgramLab, Path]]:
    """Context manager that yields a running lab and the folder with the training data.

    The lab is a Slurm cluster with one emulated node. At the end, the lab is removed.
    """
    SLOW_DISK.mkdir(exist_ok=True)
    set_disk(reads_per_s)
    nodes = (nodes_file.NodeSpec("n1", "xeon-8358", overrides=NODE),)
    energy = {"diagnosis": {"thresholds": THRESHOLDS}, "controller": {"enrich_interval_s": 5.0}}
    place = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-lab-"))
    with tempfile.TemporaryDirectory(prefix="senergy-loop-") as name:
        write_data(Path(name) / "data")
        try:
            spec = LabSpec(nodes, energy=energy, accounting=False, cpu_share=float(CPUS))
            yield ProgramLab(lifecycle.up(place, spec)), Path(name)
        finally:
            lifecycle.down(place)
            SLOW_DISK.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--half", choices=tuple(HALVES), default="H")
    parser.add_argument("--seconds", type=int, default=10, help="duration of the training in each run")
    parser.add_argument("--rounds", type=int, default=MAX_ROUNDS, help="maximum runs after the advice")
    parser.add_argument("--only", metavar="PATTERN", default="", help="only programs whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write the trials to a file")
    args = parser.parse_args()
    if (missing := missing_requirement()) is not None:
        print(f"diagnosis_loop_programs.py: {missing}", file=sys.stderr)
        return 1
    half = HALVES[args.half]
    with running_lab(half.reads_per_s) as (lab, folder):
        selected = [case for case in loop_cases(half, folder) if re.search(args.only, case.name)]
        played = play(lab, selected, folder, args.seconds, args.rounds)
    print(
        "| program | adjustment | predicted time, energy | measured time, energy | noise | runs | decision |"
    )
    print("|---|---|---|---|---|---|---|")
    for one in played:
        print(one.row())
    if args.details:
        details = [one.trial | {"case": one.case.name, "findings": one.findings} for one in played]
        Path(args.details).write_text(json.dumps(details, indent=1) + "\n")
    return publish(list(claims_of(args.half, played)), args.json)


def claims_of(half: str, played: list[PlayedCase]) -> Iterator[Claim]:
    """Yield the claims of the benchmark about its two kinds of adjusted programs.

    A claim compares a share with its target. The first claim is about the share of programs that the
    adjustments improved. The second claim is about the share of useless adjustments that were undone.
    """
    helpful = [one.is_right for one in played if one.case.expected == "kept"]
    useless = [one.is_right for one in played if one.case.expected == "undone" and one.trial["decision"]]
    if helpful:
        yield at_least(f"program_loop_improved_{half}", sum(helpful) / len(helpful), 0.8)
    if useless:
        yield at_least(f"program_loop_undone_{half}", sum(useless) / len(useless), 1.0)


if __name__ == "__main__":
    sys.exit(main())
