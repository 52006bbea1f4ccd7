"""Queries of `senergy acct`: the rows come from sacct, and their energy from senergyctld."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.cli import acct_options, connection
from slurm_energy.cli.job_footprints import job_footprints
from slurm_energy.cli.output import note
from slurm_energy.errors import UnavailableError
from slurm_energy.protocol.live_reports import RUNNING_PATH
from slurm_energy.protocol.untuned_runs import (
    MAX_PROGRAMS,
    UNTUNED_PATH,
    ComparableProgram,
    UntunedRuns,
    read_response,
    request_body,
)
from slurm_energy.quantities import shown
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.acct import acct_fields, acct_row_fields
from slurm_energy.reports.acct.rows import AcctRow, VisibleJobs, joined, program_of
from slurm_energy.reports.usage import AccountedRecord, JobInfo, JobUsage, summarise
from slurm_energy.slurm import job_state, sacct
from slurm_energy.slurm.release import Release

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.table import Column

_MAX_IDS: Final = 5000
_WINDOW_MARGIN_S: Final = 3600.0
_COMPLETED: Final = "COMPLETED"
_RUNNING_KEYS: Final = ("job", "user", "partition", "node")
_TASK_OR_COMPONENT: Final = re.compile(r"[_+]")


def installed_release() -> Release | None:
    """Return the release of the installed sacct; None if sacct is not installed."""
    try:
        return sacct.read_sacct_release()
    except UnavailableError:
        return None


def read_rows(
    args: argparse.Namespace, columns: Sequence[Column[AcctRow]], release: Release | None
) -> tuple[list[AcctRow], Release | None]:
    """Return the job rows for `senergy acct` with their energy, and the release of the sacct used.

    The release is None if the rows come from energy records. This happens if Slurm's accounting is not in
    use or does not answer. If it does not answer, a note is printed.

    Raises:
        EnergyError: bad options, or the controller does not answer.
    """
    cells, why = _sacct_rows(args, columns, release)
    client = connection.connect(args)
    if cells is None:
        rows = acct_fields.rows_of_records(jobs_of_records(args, client, why)[0])
        return _with_derived_values(rows, columns, client), None
    usages, visible = read_energy(args, client, cells)
    rows = joined(cells, usages, visible)
    note_hidden(rows, visible)
    rows = _with_derived_values(rows, columns, client)
    if args.verbose:
        note(f"{len(rows)} rows of sacct {release}, energy records of {len(usages)} runs")
    return rows, release


def _sacct_rows(
    args: argparse.Namespace, columns: Sequence[Column[AcctRow]], release: Release | None
) -> tuple[list[dict[str, str]] | None, str]:
    """Return the rows of sacct. If Slurm's accounting supplies no rows, return None and the reason."""
    if release is None:
        return None, "sacct is not installed here"
    arguments = acct_options.sacct_arguments(args, release)
    if args.verbose:
        note(f"sacct {shown(' '.join(arguments), 400)}")
    try:
        return sacct.read_rows(arguments, acct_fields.sacct_names(columns)), ""
    except sacct.NoAccountingError as error:
        return None, error.why
    except UnavailableError as error:
        note(f"{error}; the rows are those of energy records")
        return None, error.why


def jobs_of_records(
    args: argparse.Namespace, client: ControllerClient, why: str
) -> tuple[list[JobUsage], Mapping[str, Any]]:
    """Return the selected jobs from energy records alone, and the response of the controller.

    Args:
        args: parsed options.
        client: client of the controller.
        why: reason why Slurm's accounting does not supply the rows.
    """
    from slurm_energy.cli import record_query
    from slurm_energy.reports.acct.job_filter import filter_jobs, job_states

    selection = acct_options.record_selection(args, why)
    states = job_states(selection.state) if selection.state else None
    parameters = record_query.query(selection, datetime.now())
    answer = client.get("/v1/records", parameters)
    records = [AccountedRecord.from_json(item) for item in answer.get("records", [])]
    if not parameters.keys() & {"account", "end"} and not selection.name:  # unknown while a job runs
        records += _selected_running(_running_records(client, records), parameters)
    record_query.note_hidden(answer, parameters)
    return filter_jobs(summarise(records, duplicates=args.duplicates), states, selection.name), answer


