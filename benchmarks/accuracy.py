"""Accuracy of senergyd and other energy meters when energy counters wrap.

The benchmark uses one emulated node and one run. The node has one package of up to 400 W. Its RAPL counters
first have a range of 100 J, then of 400 J. Under load they wrap four times per second and once per second.
In a last part, the range is 5 J. This range is too small for every meter, so only senergyd is measured. The
load changes continuously between idle, half and full. Every tool measures a window at 1 and at 10 readings
per second. The value of `senergyd` comes from the record of a job. The values of the other tools come from
their own interface (peers.py).

The truth is the integral of the node's model. The exact time at which a tool reads its counters is unknown.
A value therefore counts as exact if it lies between two bounds. The lower bound is the energy from after the
start of the tool until before its end. The upper bound is the energy from before its start until after its
end. Each bound is extended by one step of the counters (1 ms at 400 W). `error` is the distance to the
nearer bound as a fraction of the truth. A tool that takes seconds to start could have read at any time
during these seconds. Its value is reported as `in +29%`, not as exact.

The benchmark prints a line per claim, such as `CLAIM wrap_100J_1Hz ratio=... target=0|uncertain
holds=yes|no`. The ratio is the error of senergyd for cpu or for dram, whichever is larger. The claim holds
if the ratio is 0, or if senergyd itself marked the time as uncertain. The benchmark needs root and
/dev/fuse. It takes about four minutes with all tools.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peers

RANGES_JOULES = (100.0, 400.0)
HOPELESS_JOULES = 5.0
"""Range that wraps 80 times per second under load: no agent reads as often, so senergyd must report it."""
RATES_HZ = (1.0, 10.0)
TOOLS = ("senergyd", "pyrapl", "pyjoules", "codecarbon", "zeus", "ea2p")
PROFILE = "xeon-8358"
MOST_WATTS = 400
_LIMITS = (
    f'[{{name="long_term",limit_watts={MOST_WATTS},window_s=0.999424,max_watts={MOST_WATTS},enabled=true}},'
    f'{{name="short_term",limit_watts={MOST_WATTS},window_s=0.007808,max_watts={MOST_WATTS},enabled=true}}]'
)
NODE = {
    "cpu.packages": "1",
    "cpu.numa_nodes": "1",
    "cpu.tdp_watts": str(MOST_WATTS),
    "cpu.core_dynamic_watts": "12.0",
    "rapl.constraints": _LIMITS,
}
CORES = 32
PHASES = ((0, 0.7), (CORES // 2, 1.1), (CORES, 1.6))
"""Phases of the load (busy cores, seconds at full speed), which are repeated."""
STEP_JOULES = 2 * MOST_WATTS * 0.001
"""Energy of one update interval: at both ends of a window, counters are up to a millisecond old."""
COMPONENTS = ("cpu", "dram")
MOST_SLACK = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one measurement tool at one counter range and one reading rate.

    Attributes:
        joules, truth_joules: measured and true joules by component.
        error: error by component, as a share of the true value. A negative error means that the tool
            measured too little; 0 means exact.
        slack: uncertainty of the true value by component: the distance between its two bounds, as a share of
            the true value.
        uncertain_share: share of the window that the tool marked as uncertain; None if it marks nothing.
        why_not: reason for missing values.
    """

    tool: str
    version: str
    range_joules: float
    rate_hz: float
    joules: dict[str, float]
    truth_joules: dict[str, float]
    error: dict[str, float]
    slack: dict[str, float]
    uncertain_share: float | None
    why_not: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window (default 10)")
    parser.add_argument(
        "--tools", nargs="+", choices=TOOLS, default=TOOLS, help="tools to measure (default all)"
    )
    parser.add_argument("--ea2p", metavar="PATH", help="checkout of EA2P, which is not on PyPI")
    parser.add_argument("--json", metavar="FILE", help="also write claims and rows as a list of objects")
    arguments = parser.parse_args()
    rows: list[Row] = []
    print(
        f"{'RANGE':>6} {'RATE':>6}  {'TOOL':<18} {'CPU J':>9} {'ERROR':>9} {'DRAM J':>9} {'ERROR':>9}  MARKED"
    )
    for range_joules in (*RANGES_JOULES, HOPELESS_JOULES):
        tools = arguments.tools if range_joules in RANGES_JOULES else ("senergyd",)
        settings = [part for key, value in NODE.items() for part in ("--set", f"{key}={value}")]
        with peers.start_node(PROFILE, *settings, "--counter-range", str(range_joules)) as node, load(node):
            for rate_hz in RATES_HZ:
                for tool in tools:
                    row = measure(node, tool, range_joules, rate_hz, arguments)
                    rows.append(row)
                    print(text(row), flush=True)
    claims = [claim(row) for row in rows if row.tool == "senergyd"]
    for entry in claims:
        holds = "yes" if entry["holds"] else "no"
        print(f"CLAIM {entry['claim']} ratio={entry['ratio']:.6g} target={entry['target']} holds={holds}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([*claims, *map(asdict, rows)], indent=2) + "\n")
    return 0 if all(entry["holds"] for entry in claims) else 1


@contextmanager
def load(node: Any) -> Iterator[None]:
    """Context manager that keeps the cores of an emulated node busy.

    The load changes periodically: phases with different numbers of busy cores follow each other.
    """
    from slurm_energy_lab import client

    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for cores, seconds in PHASES:
                if over.is_set():
                    return
                if cores:
                    client.run_kernel(node.socket, "gemm", cpus=list(range(cores)), full_speed_s=seconds)
                else:
                    time.sleep(seconds)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def measure(node: Any, tool: str, range_joules: float, rate_hz: float, arguments: argparse.Namespace) -> Row:
    """Measure the accuracy of one tool and return the result as a row of the table.

    If the tool cannot run, the row has no values.
    """
    try:
        window = peers.run(node, tool, arguments.seconds, 1 / rate_hz, arguments.ea2p)
    except peers.NotMeasuredError as error:
        return Row(tool, "", range_joules, rate_hz, {}, {}, {}, {}, None, str(error))
    measured = [name for name in COMPONENTS if name in window.joules]
    return Row(
        tool,
        window.version,
        range_joules,
        rate_hz,
        {name: window.joules[name] for name in measured},
        {name: window.truth_joules[name] for name in COMPONENTS},
        {name: deviation(window, name) for name in measured},
        {name: window.most_joules[name] / window.truth_joules[name] - 1 for name in measured},
        None if window.uncertain_s is None else min(1.0, window.uncertain_s / window.length_s),
    )


def deviation(window: peers.Window, name: str) -> float:
    """Return the relative error of a tool's energy reading.

    An exact tool would read a value between a lower and an upper bound. The error is the distance of the
    reading from the nearer of these bounds, divided by the true energy. It is 0 for a reading between the
    bounds.
    """
    joules, least, most = window.joules[name], window.truth_joules[name], window.most_joules[name]
    low, high = least - STEP_JOULES, most + STEP_JOULES
    return (min(0.0, joules - low) + max(0.0, joules - high)) / least


def claim(row: Row) -> dict[str, Any]:
    """Return the result of one test case as a claim, which is a statement that holds or not.

    The statement is: senergyd measures the energy exactly, or marks the energy as uncertain. A test case has
    one counter range and one reading rate.
    """
    ratio = max((abs(value) for value in row.error.values()), default=1.0)
    known = set(row.error) == set(COMPONENTS)
    marked = bool(row.uncertain_share) and not row.why_not
    return {
        "claim": f"wrap_{row.range_joules:g}J_{row.rate_hz:g}Hz",
        "ratio": ratio,
        "target": "0|uncertain",
        "holds": marked or (known and ratio == 0 and max(row.slack.values()) <= MOST_SLACK),
        "uncertain_share": row.uncertain_share,
    }


def verdict(row: Row, name: str) -> str:
    """Return the measurement error of a component as text for the table.

    `+2.0%` is the error. The true value is known only as a range. `exact` means that the measured value
    lies in a narrow range. `in +29%` means that the measured value lies in a range whose width is 29 % of
    the true value.
    """
    wrong = row.error.get(name)
    if wrong is None:
        return "-"
    if wrong:
        return f"{wrong:+.1%}"
    return "exact" if row.slack[name] <= MOST_SLACK else f"in +{row.slack[name]:.0%}"


def text(row: Row) -> str:
    """Return a row of the printed table as one line of text.

    The row shows one meter with its energies and how accurate they are.
    """
    head = f"{row.range_joules:>4g} J {row.rate_hz:>3g} Hz  {(row.tool + ' ' + row.version).strip():<18}"
    if row.why_not:
        return f"{head} not measured: {row.why_not}"
    cells = []
    for name in COMPONENTS:
        joules = row.joules.get(name)
        cells.append("        -" if joules is None else f"{joules:>9.1f}")
        cells.append(f"{verdict(row, name):>9}")
    marked = "nothing" if row.uncertain_share is None else f"{row.uncertain_share:.0%} uncertain"
    return f"{head} {' '.join(cells)}  {marked}"


if __name__ == "__main__":
    sys.exit(main())
