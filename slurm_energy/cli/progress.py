"""`senergy progress`: report units of work that a script has completed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_json
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError
from slurm_energy.protocol import agent_socket

HELP = "report units of work that a script has completed"

EPILOG = """\
The agent of the node compares the speed of the job at several settings. Call this command after each step of
a loop whose steps take a second or longer; in Python use slurm_energy.progress, which is faster. A unit can
be anything that takes the same amount of work each time. Each task of a Slurm step reports its own units
(SLURM_PROCID). Without an agent the command warns and succeeds, so that it never ends a job.

examples:
  senergy progress                  one more unit is complete
  senergy progress 500              500 more units
  senergy progress 1 --total 40     one more of 40 units
  senergy progress 0 --json         total so far, remaining seconds
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy progress`."""
    parser.epilog = EPILOG
    parser.add_argument("units", metavar="N", nargs="?", type=float, default=1.0, help="units (default 1)")
    parser.add_argument("--total", metavar="N", type=float, help="units of this task in all")
    parser.add_argument("--json", action="store_true", help="print the agent's response")
    parser.add_argument("--strict", action="store_true", help="fail if the agent does not take the report")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Send the progress report of the command line and return the exit code.

    If the agent cannot be reached, print a warning and return success. With --strict, raise the
    error.
    """
    for name, value in (("N", args.units), ("--total", args.total)):
        if value is not None and not 0 <= value <= 1e15:
            raise UsageError(f"{name} {value:g}", "must be 0 to 1e15")
    try:
        response = _report(args)
    except EnergyError as error:
        if args.strict:
            raise
        print(f"senergy progress: not reported: {error}", file=sys.stderr)
        return EXIT_OK
    if args.json:
        emit_json(response)
    return EXIT_OK


def _report(args: argparse.Namespace) -> dict[str, Any]:
    from slurm_energy.profiling.process_identity import current_process

    process = current_process()
    if process.job_id is None:
        raise UsageError("SLURM_JOB_ID", "not set: this is not a Slurm job")
    step = os.environ.get("SLURM_STEP_ID", "batch")
    key = f"script.{step if step.isalnum() else 'batch'}.{process.rank or 0}"
    message: dict[str, Any] = {"op": "progress", "job_id": process.job_id, "process": key, "add": args.units}
    if args.total is not None:
        message["total"] = args.total
    response = agent_socket.ask_agent(connection.configuration(args).for_this_node().agent.socket, message)
    if not response.get("ok"):
        raise EnergyError("senergyd", str(response.get("error")))
    return {"units": response.get("units"), "remaining_s": response.get("remaining_s")}
