"""Notes below the energy label of a job: uncertain values, failed settings, observations, recommendations.

Each note follows from measured values of the job itself. `recommendation` selects the settings to recommend.
This module defines the thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_energy.config import Config
from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import requested_cap
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.labels.recommendation import gpus_of, recommendations
from slurm_energy.reports.labels.settings import merge_settings
from slurm_energy.reports.usage import MEASURED_COMPONENTS, JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist

GPU_WELL_BELOW_LIMIT = 0.75
CPU_BESIDE_GPU_SHARE = 0.25
UNEVEN_NODES = 0.6
NOTABLE_TIME_SHARE = 0.05
COMPONENT_NAMES = {"cpu": "CPU", "dram": "DRAM", "gpu": "GPU", "other": "other parts", "node": "node meter"}


def notes(job: JobUsage, config: Config | None = None) -> list[Note]:
    """Return all notes on a job, the most important first.

    Args:
        job: job with its energy records.
        config: configuration of the site, with power limits and best known settings; None means the defaults.
    """
    config = config or Config()
    findings = [*_reliability_notes(job), *_setting_notes(job), *_cap_notes(job, config), *_observations(job)]
    return [*findings, *recommendations(job, config)]


def _reliability_notes(job: JobUsage) -> Iterator[Note]:
    if job.missing_nodes:
        verb = "has" if job.missing_nodes == 1 else "have"
        yield Note(
            "trust",
            f"{job.missing_nodes} of {job.job.nodes} nodes {verb} not delivered a record yet: the figures"
            f" cover {fold_hostlist(job.nodes)} only.",
        )
    unknown = [
        COMPONENT_NAMES[component]
        for component in job.incomplete_components
        if component in MEASURED_COMPONENTS
    ]
    if unknown:
        yield Note("trust", f"Not measured and not included in the total: {', '.join(unknown)}.")
    if job.uncertain_seconds > 0:
        yield Note(
            "trust",
            f"For {plain(job.uncertain_seconds, 1)} s a counter could not be read in time; energy may be"
            " missing for this time.",
        )
    printed_texts: set[str] = set()
    for record in job.records:
        for text in record.notes:
            if text not in printed_texts:
                printed_texts.add(text)
                yield Note("trust", f"{record.node}: {text}" if len(job.records) > 1 else text)


def _setting_notes(job: JobUsage) -> Iterator[Note]:
    for merged in merge_settings(job.records):
        setting, nodes = merged.setting, fold_hostlist(merged.nodes)
        if setting.applied is None:
            reason = f": {setting.note}" if setting.note else ""
            yield Note(
                "setting",
                f"{merged.setting_type} could not be set to {setting.requested} on {nodes}{reason}.",
            )
        if setting.restored is False:
            yield Note(
                "setting",
                f"{merged.setting_type} on {nodes} was not restored to {setting.original}: inform the"
                " administrator.",
            )


def _cap_notes(job: JobUsage, config: Config) -> Iterator[Note]:
    cap, above = requested_cap(job, "cap_watts"), job.seconds_above_cap
    if cap and above and above > NOTABLE_TIME_SHARE * job.elapsed_s:
        max_watts = max((r.peak_watts for r in job.records if r.peak_watts is not None), default=None)
        low, high = config.for_node(job.records[0].node).bounds.cap_watts
        raised = _round_up(max_watts) if max_watts and max_watts > cap else None
        settable = raised is not None and low <= raised <= high
        yield Note(
            "setting",
            f"Power exceeded the cap for {format_duration(above)} ({percent(above, job.elapsed_s, 0)} of the"
            " time): the hardware cannot draw less under this load.",
            f"--energy-cap={raised}" if settable else "",
        )
    budgeted = job.budget_capped_seconds
    if budgeted and budgeted > NOTABLE_TIME_SHARE * job.elapsed_s:
        yield Note(
            "setting",
            f"A power budget held power limits below those of the job for {format_duration(budgeted)}"
            f" ({percent(budgeted, job.elapsed_s, 0)} of the time).",
        )
    throttled = job.throttled_seconds
    if throttled and throttled > NOTABLE_TIME_SHARE * job.elapsed_s:
        limited = any(merged.setting_type.endswith("power_limit") for merged in merge_settings(job.records))
        machine = "a power budget" if budgeted else "a limit of the machine"
        cause = "the applied power limit" if limited else f"temperature or {machine}"
        yield Note(
            "setting",
            f"The hardware was throttled for {format_duration(throttled)}"
            f" ({percent(throttled, job.elapsed_s, 0)} of the time) by {cause}.",
        )


def _observations(job: JobUsage) -> Iterator[Note]:
    if job.elapsed_s <= 0 or job.energy_joules is None:
        return
    yield from _idle_gpus(job)
    yield from _busy_cpus(job)
    yield from _balance(job)


def _idle_gpus(job: JobUsage) -> Iterator[Note]:
    measured = [c for c in job.components if c.name.startswith("gpu[") and c.energy_joules is not None]
    limits = [device.max_cap_watts for device in gpus_of(job) if device.max_cap_watts is not None]
    joules = job.component_joules("gpu")
    if not measured or joules is None or not limits:
        return
    mean, limit = joules / len(measured) / job.elapsed_s, min(limits)
    if mean < GPU_WELL_BELOW_LIMIT * limit:
        yield Note(
            "finding",
            f"The GPUs drew {with_unit(mean, 'W')} each on average, {percent(mean, limit, 0)} of their"
            f" {with_unit(limit, 'W')} limit.",
        )


def _busy_cpus(job: JobUsage) -> Iterator[Note]:
    cpu, gpu, total = job.component_joules("cpu"), job.component_joules("gpu"), job.energy_joules
    if cpu and gpu and total and cpu >= CPU_BESIDE_GPU_SHARE * total and gpu >= cpu:
        yield Note("finding", f"The CPUs used {percent(cpu, total, 0)} of the energy of this GPU job.")


def _balance(job: JobUsage) -> Iterator[Note]:
    means = {r.node: r.mean_watts for r in job.records if r.mean_watts is not None}
    if len(means) < 2:
        return
    low, high = min(means, key=lambda n: means[n]), max(means, key=lambda n: means[n])
    if means[low] < UNEVEN_NODES * means[high]:
        yield Note(
            "finding",
            f"{low} drew {with_unit(means[low], 'W')} on average, {high} {with_unit(means[high], 'W')}:"
            " is the work distributed evenly?",
        )


def _round_up(watts: float) -> int:
    """Round a power up to the next multiple of 10 W."""
    return math.ceil(watts / 10) * 10
