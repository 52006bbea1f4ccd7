"""One change of the hardware: what is to be written in view of all claims, writing it, what is in force then.

Journaling comes between, and is the caller's: see `settings`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_energy.control.arbitration import Arbiter
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import DeviceError, Knob


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    """What became of one setting.

    Attributes:
        key: the knob.
        original: value before; None if it could not be read.
        asked: value wanted.
        applied: value read back; None if the write was refused.
        failed: the hardware does not do what was asked.
        restored: the original is back; None as long as nobody tried.
        note: reason of a failure or deviation.
    """

    key: str
    original: str | None
    asked: str
    applied: str | None = None
    failed: bool = False
    restored: bool | None = None
    note: str = ""


@dataclass(slots=True)
class SettingsTransaction:
    """One change of the hardware, from journaling to settling.

    Attributes:
        present: values in force by knob, as far as they were read.
        leaving: knobs that are being put back: no claim on them counts any more.
        drafts: entries as they will be.
        todo: value to write by knob.
        foreign: knobs that somebody else has changed since we did.
        results: what became of each write.
    """

    devices: NodeDevices
    journal: SettingsJournal
    jobs: Arbiter
    present: dict[str, str] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    drafts: dict[str, JournalEntry] = field(default_factory=dict)
    todo: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    results: dict[str, SettingOutcome] = field(default_factory=dict)

    def entry(self, key: str) -> JournalEntry | None:
        """Return an entry as it will be; None for a knob that nobody set."""
        return self.drafts.get(key) or self.journal.entries.get(key)

    def target(self, entry: JournalEntry) -> str | None:
        """Return what the claims on a knob come to; None if nothing is asked of it."""
        return self.jobs.target(entry.key, entry.original, entry.claims)

    def read(self, key: str) -> str | None:
        """Return the value in force; None if it cannot be read."""
        if key not in self.present:
            self.present |= self.devices.read([key])
        return self.present.get(key)

    def is_foreign(self, entry: JournalEntry) -> bool:
        """Return whether somebody else changed a knob since we did, and note it."""
        knob, found = self.devices.knobs[entry.key], self.read(entry.key)
        known = knob.readable and entry.written is not None and found is not None
        if known and not knob.is_equivalent(str(entry.written), str(found)):
            self.foreign.add(entry.key)
        return entry.key in self.foreign

    def want(self, entry: JournalEntry, value: str) -> None:
        """Have a value written, unless somebody else changed the knob or it is gone."""
        key = entry.key
        if key not in self.devices.knobs or key in self.leaving or self.read(key) is None:
            return
        if key not in self.todo and not self.is_foreign(entry):
            self.todo[key] = value
            self.drafts[key] = entry.with_target(value)

    def want_what_claims_come_to(self) -> None:
        """Have everything written whose claims come to something else than before."""
        for entry in list(self.journal.entries.values()):
            if entry.key not in self.drafts:
                target = self.target(entry)
                if target is not None and (target != entry.target or entry.written is None):
                    self.want(entry, target)

    def want_again_what_moves(self, keys: Iterable[str]) -> None:
        """Have written again, or at least noted, what writing the given knobs may change."""
        for key in keys:
            for other in self.devices.knobs[key].dependents_at(self.present.get(key, "")):
                entry = self.entry(other)
                if entry is None or other in self.leaving or other not in self.devices.knobs:
                    continue
                target = self.target(entry)
                if target is not None:
                    self.want(entry, target)
                elif not self.is_foreign(entry):
                    self.drafts[other] = entry.settled(None)

    def carry_out(self) -> None:
        """Write in the order of stages, reading back."""
        knobs = sorted((self.devices.knobs[key] for key in self.todo), key=lambda knob: knob.stage)
        stale: set[str] = set()
        for knob in knobs:
            if knob.key in stale:
                self.present |= self.devices.read([knob.key])
            before = self.present[knob.key]
            original = self.drafts[knob.key].original
            outcome = write_and_verify(knob, SettingOutcome(knob.key, original, self.todo[knob.key]), before)
            self.results[knob.key] = outcome
            if outcome.applied is None or outcome.applied != before:
                stale.update((knob.key, *knob.dependents_at(before)))
            self.present[knob.key] = outcome.applied if outcome.applied is not None else before
        results = self.results
        unsure = {key for key in stale if key not in results or results[key].failed}
        self.present |= self.devices.read(unsure)

    def settled(self) -> list[JournalEntry]:
        """Return the entries with what is in force now."""
        found = []
        for key, entry in self.drafts.items():
            result = self.results.get(key)
            if entry.written is None:  # the others were only given or relieved of claims
                entry = entry.settled(self.present.get(key))
            if result is not None and result.failed and not self._holds_original(entry):
                entry = dataclasses.replace(entry, target=None)  # to be tried again
            found.append(entry)
        return found

    def _holds_original(self, entry: JournalEntry) -> bool:
        found = self.present.get(entry.key)
        return found is not None and self.devices.knobs[entry.key].is_equivalent(entry.original, found)


def write_and_verify(knob: Knob, outcome: SettingOutcome, before: str) -> SettingOutcome:
    """Write one value and read it back.

    Args:
        knob: what to set.
        outcome: with the value asked for.
        before: value in force; if that will do, nothing is written.
    """
    asked = outcome.asked
    if knob.readable and knob.is_equivalent(asked, before):
        return dataclasses.replace(outcome, applied=before)
    try:
        knob.write(asked)
        found = knob.read() if knob.readable else asked
    except DeviceError as error:
        return dataclasses.replace(outcome, failed=True, note=error.why)
    if knob.is_equivalent(asked, found):
        return dataclasses.replace(outcome, applied=found)
    if knob.satisfies(asked, found):
        return dataclasses.replace(outcome, applied=found, note="nearest value that the driver has")
    note = f"the hardware keeps {knob.format_value(found)}"
    return dataclasses.replace(outcome, applied=found, failed=True, note=note)
