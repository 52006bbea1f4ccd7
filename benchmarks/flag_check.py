"""Benchmark of the time that slurm-energy adds to the submission of a job.

    python benchmarks/flag_check.py [--json FILE] [--rounds N]

At each submission, slurm-energy reads the policy file and checks the energy flags of the job. The benchmark
measures both in a new process, as sbatch does: a small C program calls the functions of energy.so
(spank/policies.c, flags.c). The policy file of senergyctld is missing, so the program reads the copy beside
the agent's socket. This copy has six policies, or it is the longest one that readers accept.

Prints `CLAIM flag_check ratio=... target=<=0.05 holds=yes|no`. The ratio is the median time with the longest
copy, divided by 50 ms. Slurm may wait 50 ms for slurm-energy.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from claims import at_most, publish

SPANK = Path(__file__).parents[1] / "spank"
LIMIT_MS, TARGET = 50.0, 0.05
MAX_BYTES = 64 * 1024
PROGRAM = r"""
#include "flags.h"
#include <stdio.h>
#include <time.h>
static struct policy_file file;
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
int main(int count, char *paths[]) {
    char normal[FLAG_VALUE_MAX + 1], message[FLAG_MESSAGE_MAX + 1];
    double begin = now_ms();
    for (int i = 1; i < count; i++)
        policies_load(&file, paths[i]);
    bool good = flag_check(FLAG_POLICY, "last", &file, "alice", normal, message) &
                flag_check(FLAG_CAP, "300", &file, "alice", normal, message);
    bool bad = flag_check(FLAG_POLICY, "lasst", &file, "alice", normal, message);
    printf("%d %d %d %.6f\n", file.present, good, bad, now_ms() - begin);
}
"""


def main() -> int:
    """Measure the time that the check of the energy flags takes, and print the result.

    The time with the longest policy file is compared with a target. The comparison can also be written to a
    JSON file.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the claim to FILE as JSON")
    parser.add_argument("--rounds", type=int, default=300, help="submissions (default 300)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = _built(folder)
        short_ms = _measure(program, folder, _copy(folder, 6), args.rounds)
        longest_ms = _measure(program, folder, _copy(folder, None), args.rounds)
    claim = at_most("flag_check", longest_ms / LIMIT_MS, TARGET) | {"median_of_short_copy_ms": short_ms}
    return publish([claim], args.json)


def _measure(program: Path, folder: Path, copy: Path, rounds: int) -> float:
    """Check the energy flags of a submission `rounds` times.

    Return the median time of a check in milliseconds.
    """
    times_ms = []
    for _ in range(rounds):
        command = [str(program), str(folder / "absent"), str(copy)]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        if words[:3] != ["1", "1", "0"]:
            raise SystemExit(f"flag_check: the flags were judged wrongly: {words}")
        times_ms.append(float(words[3]))
    median_ms, tail_ms = statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]
    size = copy.stat().st_size
    print(f"{rounds} submissions, copy of {size} bytes: median {median_ms:.3f} ms, 99 % {tail_ms:.3f} ms")
    return median_ms


def _built(folder: Path) -> Path:
    source, program = folder / "check.c", folder / "check"
    source.write_text(PROGRAM)
    parts = [
        SPANK / f"{part}.c"
        for part in ("flags", "flag_numbers", "flag_policy", "flag_words", "line", "policies", "decimal")
    ]
    command = [
        "gcc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O2",
        f"-I{SPANK}",
        "-o",
        str(program),
        str(source),
        *map(str, parts),
    ]
    subprocess.run(command, check=True)
    return program


def _copy(folder: Path, policies: int | None) -> Path:
    """Write a policy file for the benchmark, and return its path.

    The benchmark requests the last policy in the file.

    Args:
        folder: directory of the file.
        policies: number of policies in the file; None means as many as a reader of the file accepts.
    """
    head = "senergy-policies 1\ncap_watts 100 10000\n"
    tail = f"policy last users=alice\nissued 1\nfresh-until {time.time() + 900:.0f}\n"
    size, lines = len(head) + len(tail), list[str]()
    while len(lines) + 1 != policies:
        line = f"policy p{len(lines)} users=bob,carol,dave needs-cap\n"
        size += len(line)
        if size > MAX_BYTES:
            break
        lines.append(line)
    path = folder / "policies"
    path.write_text(head + "".join(lines) + tail)
    return path


if __name__ == "__main__":
    sys.exit(main())
