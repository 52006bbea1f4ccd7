"""Accuracy of the diagnosis on unusual PyTorch programs with a known cause of waste.

The benchmark diagnosis_programs.py does the same for common programs. Both benchmarks use the same
lab (cluster of emulated nodes) and the same rating. There are two lists of programs here. Both lists
were written before the first run of their programs. After the results on list 1, the rules of the
diagnosis were changed.

The benchmark prints a table and two checks of targets per list. For list 1 these are `CLAIM
program_cause_first_unusual1 ratio=... target=>=0.9` and `CLAIM program_false_findings_unusual1
ratio=... target=<=0.1`. For list 2 the names end in 2. Needs root, and PyTorch for this interpreter
or for /usr/bin/python3 (Debian: python3-torch).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from claims import publish
from diagnosis_programs import (
    CPUS,
    PROGRAM,
    PYTHON,
    SLOW_DISK,
    DiagnosedProgram,
    claims_of,
    evaluate,
    missing_requirement,
    running_lab,
    set_disk,
)

SECONDS = 24
MODEL = "--model convolution --width 16 --batch 64"


SHORT_S = 14
"""Duration of the programs of the second list."""
SMALL_FILES, SMALL_FILE_BYTES, READS_PER_S = 1000, 6000, 300


def unusual_programs(folder: Path) -> list[DiagnosedProgram]:
    """Return the unusual programs that the benchmark diagnoses. `folder` stores their checkpoints."""

    def training(options: str, seconds: int = SECONDS, launch: str = "") -> str:
        return f"{launch}{PYTHON} {PROGRAM} --seconds {seconds} {options}"

    two_ranks, launch = ("--ntasks=2", f"--cpus-per-task={CPUS // 2}"), f"srun -n2 -c{CPUS // 2} "
    widths = (8, 12, 20)
    large = f"--model perceptron --width 2200 --batch 512 --checkpoint {folder}/model.pt --checkpoint-every 3"
    return [
        DiagnosedProgram(
            "loader that starts in each epoch",
            ("data-stall",),
            training(f"{MODEL} --workers 4 --epoch-steps 5"),
        ),
        DiagnosedProgram(
            "input that comes late in bursts",
            ("data-stall", "iteration-outliers"),
            training(f"{MODEL} --burst-every 640 --burst-ms 2500"),
        ),
        DiagnosedProgram(
            "uneven accumulation",
            ("load-imbalance", "straggler"),
            training(f"{MODEL} --slow-batch 128", launch=launch),
            two_ranks,
        ),
        DiagnosedProgram("rare checkpoints of a large model", ("checkpoint-stall",), training(large)),
        DiagnosedProgram(
            "time limit without checkpoint",
            ("unfinished-work",),
            training(MODEL, 300),
            ("--time=1",),
        ),
        DiagnosedProgram("evaluation only", (), training(f"{MODEL} --evaluate")),
        DiagnosedProgram(
            "parameter search",
            (),
            "; ".join(
                training(f"--model convolution --width {width} --batch 64", SECONDS // len(widths))
                for width in widths
            ),
        ),
        DiagnosedProgram("compilation in the first step", (), training(f"{MODEL} --first-step-s 4")),
    ]


def more_unusual_programs(folder: Path) -> list[DiagnosedProgram]:
    """Return the programs of list 2 of the benchmark, which diagnoses unusual programs.

    `folder` holds the files of the programs.
    """

    def training(options: str, launch: str = "") -> str:
        return f"{launch}{PYTHON} {PROGRAM} --seconds {SHORT_S} {options}"

    model = "--model recurrent --width 56 --batch 40"
    two_ranks, launch = ("--ntasks=2", f"--cpus-per-task={CPUS // 2}"), f"srun -n2 -c{CPUS // 2} "
    files = f"--files {small_files(folder)} --workers 1 --control-group {SLOW_DISK}/cgroup.procs"
    saved = f"--checkpoint {folder}/model.pt"
    compress = "import time, zlib; end = time.monotonic() + 15; data = bytes(range(256)) * 4000\n"
    compress += "while time.monotonic() < end: zlib.compress(data)"
    return [
        DiagnosedProgram("many small files", ("data-stall-io",), training(f"{model} {files}")),
        DiagnosedProgram(
            "batches built in the main process",
            ("data-stall-cpu",),
            training(f"{model} --workers 0 --collate-ms 60"),
        ),
        DiagnosedProgram(
            "storage behind a slow network",
            ("data-stall", "data-stall-io"),
            training(f"{model} --workers 2 --latency-ms 5"),
        ),
        DiagnosedProgram(
            "eight threads for each of two ranks",
            ("cpu-contention",),
            training("--model perceptron --width 1500 --batch 200 --threads 8", launch),
            two_ranks,
        ),
        DiagnosedProgram(
            "checkpoint in every sixth step",
            ("checkpoint-stall",),
            training(f"--model perceptron --width 1600 --batch 64 {saved} --checkpoint-every 6"),
        ),
        DiagnosedProgram(
            "program that waits for ever",
            ("hang", "idle-tail", "idle-allocation"),
            training(f"{model} --hang-at 300"),
            ("--time=1",),
        ),
        DiagnosedProgram("missing file", ("early-failure",), training(f"{model} --files {folder}/missing")),
        DiagnosedProgram("almost even ranks", (), training(f"{model} --slow-batch 42", launch), two_ranks),
        DiagnosedProgram(
            "evaluation after each epoch",
            (),
            training(f"{model} --epoch-steps 100 --persistent --evaluate-every 100"),
        ),
        DiagnosedProgram("two threads and two workers", (), training(f"{model} --threads 2 --workers 2")),
        DiagnosedProgram(
            "compression of files by two processes",
            (),
            f"for part in 1 2; do {PYTHON} -c {shlex.quote(compress)} & done; wait",
        ),
    ]


def small_files(folder: Path) -> Path:
    """Write many small files that are on the disk but not in the page cache.

    Return the folder that contains them.
    """
    files = folder / "files"
    files.mkdir()
    for number in range(SMALL_FILES):
        with (files / f"{number:05}").open("wb") as file:
            file.write(os.urandom(SMALL_FILE_BYTES))
            file.flush()
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return files


LISTS = {1: unusual_programs, 2: more_unusual_programs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", type=int, choices=LISTS, default=1, help="list of programs")
    parser.add_argument("--only", metavar="PATTERN", help="only programs whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write all diagnoses to a file")
    args = parser.parse_args()
    if (missing := missing_requirement()) is not None:
        print(f"diagnosis_unusual_programs.py: {missing}", file=sys.stderr)
        return 1
    name = f"unusual{args.list}"
    with running_lab() as (lab, folder):
        set_disk(READS_PER_S)
        rows = evaluate(name, LISTS[args.list](folder), lab, folder, args.only)
    if args.details:
        Path(args.details).write_text(json.dumps(rows, indent=1) + "\n")
    return publish(list(claims_of(name, rows)), args.json)


if __name__ == "__main__":
    sys.exit(main())
