"""JSON output of `senergy job`: one object per job with its nodes and steps.

Key names contain the units, and unknown values are null. New releases only add keys. docs/reference/json.md
documents the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord, JobDevice
from slurm_energy.reports.labels.settings import applied_part
from slurm_energy.reports.usage import JobUsage

FORMAT_VERSION = 1


def document(
    jobs: Sequence[JobUsage],
    decisions: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    scope: str | None = None,
) -> dict[str, Any]:
    """Return the JSON document of `senergy job --json`.

    Args:
        jobs: jobs to include in the document.
        decisions: changes that the queue engine made to the jobs, by job id. None means that the document
            contains no such changes.
        scope: field `scope` of the controller's response, which states whose records the response covers.
            None means that the document contains no scope.
    """
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "scope": scope,
        "jobs": [
            job_object(job)
            | ({} if decisions is None else {"decisions": list(decisions.get(job.first.job_id, ()))})
            for job in jobs
        ],
    }


def job_object(job: JobUsage) -> dict[str, Any]:
    """Return one job with its energy as a dict for JSON, including its `nodes` and `steps`."""
    first = job.first
    return {
        "job_id": first.job_id,
        "display_id": job.job.display_id or str(first.job_id),
        "restart_count": first.restart_count,
        "sluid": first.sluid,
        "cluster": first.cluster,
        "name": job.job.name,
        "user": job.job.user or first.user,
        "uid": first.uid,
        "account": job.job.account,
        "partition": job.job.partition or first.partition,
        "state": job.job.state,
        "submit": job.job.submit,
        "policy": first.policy,
        "applied": applied_part(job.records),
        "requested": dict(first.requested),
        "model": first.model,
        "tag": first.tag,
        **figures(job),
        "allocated_nodes": job.job.nodes,
        "missing_nodes": job.missing_nodes,
        "nodes": [node_object(record) for record in job.records],
        "steps": [
            {"step": step.first.step, **figures(step), "nodes": [node_object(r) for r in step.records]}
            for step in job.steps
        ],
    }


def figures(usage: JobUsage) -> dict[str, Any]:
    """Return the times, energies and powers of a job or step for the JSON output."""
    return {
        "start": usage.start,
        "end": usage.end,
        "elapsed_s": usage.elapsed_s,
        "cpus": usage.cpus,
        "energy_joules": usage.energy_joules,
        "energy_kwh": usage.energy_kwh,
        "component_joules": {
            component: usage.component_joules(component) for component in usage.component_types
        },
        "unknown_components": list(usage.unknown_components),
        "mean_watts": usage.mean_watts,
        "peak_watts": usage.peak_watts,
        "edp_joule_seconds": usage.edp_joule_seconds,
        "ed2p_joule_seconds2": usage.ed2p_joule_seconds2,
        "seconds_above_cap": usage.seconds_above_cap,
        "throttled_seconds": usage.throttled_seconds,
        "budget_capped_seconds": usage.budget_capped_seconds,
        "uncertain_seconds": usage.uncertain_seconds,
        "quality": usage.quality,
        "sources": list(usage.sources),
    }


def node_object(record: EnergyRecord) -> dict[str, Any]:
    """Return the record of a job on one node as a JSON object of the energy label."""
    return {
        **dict(record.extra),
        "node": record.node,
        "record_id": record.record_id,
        "start": record.start,
        "end": record.end,
        "cpus": record.cpus,
        "gpus": list(record.gpus),
        "energy_joules": record.energy_joules,
        "mean_watts": record.mean_watts,
        "peak_watts": record.peak_watts,
        "seconds_above_cap": record.seconds_above_cap,
        "throttled_seconds": record.throttled_seconds,
        "budget_capped_seconds": record.budget_capped_seconds,
        "uncertain_seconds": record.uncertain_seconds,
        "components": {component.name: _component_object(component) for component in record.components},
        "devices": [_device_object(device) for device in record.devices],
        "settings": [_setting_object(setting) for setting in record.applied],
        "tuning": record.tuning,
        "notes": list(record.notes),
    }


def _component_object(component: ComponentEnergy) -> dict[str, Any]:
    return {
        **dict(component.extra),
        "energy_joules": component.energy_joules,
        "source": component.source,
        "quality": None if component.energy_joules is None else component.quality,
    }


def _device_object(device: JobDevice) -> dict[str, Any]:
    return {
        "device": device.name,
        "product": device.product,
        "min_cap_watts": device.min_cap_watts,
        "max_cap_watts": device.max_cap_watts,
    }


def _setting_object(setting: AppliedSetting) -> dict[str, Any]:
    return {
        **dict(setting.extra),
        "setting": setting.setting,
        "original": setting.original,
        "requested": setting.requested,
        "applied": setting.applied,
        "restored": setting.restored,
        "note": setting.note,
    }
