"""Construction of the timeline of a job.

The inputs are the job's observed signals and steps (observation), findings, event files and profiler
traces. They are read one after another. The memory in use therefore depends neither on their number
nor on their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from slurm_energy.diagnosis.event_format import RECORD_BYTES, read_blocks
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.timeline.chrome_import import unix_offset_ns
from slurm_energy.diagnosis.timeline.chrome_scanner import ScannedEvent, ScannedValue, TraceFileError
from slurm_energy.diagnosis.timeline.finding_tracks import write_findings
from slurm_energy.diagnosis.timeline.overview import Overview, OverviewRow
from slurm_energy.diagnosis.timeline.process_events import ProcessEvents
from slurm_energy.diagnosis.timeline.profile_events import ProfileEvents
from slurm_energy.diagnosis.timeline.signal_tracks import write_node, write_steps
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import EventTally, TimeWindow
from slurm_energy.profiling.timeline_inputs import EventInput, ProfileInput, open_events, open_profile

_PROGRESS_EVENTS: Final = 16_384
_Item = ScannedEvent | ScannedValue
Progress = Callable[[int, int], None]
"""Function that receives the number of processed bytes and the total number of bytes."""


@dataclass(frozen=True, slots=True)
class TimelineSources:
    """All inputs of one timeline.

    Attributes:
        window: part of the job's time that the timeline shows.
        nodes: observations of the nodes.
        findings: findings about the job, the most important first.
        processes: event files.
        profiles: profiler traces.
    """

    window: TimeWindow
    nodes: Sequence[NodeObservation] = ()
    findings: Sequence[JobFinding] = ()
    processes: Sequence[EventInput] = ()
    profiles: Sequence[ProfileInput] = ()


@dataclass(slots=True)
class InputReport:
    """Result of reading one input.

    Attributes:
        path: path of the input file.
        tally: numbers of events of the input.
        lost: events that the program dropped while it ran.
        fault: damage at which reading stopped, with its position in the file; an empty value means no damage.
        has_unknown_clock: whether the clock of the trace is unknown, so that the first event is shown at the
            start of the timeline.
    """

    path: Path
    tally: EventTally = field(default_factory=EventTally)
    lost: int = 0
    fault: str = ""
    has_unknown_clock: bool = False


class TimelineBuilder:
    """Builder of one timeline from all inputs.

    Args:
        sources: inputs of the timeline.
        writer: writer of the Chrome trace; None means that no trace is written.
        overview: overview for the page of the timeline; None means that no page is created.
        progress: function that is called with the number of processed bytes and the total number of bytes.
    """

    def __init__(
        self,
        sources: TimelineSources,
        writer: TraceWriter | None,
        overview: Overview | None,
        progress: Progress,
    ) -> None:
        self._sources, self._writer, self._overview = sources, writer, overview
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(map(_event_bytes, sources.processes)) + sum(
            profile.file_bytes for profile in sources.profiles
        )
        self.process_count = len(sources.processes)
        self.reports: list[InputReport] = []

    def build(self) -> None:
        """Write the findings, then the signals and processes of each node, then the profiler traces."""
        sources, writer = self._sources, self._writer
        if writer:
            write_findings(writer, sources.window, sources.findings)
        observed = {node.node: node for node in sources.nodes}
        others = sorted({process.header.node for process in sources.processes} - observed.keys())
        processes = sorted(sources.processes, key=_process_order)
        rows = self._process_rows(processes)
        for name in (*observed, *others):
            if name in observed:
                if writer:
                    write_node(writer, sources.window, observed[name])
                self._add_steps(observed[name], processes)
            for process in processes:
                if process.header.node == name:
                    self._add_process(process, rows[process])
        names = [profile.path.name for profile in sources.profiles]
        profile_rows = self._overview.rows_for(names) if self._overview else []
        for number, profile in enumerate(sources.profiles, 1):
            self._add_profile(number, profile, profile_rows[number - 1][0] if profile_rows else None)

    def _process_rows(
        self, processes: Sequence[EventInput]
    ) -> Mapping[EventInput, tuple[OverviewRow, OverviewRow] | None]:
        if self._overview is None:
            return dict.fromkeys(processes)
        names = [_label(process.header.rank, process.header.pid) for process in processes]
        return dict(zip(processes, self._overview.rows_for(names), strict=True))

    def _add_process(self, process: EventInput, rows: tuple[OverviewRow, OverviewRow] | None) -> None:
        header = process.header
        group = 0
        if self._writer:
            name = _group_name(header.rank, header.pid, header.node, header.gpu)
            group = self._writer.lanes.add_group(name)
        events = ProcessEvents(header, self._sources.window, self._writer, group, self._overview, rows)
        report = InputReport(process.path, events.tally, header.lost)
        self.reports.append(report)
        with open_events(process) as file:
            try:
                for block in read_blocks(file, header):
                    events.add(block)
                    self._done_bytes += len(block) * RECORD_BYTES
                    self._progress(self._done_bytes, self._total_bytes)
            except OSError as error:
                report.fault = error.strerror or str(error)
        self._progress(self._done_bytes, self._total_bytes)

    def _add_steps(self, node: NodeObservation, processes: Sequence[EventInput]) -> None:
        """Add the recorded steps of each process on a node, unless the process has an event file."""
        known = {(process.header.node, process.header.pid) for process in processes}
        ranks = [steps for steps in node.ranks if (node.node, steps.pid) not in known and steps.intervals]
        names = [_label(steps.rank, steps.pid) for steps in ranks]
        rows = self._overview.rows_for(names) if self._overview else []
        self.process_count += len(ranks)
        for index, steps in enumerate(ranks):
            if self._writer:
                gpu = "" if steps.gpu is None else f"gpu[{steps.gpu}]"
                group = self._writer.lanes.add_group(_group_name(steps.rank, steps.pid, node.node, gpu))
                write_steps(self._writer, self._sources.window, group, steps)
            if self._overview:
                self._overview.add_steps(rows[index][0], steps)

    def _add_profile(self, number: int, profile: ProfileInput, row: OverviewRow | None) -> None:
        window, head = self._sources.window, profile.head
        processes = [process.header for process in self._sources.processes]
        nodes = [node.node for node in self._sources.nodes]
        offset_ns = unix_offset_ns(head, window, processes, nodes)
        report = InputReport(profile.path, has_unknown_clock=offset_ns is None)
        if offset_ns is None:
            offset_ns = window.from_ns - int((head.first_us or 0.0) * 1000)
        name = profile.path.name if head.rank is None else f"rank {head.rank} {profile.path.name}"
        drawing = (self._overview, row) if self._overview and row else None
        events = ProfileEvents(name, number, offset_ns, window, self._writer, drawing, has_gpu=head.has_gpu)
        report.tally = events.tally
        self.reports.append(report)
        with open_profile(profile) as (file, items):
            try:
                events.add(self._positioned(file, items))
            except TraceFileError as error:
                report.fault = str(error)
            except OSError as error:
                report.fault = error.strerror or str(error)
        self._done_bytes += profile.file_bytes
        self._progress(self._done_bytes, self._total_bytes)

    def _positioned(self, file: BinaryIO, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield the items of a profiler trace. Report how much of the file has been read."""
        for index, item in enumerate(items):
            if index % _PROGRESS_EVENTS == 0:
                self._progress(self._done_bytes + file.tell(), self._total_bytes)
            yield item


def _process_order(process: EventInput) -> tuple[bool, int, str, int]:
    header = process.header
    return header.rank is None, header.rank or 0, header.node, header.pid


def _event_bytes(process: EventInput) -> int:
    return min(process.header.written, process.header.capacity) * RECORD_BYTES


def _label(rank: int | None, pid: int) -> str:
    return f"pid {pid}" if rank is None else f"rank {rank}"


def _group_name(rank: int | None, pid: int, node: str, gpu: str) -> str:
    """Return the name under which the lanes (rows of events) of a process are grouped.

    Example: `rank 3 (n1, gpu[0], pid 4711)`.
    """
    places = [node, *([gpu] if gpu else []), *([] if rank is None else [f"pid {pid}"])]
    return f"{_label(rank, pid)} ({', '.join(places)})"
