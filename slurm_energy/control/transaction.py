"""Transaction on the hardware settings of a node.

A transaction computes the values to write from the values that jobs request (claims) and from the upper
bounds that power budgets set (ceilings). It then writes the values and reads them back. The caller writes
the journal between these steps, as in `apply` and `restore`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_energy.control.arbitration import Arbiter, bounded_value
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import DeviceError, Knob

CHANGED_EXTERNALLY = "left alone: another program set "
"""Start of the note on a knob that holds neither the agent's value nor the original."""


@dataclass(frozen=True, slots=True)
class SettingOutcome:
    """Result of applying one setting of a job.

    Attributes:
        key: key of the knob.
        original: value before the first job changed the knob; None if this value could not be read.
        requested: value that the job requests.
        applied: value read back after the write; None if the write was refused.
        failed: whether the write failed, so that the hardware does not hold the written value.
        restored: whether the original was restored; None before the first attempt to restore it.
        note: reason of a failure or of a difference from the requested value; empty if there is no failure or
            difference.
    """

    key: str
    original: str | None
    requested: str
    applied: str | None = None
    failed: bool = False
    restored: bool | None = None
    note: str = ""


@dataclass(slots=True)
class SettingsTransaction:
    """Set of writes to hardware settings (knobs), for example power limits.

    The values are computed from the claims of all jobs and from the ceilings. A claim is the value that a
    job requests for a knob. A ceiling is the upper bound that a power budget sets.

    Attributes:
        devices: devices of the node.
        journal: original values and claims.
        arbiter: merges the claims of the running jobs.
        current: current value by key of the knob, for the knobs that were read.
        released: keys of knobs that are being restored. Claims on these knobs no longer have an effect.
        entries: journal entries by key as they will be after the transaction.
        writes: value to write by key of the knob.
        changed_externally: keys of knobs that another program changed after the agent's last write.
        outcomes: outcome by key of each written knob.
    """

    devices: NodeDevices
    journal: SettingsJournal
    arbiter: Arbiter
    current: dict[str, str] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    changed_externally: set[str] = field(default_factory=set)
    outcomes: dict[str, SettingOutcome] = field(default_factory=dict)

    def entry(self, key: str) -> JournalEntry | None:
        """Return the journal entry of a setting (knob) as it will be after the transaction.

        Return None if no job has changed the setting.
        """
        return self.entries.get(key) or self.journal.entries.get(key)

    def merged_value(self, entry: JournalEntry) -> str | None:
        """Return the value that a knob (hardware setting) should have now.

        The value is computed from the values that jobs request (claims). It is limited by the upper bound
        that a power budget sets (ceiling). Return None if no running job requests a value and there is no
        ceiling.
        """
        value = self.arbiter.merged_value(entry.key, entry.original, entry.claims)
        if entry.ceiling is None:
            return value
        return bounded_value(entry.key, entry.original if value is None else value, entry.ceiling)

    def exceeds_ceiling(self, entry: JournalEntry) -> bool:
        """Return whether the present value of a knob is above its ceiling.

        The ceiling is the upper bound that a power budget sets.
        """
        if entry.ceiling is None or (current := self.read(entry.key)) is None:
            return False
        knob = self.devices.knobs[entry.key]
        return not knob.is_equivalent(bounded_value(entry.key, current, entry.ceiling), current)

    def read(self, key: str) -> str | None:
        """Return the current value of a knob, read from the hardware once per transaction.

        Return None if the knob is unreadable.
        """
        if key not in self.current:
            self.current |= self.devices.read([key])
        return self.current.get(key)

    def check_external_change(self, entry: JournalEntry) -> bool:
        """Return whether another program changed a hardware setting after the agent's last write.

        If so, the key of the setting is also added to `changed_externally`.
        """
        knob, current = self.devices.knobs[entry.key], self.read(entry.key)
        is_comparable = knob.readable and entry.written is not None and current is not None
        if is_comparable and not knob.is_equivalent(str(entry.written), str(current)):
            self.changed_externally.add(entry.key)
        return entry.key in self.changed_externally

    def request(self, entry: JournalEntry, value: str) -> None:
        """Schedule a write to a hardware setting (knob).

        Nothing is written if the knob is gone, unreadable, being restored, or changed by another program.
        However, a value that another program has set is overwritten if it exceeds the ceiling, which is the
        bound that a power budget sets.

        Args:
            entry: journal entry of the knob.
            value: value to write.
        """
        key = entry.key
        if key not in self.devices.knobs or key in self.released or self.read(key) is None:
            return
        if key not in self.writes and (self.exceeds_ceiling(entry) or not self.check_external_change(entry)):
            self.writes[key] = value
            self.entries[key] = entry.with_target(value)

    def request_merged_claims(self) -> None:
        """Schedule a write of every knob whose value must change because of the jobs' requests.

        A knob is a hardware setting, such as a power limit. The requests (claims) of all jobs are merged
        into one value per knob. The knob is written if the merged value differs from the last written value.
        """
        for entry in list(self.journal.entries.values()):
            if entry.key not in self.entries:
                target = self.merged_value(entry)
                if target is not None and (target != entry.target or entry.written is None):
                    self.request(entry, target)

    def request_dependents(self, keys: Iterable[str]) -> None:
        """Schedule a rewrite of every knob that a write to `keys` may change as a side effect.

        A knob is a hardware setting, such as a power limit. A knob that may change as a side effect is called
        a dependent knob. If a job requests a value for a dependent knob, or a power budget limits the knob,
        the knob is rewritten. All other dependent knobs are not rewritten. For these knobs, the journal entry
        only notes that the value may change. Without this note, the agent would mistake the side effect for a
        change by another program.
        """
        for key in keys:
            for dependent in self.devices.knobs[key].dependents_at(self.current.get(key, "")):
                entry = self.entry(dependent)
                if entry is None or dependent in self.released or dependent not in self.devices.knobs:
                    continue
                target = self.merged_value(entry)
                if target is not None:
                    self.request(entry, target)
                elif not self.check_external_change(entry):
                    self.entries[dependent] = entry.with_written(None)

    def commit(self) -> None:
        """Write the scheduled values to the hardware, read each value back, and fill `outcomes`.

        The knobs (hardware settings) are written in the order of their stages, because a write of one knob
        may change another knob.
        """
        knobs = sorted((self.devices.knobs[key] for key in self.writes), key=lambda knob: knob.stage)
        stale: set[str] = set()
        for knob in knobs:
            if knob.key in stale:
                self.current |= self.devices.read([knob.key])
            before = self.current[knob.key]
            original = self.entries[knob.key].original
            outcome = write_and_verify(
                knob, SettingOutcome(knob.key, original, self.writes[knob.key]), before
            )
            self.outcomes[knob.key] = outcome
            if outcome.applied is None or outcome.applied != before:
                stale.update((knob.key, *knob.dependents_at(before)))
            self.current[knob.key] = outcome.applied if outcome.applied is not None else before
        outcomes = self.outcomes
        unverified = {key for key in stale if key not in outcomes or outcomes[key].failed}
        self.current |= self.devices.read(unverified)

    def final_entries(self) -> list[JournalEntry]:
        """Return the journal entries with the values that the hardware holds after the writes."""
        final = []
        for key, entry in self.entries.items():
            outcome = self.outcomes.get(key)
            if entry.written is None:  # for the other entries only the claims changed
                entry = entry.with_written(self.current.get(key))
            if outcome is not None and outcome.failed and not self._holds_original(entry):
                entry = dataclasses.replace(entry, target=None)  # marks it for another attempt
            final.append(entry)
        return final

    def _holds_original(self, entry: JournalEntry) -> bool:
        current = self.current.get(entry.key)
        return current is not None and self.devices.knobs[entry.key].is_equivalent(entry.original, current)


def write_and_verify(knob: Knob, outcome: SettingOutcome, current: str) -> SettingOutcome:
    """Write one value of a hardware setting and read it back.

    Return a copy of `outcome` that contains the result.

    Args:
        knob: hardware setting to write.
        outcome: outcome that holds the requested value.
        current: current value. If it is equivalent to the requested value, nothing is written.
    """
    requested = outcome.requested
    if knob.readable and knob.is_equivalent(requested, current):
        return dataclasses.replace(outcome, applied=current)
    try:
        knob.write(requested)
        actual = knob.read() if knob.readable else requested
    except DeviceError as error:
        return dataclasses.replace(outcome, failed=True, note=error.why)
    if knob.is_equivalent(requested, actual):
        return dataclasses.replace(outcome, applied=actual)
    if knob.satisfies(requested, actual):
        return dataclasses.replace(outcome, applied=actual, note="nearest value that the driver supports")
    note = f"the hardware holds {knob.format_value(actual)}"
    return dataclasses.replace(outcome, applied=actual, failed=True, note=note)
