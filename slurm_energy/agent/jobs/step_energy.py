"""Division of a job's energy on this node among its Slurm steps. Energy never counts for two steps.

A step started by srun gets the energy that the job uses while the step runs. Steps that run at the same time
share this energy in proportion to the CPU time of their processes. The batch or interactive step gets the
energy of the time in which no srun step runs. The extern step contains the whole job and gets no part in the
division.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from slurm_energy.agent.jobs.job_step import EXTERN, JobStep
from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.metering.attribution import apportion
from slurm_energy.devices.cpu import process_tree
from slurm_energy.slurm.step_process import step_of_process


def divide_step_energy(session: Session, root: Path) -> None:
    """Divide the energy charged to a job since the last division among the job's running steps.

    Call this before a step starts or ends, and before the energy of a step is read.

    Args:
        session: session (state on this node) of the job.
        root: directory that contains `proc`.
    """
    charged = session.meter.energy_uj
    new = {name: max(0, uj - session.divided_uj.get(name, 0)) for name, uj in charged.items()}
    session.divided_uj = dict(charged)
    steps = [step for step in session.steps.values() if step.name != EXTERN and _runs(session, step, root)]
    receivers = [step for step in steps if not step.is_container] or steps
    if not receivers:
        return
    weights = _weights(receivers, root)
    for name, uj in new.items():
        for step, part in zip(receivers, apportion(uj, weights), strict=True):
            step.energy_uj[name] = step.energy_uj.get(name, 0) + part


def read_steps_cpu_time(session: Session, root: Path) -> None:
    """Read the CPU time of a job's steps before a step starts.

    Call this function after the energy so far has been divided among the steps. The next division
    then counts only CPU time that was used after this call. If a job has a single step, a division
    reads no CPU time.

    Args:
        session: session (state on this node) of the job.
        root: directory that contains `proc`.
    """
    for step in session.steps.values():
        if not step.is_container:
            _read_cpu_time(step, root)


def with_divided_energy(session: Session, root: Path) -> Session:
    """Return a copy of a session in which the energy is divided among the Slurm steps.

    The given session does not change.

    Args:
        session: session (state on this node) of the job.
        root: directory that contains `proc`.
    """
    steps = {
        name: dataclasses.replace(step, energy_uj=dict(step.energy_uj))
        for name, step in session.steps.items()
    }
    copy = dataclasses.replace(session, steps=steps)
    divide_step_energy(copy, root)
    return copy


def _runs(session: Session, step: JobStep, root: Path) -> bool:
    """Return whether a step still runs.

    Without the SPANK plugin energy.so, the end of a step is not reported. The function therefore checks
    the step's process. The result is False only if the step's slurmstepd was seen alive earlier and is
    gone now.
    """
    if step.pid is None:
        return True
    process = step_of_process(root, step.pid)
    is_alive = process is not None and process.job_id == session.job_id
    step.process_seen = step.process_seen or is_alive
    return is_alive or not step.process_seen


def _weights(steps: Sequence[JobStep], root: Path) -> list[int]:
    """Return the CPU time that each Slurm step has used since the previous call, as weights.

    All weights are 1 if the CPU time of a step is unknown, or if no step used CPU time.
    """
    if len(steps) == 1:
        return [1]
    weights: list[int] = []
    for step in steps:
        before = step.cpu_ticks
        if not _read_cpu_time(step, root):
            return [1] * len(steps)
        weights.append(max(0, step.cpu_ticks - before))
    return weights if any(weights) else [1] * len(steps)


def _read_cpu_time(step: JobStep, root: Path) -> bool:
    """Read the CPU time of a step's processes. Return whether the CPU time is known."""
    reading = None if step.pid is None else process_tree.read_tree_cpu_time(root, step.pid)
    total = process_tree.accumulate(step.cpu_time, reading)
    if total is not None:
        step.cpu_time, step.cpu_ticks = total, total.ticks
    return total is not None
