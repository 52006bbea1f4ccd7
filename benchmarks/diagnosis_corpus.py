"""Benchmark of the diagnosis on synthetic jobs with planted causes, and on healthy jobs.

The benchmark counts how often the planted cause is the first finding, and how many healthy jobs get a
finding. The thresholds were chosen on the first half of the jobs (seeds 0 to 99). The second half (seeds
from 1000 on) was not used to choose them. With --unusual, the jobs are of additional kinds, which a review
proposed. The rules were changed on seeds 0 to 9 of these jobs.

The benchmark prints a table by kind of job for both halves. For each half it also prints `CLAIM
planted_cause_first ratio=... target=>=0.9` and `CLAIM false_findings ratio=... target=<=0.1`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from claims import Claim, at_least, at_most, publish

from slurm_energy_lab.diagnosis_corpus.healthy import HEALTHY
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED
from slurm_energy_lab.diagnosis_corpus.scores import Result, results
from slurm_energy_lab.diagnosis_corpus.unusual import UNUSUAL_HEALTHY, UNUSUAL_PLANTED


def report(name: str, half: Iterable[Result]) -> list[Claim]:
    """Print a table of the diagnosis results for one range of seeds, and compare them with targets.

    Return the results of the comparisons (claims).
    """
    right, total = Counter[str](), Counter[str]()
    wrong: dict[str, Counter[str]] = {}
    planted, healthy = [0, 0], [0, 0]
    for result in half:
        kind = result.job.name
        total[kind] += 1
        right[kind] += result.is_right
        counts = planted if result.job.expected else healthy
        counts[0] += result.is_right
        counts[1] += 1
        if not result.is_right:
            first = result.findings[0].value if result.findings else "none"
            wrong.setdefault(kind, Counter())[first] += 1
    print(f"\n{name}\n\n| job | right | other first findings |\n|---|---|---|")
    for kind, count in total.items():
        others = ", ".join(f"{other} {n}" for other, n in wrong.get(kind, Counter()).most_common())
        print(f"| {kind} | {right[kind]}/{count} | {others} |")
    print(flush=True)
    return [
        at_least(f"planted_cause_first {name}", planted[0] / planted[1], 0.9),
        at_most(f"false_findings {name}", 1 - healthy[0] / healthy[1], 0.1),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="jobs of each kind per half")
    parser.add_argument(
        "--second-half", type=int, default=2000, help="first seed of the second half, from 1000 on"
    )
    parser.add_argument("--first-half-only", action="store_true", help="only the seeds for choosing")
    parser.add_argument("--json", metavar="FILE", help="write the claims to a file")
    parser.add_argument("--unusual", action="store_true", help="jobs of a review instead of the corpus")
    args = parser.parse_args()
    jobs = (*UNUSUAL_PLANTED, *UNUSUAL_HEALTHY) if args.unusual else (*PLANTED, *HEALTHY)
    claims = report("seeds-from-0", results(range(args.seeds), jobs=jobs))
    if not args.first_half_only:
        first = max(1000, args.second_half)
        claims += report(f"seeds-from-{first}", results(range(first, first + args.seeds), jobs=jobs))
    return publish(claims, args.json)


if __name__ == "__main__":
    sys.exit(main())
