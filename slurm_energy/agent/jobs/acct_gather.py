"""Answers of senergyd to Slurm's plugin acct_gather_energy/senergy, which asks for energy.

In slurmd, the plugin asks for the energy of the node. In slurmstepd, it asks for the energy of the step.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurm_energy.agent.jobs.job_step import EXTERN
from slurm_energy.agent.jobs.sessions import Session, SessionTable
from slurm_energy.agent.jobs.step_energy import divide_step_energy, read_steps_cpu_time
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.cpu_time_meter import SampleReason
from slurm_energy.agent.metering.live_power import NODE
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.slurm.step_process import StepProcess, has_children, step_of_process

_UNKNOWN: Mapping[str, Any] = {"known": False}
_QUERY_AGE_S = 0.1
"""In the middle of a step, a sample younger than this answers a request; in seconds."""
_END_AGE_S = 0.01
"""At the end of a step, a sample younger than this answers a request. This allows 100 samples per second."""
_FINAL_AGE_S = 0.1
"""Minimum time between two samples that may scan all processes of the node."""


class AcctGatherQueries:
    """Handler of requests for the energy of a Slurm step or of the node.

    All values are cumulative. Each answer contains an epoch, which identifies the cumulative counter. If the
    state of the counter is lost, the counter starts again with another epoch.

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
        self._end_sampled_at = self._final_sampled_at = -math.inf

    def now(self) -> float:
        """Return the current time in seconds since boot, for use as the argument `arrived` of `answer`."""
        return self._clock.boottime()

    def answer(self, pid: int, arrived: float) -> dict[str, Any]:
        """Return the cumulative energy for a request of Slurm's plugin acct_gather_energy.

        A slurmstepd gets the energy of its step. slurmd gets the energy of the node. With
        PrologFlags=Contain, Slurm takes the energy of a job only from the job's extern step. If the job or
        its energy is unknown, the key `known` of the answer is False.

        Args:
            pid: process id of the requesting slurmstepd or slurmd.
            arrived: time in seconds since boot at which the request arrived. A later sample is used for all
                requests that arrived before that sample.
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
        """Take a sample of the energy for a query of Slurm, unless a recent sample exists.

        A sample is recent if it was taken after the query arrived or shortly before.

        Args:
            arrived: time at which the query arrived, in seconds since boot.
            ends: whether the last task of a step has ended. Slurm then sends no further query for the step,
                so the agent charges all energy that it can already charge.
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
        if process.step == EXTERN:
            return _counted(session, session.meter.energy_uj, session.record_id, watts)
        divide_step_energy(session, self._root)
        if process.step not in session.steps and has_children(self._root, pid):
            read_steps_cpu_time(session, self._root)
            session.begin_step(process.step, self._meter.sampled_at, pid)  # without energy.so
        step = session.steps.get(process.step)
        if step is None or not session.meter.energy_uj:
            return dict(_UNKNOWN)
        return _answer(step.record_id, sum(step.energy_uj.values()), watts)


def _counted(
    session: Session, energy_uj: Mapping[str, int], epoch: str, watts: float | None
) -> dict[str, Any]:
    """Return the answer to a query of Slurm for the energy of a job.

    The energy is the sum over those components whose energy the job's record contains.

    Args:
        session: state of the job on this node.
        energy_uj: energy of the job in microjoules, by component.
        epoch: identifier of the count.
        watts: present power; None if unknown.
    """
    known = [energy_uj[name] for name in session.components if name in energy_uj]
    return _answer(epoch, sum(known), watts) if known else dict(_UNKNOWN)


def _answer(epoch: str, energy_uj: int, watts: float | None) -> dict[str, Any]:
    joules = max(0, energy_uj) // 1_000_000
    return {"epoch": epoch, "joules": joules, "watts": None if watts is None else round(watts, 3)}


def _sum(parts: Iterable[float | None]) -> float | None:
    """Return the sum of powers; None if a power is unknown or the list is empty."""
    known = list(parts)
    return None if not known or None in known else math.fsum(part or 0.0 for part in known)
