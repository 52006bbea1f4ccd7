"""Pure functions that build the energy records of jobs and Slurm steps.

The records are built from sessions, which are the agent's states of the jobs on this node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slurm_energy.agent.jobs.job_step import EXTERN, JobStep
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.attribution import BY_CPU_TIME, OTHER
from slurm_energy.agent.metering.components import component_energies, division_notes
from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.control import knob_keys
from slurm_energy.control.restore import RestoreResult
from slurm_energy.control.transaction import SettingOutcome
from slurm_energy.devices.driver import Knob
from slurm_energy.errors import UsageError
from slurm_energy.protocol.live_reports import FINDINGS
from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord
from slurm_energy.tuning_record import check_tuning

_SHARED_STEP = "energy divided by CPU time among steps that ran at the same time"
_RESTORE_REASONS = "not restored: "
_LEFT_TO_OTHERS = "after the job: "
MAX_LIVE_SIGNALS = 256
"""Maximum number of signals of a running job in a live report, which keeps a report of many jobs small."""


def job_record(session: Session, knobs: Mapping[str, Knob]) -> EnergyRecord:
    """Return the energy record of an ended job.

    `knobs` are the node's knobs by key. Each knob formats the value of its setting.
    """
    end = max(session.start_unix, session.end_unix if session.end_unix is not None else session.start_unix)
    session.power_monitor.finish()
    energies = _energies(session)
    return EnergyRecord(
        **_common_fields(session),
        start=session.start_unix,
        end=end,
        components=energies,
        applied=applied_settings(session.outcomes, session.restored, knobs),
        devices=session.devices,
        cpus=session.cpus,
        mean_watts=_mean(energies, end - session.start_unix),
        peak_watts=_peak(session.power_monitor.peak_watts, energies, end - session.start_unix),
        seconds_above_cap=session.power_monitor.above_cap_s,
        budget_capped_seconds=session.power_monitor.budget_capped_s,
        throttled_seconds=_throttled_s(session.meter, end - session.start_unix),
        uncertain_seconds=session.meter.uncertain_s,
        tuning=_valid_tuning(session),
        notes=(*division_notes(session.meter), *session.notes),
        record_id=session.record_id,
    )


def running_records(sessions: Iterable[Session], boottime: float) -> Iterator[EnergyRecord]:
    """Yield records of the running jobs and of their running steps, as if they ended at `boottime`.

    All jobs come first, then all steps. The sessions stay unchanged. Elapsed times do not depend on
    adjustments of the wall clock.

    Args:
        sessions: sessions of the jobs.
        boottime: time in seconds since boot.
    """
    jobs = list(sessions)
    for session in jobs:
        yield running_record(session, session.unix_at(boottime))
    for session in jobs:
        for step in session.steps.values():
            yield step_record(session, step, session.unix_at(boottime))


def running_record(session: Session, now: float) -> EnergyRecord:
    """Return the energy record that a running job would have if the job ended at `now`.

    The session stays unchanged.

    The record has the key `watts`: the mean power of the job by component in the last complete window of its
    power monitor. If the signals of the job are sampled, the record has the key `signals`. Each entry of
    `signals` states a signal, the part of the node that it describes, and its latest value. If the diagnosis
    has findings, the record has the key `findings`.

    Args:
        session: session (state on this node) of the job.
        now: Unix time in seconds.
    """
    end = max(session.start_unix, now)
    energies = _energies(session)
    return EnergyRecord(
        **_common_fields(session),
        start=session.start_unix,
        end=end,
        components=energies,
        cpus=session.cpus,
        mean_watts=_mean(energies, end - session.start_unix),
        peak_watts=_peak(session.power_monitor.peak_watts, energies, end - session.start_unix),
        uncertain_seconds=session.meter.uncertain_s,
        record_id=session.record_id,
        extra=(
            ("watts", {name: session.power_monitor.watts.get(name) for name in session.components}),
            *([("signals", signals)] if (signals := _live_signals(session)) else []),
            *([(FINDINGS, [one.to_json() for one in session.findings])] if session.findings else []),
        ),
    )


def _live_signals(session: Session) -> list[list[str | float]]:
    """Return the latest signals of a job, at most `MAX_LIVE_SIGNALS`, without signals of single CPUs."""
    latest = session.recording.latest if session.recording is not None else {}
    shown = [(key, value) for key, value in latest.items() if not key[1].startswith("cpu[")]
    return [[*key, float(f"{value:.6g}")] for key, value in shown[:MAX_LIVE_SIGNALS]]


def _energies(session: Session) -> tuple[ComponentEnergy, ...]:
    return component_energies(
        session.job_components,
        session.meter,
        whole_node=session.whole_node,
        partial=session.partial_components,
    )


def _valid_tuning(session: Session) -> dict[str, Any] | None:
    """Return the value of the key `tuning` for a job's record.

    If the value is malformed, return None and add a note to the record.
    """
    try:
        return check_tuning(session.tuning)
    except UsageError as error:
        session.note(f"the description of the tuning is left out: {error}")
        return None


def step_record(session: Session, step: JobStep, end_unix: float) -> EnergyRecord:
    """Return the energy record of a Slurm step. Call `step_energy.divide_step_energy` before.

    The record of the extern step contains all energy that the job used while this step ran.

    Args:
        session: session (state on this node) of the job.
        step: the Slurm step.
        end_unix: Unix time of the step's end in seconds.
    """
    end = max(step.start_unix, end_unix)
    meter = session.meter.since(step.meter_at_start)
    if not session.whole_node:  # energy divided in this time is marked assumed; other energy comes later
        untold = {name for name in (*BY_CPU_TIME, OTHER) if name not in meter.assumed_s}
        meter.energy_uj = {name: uj for name, uj in meter.energy_uj.items() if name not in untold}
    if step.name != EXTERN:
        meter.energy_uj = {name: step.energy_uj.get(name, 0) for name in meter.energy_uj}
    partial = session.components if step.shared else session.partial_components
    energies = component_energies(
        session.job_components, meter, whole_node=session.whole_node, partial=partial
    )
    return EnergyRecord(
        **_common_fields(session),
        start=step.start_unix,
        end=end,
        components=energies,
        step=step.name,
        mean_watts=_mean(energies, end - step.start_unix),
        throttled_seconds=_throttled_s(meter, end - step.start_unix),
        uncertain_seconds=meter.uncertain_s,
        notes=(
            *division_notes(meter),
            *([_SHARED_STEP] if step.shared else []),
        ),
        record_id=step.record_id,
    )


def _throttled_s(meter: JobMeter, elapsed_s: float) -> float | None:
    """Return the seconds of throttling, at most `elapsed_s`.

    Without this limit, rounding could yield a value above `elapsed_s`.
    """
    return None if meter.throttled_s is None else min(meter.throttled_s, elapsed_s)


def _common_fields(session: Session) -> dict[str, Any]:
    """Return the fields of an energy record that are equal for a job and for its Slurm steps."""
    return {
        "cluster": session.cluster,
        "node": session.node,
        "job_id": session.job_id,
        "uid": session.uid,
        "policy": session.policy,
        "restart_count": session.restart_count,
        "sluid": session.sluid,
        "user": session.user,
        "partition": session.partition,
        "model": session.model,
        "tag": session.tag,
        "fingerprint": session.fingerprint,
        "requested": dict(session.requested),
        "gpus": session.gpus,
    }


def _peak(peak_watts: float | None, components: Iterable[ComponentEnergy], elapsed_s: float) -> float | None:
    """Return the estimated peak power of a job in watts; None if unknown.

    The peak is known only without the component `other` (parts of the node without a sensor of their
    own). The mean power of `other` is therefore added to this peak.

    Args:
        peak_watts: peak power of the other components together; None if unknown.
        components: energy of the job by component.
        elapsed_s: duration of the job in seconds.
    """
    if peak_watts is None:
        return None
    rest = [part for part in components if part.name == OTHER and part.energy_joules is not None]
    return peak_watts + (_mean(rest, elapsed_s) or 0.0)


def _mean(components: Iterable[ComponentEnergy], elapsed_s: float) -> float | None:
    joules = [p.energy_joules for p in components if p.energy_joules is not None and p.name != "node"]
    return math.fsum(joules) / elapsed_s if joules and elapsed_s > 0 else None


def applied_settings(
    outcomes: Iterable[SettingOutcome], restored: Iterable[RestoreResult], knobs: Mapping[str, Knob]
) -> tuple[AppliedSetting, ...]:
    """Return the applied settings of a job for its energy record.

    Equal settings of several domains are combined into one entry, for example `policy0-63`.

    Args:
        outcomes: results of applying the job's settings.
        restored: results of restoring the original settings.
        knobs: the node's knobs by key. Each knob formats the values of its setting.
    """
    back = {result.key: result for result in restored}
    groups: dict[tuple[str, AppliedSetting], list[str]] = {}
    for outcome in outcomes:
        name, domain = knob_keys.split_key(outcome.key)
        groups.setdefault((name, _setting(outcome, back, knobs)), []).append(domain)
    return tuple(
        AppliedSetting(f"{name}[{knob_keys.join_domains(domains)}]", *_values(setting))
        for (name, setting), domains in groups.items()
    )


def _setting(
    outcome: SettingOutcome, back: Mapping[str, RestoreResult], knobs: Mapping[str, Knob]
) -> AppliedSetting:
    knob, result = knobs.get(outcome.key), back.get(outcome.key)
    notes = [outcome.note] if outcome.note else []
    if result is not None and result.note:
        notes.append((_LEFT_TO_OTHERS if result.done else _RESTORE_REASONS) + result.note)

    def show(value: str | None) -> str | None:
        return knob.format_value(value) if knob is not None and value is not None else value

    return AppliedSetting(
        setting="",
        original=show(outcome.original),
        requested=show(outcome.requested) or "",
        applied=show(outcome.applied),
        restored=None if result is None else result.done,
        note="; ".join(notes),
    )


def _values(setting: AppliedSetting) -> tuple[str | None, str, str | None, bool | None, str]:
    return setting.original, setting.requested, setting.applied, setting.restored, setting.note
