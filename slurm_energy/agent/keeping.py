"""What the agent writes down: checkpoints of its jobs and of the node's books, records into the spool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from slurm_energy.agent.complaints import Complaints
from slurm_energy.agent.measuring import Measuring
from slurm_energy.agent.session import OPEN, Session
from slurm_energy.agent.spool import Spool
from slurm_energy.agent.statedir import StateDir
from slurm_energy.records import EnergyRecord

_MOST_UNFORCED = 6
"""Regular checkpoints, one in 10 s, of which the last is forced to disk: a power failure takes a minute."""


class Keeper:
    """Writes; what fails is said once and tried again by whoever calls again.

    Every checkpoint holds the books of the whole node, so that the latest of them, whichever job's file it is
    in, tells all jobs' energy up to one instant.

    Args:
        state: the agent's directory.
        spool: records for the controller.
        measuring: what is kept.
        running: returns the jobs that run.

    Attributes:
        on_change: called after something was written that should be forced to disk, or delivered.
    """

    def __init__(
        self,
        state: StateDir,
        spool: Spool,
        measuring: Measuring,
        running: Callable[[], Iterable[Session]],
        on_change: Callable[[], None],
    ) -> None:
        self.on_change = on_change
        self._state = state
        self._spool = spool
        self._measuring = measuring
        self._running = running
        self._unsynced: set[str] = set()
        self._unforced = 0
        self._complaints = Complaints()

    def save(self, session: Session) -> None:
        """Write what changed for one job, and the node's books."""
        self._write(lambda: self._unsynced.add(self._state.save(session, self._checkpoint())))

    def save_books(self) -> bool:
        """Write the node's books; False if that failed."""
        return self._write(self._save_books)

    def save_regularly(self) -> None:
        """Write the node's books, and traces that have grown; force that to disk only now and then.

        It survives our death at once. To force it to disk each time would cost more than sampling does.
        """
        self.save_traces(grown=True)
        self._write(self._save_books, tell=False)
        self._unforced += 1
        if self._unforced >= _MOST_UNFORCED:
            self.on_change()

    def save_traces(self, *, grown: bool = False) -> None:
        """Write the traces of the jobs that run; with `grown` those that are worth writing again."""
        for session in self._running():
            if session.trace is not None and (session.trace.has_grown or not grown):
                self._write(partial(self._state.save_trace, session), tell=False)

    def spool(self, record: EnergyRecord, trace: dict[str, Any] | None = None) -> bool:
        """Store a record for delivery; False if that failed."""
        try:
            self._unsynced.update(self._spool.add(record, trace))
        except OSError as error:
            self._complaints.tell("spool", f"records not stored, will be tried again: {error}", logging.ERROR)
            return False
        self._complaints.settle("spool", "records can be stored again")
        self.on_change()
        return True

    def forget(self, session: Session) -> None:
        """Remove what was written of a job whose record is in the spool."""
        self._state.forget(session)

    def unsynced(self) -> set[str]:
        """Return files that were written since the last call and not forced to disk."""
        found, self._unsynced = self._unsynced, set()
        self._unforced = 0
        return found

    def _save_books(self) -> None:
        self._unsynced.add(self._state.save_books(self._checkpoint()))

    def _checkpoint(self) -> dict[str, Any]:
        return self._measuring.checkpoint(s for s in self._running() if s.phase == OPEN)

    def _write(self, write: Callable[[], object], *, tell: bool = True) -> bool:
        try:
            write()
        except OSError as error:
            self._complaints.tell("checkpoint", f"not written: {error}", logging.ERROR)
            return False
        self._complaints.settle("checkpoint", "written again")
        if tell:
            self.on_change()
        return True
