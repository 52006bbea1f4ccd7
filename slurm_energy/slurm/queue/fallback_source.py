"""Reads the queue while `queue.table` is lost: from memory and the journal, then with squeue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.columns import QueueColumns, QueueSource
from slurm_energy.slurm.queue.table_source import QueueTableSource

MAX_SNAPSHOT_AGE_S: Final = 120.0
"""Age up to which the last good snapshot is used: two of slurmctld's passes."""


class FallbackQueueSource:
    """The plugin's table; while it is missing or damaged, the last one with its journal, then squeue.

    slurmctld writes the table again at its next pass, within a minute. Until then the order must not stop:
    new jobs would stand in the middle of the queue.

    Args:
        table: the plugin's files.
        squeue: reads the queue with Slurm's command.
        clock: Unix seconds.

    Attributes:
        problem: why the table could not be read the last time, in one line; None: it was.
    """

    def __init__(
        self, table: QueueTableSource, squeue: QueueSource, clock: Callable[[], float] = time.time
    ) -> None:
        self._table, self._squeue, self._clock = table, squeue, clock
        self._by_squeue = False
        self.problem: str | None = None

    @property
    def name(self) -> str:
        """The source of the last queue, for people."""
        return "squeue" if self._by_squeue else "queue.table"

    def signature(self) -> tuple[int, ...]:
        """Return numbers that change when slurmctld wrote something."""
        return self._table.signature()

    def read(self) -> QueueColumns:
        """Return the queue.

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
            self.problem = f"{error}; the last one is used until slurmctld writes it again"
            return last
        try:
            queue = self._squeue.read()
        except UnavailableError as second:
            raise UnavailableError(error.what, f"{error.why}; {second}", error.todo) from None
        self._by_squeue = True
        self.problem = f"{error}; the queue is read with squeue meanwhile"
        return queue