def _selected_running(
    records: Sequence[AccountedRecord], parameters: Mapping[str, str]
) -> list[AccountedRecord]:
    """Return the records of running jobs that the parameters of a request select.

    In the result, the state of these records is RUNNING.
    """
    jobs, users, partitions, nodes = (
        frozenset(filter(None, parameters.get(key, "").split(","))) for key in _RUNNING_KEYS
    )
    with_steps = parameters.get("steps") == "1"
    displayed_ids = _displayed_ids(jobs) if records else {}

    def is_selected(record: EnergyRecord) -> bool:
        names = _names_of(record, displayed_ids.get(record.job_id, ""), with_steps)
        return (
            (bool(jobs & names) if jobs else record.step is None or with_steps)
            and (not users or bool(users & {record.user, str(record.uid)}))
            and (not partitions or record.partition in partitions)
            and (not nodes or record.node in nodes)
        )

    return [
        replace(item, job=JobInfo(state="RUNNING", display_id=displayed_ids.get(item.record.job_id)))
        for item in records
        if is_selected(item.record)
    ]


def _displayed_ids(jobs: Collection[str]) -> dict[int, str]:
    """Return the ids of active jobs as Slurm shows them, by numeric job id.

    Live reports contain only the numeric job ids.

    Args:
        jobs: jobs and steps that the user selected; if empty, the result is empty.
    """
    ids = sorted({word.partition(".")[0] for word in jobs})
    return job_state.read_displayed_ids(ids) if ids else {}


def _names_of(record: EnergyRecord, displayed_id: str, with_steps: bool) -> set[str]:
    """Return the names by which a user selects a record: `40`, `12_3`, `12`, and for a step `12_3.0`.

    Args:
        record: record of a job or step.
        displayed_id: id of the job as Slurm shows it; empty if unknown.
        with_steps: whether the name of a job also selects its steps.
    """
    ids = {str(record.job_id), displayed_id, _TASK_OR_COMPONENT.split(displayed_id)[0]}
    if record.step is None:
        return ids
    return {f"{job_id}.{record.step}" for job_id in ids} | (ids if with_steps else set())


def read_energy(
    args: argparse.Namespace, client: ControllerClient, cells: Sequence[Mapping[str, str]]
) -> tuple[list[JobUsage], VisibleJobs]:
    """Read the energy records of all runs of the given jobs from the controller.

    Return the records, grouped by run, and the jobs that the caller may see.

    Args:
        args: parsed options.
        client: client of the controller.
        cells: rows of sacct, each with `sacct.IDENTITY_FIELDS`.
    """
    parameters = {"steps": "0" if args.allocations else "1", "duplicates": "1", "omit_others": "1"}
    ids = sorted({row["JobIDRaw"].partition(".")[0] for row in cells}, key=int)
    if len(ids) <= _MAX_IDS:
        parameters["job"] = ",".join(ids)
    else:
        parameters |= _window(cells)
    answer: Mapping[str, Any] = client.get("/v1/records", parameters) if ids else {}
    records = [AccountedRecord.from_json(item) for item in answer.get("records", [])]
    running = {row["JobIDRaw"].partition(".")[0] for row in cells if AcctRow(row).running}
    if running:
        records += _running_records(client, records, sorted(running, key=int))
    usages = summarise(records, duplicates=True)
    return usages, VisibleJobs.from_response(answer, os.geteuid())


