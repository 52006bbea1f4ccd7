"""`senergy report --html`: the page of an account, or a static web site about the cluster."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli import connection
from slurm_energy.cli.output_files import report_written, write_file
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.protocol.usage_requests import UsageRequest
    from slurm_energy.reports.usage import JobUsage

_BY = ("account", "user", "policy", "partition")
_PIECE_S = 12 * 3600
"""Length of the pieces in which records are read. A month with a million jobs would need gigabytes."""
_CONDITIONS = ("start=", "end=", "interval=", "accounts=", "users=", "clusters=", "all_clusters")


def check_words(words: Sequence[str]) -> None:
    """Refuse command-line words that have no meaning for HTML pages.

    Allowed words are conditions that select what the page shows.

    Raises:
        UsageError: a word is not such a condition. The message contains the word.
    """
    for word in words:
        if not word.lower().startswith(_CONDITIONS):
            known = ", ".join(_CONDITIONS)
            raise UsageError(f"--html: '{word[:40]}' has no meaning here", todo=f"known: {known}")


def write_pages(
    args: argparse.Namespace, asked: UsageRequest, accounts: Sequence[str], users: Sequence[str]
) -> int:
    """Write the energy report as HTML.

    If exactly one account or user is named, the report is one page. Without a name, it is a web site with
    several pages.

    Args:
        args: options of the command.
        asked: time window of the report and its division into intervals.
        accounts: accounts that the user named.
        users: users that the user named.
    """
    from slurm_energy.reports.energy_pages import INDEX, PageSubject, energy_page, subjects
    from slurm_energy.reports.utilization.usage import UsageDocument

    named = [PageSubject("account", name) for name in accounts] + [
        PageSubject("user", name) for name in users
    ]
    if len(named) > 1:
        raise UsageError("--html: more than one account or user", todo="name one, or none for all of them")
    client = connection.connect(args)
    request = replace(asked, by=_BY, count_jobs=False)
    document = UsageDocument.from_json(client.get("/v1/usage", request.parameters()))
    if named and not any(named[0].includes(row) for row in document.rows):
        raise NotFoundError(f"{named[0].dimension} {named[0].name}", "it used no energy in this window")
    jobs = _largest_jobs(client, asked, document.clusters, {one.dimension: one.name for one in named})
    if named:
        write_file(args.html, energy_page(named[0], document, jobs, now=datetime.now()))
        report_written(args.html, "one page")
        return EXIT_OK
    pages = subjects(document)
    _make_directory(args.html)
    with ProgressLine("writing", "pages") as line:
        for done, subject in enumerate(pages):
            line.report(done, len(pages))
            page = energy_page(subject, document, jobs, pages, datetime.now())
            write_file(args.html / subject.file_name, page)
    report_written(args.html / INDEX, f"{len(pages)} pages")
    return EXIT_OK


def _largest_jobs(
    client: ControllerClient, asked: UsageRequest, clusters: Collection[str], names: Mapping[str, str]
) -> list[JobUsage]:
    """Return the jobs with the most energy in the window, for the given clusters and account or user."""
    from slurm_energy.reports.largest_jobs import LargestJobs
    from slurm_energy.reports.usage import AccountedRecord, summarise

    largest = LargestJobs()
    begin, end = asked.edges[0], asked.edges[-1]
    starts = range(begin, end, _PIECE_S)
    with ProgressLine("reading jobs", "pieces of time") as line:
        for done, start in enumerate(starts):
            line.report(done, len(starts))
            query = {"start": str(start), "end": str(min(start + _PIECE_S, end)), **names}
            records = client.get("/v1/records", query).get("records", [])
            jobs = summarise(map(AccountedRecord.from_json, records))
            largest.add(job for job in jobs if job.first.cluster in clusters)
    return largest.jobs


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise UnavailableError(f"--html {path}", why, "name a directory for the site") from None
