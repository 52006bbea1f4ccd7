"""`senergy top`: live power of this node, its jobs and its components, or of the cluster."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_verbatim, output_glyphs
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError
from slurm_energy.protocol import agent_socket
from slurm_energy.safe_text import escape_controls

HELP = "live power of this node, its jobs and components, or of the cluster"
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.5, 60.0
_MAX_ROWS = 15

EPILOG = """\
Queries the agent of this node and runs no Slurm command. Power is the mean since about the last refresh, or
of the last second while jobs run. Root sees power and energy of all jobs, users those of their own jobs.
Ctrl-C ends the command.

With --findings it queries senergyctld for the running jobs that lose time or energy so far: operators see
all jobs, coordinators those of their accounts, other users their own. Nodes report findings every 30 s; those
that compare nodes are known only at the end of a job (senergy diagnose).

With --cluster it queries senergyctld for the power budgets, the running jobs and the nodes of the cluster.
Nodes report their power to senergyctld while budget.mode is not off.

examples:
  senergy top
  senergy top --cluster
  senergy top --findings
  senergy top --interval 5
  senergy top --once                one screen, for a script or a log
  senergy top --json                the agent's response, one line per refresh
  senergy top --cluster --json      senergyctld's response, one line per refresh
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy top`."""
    parser.epilog = EPILOG
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--cluster",
        action="store_true",
        help="nodes, jobs and power budgets of the cluster",
    )
    shown.add_argument(
        "--findings", action="store_true", help="where running jobs lose time and energy so far"
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=float,
        default=2.0,
        help="time between refreshes, 0.5 to 60 (default 2)",
    )
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.add_argument("--json", action="store_true", help="print one JSON object per refresh, a line each")
    parser.add_argument(
        "--ascii", action="store_true", help="ASCII characters only, the default on terminals without UTF-8"
    )
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Refresh the screen until interrupted."""
    if not MIN_INTERVAL_S <= args.interval <= MAX_INTERVAL_S:
        raise UsageError(f"--interval {args.interval:g}", f"must be {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}")
    if args.cluster or args.findings:
        return _run_cluster(args)
    path = connection.configuration(args).for_this_node().agent.socket

    def query() -> dict[str, Any]:
        answer = agent_socket.ask_agent(path, {"op": "status"})
        if not answer.get("ok"):
            raise EnergyError(f"agent {path}", str(answer.get("error")))
        return answer

    status = query()
    if not _known_watts(status):
        time.sleep(MIN_INTERVAL_S * 1.2)  # a node without jobs is sampled only after the first query
        status = query()
    full_bar_watts = 0.0
    try:
        while True:
            full_bar_watts = max([full_bar_watts, *_known_watts(status)])
            _show(args, status, full_bar_watts)
            if args.once:
                return EXIT_OK
            time.sleep(args.interval)
            status = query()
    except KeyboardInterrupt:
        return EXIT_OK


def _run_cluster(args: argparse.Namespace) -> int:
    """Refresh the screen of the cluster, or of the findings of its jobs, until interrupted."""
    from slurm_energy.protocol.budget_requests import STATUS_PATH, StatusQuery
    from slurm_energy.protocol.live_reports import FINDINGS_PATH

    controller = connection.connect(args)
    path, query = STATUS_PATH, StatusQuery(plan_hours=0.0, nodes=True, jobs=True).parameters()
    if args.findings:
        path, query = FINDINGS_PATH, {}
    try:
        while True:
            response = controller.get(path, query)
            if args.json:
                print(json.dumps(response), flush=True)
            else:
                _draw(args, _cluster_lines(args, response))
            if args.once:
                return EXIT_OK
            time.sleep(args.interval)
    except KeyboardInterrupt:
        return EXIT_OK


def _cluster_lines(args: argparse.Namespace, response: dict[str, Any]) -> list[str]:
    clock = time.strftime("%H:%M:%S")
    if args.findings:
        from slurm_energy.reports.diagnosis.running_findings import findings_screen

        return findings_screen(response, clock)
    from slurm_energy.reports.budgets.cluster_power import cluster_screen

    max_rows = None if args.once or not _is_screen() else _MAX_ROWS
    return cluster_screen(response, clock, output_glyphs(ascii_only=args.ascii), max_rows)


def _known_watts(status: dict[str, Any]) -> list[float]:
    return [value for value in (status.get("watts") or {}).values() if value is not None]


def _show(args: argparse.Namespace, status: dict[str, Any], full_bar_watts: float) -> None:
    if args.json:
        print(json.dumps({"time": time.time(), **status}), flush=True)
        return
    from slurm_energy.reports.live_power import screen

    glyphs = output_glyphs(ascii_only=args.ascii)
    _draw(args, screen(status, time.strftime("%H:%M:%S"), glyphs, full_bar_watts))


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _draw(args: argparse.Namespace, lines: list[str]) -> None:
    """Print the lines, or replace the screen with them if the output is a terminal."""
    if args.once or not _is_screen():
        emit([*lines, ""])
    else:
        columns, rows = shutil.get_terminal_size()  # replaces the size 0 of a serial console by 80 x 24
        visible = [escape_controls(line)[:columns] for line in lines[: max(1, rows - 1)]]
        emit_verbatim(["\x1b[H\x1b[J" + visible[0], *visible[1:]])
    sys.stdout.flush()
