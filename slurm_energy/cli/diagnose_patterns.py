"""Command `senergy diagnose --patterns`: what wastes the most energy in a time window.

The command sums the findings about the jobs of the window.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.cli import connection
from slurm_energy.cli.observed_job import fetch_documents, fetch_job
from slurm_energy.cli.output import emit, emit_fitted, emit_json, note, note_scope
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.config import Config
    from slurm_energy.diagnosis.finding import JobFinding
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.usage import JobUsage

_MAX_JOBS: Final = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for `senergy diagnose --patterns`, which summarizes the findings of many jobs."""
    patterns = parser.add_argument_group("patterns")
    patterns.add_argument(
        "--patterns", action="store_true", help="findings of many jobs, summed by kind, instead of one job"
    )
    patterns.add_argument("-S", "--starttime", metavar="TIME", help="jobs since (default: now-30days)")
    patterns.add_argument("-E", "--endtime", metavar="TIME", help="jobs until (default: now)")
    patterns.add_argument("-u", "--user", metavar="USER,...", help="jobs of these users (default: yours)")
    patterns.add_argument("-A", "--accounts", metavar="ACCOUNT,...", help="jobs in these accounts")
    patterns.add_argument("-a", "--allusers", action="store_true", help="jobs of all users that you may see")
    patterns.add_argument("--by", choices=("user", "account"), help="patterns of each user or account")
    patterns.add_argument("--top", metavar="N", type=int, default=5, help="patterns shown (default: 5)")
    patterns.add_argument(
        "--max-jobs",
        metavar="N",
        type=int,
        default=100,
        help="jobs with most energy to diagnose (default: 100)",
    )


def run(args: argparse.Namespace) -> int:
    """Diagnose the jobs of a time window that used the most energy, and show findings summed by kind."""
    from slurm_energy.reports.diagnosis.waste_patterns import patterns_json, patterns_table, waste_patterns
    from slurm_energy.reports.usage import AccountedRecord, summarise

    if not 1 <= args.max_jobs <= _MAX_JOBS or args.top < 1:
        raise UsageError("senergy diagnose", f"--max-jobs is 1 to {_MAX_JOBS}, --top at least 1")
    client = connection.connect(args)
    answer = client.get("/v1/records", _parameters(args, datetime.now()))
    usages = list(summarise(map(AccountedRecord.from_json, answer.get("records", []))))
    usages.sort(key=lambda usage: usage.energy_joules or 0.0, reverse=True)
    chosen, left_out = usages[: args.max_jobs], max(0, len(usages) - args.max_jobs)
    diagnosed = list(_diagnosed(client, chosen, connection.configuration(args)))
    patterns = waste_patterns(diagnosed, args.by, args.top)
    if args.json:
        emit_json(patterns_json(patterns, answer.get("scope"), len(diagnosed), left_out))
        return EXIT_OK
    if args.allusers or args.accounts:
        note_scope(answer)
    if left_out:
        note(f"{left_out} jobs with less energy are left out; --max-jobs includes more")
    if not patterns:
        emit([f"No findings in {len(diagnosed)} jobs."])
        return EXIT_OK
    emit([f"Most expensive findings in {len(diagnosed)} jobs, time and energy as upper bounds:", ""])
    emit_fitted(patterns_table(patterns, args.by))
    return EXIT_OK


def _diagnosed(
    client: ControllerClient, usages: Sequence[JobUsage], config: Config
) -> Iterator[tuple[JobUsage, Sequence[JobFinding]]]:
    """Diagnose jobs, and yield each job with its findings (causes of lost time or energy).

    A job is left out if its record was deleted in the meantime.
    """
    from slurm_energy.diagnosis.diagnose import find_causes
    from slurm_energy.reports.diagnosis.input import job_observation

    for usage in usages:
        try:
            job = fetch_job(client, usage.display_id)
        except NotFoundError:
            continue
        documents = fetch_documents(client, usage.display_id, quiet=True)
        yield job, find_causes(job_observation(job, documents, config), config.diagnosis)


def _parameters(args: argparse.Namespace, now: datetime) -> dict[str, Any]:
    """Return the query parameters of the request for the energy records of the requested time window."""
    from slurm_energy.reports.time_spec import parse_time

    start = parse_time(args.starttime or "now-30days", now, "--starttime")
    end = parse_time(args.endtime, now, "--endtime") if args.endtime else now.timestamp()
    if end < start:
        raise UsageError("senergy diagnose", "--endtime is before --starttime")
    everyone = args.allusers or args.accounts or os.geteuid() == 0
    user = args.user or ("" if everyone else str(os.geteuid()))
    values = {"user": user, "account": args.accounts or "", "start": f"{start:.0f}", "end": f"{end:.0f}"}
    return {key: value for key, value in values.items() if value} | {"steps": "0", "duplicates": "0"}
