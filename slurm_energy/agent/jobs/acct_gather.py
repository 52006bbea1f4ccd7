"""Energy for Slurm's accounting: answers to acct_gather_energy/senergy in slurmd and slurmstepd."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.jobs.sessions import Session, SessionTable
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SampleReason
from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.agent.metering.live_power import NODE
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.slurm.step_process import StepProcess, has_children, step_of_process

WHOLE_JOB_STEP = "extern"
"""With PrologFlags=Contain, Slurm takes a job's energy from this step alone."""
_UNKNOWN: Mapping[str, Any] = {"known": False}
_MAX_UNANNOUNCED = 1000
_QUERY_AGE_S = 0.1
"""A younger sample answers a request in the middle of a step."""
_END_AGE_S = 0.01
"""A younger sample answers a request at the end of a step, which bounds the samples to 100 per second."""
_FINAL_AGE_S = 0.1
"""Minimum time between two samples that may scan all processes of the node."""


@dataclass(slots=True)
class _UnannouncedStep:
    """A step that energy.so did not announce.

    Attributes:
        meter_at_start: copy of the job's energy meter at the step's first request.
        epoch: unique name of this counter.
    """

    meter_at_start: JobMeter
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)


class AcctGatherQueries:
    """Answers requests for the energy of a step or of the node.

    All values are cumulative. Each answer names its counter by an epoch, which is another one after the
    state of that counter was lost.

    Args:
        devices: the node's hardware.
        meter: the node's energy meter.
        clock: the machine's clock.
        running: sessions of the running jobs.
        sample: takes a sample.
    """

    def __init__(
        self,
        devices: NodeDevices,
        meter: NodeEnergyMeter,
        clock: Clock,
        running: SessionTable,
        sample: Callable[[SampleReason], None],
    ) -> None:
        self._root = devices.root
        self._meter = meter
        self._clock = clock
        self._running = running
        self._sample = sample
        self._epoch = uuid.uuid4().hex
        self._unannounced: dict[tuple[str, str, int], _UnannouncedStep] = {}
        self._end_sampled_at = self._final_sampled_at = -math.inf

    def now(self) -> float:
        """Return the current time in seconds since boot, which `answer` takes as time of arrival."""
        return self._clock.boottime()

    def answer(self, pid: int, arrived: float) -> dict[str, Any]:
        """Return the cumulative energy of the step that a slurmstepd runs, or of the node for slurmd.

        If the job or its energy is unknown, the answer has `known` with the value False.

        Args:
            pid: process id of the requesting slurmstepd or slurmd.
            arrived: time in seconds since boot at which the request arrived. A later sample is used for all
                requests that arrived before it.
        """
        process = step_of_process(self._root, pid)
        if process is None:
            self._refresh(arrived, ends=False)
            return self._node()
        session = self._running.latest_run(process.job_id) if process.job_id is not None else None
        if session is None:
            return dict(_UNKNOWN)
        self._meter.find_processes(session)
        self._refresh(arrived, ends=not has_children(self._root, pid))
        return self._step(session, process, pid)

    def _refresh(self, arrived: float, *, ends: bool) -> None:
        """Take a sample unless a sufficient one was taken since the request arrived, or a moment before.

        Slurm does not poll again after the last task of a step, so at that moment everything that can be
        charged is charged.
        """
        if not ends:
            if arrived - self._meter.sampled_at >= _QUERY_AGE_S:
                self._sample(SampleReason.QUERY)
            return
        if arrived - self._end_sampled_at < _END_AGE_S:
            return
        is_final = arrived - self._final_sampled_at >= _FINAL_AGE_S
        self._sample(SampleReason.FINAL if is_final else SampleReason.STEP)
        self._end_sampled_at = self._clock.boottime()
        if is_final:
            self._final_sampled_at = self._end_sampled_at

    def _node(self) -> dict[str, Any]:
        accounts = self._meter.account_totals()
        if not accounts:
            return dict(_UNKNOWN)
        power = self._meter.live.watts(self._clock.boottime())
        watts = power[NODE] if NODE in power else _sum(power.values())
        return _answer(self._epoch, sum(account["measured"] for account in accounts.values()), watts)

    def _step(self, session: Session, process: StepProcess, pid: int) -> dict[str, Any]:
        watts = _sum(session.power_monitor.watts.values()) if session.power_monitor.watts else None
        if process.step == WHOLE_JOB_STEP:
            return _counted(session, session.meter.energy_uj, session.record_id, watts)
        step = session.steps.get(process.step)
        if step is not None:
            meter = session.meter.since(step.meter_at_start)
            return _counted(session, meter.energy_uj, step.record_id, watts)
        own = self._unannounced_step(session, process.step, pid)
        return _counted(session, session.meter.since(own.meter_at_start).energy_uj, own.epoch, watts)

    def _unannounced_step(self, session: Session, name: str, pid: int) -> _UnannouncedStep:
        key = (session.record_id, name, pid)
        if key not in self._unannounced:
            running = {other.record_id for other in self._running.values()}
            self._unannounced = {k: step for k, step in self._unannounced.items() if k[0] in running}
            if len(self._unannounced) >= _MAX_UNANNOUNCED:
                del self._unannounced[next(iter(self._unannounced))]  # the oldest one
            self._unannounced[key] = _UnannouncedStep(session.meter.copy())
        return self._unannounced[key]


def _counted(
    session: Session, energy_uj: Mapping[str, int], epoch: str, watts: float | None
) -> dict[str, Any]:
    """Return the answer with the energy of the components that are recorded for the job."""
    known = [energy_uj[name] for name in session.components if name in energy_uj]
    return _answer(epoch, sum(known), watts) if known else dict(_UNKNOWN)


def _answer(epoch: str, energy_uj: int, watts: float | None) -> dict[str, Any]:
    joules = max(0, energy_uj) // 1_000_000
    return {"epoch": epoch, "joules": joules, "watts": None if watts is None else round(watts, 3)}


def _sum(parts: Iterable[float | None]) -> float | None:
    """Return the sum of powers; None if one of them is unknown or there is none."""
    known = list(parts)
    return None if not known or None in known else math.fsum(part or 0.0 for part in known)
