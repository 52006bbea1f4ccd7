"""Real PyTorch programs that the halves of diagnosis_programs.py do not contain.

The lab and the rating are those of diagnosis_programs.py. The programs were defined before their first run.

Prints a table, `CLAIM program_cause_first_unusual ratio=... target=>=0.9` and
`CLAIM program_false_findings_unusual ratio=... target=<=0.1`. Needs root, and PyTorch for /usr/bin/python3
(Debian: python3-torch).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from claims import publish
from diagnosis_programs import (
    CPUS,
    PROGRAM,
    PYTHON,
    DiagnosedProgram,
    claims_of,
    evaluate,
    missing_requirement,
    running_lab,
)

SECONDS = 24
MODEL = "--model convolution --width 16 --batch 64"


def unusual_programs(folder: Path) -> list[DiagnosedProgram]:
    """Return the programs. `folder` holds their checkpoints."""

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", help="only programs whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--details", metavar="FILE", help="write all diagnoses to a file")
    args = parser.parse_args()
    if (missing := missing_requirement()) is not None:
        print(f"diagnosis_unusual_programs.py: {missing}", file=sys.stderr)
        return 1
    with running_lab() as (lab, folder):
        rows = evaluate("unusual", unusual_programs(folder), lab, folder, args.only)
    if args.details:
        Path(args.details).write_text(json.dumps(rows, indent=1) + "\n")
    return publish(list(claims_of("unusual", rows)), args.json)


if __name__ == "__main__":
    sys.exit(main())
