"""Applying and restoring settings: in order, journaled first, every write read back.

One setting's failure never stops the others. Decides nothing about which settings are wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.devices.discovery import Devices
from slurm_energy.devices.hardware import Setting
from slurm_energy.devices.interface import DeviceError, Knob
from slurm_energy.devices.journal import Entry, Journal


@dataclass(frozen=True, slots=True)
class Outcome:
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


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one original: `done`, or why it is not back."""

    key: str
    done: bool
    note: str = ""


def apply(
    devices: Devices,
    journal: Journal,
    owner: str,
    settings: Sequence[Setting],
    known: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Write settings in the order of their stages and read each back.

    Args:
        devices: the node.
        journal: where originals are kept; written before the hardware.
        owner: job that asks.
        settings: what is wanted.
        known: values that were read just now, to save reading them again.

    Returns:
        One outcome per setting, in the order given; none for an optional one without a knob.
    """
    outcomes: dict[str, Outcome] = {}
    wanted: list[tuple[Knob, str]] = []
    for setting in settings:
        knob = devices.knobs.get(setting.key)
        if knob is None and setting.optional:
            continue
        if knob is None:
            outcomes[setting.key] = Outcome(
                setting.key, None, setting.value, failed=True, note="this node has no such knob"
            )
        else:
            wanted.append((knob, setting.value))
    wanted.sort(key=lambda item: item[0].stage)
    present, refused = _prepare(devices, journal, owner, wanted, dict(known or {}))
    outcomes.update(refused)
    todo = [(knob, value) for knob, value in wanted if knob.key not in refused]
    outcomes.update(_write_all(devices, journal, owner, todo, present))
    return [outcomes[setting.key] for setting in settings if setting.key in outcomes]


def _prepare(
    devices: Devices,
    journal: Journal,
    owner: str,
    wanted: list[tuple[Knob, str]],
    present: dict[str, str],
) -> tuple[dict[str, str], dict[str, Outcome]]:
    """Journal originals of all that may change. Returns values in force, and settings that must not be."""
    refused: dict[str, Outcome] = {}
    entries: dict[str, Entry] = {}
    for knob, value in wanted:
        key, held = knob.key, journal.entries.get(knob.key)
        try:
            if key not in present:
                present[key] = knob.read()
        except DeviceError as error:
            refused[key] = Outcome(key, None, value, failed=True, note=f"left alone: {error.why}")
            continue
        if held and held.owner != owner:
            note = f"held by job {held.owner}"
            refused[key] = Outcome(key, held.original, value, present[key], True, note=note)
            continue
        entries[key] = Entry(key, owner, present[key], value)
    for knob, _ in wanted:
        if knob.key in entries:
            affected = [key for key in knob.affected(present[knob.key]) if key not in entries]
            for key, value in devices.read(key for key in affected if key not in refused).items():
                present[key] = value
                entries[key] = Entry(key, owner, value, None)
    try:
        journal.open_entries(entries.values())
    except OSError as error:
        note = f"left alone: the journal cannot be written: {error.strerror}"
        refused |= {
            knob.key: Outcome(knob.key, present.get(knob.key), value, None, True, note=note)
            for knob, value in wanted
            if knob.key not in refused
        }
    return present, refused


def _write_all(
    devices: Devices, journal: Journal, owner: str, todo: list[tuple[Knob, str]], present: dict[str, str]
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    stale: set[str] = set()
    for knob, value in todo:
        if knob.key in stale:
            present.update(devices.read([knob.key]))
        original = journal.entries[knob.key].original
        before = present[knob.key]
        outcome = _write_one(knob, Outcome(knob.key, original, value), before)
        outcomes[knob.key] = outcome
        if outcome.applied is None or outcome.applied != before:
            stale.update((knob.key, *knob.affected(before)))
        present[knob.key] = outcome.applied if outcome.applied is not None else before
    present.update(devices.read(key for key in stale if key not in outcomes or outcomes[key].failed))
    settled = {e.key: present[e.key] for e in journal.owned(owner) if e.key in present}
    # Originals are safe; without this note a restart restores without comparing first.
    with contextlib.suppress(OSError):
        journal.settle(settled)
    return outcomes


def _write_one(knob: Knob, outcome: Outcome, before: str) -> Outcome:
    asked = outcome.asked
    if knob.readable and knob.accepts(asked, before):
        return dataclasses.replace(outcome, applied=before)
    try:
        knob.write(asked)
        found = knob.read() if knob.readable else asked
    except DeviceError as error:
        return dataclasses.replace(outcome, failed=True, note=error.why)
    if knob.accepts(asked, found):
        return dataclasses.replace(outcome, applied=found)
    if knob.settled(asked, found):
        return dataclasses.replace(outcome, applied=found, note="nearest value that the driver has")
    note = f"the hardware keeps {knob.shown(found)}"
    return dataclasses.replace(outcome, applied=found, failed=True, note=note)


def restore(
    devices: Devices, journal: Journal, owner: str | None = None, keys: Iterable[str] | None = None
) -> list[Restored]:
    """Put originals back, last written first, each verified; what cannot be is kept for another attempt.

    A value that is neither ours nor the original was set by somebody else since: it stays, and its entry
    is forgotten.

    Args:
        devices: the node.
        journal: the originals.
        owner: only what this job holds; None for all.
        keys: only these knobs; None for all.

    Returns:
        One result per entry.

    Raises:
        OSError: the journal cannot be written; the hardware was not touched.
    """
    entries = journal.owned(owner, keys)
    results = {entry.key: _classify(devices.knobs.get(entry.key), entry) for entry in entries}
    ours = [entry for entry in entries if results[entry.key] is None]
    if ours:
        journal.settle({entry.key: None for entry in ours})
    results.update(_put_back(devices, ours))
    final = {key: result for key, result in results.items() if result is not None}
    foreign = {entry.key for entry in entries if final[entry.key].note.startswith(_FOREIGN)}
    if foreign:  # what only moved along with a setting that somebody changed is no longer ours to move back
        foreign |= {entry.key for entry in entries if entry.asked is None}
    kept = {entry.key for entry in entries if not final[entry.key].done} - foreign
    journal.close_entries({entry.key for entry in entries} - kept, devices.read(kept))
    return [final[entry.key] for entry in entries]


_FOREIGN = "left: somebody set "


def _classify(knob: Knob | None, entry: Entry) -> Restored | None:
    """Return the result if nothing is to be written, None if the value in force is ours."""
    if knob is None:
        return Restored(entry.key, False, "the device is gone")
    if not knob.readable:
        return None
    try:
        present = knob.read()
    except DeviceError as error:
        return None if entry.written is None else Restored(entry.key, False, error.why)
    if knob.accepts(entry.original, present):
        # Writing it again costs nothing and removes rounding, if it was we who caused that.
        return None if present != entry.original and present == entry.written else Restored(entry.key, True)
    if entry.written is None or knob.accepts(entry.written, present):
        return None
    return Restored(entry.key, False, f"{_FOREIGN}{knob.shown(present)}")


def _put_back(devices: Devices, entries: list[Entry]) -> dict[str, Restored]:
    """Write originals in reverse order, then once more in order where one write undid or blocked another.

    A preference, for example, cannot be written before the governor is back.
    """
    ordered = sorted(entries, key=lambda entry: devices.knobs[entry.key].stage)
    results: dict[str, Restored] = {}
    stale: set[str] = set()
    for entry in reversed(ordered):
        knob = devices.knobs[entry.key]
        results[entry.key] = _put_one(knob, entry)
        stale.update(knob.affected(entry.original))
    for entry in ordered:
        if not results[entry.key].done or entry.key in stale:
            results[entry.key] = _put_one(devices.knobs[entry.key], entry)
    return results


def _put_one(knob: Knob, entry: Entry) -> Restored:
    try:
        if not (knob.readable and _holds(knob, entry.original)):
            knob.write(entry.original)
        found = knob.read() if knob.readable else entry.original
    except DeviceError as error:
        return Restored(entry.key, False, error.why)
    if knob.accepts(entry.original, found):
        return Restored(entry.key, True)
    return Restored(entry.key, False, f"the hardware keeps {knob.shown(found)}")


def _holds(knob: Knob, value: str) -> bool:
    try:
        return knob.read() == value
    except DeviceError:
        return False
