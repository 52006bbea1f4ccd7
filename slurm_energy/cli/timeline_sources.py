"""Collection of the data that `senergy timeline` shows.

The data are the energy record and the observation of the job, and event files and profiler traces of the
user.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.observed_job import fetch_observed_job
from slurm_energy.cli.output import note
from slurm_energy.cli.timeline_times import parse_ranks, parse_shown_time
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.timeline.window import MAX_UNIX_S, NANOSECONDS, TimeWindow
from slurm_energy.errors import UsageError
from slurm_energy.profiling.timeline_inputs import EventInput, ProfileInput, SkippedFile, find_inputs
from slurm_energy.reports.usage import JobUsage

_UNKNOWN_START_S = 0.0


@dataclass(slots=True)
class CollectedSources:
    """All data that a timeline of one job shows.

    Attributes:
        usage: the job's energy records; None if not requested or not available.
        nodes: observations by node, with the power trace as signal `power_watts`.
        findings: findings, the most important first.
        processes: event files of processes of the job.
        profiles: traces of a profiler that the user recorded.
        skipped: files of the named directories that cannot be read.
        other_jobs: event files of other jobs in the named directories.
        window: time window that the timeline shows; set by `collect`.
        start_s: start of the job or of its first event, Unix seconds; None if unknown.
    """

    usage: JobUsage | None = None
    nodes: Sequence[NodeObservation] = ()
    findings: Sequence[JobFinding] = ()
    processes: list[EventInput] = field(default_factory=list)
    profiles: list[ProfileInput] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    other_jobs: list[Path] = field(default_factory=list)
    window: TimeWindow = TimeWindow(0, 0, 1)
    start_s: float | None = None

    @property
    def node_count(self) -> int:
        """Number of nodes with data about the job."""
        return len({node.node for node in self.nodes} | {source.header.node for source in self.processes})

    @property
    def is_running(self) -> bool:
        """Whether the accounting data state that the job is still running."""
        return self.usage is not None and self.usage.job.state == "RUNNING"

    @property
    def is_empty(self) -> bool:
        """Whether the timeline has no data to show."""
        return not (self.processes or self.profiles or any(node.series or node.ranks for node in self.nodes))


def collect(args: argparse.Namespace, job_id: str, paths: Iterable[Path]) -> CollectedSources:
    """Collect everything from which the timeline of a job is built, and return it.

    Raises:
        EnergyError: senergyctld does not answer, or a named file cannot be read.
    """
    ranks = parse_ranks(args.ranks) if args.ranks else None
    sources = CollectedSources()
    if not args.offline:
        _ask_controller(args, job_id, sources)
    raw_id = sources.usage.first.job_id if sources.usage else int(job_id) if job_id.isdecimal() else None
    seen: set[Path] = set()
    for path in paths:
        _add_path(path, raw_id, ranks, sources, seen, whole=args.offline)
    if ranks is not None:
        sources.nodes = [_selected(node, ranks) for node in sources.nodes]
    _set_window(args, sources)
    return sources


def _ask_controller(args: argparse.Namespace, job_id: str, sources: CollectedSources) -> None:
    """Add the data that senergyctld has about a job to the sources of the job's timeline.

    Raises:
        EnergyError: senergyctld does not answer, or the job is unknown or belongs to another user.
    """
    from slurm_energy.diagnosis.diagnose import diagnose
    from slurm_energy.reports.diagnosis.input import job_observation

    client = connection.connect(args)
    job, documents = fetch_observed_job(args, client, job_id)
    config = connection.configuration(args)
    observation = job_observation(job, documents, config)
    sources.usage, sources.nodes = job, observation.nodes
    sources.findings = diagnose(observation, config.diagnosis).findings


def _add_path(
    path: Path,
    raw_id: int | None,
    ranks: Sequence[range] | None,
    sources: CollectedSources,
    seen: set[Path],
    *,
    whole: bool,
) -> None:
    """Add the inputs (files of a profile or timeline) that a path names, each file once.

    In a directory, files of other jobs and other ranks are left out. If the path itself is a file of another
    job, this is an error.
    """
    is_folder = path.is_dir()
    for source in find_inputs(path, whole=whole):
        if source.path.absolute() in seen:
            continue
        seen.add(source.path.absolute())
        if isinstance(source, SkippedFile):
            sources.skipped.append(source)
        elif isinstance(source, ProfileInput):
            if ranks is None or source.head.rank is None or _is_selected(source.head.rank, ranks):
                sources.profiles.append(source)
        elif None not in (raw_id, source.header.job_id) and source.header.job_id != raw_id:
            if not is_folder:
                why = f"it belongs to job {source.header.job_id}"
                raise UsageError(str(path), why, f"name the files of job {raw_id}")
            sources.other_jobs.append(source.path)
        elif ranks is None or _is_selected(source.header.rank, ranks):
            sources.processes.append(source)


def _is_selected(rank: int | None, ranks: Sequence[range]) -> bool:
    return rank is not None and any(rank in selected for selected in ranks)


def _selected(node: NodeObservation, ranks: Sequence[range]) -> NodeObservation:
    return replace(node, ranks=tuple(steps for steps in node.ranks if _is_selected(steps.rank, ranks)))


def _set_window(args: argparse.Namespace, sources: CollectedSources) -> None:
    """Set the time window to show: the time of the job or of its events, limited by --from and --to.

    The window never begins before the job, so that the start of the job stays time 0 of the timeline.

    Raises:
        UsageError: --from is not before --to.
    """
    start_s, end_s = _job_time(sources)
    sources.start_s = start_s
    now = datetime.now()
    base_s = _UNKNOWN_START_S if start_s is None else start_s
    from_s = base_s
    if args.from_time:
        from_s = max(base_s, parse_shown_time(args.from_time, base_s, now, "--from"))
    to_s = parse_shown_time(args.to_time, base_s, now, "--to") if args.to_time else max(end_s, from_s)
    if args.to_time and not from_s < to_s:
        raise UsageError(
            f"--to {args.to_time}", "is not after the start of the timeline", "give another time"
        )
    sources.window = TimeWindow.of_seconds(base_s, from_s, to_s)


def _job_time(sources: CollectedSources) -> tuple[float | None, float]:
    """Return the start and end of the job on its timeline, in Unix seconds.

    If the job has no record, the start and end of its events are used. If no source states Unix times, the
    start is None and the end is the length of the longest profiler trace.
    """
    if usage := sources.usage:
        return usage.start, max(usage.end, _observed_end_s(sources)) if sources.is_running else usage.end
    bounds = [
        (source.start_ns / NANOSECONDS, source.end_ns / NANOSECONDS)
        for source in sources.processes
        if source.start_ns is not None and source.end_ns is not None
    ]
    lengths = []
    for profile in sources.profiles:
        span = profile.head.unix_span_s
        if span:
            bounds.append(span)
        else:
            lengths.append(profile.head.length_s)
    bounds = [(start_s, end_s) for start_s, end_s in bounds if 0 <= start_s <= end_s <= MAX_UNIX_S]
    if not bounds:
        return None, max(lengths, default=0.0)
    start_s, end_s = min(start_s for start_s, _ in bounds), max(end_s for _, end_s in bounds)
    # Floats of Unix seconds have steps of 0.2 microseconds: whole milliseconds contain every event.
    return math.floor(start_s * 1000 - 1e-3) / 1000, math.ceil(end_s * 1000 + 1e-3) / 1000


def _observed_end_s(sources: CollectedSources) -> float:
    """Return the end of the last known interval of any signal.

    This end may be later than the last live report.
    """
    ends_s = [series.end_s for node in sources.nodes for series in node.series]
    return min(max(ends_s, default=0.0), MAX_UNIX_S)


def note_skipped(sources: CollectedSources, limit: int) -> None:
    """Print a note for each of the first `limit` files that could not be used.

    One more note tells how many further files, and how many files of other jobs, are left out.
    """
    for source in sources.skipped[:limit]:
        note(f"{source.path}: left out: {source.reason}")
    if len(sources.skipped) > limit:
        more = len(sources.skipped) - limit
        note("1 further file is left out" if more == 1 else f"{more} further files are left out")
    if sources.other_jobs:
        example, count = sources.other_jobs[0], len(sources.other_jobs)
        if count == 1:
            note(f"1 event file of another job is left out: {example}")
        else:
            note(f"{count} event files of other jobs are left out, for example {example}")


def job_facts(sources: CollectedSources) -> dict[str, Any]:
    """Return the data about the job that is written into the timeline file.

    The data are the start, the number of nodes, and the energy.
    """
    usage = sources.usage
    return {
        "start_unix_s": sources.start_s,
        "nodes": sources.node_count,
        "energy_joules": None if usage is None else usage.energy_joules,
    }
