"""Writing of the files of `senergy timeline`, and the message about the written files."""

from __future__ import annotations

import argparse
import contextlib
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.cli.output import emit_json, note
from slurm_energy.cli.output_files import report_written, write_file
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.cli.timeline_sources import CollectedSources, job_facts, note_skipped
from slurm_energy.diagnosis.timeline.overview import Overview
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.errors import EnergyError
from slurm_energy.profiling.timeline_build import InputReport, TimelineBuilder, TimelineSources

LARGE_TRACE_EVENTS: Final = 5_000_000
"""Number of events above which browsers need minutes and gigabytes to open a trace."""
_MAX_NOTES: Final = 20
_COMPRESSION: Final = 1
_MEGABYTE: Final = 1 << 20


class TraceFile:
    """A file that is renamed to `path` when complete. If `path` ends in `.gz`, the file is compressed.

    Args:
        path: path of the complete file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._temporary, flags, 0o666), "wb")
        is_compressed = path.suffix == ".gz"
        self._compressor = zlib.compressobj(_COMPRESSION, wbits=31) if is_compressed else None

    def write(self, data: bytes) -> None:
        """Append data."""
        self._file.write(self._compressor.compress(data) if self._compressor else data)

    def finish(self) -> None:
        """Complete the file and rename it to its final name."""
        if self._compressor:
            self._file.write(self._compressor.flush())
        self._file.close()
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Close the trace file, and remove it if it is not complete."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _trace_file(path: Path | None) -> Iterator[TraceFile | None]:
    """Context manager that returns a trace file to write to, or None if `path` is None.

    At the end of the `with` block, the file is completed, or discarded after an error.

    Raises:
        EnergyError: the file cannot be written.
    """
    if path is None:
        yield None
        return
    file = None
    try:
        file = TraceFile(path)
        yield file
        file.finish()
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None
    finally:
        if file:
            file.discard()


def write_timeline(
    args: argparse.Namespace, job_id: str, sources: CollectedSources, trace_path: Path | None
) -> None:
    """Write the requested timeline files of a job, and report what the files contain.

    Raises:
        EnergyError: a file cannot be read or written.
    """
    note_skipped(sources, _MAX_NOTES)
    overview = Overview(sources.window) if args.html else None
    inputs = TimelineSources(
        sources.window, sources.nodes, sources.findings, sources.processes, sources.profiles
    )
    with ProgressLine("writing", "MB") as line, _trace_file(trace_path) as file:
        about = {"job": job_id, "program": f"senergy {__version__}", **job_facts(sources)}
        writer = TraceWriter(file.write, about) if file else None
        builder = TimelineBuilder(
            inputs, writer, overview, lambda done, total: line.report(done // _MEGABYTE, total // _MEGABYTE)
        )
        builder.build()
        if writer:
            writer.finish()
    if overview:
        write_file(args.html, _page(job_id, sources, overview, builder))
    _note_faults(builder.reports)
    content = _summary(builder, sources)
    if trace_path and writer:
        # The items include counter values, arrows and marks, which no source calls an event.
        size = f"{_counted(writer.events, 'trace item')} on {_counted(len(writer.lanes), 'lane')}"
        report_written(trace_path, f"{content}; {size}; open it in https://ui.perfetto.dev")
        if writer.events > LARGE_TRACE_EVENTS:
            note("viewers need much memory for so many items: select a part with --from, --to or --ranks")
    if args.html:
        report_written(args.html, content)
    if args.json:
        emit_json(_document(args, job_id, sources, trace_path, builder.reports))


def _summary(builder: TimelineBuilder, sources: CollectedSources) -> str:
    """Return how many processes, events and findings the timeline contains, as text.

    The numbers are the same for the trace file and for the page.
    """
    events = sum(report.tally.shown for report in builder.reports)
    counts = {"process": builder.process_count, "event": events, "finding": len(sources.findings)}
    return ", ".join(_counted(number, noun) for noun, number in counts.items())


def _page(job_id: str, sources: CollectedSources, overview: Overview, builder: TimelineBuilder) -> str:
    from slurm_energy.reports.diagnosis.timeline_page import TimelinePage, timeline_page

    job = sources.usage.job if sources.usage else None
    user = sources.usage and (sources.usage.job.user or sources.usage.first.user)
    parts = (job.name if job else None, user, job.state if job else None)
    page = TimelinePage(
        f"Timeline of job {job_id}",
        " · ".join(text for text in parts if text),
        sources.nodes,
        sources.findings,
        overview,
        sum(report.tally.shown for report in builder.reports),
        builder.process_count,
        sources.node_count,
        sources.usage.energy_joules if sources.usage else None,
        [text for report in builder.reports for text in fault_texts(report)][:_MAX_NOTES],
    )
    return timeline_page(page, datetime.now())


def _note_faults(reports: Sequence[InputReport]) -> None:
    """Print a note about each fault of an input, up to a limit."""
    notes = [text for report in reports for text in fault_texts(report)]
    for text in notes[:_MAX_NOTES]:
        note(text)
    if len(notes) > _MAX_NOTES:
        note(f"{_counted(len(notes) - _MAX_NOTES, 'further fault')}: --json lists them")


def fault_texts(report: InputReport) -> Iterator[str]:
    """Yield lines of text that describe the faults of an input file of a timeline."""
    if report.fault:
        yield f"{report.path}: {report.fault}; {_counted(report.tally.shown, 'event')} before it shown"
    for reason, count in report.tally.refused.items():
        offset = report.tally.first_offsets.get(reason)
        place = "" if offset is None else f", the first one at byte {offset}"
        yield f"{report.path}: {_counted(count, 'event')} left out: {reason}{place}"
    if report.has_unknown_clock:
        yield f"{report.path}: its clock is unknown, so that it begins at the start of the timeline"
    if report.lost:
        yield f"{report.path}: the program dropped {_counted(report.lost, 'event')}: slow writing"
    if report.tally.outside and not report.tally.shown:
        yield f"{report.path}: no event is in the shown time, {report.tally.outside} outside"


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def _document(
    args: argparse.Namespace,
    job_id: str,
    sources: CollectedSources,
    trace_path: Path | None,
    reports: Sequence[InputReport],
) -> dict[str, Any]:
    """Return the JSON document that `senergy timeline` prints about the files that it has written."""
    return {
        "job": job_id,
        "trace": None if trace_path is None else str(trace_path),
        "page": None if args.html is None else str(args.html),
        "from": sources.window.from_s,
        "to": sources.window.to_s,
        "events": sum(report.tally.shown for report in reports),
        "findings": len(sources.findings),
        "files": [
            {
                "path": str(report.path),
                "shown": report.tally.shown,
                "outside": report.tally.outside,
                "dropped_by_program": report.lost,
                "refused": dict(report.tally.refused),
                "fault": report.fault or None,
                "clock_known": not report.has_unknown_clock,
            }
            for report in reports
        ],
        "skipped": [{"path": str(source.path), "reason": source.reason} for source in sources.skipped],
        "other_jobs": len(sources.other_jobs),
    }
