"""Manager of the hardware settings that jobs and power budgets request on a node.

The manager applies settings and ceilings (upper bounds that a power budget sets). It restores the
settings of finished jobs, and repeats failed writes. It does not know the sessions (the agent's data)
of jobs. The argument `allocations` supplies the running jobs and their allocations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurm_energy.control.apply import apply, reconcile
from slurm_energy.control.arbitration import Arbiter, JobAllocation, KnobDomains
from slurm_energy.control.ceilings import set_ceilings
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.control.knob_keys import join_keys
from slurm_energy.control.restore import RestoreResult, restore
from slurm_energy.control.transaction import SettingOutcome
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.settings import Setting
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)


class SettingsManager:
    """Manager of the hardware settings of one node, with one journal.

    Args:
        devices: devices of the node.
        journal: original values of the settings, and the values that jobs request (claims).
        allocations: function that returns the allocation of each running job, by job as `JOBID.RESTART`. If
            the argument is None, every job in the journal counts as running.

    Attributes:
        journal: settings journal of the node.
        unrestored: keys of the settings (knobs) that could not be restored although their job has ended.
    """

    def __init__(
        self,
        devices: NodeDevices,
        journal: SettingsJournal,
        allocations: Callable[[], Mapping[str, JobAllocation]] | None = None,
    ) -> None:
        self._devices = devices
        self.journal = journal
        self.unrestored: set[str] = set()
        self._failures = RepeatedFailureLog(log)
        self._allocations = allocations
        self._domains = KnobDomains.from_hardware(devices.hardware)

    def apply(
        self, owner: str, settings: Sequence[Setting], current: Mapping[str, str] | None = None
    ) -> list[SettingOutcome]:
        """Apply the settings of a job as far as they are compatible with the settings of other jobs.

        Call this method also for a job without settings. A setting is written through a file or a call
        (knob), which several jobs may share. A job without settings may share a knob with another job, whose
        setting of this knob may then have to be withdrawn.

        Args:
            owner: job that requests the settings, as `JOBID.RESTART`.
            settings: requested settings; may be empty.
            current: values, by key of the knob, that the caller has just read, so that they are not read
                again; None if the caller has read no values.

        Returns:
            One outcome per setting. Optional settings that the hardware lacks have no outcome.
        """
        if not settings and not self.journal.entries:
            return []
        outcomes = apply(self._devices, self.journal, owner, settings, current, self._arbiter())
        self._log_journal_state()
        return outcomes

    def restore(self, owner: str | None, keys: Iterable[str] | None = None) -> list[RestoreResult]:
        """Restore the original values of settings that a job has changed; log each failure once.

        Args:
            owner: the job; None for all jobs.
            keys: keys of the knobs to restore; None for all.

        Returns:
            One result for each knob on which the job had requested a value.
        """
        results = restore(self._devices, self.journal, owner, keys, self._arbiter())
        self._log_restored("settings" if owner is None else f"job {owner}", owner, results)
        return results

    def set_ceilings(self, ceilings: Mapping[str, str | None]) -> bool:
        """Set or remove upper bounds (ceilings) of hardware settings, see `control.ceilings`.

        A power budget requires these bounds. Each failure is logged once.

        Args:
            ceilings: ceiling by key of the setting (knob); None removes the ceiling.

        Returns:
            Whether the journal could be written. Otherwise the hardware was not changed.
        """
        return self._change_ceilings(ceilings) is not None

    def lift_ceilings(self) -> list[RestoreResult]:
        """Remove all ceilings. A ceiling is the upper bound that a power budget sets for a power limit.

        The original value of a power limit is restored if no job requests a value for it any more. The
        result contains one entry for each limit to be restored.
        """
        keys = [key for key, entry in self.journal.entries.items() if entry.ceiling is not None]
        results = self._change_ceilings(dict.fromkeys(keys))
        return (
            [RestoreResult(key, False, self.journal.write_error) for key in keys]
            if results is None
            else results
        )

    def _change_ceilings(self, ceilings: Mapping[str, str | None]) -> list[RestoreResult] | None:
        """Set or remove upper limits (ceilings) of hardware settings, as a power budget requires.

        If neither a job nor a budget requests a value for a setting any more, its original value is restored.

        Args:
            ceilings: ceiling by key of the setting; None removes the ceiling.

        Returns:
            The results of restoring original values. None if the journal of original values cannot be
            written.
        """
        try:
            results = set_ceilings(self._devices, self.journal, ceilings, self._arbiter())
        except OSError as error:
            self.journal.write_error = error.strerror or str(error)
            self._log_journal_state()
            return None
        self._log_restored("power budget", None, results)
        return results

    def value_without_ceiling(self, key: str) -> str | None:
        """Return the value that a hardware setting (knob) would have without the bound of a power budget.

        The value follows from the requests of the running jobs. Without requests, it is the original value.
        Return None if the journal has no entry for the knob.
        """
        entry = self.journal.entries.get(key)
        if entry is None:
            return None
        value = self._arbiter().merged_value(key, entry.original, entry.claims)
        return entry.original if value is None else value

    def _log_restored(self, subject: str, owner: str | None, results: Iterable[RestoreResult]) -> None:
        self._log_journal_state()
        new_failures: dict[str, list[str]] = {}
        waiting = {entry.key for entry in self.journal.entries_of(owner)}
        for result in results:
            if result.done:
                self.unrestored.discard(result.key)
            elif result.key not in self.unrestored:
                new_failures.setdefault(result.note, []).append(result.key)
                self.unrestored |= {result.key} & waiting
        for note, failed_keys in new_failures.items():
            log.warning("%s: %s not restored: %s", subject, join_keys(failed_keys), note)
        self.unrestored &= set(self.journal.entries)

    def has_settings(self, owner: str) -> bool:
        """Return whether a setting of the job `owner` is not restored yet."""
        return bool(self.journal.entries_of(owner))

    def check_restored(self, outcomes: Iterable[SettingOutcome]) -> list[RestoreResult]:
        """Check whether the hardware has the original values of changed settings again; write nothing.

        Use this method for settings without a journal entry.

        Args:
            outcomes: results of the changes, which contain the original values.

        Returns:
            One result per setting. A setting whose current or original value is unknown has no result.
        """
        results = []
        for outcome in outcomes:
            knob = self._devices.knobs.get(outcome.key)
            current = self._devices.read([outcome.key]).get(outcome.key)
            if knob is None or not knob.readable or current is None or outcome.original is None:
                continue
            done = knob.is_equivalent(outcome.original, current)
            note = "" if done else f"now {knob.format_value(current)}"
            results.append(RestoreResult(outcome.key, done, note))
        return results

    def repair(self, running: Collection[str]) -> list[RestoreResult]:
        """Restore settings left by finished jobs and retry failed settings of running jobs.

        Args:
            running: the running jobs, as `JOBID.RESTART`.

        Returns:
            Results of the restored settings.
        """
        if self._allocations is None:
            return self.restore(None)
        results: list[RestoreResult] = []
        for owner in sorted(self.journal.owners() - set(running)):
            results += self.restore(owner)
        if orphans := [entry.key for entry in self.journal.entries.values() if entry.is_orphaned]:
            results += self.restore(None, orphans)
        try:
            reconcile(self._devices, self.journal, self._arbiter())
        except OSError as error:
            self.journal.write_error = error.strerror or str(error)
        self._log_journal_state()
        return results

    def _log_journal_state(self) -> None:
        if self.journal.write_error:
            why = f"cannot be written, no further setting is applied: {self.journal.write_error}"
            self._failures.report("settings journal", why, logging.ERROR)
        else:
            self._failures.clear("settings journal", "can be written again")
        keys = [entry.key for entry in self.journal.entries.values() if entry.is_unfulfilled]
        if keys:
            why = f"{join_keys(keys)} cannot be set to the required value; retrying"
            self._failures.report("shared settings", why)
        else:
            self._failures.clear("shared settings", "set to the required values")

    def _arbiter(self) -> Arbiter:
        return Arbiter(None if self._allocations is None else self._allocations(), self._domains)
