"""Import of Chrome traces, as the PyTorch profiler and other tools write them, into a timeline.

The times of a trace are Unix time in microseconds, offsets to `baseTimeNanoseconds` (PyTorch 2), or times of
CLOCK_MONOTONIC. The content is hostile input: each event is checked, and faults are counted with their
position in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.diagnosis.event_format import EventFileHeader
from slurm_energy.diagnosis.timeline.chrome_scanner import ScannedEvent, ScannedValue, TraceFileError
from slurm_energy.diagnosis.timeline.trace_text import is_finite
from slurm_energy.diagnosis.timeline.window import MAX_UNIX_S, TimeWindow

MAX_HEAD_EVENTS: Final = 10_000
MAX_HEAD_BYTES: Final = 4 << 20
"""Maximum number of bytes of a trace that are examined if its clock and rank are known by then."""
_MIN_UNIX_US: Final = 1e15
"""Minimum microseconds that count as Unix time (September 2001). No host has been up for so long."""
GPU_CATEGORIES: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
"""Categories by which the PyTorch profiler marks events of a GPU."""
_OWN_PROGRAM: Final = "senergy "
"""Start of `otherData.program` in traces that `senergy timeline` writes."""
_MAX_PIDS: Final = 4096
_TIMED_PHASES: Final = frozenset("XBEiIRC")


@dataclass(slots=True)
class ProfileHead:
    """Facts about a trace: its clock, its rank, and the times of its events.

    Attributes:
        rank: rank of the process in distributed training; None means unknown.
        base_ns: Unix time in nanoseconds at time 0 of the trace; None means not stated.
        first_us: earliest time among the examined events; None means that there are no events.
        last_us: latest end among the examined events.
        has_gpu: whether there are events of a GPU.
        events: number of examined events.
        pids: process ids of the examined events, at most 4096. The profiler also writes GPU numbers here.
        is_timeline: whether `senergy timeline` wrote the trace.
    """

    rank: int | None = None
    base_ns: int | None = None
    first_us: float | None = None
    last_us: float | None = None
    has_gpu: bool = False
    events: int = 0
    pids: set[int] = field(default_factory=set)
    is_timeline: bool = False

    @property
    def unix_base_ns(self) -> int | None:
        """Unix time in nanoseconds at time 0 of the trace; None if the trace does not state this time."""
        is_unix = self.first_us is not None and _MIN_UNIX_US <= self.first_us <= MAX_UNIX_S * 1e6
        return 0 if is_unix else self.base_ns

    @property
    def length_s(self) -> float:
        """Seconds from the first to the last examined event."""
        return ((self.last_us or 0.0) - (self.first_us or 0.0)) / 1e6

    @property
    def unix_span_s(self) -> tuple[float, float] | None:
        """Unix times in seconds of the first and the last examined event; None if the clock is unknown."""
        base_ns = self.unix_base_ns
        if base_ns is None or self.first_us is None:
            return None
        start_s = base_ns / 1e9 + self.first_us / 1e6
        return start_s, start_s + self.length_s


def read_head(
    items: Iterator[ScannedEvent | ScannedValue], *, to_the_end: bool = False, skips_timelines: bool = False
) -> ProfileHead:
    """Return general facts about a trace, read from its first events.

    A trace whose clock or rank is still unknown is examined up to its end, because the PyTorch profiler
    writes `baseTimeNanoseconds` after the events.

    If the file is damaged after an event, no error is raised here. The later import reports the damage.

    Args:
        items: items of the scanned file; this function consumes the first ones.
        to_the_end: in any case examine all events, so that `last_us` is the end of the trace.
        skips_timelines: whether the caller skips traces that `senergy timeline` wrote. The events of such a
            trace are then not examined.

    Raises:
        TraceFileError: the content is not a trace.
    """
    head = ProfileHead()
    try:
        _read_items(head, items, to_the_end, skips_timelines)
    except TraceFileError:
        if not head.events:
            raise
    return head


def _read_items(
    head: ProfileHead,
    items: Iterator[ScannedEvent | ScannedValue],
    to_the_end: bool,
    skips_timelines: bool,
) -> None:
    for item in items:
        if isinstance(item, ScannedValue):
            _note_value(head, item)
            if skips_timelines and head.is_timeline:
                return
            continue
        head.events += 1
        if isinstance(item.value, dict) and str(item.value.get("ph")) in _TIMED_PHASES:
            _note_time(head, item.value)
        is_long = head.events >= MAX_HEAD_EVENTS or item.offset > MAX_HEAD_BYTES
        if is_long and not to_the_end and head.unix_base_ns is not None and head.rank is not None:
            return


def _note_value(head: ProfileHead, item: ScannedValue) -> None:
    if item.key == "baseTimeNanoseconds" and is_finite(item.value) and abs(item.value) <= MAX_UNIX_S * 1e9:
        head.base_ns = int(item.value)
    elif item.key == "distributedInfo" and isinstance(item.value, dict):
        rank = item.value.get("rank")
        if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 31:
            head.rank = rank
    elif item.key == "otherData" and isinstance(item.value, dict):
        program = item.value.get("program")
        head.is_timeline = isinstance(program, str) and program.startswith(_OWN_PROGRAM)


def _note_time(head: ProfileHead, event: Mapping[str, Any]) -> None:
    start_us = finite_number(event.get("ts"))
    if start_us is None:
        return
    head.has_gpu = head.has_gpu or is_gpu_event(event)
    end_us = start_us + max(0.0, finite_number(event.get("dur")) or 0.0)
    head.first_us = start_us if head.first_us is None else min(head.first_us, start_us)
    head.last_us = end_us if head.last_us is None else max(head.last_us, end_us)
    pid = finite_number(event.get("pid"))
    if pid is not None and len(head.pids) < _MAX_PIDS:
        head.pids.add(int(pid))


def is_gpu_event(event: Mapping[str, Any]) -> bool:
    """Return whether an event took place on a GPU."""
    category = event.get("cat")
    return isinstance(category, str) and category in GPU_CATEGORIES


def finite_number(value: Any) -> float | None:
    """Convert a value of a trace, a number or text, to a finite number; None for any other value."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_finite(value) else None


