"""Application of the settings of a job to the hardware.

The steps are: store the values that the job requests (claims), merge the claims of all jobs, write the
journal, write the hardware, and verify. If one setting fails, the other settings are still applied. The
function `set_ceilings` of the module `ceilings` sets upper bounds of the resulting values. The package
`policies` decides which settings a job requests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

from slurm_energy.control.arbitration import Arbiter
from slurm_energy.control.journal import JournalEntry, SettingsJournal
from slurm_energy.control.transaction import CHANGED_EXTERNALLY, SettingOutcome, SettingsTransaction
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.settings import Setting

_ALL_CLAIMS = Arbiter()


def apply(
    devices: NodeDevices,
    journal: SettingsJournal,
    owner: str,
    settings: Sequence[Setting],
    current: Mapping[str, str] | None = None,
    arbiter: Arbiter = _ALL_CLAIMS,
) -> list[SettingOutcome]:
    """Apply the settings that a job requests.

    The requests (claims) of all jobs on the node are merged, and the resulting values are written.

    Args:
        devices: devices of the node.
        journal: original values and claims. The journal is written to disk before the hardware is changed.
        owner: job that requests the settings, as `JOBID.RESTART`.
        settings: requested settings.
        current: values, by key of the knob, that the caller has just read, so that they are not read again;
            None if the caller has read no values.
        arbiter: arbitration between the jobs on the node, including the owner.

    Returns:
        One outcome per setting in the given order. Optional settings that the hardware lacks have no
        outcome.
    """
    transaction = SettingsTransaction(devices, journal, arbiter, current=dict(current or {}))
    requested = {setting.key: setting for setting in settings}
    outcomes = {
        key: failure
        for key, setting in requested.items()
        if (failure := _claim(transaction, owner, setting)) is not None
    }
    requested = {key: setting for key, setting in requested.items() if key in transaction.entries}
    for key in requested:
        for dependent in devices.knobs[key].dependents_at(transaction.current[key]):
            _claim_dependent(transaction, owner, dependent)
    for key, setting in requested.items():
        entry = transaction.entries[key]
        transaction.request(entry, transaction.merged_value(entry) or setting.value)
    transaction.request_merged_claims()
    transaction.request_dependents(list(transaction.writes))
    try:
        journal.update(transaction.entries.values())
    except OSError as error:
        note = f"not set: the journal cannot be written: {error.strerror}"
        refused = {
            key: SettingOutcome(key, transaction.current[key], setting.value, None, True, note=note)
            for key, setting in requested.items()
        }
        return _in_order(settings, outcomes | refused)
    transaction.commit()
    # The originals are on disk already. If this update fails, a restarted agent restores them without first
    # comparing the current values.
    with contextlib.suppress(OSError):
        journal.update(transaction.final_entries())
    return _in_order(
        settings, outcomes | {key: _outcome(transaction, setting) for key, setting in requested.items()}
    )


def reconcile(devices: NodeDevices, journal: SettingsJournal, arbiter: Arbiter) -> None:
    """Write the settings that must change because jobs started or ended. Repeat failed writes.

    Args:
        devices: devices of the node.
        journal: original values of the settings, and the values that the jobs request.
        arbiter: object that merges the requests of all jobs on the node into one value per setting.

    Raises:
        OSError: the journal cannot be written; the hardware was not changed.
    """
    transaction = SettingsTransaction(devices, journal, arbiter)
    transaction.request_merged_claims()
    transaction.request_dependents(list(transaction.writes))
    journal.update(transaction.entries.values())
    transaction.commit()
    journal.update(transaction.final_entries())


def _claim(transaction: SettingsTransaction, owner: str, setting: Setting) -> SettingOutcome | None:
    """Add the value that a job requests for a setting to the journal entry of the setting.

    A knob is the file or call through which the setting is written. The transaction writes the entry later.

    Returns:
        None if the value was added, or if the setting is optional and the node lacks the knob. Otherwise the
        outcome, which is marked as failed.
    """
    key, value = setting.key, setting.value
    knob = transaction.devices.knobs.get(key)
    if knob is None:
        note = "this node has no such knob"
        return None if setting.optional else SettingOutcome(key, None, value, failed=True, note=note)
    try:
        if key not in transaction.current:
            transaction.current[key] = knob.read()
    except DeviceError as error:
        return SettingOutcome(key, None, value, failed=True, note=f"not set: {error.why}")
    entry = transaction.entry(key) or JournalEntry(key, transaction.current[key])
    transaction.entries[key] = entry.with_claim(owner, value)
    return None


def _claim_dependent(transaction: SettingsTransaction, owner: str, key: str) -> None:
    """Protect the original value of a hardware setting that a job may change as a side effect.

    The function adds an entry of the setting (knob) to the journal, unless the journal has one. The entry
    keeps the original value. The entry names the job, without a requested value.

    Args:
        transaction: transaction that holds the journal entries.
        owner: the job, as `JOBID.RESTART`.
        key: key of the knob that may change.
    """
    entry, current = transaction.entry(key), transaction.read(key)
    if entry is None and current is not None:
        entry = JournalEntry(key, current)
    if entry is not None and owner not in entry.claims:
        transaction.entries[key] = entry.with_claim(owner, None)


def _in_order(settings: Sequence[Setting], outcomes: Mapping[str, SettingOutcome]) -> list[SettingOutcome]:
    return [outcomes[setting.key] for setting in settings if setting.key in outcomes]


def _outcome(transaction: SettingsTransaction, setting: Setting) -> SettingOutcome:
    """Return the outcome of one setting of a job after the hardware writes.

    The value in force may differ from the requested value, for two reasons. Other jobs on the node may
    request another value. A power budget may set an upper bound (ceiling) below the requested value. The
    note of the outcome then states the value in force.
    """
    key, knob = setting.key, transaction.devices.knobs[setting.key]
    original, current = transaction.entries[key].original, transaction.current[key]
    if key in transaction.changed_externally:
        note = f"{CHANGED_EXTERNALLY}{knob.format_value(current)}"
        return SettingOutcome(key, original, setting.value, current, True, note=note)
    outcome = transaction.outcomes[key]
    if not (outcome.failed or knob.is_equivalent(setting.value, outcome.requested)):
        ceiling = transaction.entries[key].ceiling
        reason = "other jobs on the node require" if outcome.requested != ceiling else "a power budget allows"
        note = f"{reason} {knob.format_value(outcome.requested)}"
        outcome = dataclasses.replace(outcome, note=note)
    if outcome.requested == setting.value:
        return outcome
    return dataclasses.replace(outcome, requested=setting.value)
