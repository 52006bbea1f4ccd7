"""Applying and restoring settings: in order, journaled first, every write read back.

Every job has claims; what is in force is what the claims on a knob come to (`combining`). One setting's
failure never stops the others. Decides nothing about which settings are wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.control.arbitration import Arbiter
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.transaction import SettingOutcome, SettingsTransaction
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import DeviceError, Knob
from slurm_energy.devices.hardware import Setting

__all__ = ["RestoreResult", "SettingOutcome", "apply", "restore", "review"]

_FOREIGN = "left: somebody set "
_ALONE = Arbiter()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What became of what a job set: `done`, or why its original is not back.

    A note although it is done: other jobs need the knob on.
    """

    key: str
    done: bool
    note: str = ""


def apply(
    devices: NodeDevices,
    journal: SettingsJournal,
    owner: str,
    settings: Sequence[Setting],
    known: Mapping[str, str] | None = None,
    jobs: Arbiter = _ALONE,
) -> list[SettingOutcome]:
    """Claim settings for a job and write what the claims of all jobs come to, in order, reading back.

    Args:
        devices: the node.
        journal: where originals and claims are kept; written before the hardware.
        owner: job that asks.
        settings: what is wanted.
        known: values that were read just now, to save reading them again.
        jobs: the jobs on the node, the owner included.

    Returns:
        One outcome per setting, in the order given; none for an optional one without a knob.
    """
    change = SettingsTransaction(devices, journal, jobs, present=dict(known or {}))
    asked = {setting.key: setting for setting in settings}
    outcomes = {key: failure for key, s in asked.items() if (failure := _claim(change, owner, s)) is not None}
    asked = {key: setting for key, setting in asked.items() if key in change.drafts}
    for key in asked:
        for other in devices.knobs[key].dependents_at(change.present[key]):
            _claim_along(change, owner, other)
    for key, setting in asked.items():
        change.want(change.drafts[key], change.target(change.drafts[key]) or setting.value)
    change.want_what_claims_come_to()
    change.want_again_what_moves(list(change.todo))
    try:
        journal.update(change.drafts.values())
    except OSError as error:
        note = f"left alone: the journal cannot be written: {error.strerror}"
        refused = {
            key: SettingOutcome(key, change.present[key], s.value, None, True, note=note)
            for key, s in asked.items()
        }
        return _in_order(settings, outcomes | refused)
    change.carry_out()
    # Originals are safe; without this note a restart restores without comparing first.
    with contextlib.suppress(OSError):
        journal.update(change.settled())
    return _in_order(settings, outcomes | {key: _outcome(change, setting) for key, setting in asked.items()})


def review(devices: NodeDevices, journal: SettingsJournal, jobs: Arbiter) -> None:
    """Write what the claims come to where that has changed with the jobs, or failed before.

    Raises:
        OSError: the journal cannot be written; the hardware was not touched.
    """
    change = SettingsTransaction(devices, journal, jobs)
    change.want_what_claims_come_to()
    change.want_again_what_moves(list(change.todo))
    journal.update(change.drafts.values())
    change.carry_out()
    journal.update(change.settled())


def _claim(change: SettingsTransaction, owner: str, setting: Setting) -> SettingOutcome | None:
    """Note what a job asks for; returns the failure where that is not possible."""
    key, value = setting.key, setting.value
    knob = change.devices.knobs.get(key)
    if knob is None:
        note = "this node has no such knob"
        return None if setting.optional else SettingOutcome(key, None, value, failed=True, note=note)
    try:
        if key not in change.present:
            change.present[key] = knob.read()
    except DeviceError as error:
        return SettingOutcome(key, None, value, failed=True, note=f"left alone: {error.why}")
    entry = change.entry(key) or JournalEntry(key, change.present[key])
    change.drafts[key] = entry.with_claim(owner, value)
    return None


def _claim_along(change: SettingsTransaction, owner: str, key: str) -> None:
    """Note the original of what may move along with a job's setting."""
    entry, found = change.entry(key), change.read(key)
    if entry is None and found is not None:
        entry = JournalEntry(key, found)
    if entry is not None and owner not in entry.claims:
        change.drafts[key] = entry.with_claim(owner, None)


def _in_order(settings: Sequence[Setting], outcomes: Mapping[str, SettingOutcome]) -> list[SettingOutcome]:
    return [outcomes[setting.key] for setting in settings if setting.key in outcomes]


def _outcome(change: SettingsTransaction, setting: Setting) -> SettingOutcome:
    """Return what became of a job's own wish, which other jobs may have overruled."""
    key, knob = setting.key, change.devices.knobs[setting.key]
    original, found = change.drafts[key].original, change.present[key]
    if key in change.foreign:
        note = f"{_FOREIGN}{knob.format_value(found)}"
        return SettingOutcome(key, original, setting.value, found, True, note=note)
    result = change.results[key]
    if not (result.failed or knob.is_equivalent(setting.value, result.asked)):
        result = dataclasses.replace(result, note=f"other jobs there need {knob.format_value(result.asked)}")
    return result if result.asked == setting.value else dataclasses.replace(result, asked=setting.value)


