"""Restoring of hardware settings after a job.

The claims (requests) of the job are withdrawn. Then each setting gets its original value, or the value that
other jobs on the node request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.control.arbitration import Arbiter
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.transaction import CHANGED_EXTERNALLY, SettingsTransaction
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import DeviceError, Knob

_ALL_CLAIMS = Arbiter()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of restoring the original value of one knob that a job had set.

    A knob is the file or call that sets a value of a device.

    Attributes:
        key: key of the knob.
        done: whether nothing remains to be restored for this job.
        note: if `done` is False, the reason why the original value was not restored. If `done` is True and
            other jobs request settings of this knob, the value that the knob now has; otherwise empty.
    """

    key: str
    done: bool
    note: str = ""


def restore(
    devices: NodeDevices,
    journal: SettingsJournal,
    owner: str | None = None,
    keys: Iterable[str] | None = None,
    arbiter: Arbiter = _ALL_CLAIMS,
) -> list[RestoreResult]:
    """Withdraw the claims of a job, and write the values that apply without them.

    A claim is the value that a job requests for a knob (hardware setting). If other jobs have claims on the
    knob, their claims determine the new value. Otherwise the original value is written. If a power budget
    limits the knob (ceiling), the new value does not exceed the ceiling.

    The knob that was written last is restored first. Each written value is read back. If a restore fails,
    the journal entry of the knob stays for another attempt. If another program has changed a knob since the
    agent wrote it, the value stays unchanged and the journal entry is deleted. A knob with a ceiling keeps
    its journal entry.

    If the journal cannot be written, original values are restored nevertheless, because the journal on disk
    still holds them. A later `reconcile` then applies the claims of other jobs.

    Args:
        devices: devices of the node.
        journal: original values and claims.
        owner: job whose claims are withdrawn; None for all jobs.
        keys: keys of the knobs to restore; None for all.
        arbiter: arbitration between the jobs on the node, with or without the owner.

    Returns:
        One result per journal entry of the job.
    """
    transaction = SettingsTransaction(devices, journal, arbiter)
    claimed = journal.entries_of(owner, keys)
    shared = {
        entry.key
        for entry in claimed
        if entry.ceiling is not None
        or (owner is not None and any(other != owner and arbiter.counts(other) for other in entry.claims))
    }
    closing = [entry for entry in claimed if entry.key not in shared]
    transaction.released = frozenset(entry.key for entry in closing)
    results = {entry.key: _classify(devices.knobs.get(entry.key), entry) for entry in closing}
    ours = [entry for entry in closing if results[entry.key] is None]
    transaction.entries = {entry.key: entry.with_written(None) for entry in ours}
    for entry in claimed:
        if entry.key in shared:
            _withdraw_claim(transaction, entry, owner)
    if owner is not None:
        transaction.request_merged_claims()
        transaction.request_dependents([entry.key for entry in ours] + list(transaction.writes))
    try:
        journal.update(transaction.entries.values())
    except OSError:
        transaction.writes.clear()
        transaction.entries = {
            entry.key: _without_claim(entry, owner) for entry in claimed if entry.key in shared
        }
    results.update(_write_originals(devices, ours))
    for key in transaction.writes:  # restoring an original may have changed them as a side effect
        transaction.current |= devices.read([key])
    transaction.commit()
    final = {key: result for key, result in results.items() if result is not None}
    final |= {key: _shared_result(transaction, key) for key in shared}
    _update_journal(transaction, closing, final)
    return [final[entry.key] for entry in claimed]


def _withdraw_claim(transaction: SettingsTransaction, entry: JournalEntry, owner: str | None) -> None:
    """Remove the value that a job requests for a setting, and write the value that now applies.

    The setting stays in the journal, because other jobs request values for it, or because a power budget
    limits it (ceiling).

    Args:
        transaction: transaction to which the write is added.
        entry: journal entry of the setting.
        owner: the job; None for all jobs.
    """
    remaining = _without_claim(entry, owner)
    transaction.entries[entry.key] = remaining
    target = transaction.merged_value(remaining)
    if target is None and owner is not None and entry.claims[owner] is not None:
        target = entry.original  # the other jobs' settings only change this knob as a side effect
    if target is not None and (target != entry.target or entry.written is None):
        transaction.request(remaining, target)


def _without_claim(entry: JournalEntry, owner: str | None) -> JournalEntry:
    return entry.without_claims() if owner is None else entry.without_claim(owner)


def _shared_result(transaction: SettingsTransaction, key: str) -> RestoreResult:
    """Return the result of an attempt to restore a setting on a device that may be shared.

    The setting may keep another value than the original one without an error. This is the case if other jobs
    request a value for the knob `key`, or if a power budget limits the value.
    """
    knob, outcome = transaction.devices.knobs.get(key), transaction.outcomes.get(key)
    if knob is None:
        return RestoreResult(key, False, "the device is gone")
    if outcome is not None and outcome.failed:
        return RestoreResult(key, False, outcome.note)
    current, entry = transaction.read(key), transaction.entry(key)
    if current is None or entry is None or knob.is_equivalent(entry.original, current):
        return RestoreResult(key, True, "")
    reason = "other jobs on the node hold" if entry.claims else "a power budget holds"
    return RestoreResult(key, True, f"{reason} {knob.format_value(current)}")


