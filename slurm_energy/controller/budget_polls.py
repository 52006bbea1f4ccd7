"""Checks of a node's poll against what is known of the node and of Slurm's jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from typing import Final

from slurm_energy.budget.messages import MAX_DEVICES, NodePoll
from slurm_energy.controller.budget_facts import BudgetedJob
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

UNKNOWN_JOB: Final = 0
"""Id that stands for a job of another node; Slurm gives it to no job."""


def check_device_count(poll: NodePoll, known: Mapping[str, object]) -> None:
    """Check that a node does not report ever new devices, each of which would count at its nameplate.

    Args:
        poll: the poll.
        known: devices that the node has reported, by name.

    Raises:
        UsageError: the node has reported more than `MAX_DEVICES` different devices.
    """
    count = len(known.keys() | {device.name for device in poll.devices})
    if count > MAX_DEVICES:
        why = f"it has reported {count} different devices, more than {MAX_DEVICES}"
        raise UsageError(f"node '{shown(poll.node)}'", why, "check the agent on the node")


def foreign_jobs(poll: NodePoll, jobs: Mapping[int, BudgetedJob]) -> frozenset[tuple[int, int]]:
    """Return the jobs (id, restart count) of a poll that run on other nodes only.

    A job that Slurm has restarted since `jobs` was read may have moved to the node.

    Args:
        poll: the poll.
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
    """Return a poll without some jobs. Devices that they use count as busy with an unknown job."""
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
