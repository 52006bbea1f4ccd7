"""Sets what jobs ask for and puts back what ended jobs left; remembers what could not be put back.

Knows no sessions: who runs and what each has it is told by a function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurm_energy.control import knob_keys
from slurm_energy.control.apply import RestoreResult, SettingOutcome, apply, restore, review
from slurm_energy.control.arbitration import Arbiter, JobAllocation, KnobDomains
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.hardware import Setting
from slurm_energy.log_once import Complaints

log = logging.getLogger(__name__)


class Restoration:
    """Sets and restores one node's devices by one journal.

    Args:
        devices: the node.
        journal: originals and claims.
        tenants: returns what each job that runs has, by the name under which it is journaled; without it,
            whatever the journal names counts as running.

    Attributes:
        journal: the originals.
        failed: keys of settings that are not back although their job has ended.
    """

    def __init__(
        self,
        devices: NodeDevices,
        journal: SettingsJournal,
        tenants: Callable[[], Mapping[str, JobAllocation]] | None = None,
    ) -> None:
        self._devices = devices
        self.journal = journal
        self.failed: set[str] = set()
        self._complaints = Complaints()
        self._tenants = tenants
        self._parts = KnobDomains.of(devices.hardware)

    def set(
        self, owner: str, settings: Sequence[Setting], known: Mapping[str, str] | None = None
    ) -> list[SettingOutcome]:
        """Set what a job asks for, as far as the other jobs there agree; see `settings.apply`.

        A job that asks for nothing still counts: what others asked for may end where it begins.
        """
        if not settings and not self.journal.entries:
            return []
        outcomes = apply(self._devices, self.journal, owner, settings, known, self._jobs())
        self._look_at_journal()
        return outcomes

    def of_job(self, owner: str | None, keys: Iterable[str] | None = None) -> list[RestoreResult]:
        """Give up what a job (None: any job) set, or some of it. Each failure is logged once."""
        results = restore(self._devices, self.journal, owner, keys, self._jobs())
        self._look_at_journal()
        fresh: dict[str, list[str]] = {}
        waiting = {entry.key for entry in self.journal.entries_of(owner)}
        for result in results:
            if result.done:
                self.failed.discard(result.key)
            elif result.key not in self.failed:
                fresh.setdefault(result.note, []).append(result.key)
                self.failed |= {result.key} & waiting
        for note, found in fresh.items():
            log.warning("job %s: %s not restored: %s", owner, knob_keys.together(found), note)
        self.failed &= set(self.journal.entries)
        return results

    def holds(self, owner: str) -> bool:
        """Return whether something that a job set is not back yet."""
        return bool(self.journal.entries_of(owner))

    def look(self, outcomes: Iterable[SettingOutcome]) -> list[RestoreResult]:
        """Say of settings whose entries are closed already whether the original is in force."""
        results = []
        for outcome in outcomes:
            knob = self._devices.knobs.get(outcome.key)
            found = self._devices.read([outcome.key]).get(outcome.key)
            if knob is None or not knob.readable or found is None or outcome.original is None:
                continue
            done = knob.is_equivalent(outcome.original, found)
            results.append(
                RestoreResult(outcome.key, done, "" if done else f"now {knob.format_value(found)}")
            )
        return results

    def repair(self, running: Collection[str]) -> list[RestoreResult]:
        """Restore what jobs left that are not among the running ones, and what failed for those that are."""
        if self._tenants is None:
            return self.of_job(None)
        results: list[RestoreResult] = []
        for owner in sorted(self.journal.owners() - set(running)):
            results += self.of_job(owner)
        try:
            review(self._devices, self.journal, self._jobs())
        except OSError as error:
            self.journal.behind = error.strerror or str(error)
        self._look_at_journal()
        return results

    def _look_at_journal(self) -> None:
        if self.journal.behind:
            why = f"cannot be written, nothing more is set: {self.journal.behind}"
            self._complaints.tell("settings journal", why, logging.ERROR)
        else:
            self._complaints.settle("settings journal", "can be written again")
        keys = [entry.key for entry in self.journal.entries.values() if entry.is_unfulfilled]
        if keys:
            why = f"{knob_keys.together(keys)} cannot be set to what the jobs there need: tried again"
            self._complaints.tell("shared settings", why)
        else:
            self._complaints.settle("shared settings", "as the jobs there need them again")

    def _jobs(self) -> Arbiter:
        return Arbiter(None if self._tenants is None else self._tenants(), self._parts)