def _running_records(
    client: ControllerClient, records: Sequence[AccountedRecord], ids: Sequence[str] = ()
) -> list[AccountedRecord]:
    """Return the unfinished records of running jobs and steps.

    Args:
        client: client of the controller.
        records: final records. An unfinished record is left out if there is a final record of the same run,
            node and step.
        ids: job ids. If empty, or more than `_MAX_IDS`, all running jobs are requested.
    """
    parameters = {"job": ",".join(ids)} if 0 < len(ids) <= _MAX_IDS else {}
    response = client.get(RUNNING_PATH, parameters)
    final = {_identity(item) for item in records}
    running = [AccountedRecord.from_json(item) for item in response.get("records", [])]
    return [item for item in running if _identity(item) not in final]


def _identity(item: AccountedRecord) -> tuple[str, str, int, int, str | None]:
    record = item.record
    return record.cluster, record.node, record.job_id, record.restart_count, record.step


def _with_derived_values(
    rows: list[AcctRow], columns: Sequence[Column[AcctRow]], client: ControllerClient
) -> list[AcctRow]:
    """Return the rows with all values that the columns derive from energy, such as emissions."""
    if acct_row_fields.needs_baseline(columns):
        rows = with_untuned_runs(rows, client)
    return with_footprints(rows, client) if acct_row_fields.needs_footprint(columns) else rows


def with_all_values(rows: Sequence[AcctRow], client: ControllerClient) -> list[AcctRow]:
    """Return the rows of `senergy acct` with all further values that the command can show.

    The further values are emissions, cost, and the comparison with untuned runs.
    """
    return with_footprints(with_untuned_runs(rows, client), client)


def with_footprints(rows: Sequence[AcctRow], client: ControllerClient) -> list[AcctRow]:
    """Return the rows of `senergy acct` with the emissions and the cost of their energy.

    The rows are unchanged if the site has configured neither carbon intensity, price, PUE nor embodied
    emissions.
    """
    footprints = job_footprints(client, [row.usage for row in rows if row.usage is not None])
    if not footprints or footprints[0].factors.is_empty:
        return list(rows)
    following = iter(footprints)
    return [row if row.usage is None else replace(row, footprint=next(following)) for row in rows]


def with_untuned_runs(rows: Sequence[AcctRow], client: ControllerClient) -> list[AcctRow]:
    """Return the job rows with statistics of earlier runs of the same program without tuning.

    A row is a line of the command's output. Only rows of completed jobs get these statistics, because
    other jobs are not comparable.
    """
    programs = [program_of(row.usage) if row.state == _COMPLETED else None for row in rows]
    distinct = [program for program in dict.fromkeys(programs) if program is not None]
    runs: dict[ComparableProgram | None, UntunedRuns | None] = {}
    for first in range(0, len(distinct), MAX_PROGRAMS):
        some = distinct[first : first + MAX_PROGRAMS]
        response = client.post(UNTUNED_PATH, request_body(some))
        runs |= zip(some, read_response(response), strict=True)
    return [replace(row, baseline=runs.get(program)) for row, program in zip(rows, programs, strict=True)]


def _window(cells: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the query parameters of a time window that contains all given rows of sacct.

    Jobs that have not started count from their submission.
    """
    starts = [sacct.seconds_of(row, "Start") or sacct.seconds_of(row, "Submit") or 0.0 for row in cells]
    ends = [sacct.seconds_of(row, "End") for row in cells]
    window = {"start": f"{max(0.0, min(starts) - _WINDOW_MARGIN_S):.0f}"}
    if None not in ends:
        window["end"] = f"{max(end for end in ends if end is not None) + _WINDOW_MARGIN_S:.0f}"
    return window


def note_hidden(rows: Sequence[AcctRow], visible: VisibleJobs) -> list[str]:
    """Print a note if rows of other users are shown without their energy, and return the notes."""
    count = len({row.cells["DBIndex"] for row in rows if row.hidden and row.started and not row.is_step})
    if not count:
        return []
    jobs = "1 job" if count == 1 else f"{count} jobs"
    who = "users outside your accounts" if visible.scope == "accounts" else "other users"
    text = f"the energy of {jobs} of {who} is not shown: only operators see it (controller.operators)"
    note(text)
    return [text]