def _update_journal(
    transaction: SettingsTransaction,
    closing: Sequence[JournalEntry],
    results: dict[str, RestoreResult],
) -> None:
    """Update the journal of hardware settings (knobs) after the settings of a job were restored.

    The journal has one entry for each knob that the agent has changed. The entry of a knob is deleted if the
    knob was restored. The entry is also deleted if another program has changed the knob. The other entries
    are updated to the current values of their knobs.

    Args:
        transaction: the completed transaction.
        closing: entries of the knobs to restore. No other job needs these knobs, and no ceiling (upper bound
            by a power budget) needs them.
        results: result by key of the knob.
    """
    changed = {entry.key for entry in closing if results[entry.key].note.startswith(CHANGED_EXTERNALLY)}
    dependents = {
        dependent
        for entry in closing
        if entry.key in changed
        for dependent in transaction.devices.knobs[entry.key].dependents_at(entry.original)
    }
    # Knobs that only changed as a side effect of a setting that another program has changed since must not be
    # restored by the agent.
    changed |= {
        entry.key
        for entry in closing
        if entry.key in dependents and not (entry.is_orphaned or any(entry.claims.values()))
    }
    journal = transaction.journal
    unrestored = {entry.key for entry in closing if not results[entry.key].done} - changed
    finished = {entry.key for entry in closing} - unrestored
    current = transaction.devices.read(unrestored)
    waiting = [journal.entries[key].with_written(value) for key, value in current.items()]
    others = [entry for entry in transaction.final_entries() if entry.key not in transaction.released]
    journal.update_or_defer([*waiting, *others], finished)


def _classify(knob: Knob | None, entry: JournalEntry) -> RestoreResult | None:
    """Decide whether the original value of a setting (knob) has to be written.

    Args:
        knob: the knob; None if the device is gone.
        entry: journal entry of the knob.

    Returns:
        None if the original value has to be written, because the knob still has the value that the
        agent wrote. Otherwise the result of the restore: the knob is restored already, unreadable,
        gone, or changed by another program.
    """
    if knob is None:
        return RestoreResult(entry.key, False, "the device is gone")
    if not knob.readable:
        return None
    try:
        current = knob.read()
    except DeviceError as error:
        return None if entry.written is None else RestoreResult(entry.key, False, error.why)
    if knob.is_equivalent(entry.original, current):
        # A rewrite costs nothing. It removes a small difference that the agent's own write caused. The agent
        # may have been killed after that write, before it journaled the value.
        if current != entry.original and entry.written in (None, current):
            return None
        return RestoreResult(entry.key, True)
    if entry.written is None or knob.is_equivalent(entry.written, current):
        return None
    return RestoreResult(entry.key, False, f"{CHANGED_EXTERNALLY}{knob.format_value(current)}")


def _write_originals(devices: NodeDevices, entries: list[JournalEntry]) -> dict[str, RestoreResult]:
    """Write the original values of all knobs back, and return the result of each write.

    A knob is the file or call that sets a value of a device. Each knob has a stage, its position in the
    order in which knobs are set. The original values are written in the reverse order of the stages.

    Then a second pass repeats some writes: each write that was refused, and each write that a later write
    to another knob has undone. For example, an energy preference cannot be written before the governor is
    restored.

    Returns:
        Result by key of the knob.
    """
    ordered = sorted(entries, key=lambda entry: devices.knobs[entry.key].stage)
    results: dict[str, RestoreResult] = {}
    stale: set[str] = set()
    for entry in reversed(ordered):
        knob = devices.knobs[entry.key]
        results[entry.key] = _write_original(knob, entry)
        stale.update(knob.dependents_at(entry.original))
    for entry in ordered:
        if not results[entry.key].done or entry.key in stale:
            results[entry.key] = _write_original(devices.knobs[entry.key], entry)
    return results


def _write_original(knob: Knob, entry: JournalEntry) -> RestoreResult:
    try:
        if not (knob.readable and _holds(knob, entry.original)):
            knob.write(entry.original)
        actual = knob.read() if knob.readable else entry.original
    except DeviceError as error:
        return RestoreResult(entry.key, False, error.why)
    if knob.is_equivalent(entry.original, actual):
        return RestoreResult(entry.key, True)
    return RestoreResult(entry.key, False, f"the hardware holds {knob.format_value(actual)}")


def _holds(knob: Knob, value: str) -> bool:
    try:
        return knob.read() == value
    except DeviceError:
        return False
