"""`senergy spool`: records on this node that wait for delivery, or that the controller rejected."""

from __future__ import annotations

import argparse
import time
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json
from slurm_energy.errors import (
    EXIT_FORBIDDEN,
    EXIT_NOT_FOUND,
    EXIT_OK,
    EnergyError,
    ForbiddenError,
    NotFoundError,
)
from slurm_energy.protocol import agent_socket

HELP = "records and periods of this node that wait for the controller or were rejected by it"

EPILOG = """\
senergyd keeps each record until the controller confirms it. A record of a newer release waits until
senergyctld is upgraded. A record that the controller rejects permanently is kept with its trace and the
reason; rejected records use at most a quarter of agent.spool_limit_mb, and the oldest are deleted first.
They are sent again when another release of senergyctld responds, or by `senergy spool resend`, for example
after controller.max_watts was raised. A record is stored once, no matter how often it is sent. The same is
true of the periods, which hold the energy of the node by time; they may use a sixteenth of that space in
addition. Run this command as root on the node. Exit code 6: no rejected record or period has the given id.

examples:
  senergy spool
  senergy spool --json
  senergy spool resend
  senergy spool resend 3f0c9a...        only this record
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy spool`."""
    parser.epilog = EPILOG
    parser.add_argument("action", nargs="?", choices=("list", "resend"), default="list", help="default: list")
    parser.add_argument("record", nargs="*", help="resend: ids of rejected records or periods (default: all)")
    parser.add_argument("--json", action="store_true", help="print the agent's response as JSON")
    connection.add_config_option(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Run `senergy spool`: ask the agent of this node for the records in its spool, and print them.

    The spool contains the records that wait for delivery to the controller, and rejected records. With
    the action `resend`, the agent sends records again.
    """
    if args.record and args.action != "resend":
        args.usage_error("records can be named only with resend")
    message: dict[str, Any] = {"op": "spool"}
    if args.action == "resend":
        message = {"op": "resend", "record_ids": args.record or None}
    answer = agent_socket.ask_agent(connection.configuration(args).for_this_node().agent.socket, message)
    if not answer.get("ok"):
        raise _error(answer)
    if args.json:
        emit_json({key: value for key, value in answer.items() if key != "ok"})
    elif args.action == "resend":
        emit([f"{answer.get('resent', 0)} records will be sent again; see `senergy spool`"])
    else:
        emit_fitted(_lines(answer, "records", "RECORD"))
        if isinstance(periods := answer.get("periods"), dict):
            emit_fitted(["", *_lines(periods, "periods of the node's energy", "PERIOD")])
    return EXIT_OK


def _error(answer: dict[str, Any]) -> EnergyError:
    classes = {EXIT_FORBIDDEN: ForbiddenError, EXIT_NOT_FOUND: NotFoundError}
    return classes.get(answer.get("code", 0), EnergyError)(str(answer.get("error", "no response")))


def _lines(answer: dict[str, Any], plural: str, heading: str) -> list[str]:
    lines = [f"spooled   {answer.get('spooled', '?')} {plural} wait for the controller"]
    if answer.get("deferred"):
        lines.append(f"retried   {answer['deferred']} of them: {answer.get('deferred_reason')}")
    megabytes = [answer.get(key, 0) / 1e6 for key in ("rejected_bytes", "rejected_limit_bytes")]
    lines.append(
        f"rejected  {answer.get('rejected', '?')} {plural}, {megabytes[0]:.1f} of {megabytes[1]:.0f} MB, "
        f"in {answer.get('rejected_folder')}"
    )
    if answer.get("rejected_dropped"):
        lines.append(
            f"dropped   {answer['rejected_dropped']} rejected {plural} since the start, for lack of space"
        )
    records = answer.get("rejected_records", [])
    if records:
        lines += ["", f"{heading:<32}  {'ENDED':<19}  {'TRACE':<5}  REASON"]
    for record in records:
        ended = "unknown"
        if record.get("end") is not None:
            ended = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record["end"]))
        trace = "yes" if record.get("trace") else "no"
        lines.append(f"{record['record_id']:<32}  {ended:<19}  {trace:<5}  {record['reason']}")
    remaining = answer.get("rejected", 0) - len(records)
    return [*lines, f"... and {remaining} more"] if remaining > 0 else lines
