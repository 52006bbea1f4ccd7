"""Benchmark of `senergy timeline` for a job with 64 ranks and 10 million events.

The benchmark measures time, memory and output size. It generates the event files of a job of one hour
on 8 nodes with 8 GPUs each. The steps of the job consist of the phases data, copy, forward, backward,
communication and optimizer. Then `senergy timeline` writes the trace and the page in a separate
process, whose maximum resident memory is measured. For comparison, the benchmark measures how fast
the disk and gzip alone process the same bytes. No program could write the output faster.

The benchmark prints `CLAIM timeline_*` with three ratios: run time divided by 60 s, resident memory
divided by 1 GB, and size of the page divided by 5 MB. --keep keeps the files in a directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import Claim, at_most, publish

from slurm_energy.diagnosis.event_format import (
    GPU_THREAD,
    INTERVAL,
    EventFileHeader,
    encode_header,
    encode_records,
)

PHASES = ("data", "copy", "forward", "backward", "communication", "optimizer", "step")
SHARES = (0.1, 0.03, 0.27, 0.4, 0.1, 0.1)
START_NS = 1_795_000_000 * 10**9
CHUNK = 65_536
_RUN = """
import json, resource, sys
from slurm_energy.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]), file=sys.stderr)
sys.exit(code)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000, help="events of all ranks")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3600.0, help="duration of the job")
    parser.add_argument("--keep", type=Path, help="directory for the files (default: a temporary one)")
    parser.add_argument("--plain", action="store_true", help="write .json instead of .json.gz")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeline.")))
        events = folder / "events"
        events.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        for rank in range(args.ranks):
            write_rank(events, rank, args.events // args.ranks, args.seconds)
        print(f"generated in {time.perf_counter() - began:.1f} s", flush=True)
        return publish(measure(folder, events, args.plain), args.json)


def write_rank(folder: Path, rank: int, count: int, seconds: float) -> None:
    """Write the event file of one rank: steps of equal work with random durations; rank 3 is slow."""
    step_ns = int(seconds * 1e9 / (count / len(PHASES)))
    header = EventFileHeader(
        node=f"n{rank // 8 + 1}",
        pid=4000 + rank,
        unix_offset_ns=START_NS - 10**15 - rank // 8 * 10**9,
        job_id=12,
        rank=rank,
        gpu=f"gpu[{rank % 8}]",
        names=PHASES,
        capacity=max(count, CHUNK),
        written=count,
    )
    with (folder / f"rank{rank}.events").open("wb") as file:
        file.write(encode_header(header))
        written = 0
        records = []
        for record in steps(rank, step_ns, 10**15 + rank // 8 * 10**9):
            records.append(record)
            if len(records) == CHUNK or written + len(records) == count:
                file.write(encode_records(records, written, header.capacity))
                written += len(records)
                records = []
                if written == count:
                    return


def steps(rank: int, step_ns: int, at_ns: int) -> Iterator[tuple[int, int, float, int, int, int]]:
    """Yield the event records of an endless sequence of training steps, ordered by end time."""
    rng = random.Random(rank)
    nan = float("nan")
    while True:
        start_ns = at_ns
        slowness = 1.0 if rank != 3 else 1.15
        for phase, share in enumerate(SHARES):
            duration_ns = int(step_ns * share * rng.uniform(0.7, 0.97) * slowness)
            thread = GPU_THREAD if PHASES[phase] == "copy" else 0
            yield at_ns, duration_ns, nan, phase, thread, INTERVAL
            at_ns += duration_ns
        yield start_ns, at_ns - start_ns, 32.0, len(PHASES) - 1, 0, INTERVAL
        at_ns = max(at_ns, start_ns + int(0.999 * step_ns))


def measure(folder: Path, events: Path, plain: bool) -> Iterator[Claim]:
    """Run `senergy timeline` on the generated events, and yield the checks of the targets.

    The speed of disk and gzip on the same bytes is printed for comparison.
    """
    trace, page = folder / ("timeline.json" if plain else "timeline.json.gz"), folder / "timeline.html"
    began = time.perf_counter()
    command = ["timeline", "12", str(events), "--offline", "--force", "-o", str(trace), "--html", str(page)]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *command, "--json"], capture_output=True, text=True, check=True
    )
    elapsed_s = time.perf_counter() - began
    report: dict[str, Any] = json.loads(done.stdout)
    resident, cpu_s = json.loads(done.stderr.splitlines()[-1])
    input_bytes = sum(path.stat().st_size for path in events.iterdir())
    print(f"{report['events']:,} events of {len(report['files'])} files, {input_bytes / 1e6:.0f} MB read")
    print(f"{trace.stat().st_size / 1e6:.0f} MB trace, {page.stat().st_size / 1e6:.2f} MB page")
    rate = report["events"] / elapsed_s / 1e6
    print(f"{elapsed_s:.1f} s, {cpu_s:.1f} s of CPU time, load of the machine {os.getloadavg()[0]:.1f}")
    print(f"{rate:.2f} million events/s, {resident / 1e6:.0f} MB of memory")
    _print_bounds(folder, trace)
    yield at_most("timeline_seconds", elapsed_s / 60, 1)
    yield at_most("timeline_memory", resident / 1e9, 1)
    yield at_most("timeline_page", page.stat().st_size / 5e6, 1)


def _print_bounds(folder: Path, trace: Path) -> None:
    """Print the speed of the disk and of gzip alone, as upper bounds for the speed of a conversion."""
    data = trace.read_bytes()[: 256 << 20]
    content = data
    if trace.suffix == ".gz":
        content = zlib.decompressobj(wbits=31).decompress(data, 256 << 20)
    began = time.perf_counter()
    zlib.compress(content, 1)
    rate = len(content) / (time.perf_counter() - began) / 1e6
    print(f"gzip alone: {rate:.0f} MB/s of {len(content) / 1e6:.0f} MB")
    probe = folder / "probe"
    began = time.perf_counter()
    with probe.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    print(
        f"disk alone, with fsync: {len(content) / (time.perf_counter() - began) / 1e6:.0f} MB/s", flush=True
    )
    probe.unlink()


if __name__ == "__main__":
    sys.exit(main())
