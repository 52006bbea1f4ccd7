"""Publication of the order of the queue to slurmctld.

slurm-energy orders the queue by site factors, the part of Slurm's job priority that it sets. There
are three ways to publish them: a table that a plugin in slurmctld reads, scontrol commands, or no
publication. The engine decides the site factor of each job. `slurm.queue.job_update` sets site
factors by scontrol.
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
"""Maximum number of new jobs per cycle that slurmctld looks up at once. Jobs beyond it rarely start next."""

_CHECK_INTERVAL_S: Final = 600.0


class Publisher(Protocol):
    """Interface that publishes the order of the queue to Slurm."""

    def publish(self, snapshot: Snapshot) -> str | None:
        """Transfer the order of the ranked queue to Slurm.

        Return a line that describes failures; None without failures.

        Raises:
            UnavailableError: nothing was published; the previous order stays in force.
        """
        ...

    def close(self, successor: Publisher | None) -> None:
        """Stop setting priorities in Slurm for good. The jobs keep their present priorities.

        Args:
            successor: the publisher that takes over; None means that no publisher takes over.
        """
        ...


class SiteFactorSetter(Protocol):
    """Interface that sets the site factors of jobs. A site factor is a term of Slurm's job priority.

    The class `slurm.queue.job_update.JobUpdater` implements this interface.
    """

    def set_site_factors(self, changes: Mapping[int, int]) -> Any:
        """Set site factors of jobs, in the given order, until the permitted time is over.

        `changes` maps the job id to the site factor. Return an `UpdateResult`. Its attribute `refused` holds
        Slurm's reason for each refused job, and `remaining` the jobs for which the time was too short.
        """
        ...


class NullPublisher:
    """Publisher of shadow mode. It discards the computed priorities and changes nothing in Slurm."""

    def publish(self, snapshot: Snapshot) -> str | None:
        """Do nothing and report no failure."""
        return None

    def close(self, successor: Publisher | None) -> None:
        """Do nothing, because nothing was published."""


class TablePublisher:
    """Publisher of plugin mode. Every cycle it writes a table of all pending jobs, changed or not.

    A recent table shows the plugin in slurmctld that senergyctld is running. slurmctld looks up all jobs
    in the table once a minute. It looks up a single job whenever a field of the job is set. Until its
    first look-up, a new job is in the middle of the queue. The publisher therefore sets a field of each
    new job, in queue order, so that slurmctld looks the job up at once.

    Args:
        path: path of the file `priority.table`.
        stale_s: age in seconds at which the plugin disregards the table.
        refresher: sets a field of a job in Slurm; None means that slurmctld looks up new jobs only at the
            next minute.
        ranks_all: whether jobs of all partitions are ranked. If true, a job that is not in the table gets
            the middle of the queue. If false, such a job gets the last place. In the middle, new jobs of
            an unranked partition would precede all jobs that already wait there, which might then never
            start.
    """

    def __init__(
        self, path: Path, stale_s: float, refresher: SiteFactorSetter | None = None, *, ranks_all: bool = True
    ) -> None:
        self._path, self._stale_s, self._refresher = path, stale_s, refresher
        self._ranks_all = ranks_all

    def publish(self, snapshot: Snapshot) -> str | None:
        """Write the table of site factors, from which slurmctld orders its queue.

        A site factor represents a job's place in the queue. After the table is written, slurmctld is made to
        look up the jobs that are new. The function returns a line that describes failures, or None.

        A job that is submitted after the table was written is not in the table until the next write. If all
        partitions are ranked, such a job goes to the middle of the queue. Otherwise it goes to the end.
        """
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
        """Remove the published table of the order of the queue.

        The table is kept if `successor` also writes it. If a table remained, slurmctld would use it until it
        is stale (too old).
        """
        if isinstance(successor, TablePublisher) and successor._path == self._path:
            return
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class ScontrolPublisher:
    """Publisher of the portable mode, which sets the site factors of jobs with scontrol.

    A site factor is the term of a job's priority that slurm-energy sets. Only changed site factors are set,
    the most important ones first.

    Args:
        applier: object that sets the site factors of single jobs.
        check: function that raises ConfigError if slurm.conf gives site factors no weight. It is called
            before changes, but at most once in `_CHECK_INTERVAL_S`.
    """

    def __init__(self, applier: SiteFactorSetter, check: Callable[[], None] = lambda: None) -> None:
        self._applier, self._check = applier, check
        self._checked_s = -float("inf")

    def publish(self, snapshot: Snapshot) -> str | None:
        """Set the changed site factors (priority terms) of the jobs with scontrol commands.

        The time for the scontrol commands of one cycle is limited. Changes for which the time does not
        suffice are made in the next cycles. Return a line that describes failures; None without failures.
        """
        changes = snapshot.site_factor_changes()
        if changes and time.monotonic() - self._checked_s > _CHECK_INTERVAL_S:
            self._check()
            self._checked_s = time.monotonic()
        return _apply(self._applier, changes)

    def close(self, successor: Publisher | None) -> None:
        """Do nothing: site factors that were set stay with the jobs."""


def _apply(applier: SiteFactorSetter, changes: Mapping[int, int]) -> str | None:
    if not changes:
        return None
    outcome = applier.set_site_factors(changes)
    if outcome.refused:
        job, why = next(iter(outcome.refused.items()))
        return f"{len(outcome.refused)} jobs keep their old place, job {job}: {why}"
    return None
