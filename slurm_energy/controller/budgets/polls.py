"""Checks of a node's report to the power budgets.

The report (poll) is compared with known facts about the node and about the jobs in Slurm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from typing import Final

from slurm_energy.budget.messages import MAX_DEVICES, NodePoll
from slurm_energy.controller.budgets.facts import BudgetedJob
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

UNKNOWN_JOB: Final = 0
"""Id that stands for a job of another node; Slurm gives it to no job."""


def check_devices(poll: NodePoll, known: Mapping[str, float], max_watts: Mapping[str, float]) -> None:
    """Check that a node does not report an implausible number or power of devices.

    The controller may assume that each device of the node draws its nameplate power, and then
    assigns less power to other nodes. The values that a faulty or compromised node can report must
    therefore be bounded.

    Args:
        poll: poll of the node.
        known: nameplate power in watts of the devices that the node has reported, by name.
        max_watts: maximum plausible power by component: `cpu` of all packages, `gpu` of each GPU,
            `node`.

    Raises:
        UsageError: the node has reported more than `MAX_DEVICES` different devices, or more power
            than `max_watts`.
    """
    claimed = {
        # A device without a limit counts by its measured power.
        device.name: (device.watts if device.max_watts is None else device.max_watts) or 0.0
        for device in poll.devices
    }
    nameplates = {**known, **claimed}
    subject = f"node '{shown(poll.node)}'"
    if len(nameplates) > MAX_DEVICES:
        why = f"it has reported {len(nameplates)} different devices, more than {MAX_DEVICES}"
        raise UsageError(subject, why, "check the agent on the node")
    gpus = [watts for name, watts in nameplates.items() if name.startswith("gpu")]
    total_watts = sum(nameplates.values())
    claims = {"gpu": max(gpus, default=0.0), "cpu": total_watts - sum(gpus), "node": total_watts}
    for component, watts in claims.items():
        if watts > max_watts[component]:
            why = f"its devices claim {watts:.0f} W of {component}, more than {max_watts[component]:.0f} W"
            raise UsageError(subject, why, "check the agent on the node, or raise controller.max_watts")


def foreign_jobs(poll: NodePoll, jobs: Mapping[int, BudgetedJob]) -> frozenset[tuple[int, int]]:
    """Return the jobs in a node's poll that run on other nodes only, as pairs (id, restart count).

    A poll is the node's report of its state. If Slurm has restarted a job since `jobs` was read, the job may
    now run on this node. Such a job is therefore not returned.

    Args:
        poll: poll of the node.
        jobs: running jobs in Slurm by id.
    """
    reported = {job.job_id: job.restart_count for job in poll.jobs}
    listed = reported.keys() | {job_id for device in poll.devices for job_id in device.job_ids}
    foreign = set()
    for job_id in listed:
        job = jobs.get(job_id)
        if job is None or not job.nodes or poll.node in job.nodes:
            continue
        if reported.get(job_id, job.restart_count) <= job.restart_count:
            foreign.add((job_id, reported.get(job_id, job.restart_count)))
    return frozenset(foreign)


def without_jobs(poll: NodePoll, job_ids: Container[int]) -> NodePoll:
    """Return a copy of a node's report without the given jobs.

    The devices of these jobs count as busy with an unknown job.

    Args:
        poll: report of the node's agent.
        job_ids: ids of the jobs to leave out.
    """
    if not any(job_id in job_ids for device in poll.devices for job_id in device.job_ids) and not any(
        job.job_id in job_ids for job in poll.jobs
    ):
        return poll
    devices = []
    for device in poll.devices:
        ids = tuple(dict.fromkeys(UNKNOWN_JOB if one in job_ids else one for one in device.job_ids))
        devices.append(dataclasses.replace(device, job_ids=ids))
    jobs = tuple(job for job in poll.jobs if job.job_id not in job_ids)
    return dataclasses.replace(poll, devices=tuple(devices), jobs=jobs)