def restore(
    devices: NodeDevices,
    journal: SettingsJournal,
    owner: str | None = None,
    keys: Iterable[str] | None = None,
    jobs: Arbiter = _ALONE,
) -> list[RestoreResult]:
    """Give up a job's claims: put originals back, or what the claims of the other jobs come to.

    Originals go back last written first, each verified; what cannot be is kept for another attempt. A value
    that is neither ours nor the original was set by somebody else since: it stays, its entry is forgotten.
    Originals also go back where the journal cannot be written: what it says is still true then. The claims of
    other jobs have to wait for `review`.

    Args:
        devices: the node.
        journal: originals and claims.
        owner: the job that leaves; None for all jobs, whatever they claim.
        keys: only these knobs; None for all.
        jobs: the jobs on the node; it does not matter whether the leaving one is still among them.

    Returns:
        One result per entry.
    """
    change = SettingsTransaction(devices, journal, jobs)
    held = journal.entries_of(owner, keys)
    kept_on = {
        e.key for e in held if owner is not None and any(o != owner and jobs.counts(o) for o in e.claims)
    }
    closing = [entry for entry in held if entry.key not in kept_on]
    change.leaving = frozenset(entry.key for entry in closing)
    results = {entry.key: _classify(devices.knobs.get(entry.key), entry) for entry in closing}
    ours = [entry for entry in closing if results[entry.key] is None]
    change.drafts = {entry.key: entry.settled(None) for entry in ours}
    for entry in held:
        if entry.key in kept_on and owner is not None:
            _leave_to_others(change, entry, owner)
    if owner is not None:
        change.want_what_claims_come_to()
        change.want_again_what_moves([entry.key for entry in ours] + list(change.todo))
    try:
        journal.update(change.drafts.values())
    except OSError:
        change.todo.clear()
        change.drafts = {
            entry.key: entry.without_claim(owner or "") for entry in held if entry.key in kept_on
        }
    results.update(_put_back(devices, ours))
    for key in change.todo:  # may have moved along with an original
        change.present |= devices.read([key])
    change.carry_out()
    final = {key: result for key, result in results.items() if result is not None}
    final |= {key: _left(change, key) for key in kept_on}
    _forget(change, closing, final)
    return [final[entry.key] for entry in held]


def _leave_to_others(change: SettingsTransaction, entry: JournalEntry, owner: str) -> None:
    """Take a job's claim from a knob on which other jobs have claims."""
    rest = entry.without_claim(owner)
    change.drafts[entry.key] = rest
    target = change.target(rest)
    if target is None and entry.claims[owner] is not None:
        target = entry.original  # the others' settings only move it
    if target is not None and (target != entry.target or entry.written is None):
        change.want(rest, target)


def _left(change: SettingsTransaction, key: str) -> RestoreResult:
    """Return what became of a knob that other jobs have claims on."""
    knob, result = change.devices.knobs.get(key), change.results.get(key)
    if knob is None:
        return RestoreResult(key, False, "the device is gone")
    if result is not None and result.failed:
        return RestoreResult(key, False, result.note)
    found = change.read(key)
    return RestoreResult(
        key, True, f"other jobs there keep {knob.format_value(found)}" if found is not None else ""
    )


def _forget(
    change: SettingsTransaction, closing: Sequence[JournalEntry], results: Mapping[str, RestoreResult]
) -> None:
    """Note what is in force, and forget entries whose originals are back or that are not ours any more."""
    foreign = {entry.key for entry in closing if results[entry.key].note.startswith(_FOREIGN)}
    if foreign:  # what only moved along with a setting that somebody changed is no longer ours to move back
        foreign |= {entry.key for entry in closing if not any(entry.claims.values())}
    journal = change.journal
    kept = {entry.key for entry in closing if not results[entry.key].done} - foreign
    gone = {entry.key for entry in closing} - kept
    found = change.devices.read(kept)
    waiting = [journal.entries[key].settled(value) for key, value in found.items()]
    others = [entry for entry in change.settled() if entry.key not in change.leaving]
    journal.remember([*waiting, *others], gone)


def _classify(knob: Knob | None, entry: JournalEntry) -> RestoreResult | None:
    """Return the result if nothing is to be written, None if the value in force is ours."""
    if knob is None:
        return RestoreResult(entry.key, False, "the device is gone")
    if not knob.readable:
        return None
    try:
        present = knob.read()
    except DeviceError as error:
        return None if entry.written is None else RestoreResult(entry.key, False, error.why)
    if knob.is_equivalent(entry.original, present):
        # Writing it again costs nothing and removes rounding, if it was we who caused that.
        return (
            None if present != entry.original and present == entry.written else RestoreResult(entry.key, True)
        )
    if entry.written is None or knob.is_equivalent(entry.written, present):
        return None
    return RestoreResult(entry.key, False, f"{_FOREIGN}{knob.format_value(present)}")


def _put_back(devices: NodeDevices, entries: list[JournalEntry]) -> dict[str, RestoreResult]:
    """Write originals in reverse order, then once more in order where one write undid or blocked another.

    A preference, for example, cannot be written before the governor is back.
    """
    ordered = sorted(entries, key=lambda entry: devices.knobs[entry.key].stage)
    results: dict[str, RestoreResult] = {}
    stale: set[str] = set()
    for entry in reversed(ordered):
        knob = devices.knobs[entry.key]
        results[entry.key] = _put_one(knob, entry)
        stale.update(knob.dependents_at(entry.original))
    for entry in ordered:
        if not results[entry.key].done or entry.key in stale:
            results[entry.key] = _put_one(devices.knobs[entry.key], entry)
    return results


def _put_one(knob: Knob, entry: JournalEntry) -> RestoreResult:
    try:
        if not (knob.readable and _holds(knob, entry.original)):
            knob.write(entry.original)
        found = knob.read() if knob.readable else entry.original
    except DeviceError as error:
        return RestoreResult(entry.key, False, error.why)
    if knob.is_equivalent(entry.original, found):
        return RestoreResult(entry.key, True)
    return RestoreResult(entry.key, False, f"the hardware keeps {knob.format_value(found)}")


def _holds(knob: Knob, value: str) -> bool:
    try:
        return knob.read() == value
    except DeviceError:
        return False
