"""A simulated day of senergyd: checks that the daemon loses no record, memory or descriptor.

The benchmark runs the agent's job manager (sampler, ledger, traces, journal, spool) with a
virtual clock. Files emulate the counters and control groups of a node. The agent takes a
sample per second, jobs share the node, and records are delivered every ten minutes. Neither
sockets nor hardware are used, so root is not needed. 24 hours with 2,000 jobs take about a
minute.

Prints four `CLAIM` lines with these ratios:
- `soak_memory`: growth of the maximum resident memory after the first hour, in MB; target at
  most 1;
- `soak_descriptors`: maximum number of descriptors over the number after the first hour;
  target at most 1;
- `soak_records`: share of jobs and steps with exactly one record; target exactly 1;
- `soak_energy`: microjoules in the node's energy accounts over the microjoules that the
  counters counted; target exactly 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from claims import Claim, claim, publish

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from soaking import Soak, SoakResult  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=int, default=24, help="simulated hours, at least 2 (default 24)")
    parser.add_argument("--jobs", type=int, default=2000, help="jobs (default 2000)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    logging.getLogger("slurm_energy").setLevel(logging.ERROR)
    memory = Path("/dev/shm")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        result = Soak(Path(folder), arguments.hours, arguments.jobs).run()
    print(f"{arguments.hours} h and {arguments.jobs} jobs in {time.monotonic() - start:.0f} s")
    print("MB resident after each hour:", " ".join(f"{size / 1e6:.2f}" for size in result.memory_bytes))
    claims = evaluate(result)
    return publish(claims, arguments.json)


def evaluate(result: SoakResult) -> list[Claim]:
    growth_mb = result.growth_bytes / 1e6
    descriptors = max(result.descriptors) / result.descriptors[0]
    counted = [*result.records[1:], *result.steps[1:]]
    once = sum(count == 1 for count in counted) / len(counted)
    exact = result.energy_uj == result.measured_uj == result.charged_uj
    return [
        claim("soak_memory", growth_mb, "<=1", growth_mb <= 1),
        claim("soak_descriptors", descriptors, "<=1", descriptors <= 1),
        claim("soak_records", once, "1", result.complete),
        claim("soak_energy", result.charged_uj / result.energy_uj, "1", exact),
    ]


if __name__ == "__main__":
    sys.exit(main())