def unix_offset_ns(
    head: ProfileHead, window: TimeWindow, processes: Sequence[EventFileHeader], nodes: Collection[str] = ()
) -> int | None:
    """Return the Unix time in nanoseconds at time 0 of a trace; None if its clock is unknown.

    The times of a trace that states no clock are those of CLOCK_MONOTONIC on its node. This clock differs
    from node to node. Each event file states Unix time minus CLOCK_MONOTONIC for its node. The value of a
    node fits if the trace then begins within the window. If the values of several nodes fit, the clock of the
    trace is unknown.

    Args:
        head: facts about the trace.
        window: part of the job's time that the timeline shows.
        processes: headers of the event files of the job.
        nodes: known nodes of the job; not necessarily those of `processes`.
    """
    if head.first_us is None:
        return 0
    if head.unix_base_ns is not None:
        return head.unix_base_ns
    first_ns = head.first_us * 1000
    offsets_ns: dict[str, int] = {}
    for process in _possible_writers(head, processes, nodes):
        if window.from_ns <= first_ns + process.unix_offset_ns < window.to_ns:
            offsets_ns.setdefault(process.node, process.unix_offset_ns)
    return next(iter(offsets_ns.values())) if len(offsets_ns) == 1 else None


def _possible_writers(
    head: ProfileHead, processes: Sequence[EventFileHeader], nodes: Collection[str]
) -> Sequence[EventFileHeader]:
    """Return the processes that may have written a trace.

    A process whose process id occurs in the trace may have written it. If there is no such process, a process
    with the rank of the trace may have written it. The process id counts more, because torchrun numbers the
    ranks, while an event file contains Slurm's number of the task. If neither matches, any process of the job
    may have written the trace. The result is then empty if a node of the job has no event file.
    """
    same_pid = [process for process in processes if process.pid in head.pids]
    same_rank = [process for process in processes if process.rank == head.rank is not None]
    same_both = [process for process in same_pid if process.rank == head.rank is not None]
    if likely := same_both or same_pid or same_rank:
        return likely
    return processes if {process.node for process in processes}.issuperset(nodes) else ()
