"""Process and thread numbers of a Chrome trace, and the metadata events that name them.

A viewer shows one group of lanes per process number. Perfetto identifies threads by their number alone.
Therefore each thread number occurs only once in a trace, even in different processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slurm_energy.diagnosis.timeline.trace_text import json_text

_FIRST_THREAD: Final = 1 << 24
"""First thread number.

It is above all process numbers, because an equal number would denote the main thread.
"""
MAX_LANES: Final = 100_000


class LaneTable:
    """Table of the process and thread numbers in one Chrome trace.

    Each group of rows (lanes) gets a process number, and each lane gets a thread number.
    """

    def __init__(self) -> None:
        self._groups: list[str] = []
        self._lanes: list[tuple[int, str, int]] = []

    def add_group(self, name: str) -> int:
        """Return the process number of a new group of lanes.

        Viewers show groups in the order of their creation.
        """
        self._groups.append(name)
        return len(self._groups)

    def add_lane(self, group: int, name: str, order: int = 0) -> int | None:
        """Add a lane (a row of events) to the trace and return its thread number.

        None means that the trace already has `MAX_LANES` lanes.

        Args:
            group: process number under which the lane is grouped.
            name: name of the lane.
            order: position within the group; lanes of equal order are shown in the order of their creation.
        """
        if len(self._lanes) >= MAX_LANES:
            return None
        self._lanes.append((group, name, order))
        return _FIRST_THREAD + len(self._lanes) - 1

    def rename_group(self, group: int, name: str) -> None:
        """Change the name of a group."""
        self._groups[group - 1] = name

    def rename_lane(self, lane: int, name: str) -> None:
        """Change the name of a lane (a row of events in the trace viewer)."""
        group, _, order = self._lanes[lane - _FIRST_THREAD]
        self._lanes[lane - _FIRST_THREAD] = (group, name, order)

    def metadata(self) -> Iterator[str]:
        """Yield the trace events that give groups and lanes their names and their order in a viewer.

        A lane is a row of events that do not overlap.
        """
        for number, name in enumerate(self._groups, 1):
            yield _metadata(number, number, "process_name", f'{{"name":{json_text(name)}}}')
            yield _metadata(number, number, "process_sort_index", f'{{"sort_index":{number}}}')
        for number, (group, name, order) in enumerate(self._lanes, _FIRST_THREAD):
            yield _metadata(group, number, "thread_name", f'{{"name":{json_text(name)}}}')
            yield _metadata(group, number, "thread_sort_index", f'{{"sort_index":{order}}}')

    def __len__(self) -> int:
        """Return the number of lanes (rows of events) in the timeline."""
        return len(self._lanes)


def _metadata(process: int, thread: int, name: str, args: str) -> str:
    # `ts` stands before all texts: old releases of Perfetto search for it in the order of the keys.
    return f'{{"ph":"M","ts":0,"pid":{process},"tid":{thread},"name":"{name}","args":{args}}}'
