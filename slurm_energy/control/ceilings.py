"""Ceilings: upper bounds that a power budget sets for hardware settings.

A hardware setting, such as a power limit, is called a knob. A ceiling also holds against the values that
jobs request (claims).
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.control.arbitration import Arbiter
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.restore import RestoreResult, restore
from slurm_energy.control.transaction import SettingsTransaction
from slurm_energy.devices.discovery import NodeDevices


def set_ceilings(
    devices: NodeDevices, journal: SettingsJournal, ceilings: Mapping[str, str | None], arbiter: Arbiter
) -> list[RestoreResult]:
    """Set or remove the ceilings of knobs. Write every value that changes as a result.

    A knob is a hardware setting, such as a power limit. A ceiling is an upper bound that a power budget sets
    for a knob. The original value is in the journal before the first write. A value that another program has
    set is overwritten only if it exceeds the ceiling. A knob stays unchanged if it cannot be read or its
    device is gone.

    Args:
        devices: devices of the node.
        journal: original values, claims (values requested by jobs) and ceilings.
        ceilings: ceiling by key of the knob, in the unit of the knob; None removes the ceiling. Knobs that
            are not listed keep their ceilings.
        arbiter: arbitration between the jobs on the node.

    Returns:
        Restore results of the knobs that have neither a claim nor a ceiling any more. The original values of
        these knobs were restored.

    Raises:
        OSError: the journal cannot be written; the hardware was not changed.
    """
    transaction = SettingsTransaction(devices, journal, arbiter)
    orphans = [key for key, ceiling in ceilings.items() if _request(transaction, key, ceiling)]
    transaction.request_dependents(list(transaction.writes))
    journal.update(
        transaction.entries.values(), sync=not transaction.entries.keys() <= journal.entries.keys()
    )
    transaction.commit()
    journal.update(transaction.final_entries(), sync=False)
    return restore(devices, journal, None, orphans, arbiter) if orphans else []


def _request(transaction: SettingsTransaction, key: str, ceiling: str | None) -> bool:
    """Change the ceiling of a knob in a transaction, and schedule the resulting value of the knob.

    A knob is a hardware setting, such as a power limit. A ceiling is an upper bound that a power budget
    sets.

    Returns:
        Whether the journal entry of the knob is no longer needed, so that its original value must be
        restored.
    """
    entry = transaction.entry(key)
    if entry is None and ceiling is None:
        return False
    if key not in transaction.devices.knobs:
        if entry is None or ceiling is not None:
            return False
        transaction.entries[key] = entry.with_ceiling(None)
        return transaction.entries[key].is_orphaned
    if entry is None:
        original = transaction.read(key)
        if original is None:
            return False
        entry = JournalEntry(key, original)
    changed = entry.with_ceiling(ceiling)
    if changed.is_orphaned:
        transaction.entries[key] = changed
        return True
    target = transaction.merged_value(changed)
    if target is None:  # the settings of jobs only change this knob as a side effect
        target = changed.original if entry.ceiling is not None else None
    is_new = changed != entry or key not in transaction.journal.entries
    if is_new:
        transaction.entries[key] = changed
    if target is not None and (
        target != entry.target or entry.written is None or transaction.exceeds_ceiling(changed)
    ):
        transaction.request(changed, target)
    return False
