"""Puts settings back whose job has ended, and remembers what could not be put back. Knows no sessions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from slurm_energy.agent import places
from slurm_energy.agent.complaints import Complaints
from slurm_energy.devices.discovery import Devices
from slurm_energy.devices.journal import Journal
from slurm_energy.devices.settings import Outcome, Restored, restore

log = logging.getLogger(__name__)


class Restoration:
    """Restores from one journal to one node's devices.

    Attributes:
        journal: the originals.
        failed: keys of settings that are not back although their job has ended.
    """

    def __init__(self, devices: Devices, journal: Journal) -> None:
        self._devices = devices
        self.journal = journal
        self.failed: set[str] = set()
        self._complaints = Complaints()

    def of_job(self, owner: str, keys: Iterable[str] | None = None) -> list[Restored] | None:
        """Restore what a job set, or some of it. Returns None if the journal cannot be written.

        Each failure is logged once.
        """
        try:
            results = restore(self._devices, self.journal, owner, keys)
        except OSError as error:
            self._complaints.tell("settings journal", f"nothing is restored: {error}", logging.ERROR)
            return None
        self._complaints.settle("settings journal", "can be written again")
        fresh: dict[str, list[str]] = {}
        for result in results:
            if result.done:
                self.failed.discard(result.key)
            elif result.key not in self.failed:
                fresh.setdefault(result.note, []).append(result.key)
                self.failed.add(result.key)
        for note, found in fresh.items():
            log.warning("job %s: %s not restored: %s", owner, places.together(found), note)
        self.failed &= set(self.journal.entries)
        return results

    def holds(self, owner: str) -> bool:
        """Return whether something that a job set is not back yet."""
        return any(entry.owner == owner for entry in self.journal.entries.values())

    def look(self, outcomes: Iterable[Outcome]) -> list[Restored]:
        """Say of settings whose entries are closed already whether the original is in force."""
        results = []
        for outcome in outcomes:
            knob = self._devices.knobs.get(outcome.key)
            found = self._devices.read([outcome.key]).get(outcome.key)
            if knob is None or not knob.readable or found is None or outcome.original is None:
                continue
            done = knob.accepts(outcome.original, found)
            results.append(Restored(outcome.key, done, "" if done else f"now {knob.shown(found)}"))
        return results

    def repair(self, running: Collection[str]) -> list[Restored]:
        """Restore what jobs left that are not among the running ones."""
        results: list[Restored] = []
        for owner in sorted(self.journal.owners() - set(running)):
            results += self.of_job(owner) or []
        return results
