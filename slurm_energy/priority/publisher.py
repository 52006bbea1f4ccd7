"""Handing an order over to slurmctld: through the plugin's table, job by job, or not at all.

Which number a job gets is decided by the engine; how Slurm is asked is the slurm room's matter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from slurm_energy.priority import table_file
from slurm_energy.priority.snapshot import Snapshot

MAX_REFRESHED_JOBS: Final = 100
"""New jobs of a cycle that are looked up at once; the others are seldom those that start next."""

_CHECK_INTERVAL_S: Final = 600.0


class Publisher(Protocol):
    """Where orders go."""

    def publish(self, snapshot: Snapshot) -> str | None:
        """Hand over; return in one line what could not be done, None if all is well.

        Raises:
            UnavailableError: nothing could be handed over; the last order stays.
        """
        ...

    def close(self, successor: Publisher | None) -> None:
        """Stop ordering jobs for good, as another target takes over, or none. Jobs keep their places."""
        ...


class SiteFactorSetter(Protocol):
    """Sets site factors job by job, see `slurm.queue.update.Updater`."""

    def set_site_factors(self, changes: Mapping[int, int]) -> Any:
        """Set them in the order given, as many as time allows; the answer has `refused` and `left`."""
        ...


class NullPublisher:
    """Shadow mode: nothing is changed."""

    def publish(self, snapshot: Snapshot) -> str | None:
        """Do nothing."""
        return None

    def close(self, successor: Publisher | None) -> None:
        """Do nothing."""


class TablePublisher:
    """Plugin mode: a table of all pending jobs, rewritten every cycle, which also shows that we live.

    slurmctld looks all jobs up once a minute, and one job when something about it is set. So new jobs, which
    would stand in the middle of the queue for up to a minute, are nudged, the first to start first.

    Args:
        path: `priority.table`.
        stale_s: age at which the plugin disregards it.
        refresher: sets something about a job; None: new jobs wait for the next minute.
        ranks_all: all partitions are ranked. Else jobs that are new to us begin last: those of the other
            partitions would stand before all that wait there, and with many of them the old ones never start.
    """

    def __init__(
        self, path: Path, stale_s: float, refresher: SiteFactorSetter | None = None, *, ranks_all: bool = True
    ) -> None:
        self._path, self._stale_s, self._refresher = path, stale_s, refresher
        self._ranks_all = ranks_all

    def publish(self, snapshot: Snapshot) -> str | None:
        """Write the table; jobs submitted until the next one go to the middle of the queue, or last."""
        job_ids, site_factors = snapshot.site_factor_table()
        table_file.write(
            self._path,
            job_ids,
            site_factors,
            stale_s=self._stale_s,
            default=snapshot.default_site_factor if self._ranks_all else 0,
            written_unix_s=snapshot.computed,
        )
        if self._refresher is None:
            return None
        return _apply(
            self._refresher,
            dict(islice(snapshot.site_factor_changes(new_only=True).items(), MAX_REFRESHED_JOBS)),
        )

    def close(self, successor: Publisher | None) -> None:
        """Take the table away, or slurmctld would go by it until it is stale."""
        if isinstance(successor, TablePublisher) and successor._path == self._path:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class ScontrolPublisher:
    """Portable mode: changed site factors only, the first to start first.

    Args:
        applier: sets them.
        check: raises ConfigError where slurm.conf has site factors decide nothing; asked now and then.
    """

    def __init__(self, applier: SiteFactorSetter, check: Callable[[], None] = lambda: None) -> None:
        self._applier, self._check = applier, check
        self._checked_s = -float("inf")

    def publish(self, snapshot: Snapshot) -> str | None:
        """Have the changes made; what there is no time for is made in the next cycles."""
        changes = snapshot.site_factor_changes()
        if changes and time.monotonic() - self._checked_s > _CHECK_INTERVAL_S:
            self._check()
            self._checked_s = time.monotonic()
        return _apply(self._applier, changes)

    def close(self, successor: Publisher | None) -> None:
        """Do nothing: what was set stays with the jobs."""


def _apply(applier: SiteFactorSetter, changes: Mapping[int, int]) -> str | None:
    if not changes:
        return None
    outcome = applier.set_site_factors(changes)
    if outcome.refused:
        job, why = next(iter(outcome.refused.items()))
        return f"{len(outcome.refused)} jobs keep their old place, job {job}: {why}"
    return None
