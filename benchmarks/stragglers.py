"""Precision and recall of the straggler rule on 21,000 synthetic tasks with 724 stragglers.

The rule calls a task a straggler if it takes longer than a multiple of the median of its job's tasks. Prints
a table for multiples from 1.2 to 2.0, and `CLAIM straggler_f1 ratio=... target=>=0.8 holds=yes|no`: the best
F1 score.
"""

from __future__ import annotations

import argparse
import sys

from claims import at_least, publish

from slurm_energy_lab.diagnosis_corpus.straggler_tasks import score, task_groups

THRESHOLDS = (1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0)
TARGET_F1 = 0.8


def table(seed: int) -> list[str]:
    groups = task_groups(seed)
    lines = ["| threshold | precision | recall | F1 |", "|---|---|---|---|"]
    for threshold in THRESHOLDS:
        one = score(groups, threshold)
        lines.append(f"| {threshold:.1f} | {one.precision:.3f} | {one.recall:.3f} | {one.f1:.3f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=724, help="seed of the tasks")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    args = parser.parse_args()
    print("\n".join(table(args.seed)))
    groups = task_groups(args.seed)
    best = max(score(groups, threshold).f1 for threshold in THRESHOLDS)
    return publish([at_least("straggler_f1", best, TARGET_F1)], args.json)


if __name__ == "__main__":
    sys.exit(main())
