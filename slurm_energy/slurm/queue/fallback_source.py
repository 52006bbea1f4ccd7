"""Reader of the job queue that falls back to squeue if the file `queue.table` cannot be used.

The plugin of slurmctld writes `queue.table`. The file may be missing or damaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.columns import QueueColumns, QueueSource
from slurm_energy.slurm.queue.table_source import QueueTableSource

MAX_SNAPSHOT_AGE_S: Final = 120.0
"""Maximum age, in seconds, of the last valid snapshot for further use: two scheduling passes of slurmctld."""


class FallbackQueueSource:
    """Reader of Slurm's queue from the table that the plugin in slurmctld writes.

    Two other sources replace the table while it cannot be read. The first is the last table that was read
    successfully, updated from the table's journal. The second is squeue. slurmctld rewrites a lost table
    within a minute. Until then the ranking of the queue must continue, because unranked new jobs would
    start in the middle of the queue.

    Args:
        table: reads the files of the plugin.
        squeue: reads the queue with squeue.
        clock: function that returns Unix seconds.

    Attributes:
        problem: why the last `read` could not use the table, in one line; None means that the last `read`
            used the table.
    """

    def __init__(
        self, table: QueueTableSource, squeue: QueueSource, clock: Callable[[], float] = time.time
    ) -> None:
        self._table, self._squeue, self._clock = table, squeue, clock
        self._by_squeue = False
        self.problem: str | None = None

    @property
    def name(self) -> str:
        """Name of the source that the last `read` used, for messages: `queue.table` or `squeue`."""
        return "squeue" if self._by_squeue else "queue.table"

    def signature(self) -> tuple[int, ...]:
        """Return numbers that change each time slurmctld writes to the table or the table's journal."""
        return self._table.signature()

    def read(self) -> QueueColumns:
        """Return the current queue: from the plugin's table, or from squeue if the table cannot be read.

        Raises:
            UnavailableError: neither the table nor squeue can be read.
        """
        self._by_squeue = False
        try:
            queue = self._table.read()
        except UnavailableError as error:
            return self._without_table(error)
        self.problem = None
        return queue

    def _without_table(self, error: UnavailableError) -> QueueColumns:
        last = self._table.read_last()
        if last is not None and abs(self._clock() - last.taken_unix_s) <= MAX_SNAPSHOT_AGE_S:
            self.problem = f"{error}; the last table is used until slurmctld writes a new one"
            return last
        try:
            queue = self._squeue.read()
        except UnavailableError as second:
            raise UnavailableError(error.what, f"{error.why}; {second}", error.todo) from None
        self._by_squeue = True
        self.problem = f"{error}; the queue is read with squeue until slurmctld writes a new one"
        return queue
