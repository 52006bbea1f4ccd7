"""Notes below the energy label: doubtful figures, failed settings, findings, and settings to try.

Each note follows from figures of the job itself. `recommendation` selects the settings to try. This module
defines the thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurm_energy.config import Config
from slurm_energy.quantities import format_duration
from slurm_energy.reports.fields import asked_number
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.note import Note
from slurm_energy.reports.recommendation import gpus_of, recommendations
from slurm_energy.reports.settings import merge_settings
from slurm_energy.reports.usage import MEASURED_PARTS, JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist

GPU_WELL_BELOW_LIMIT = 0.75
CPU_BESIDE_GPU_SHARE = 0.25
UNEVEN_NODES = 0.6
NOTABLE_TIME_SHARE = 0.05
PART_NAMES = {"cpu": "CPU", "dram": "DRAM", "gpu": "GPU", "other": "other parts", "node": "node meter"}


def notes(job: JobUsage, config: Config | None = None) -> list[Note]:
    """Return all notes on a job, the most important first.

    Args:
        job: the job.
        config: bounds and best known settings of the site; None selects the defaults.
    """
    config = config or Config()
    findings = [*_trust(job), *_settings(job), *_caps(job, config), *_findings(job)]
    return [*findings, *recommendations(job, config)]


def _trust(job: JobUsage) -> Iterator[Note]:
    if job.missing_nodes:
        verb = "has" if job.missing_nodes == 1 else "have"
        yield Note(
            "trust",
            f"{job.missing_nodes} of {job.job.nodes} nodes {verb} not delivered a record (yet): these figures"
            f" are those of {fold_hostlist(job.nodes)} only.",
        )
    unknown = [PART_NAMES[part] for part in job.incomplete_parts if part in MEASURED_PARTS]
    if unknown:
        yield Note("trust", f"Not measured, and not in the total: {', '.join(unknown)}.")
    if job.uncertain_seconds > 0:
        yield Note(
            "trust",
            f"For {plain(job.uncertain_seconds, 1)} s a counter could not be read in time; energy may be"
            " missing there.",
        )
    seen: set[str] = set()
    for record in job.records:
        for text in record.notes:
            if text not in seen:
                seen.add(text)
                yield Note("trust", f"{record.node}: {text}" if len(job.records) > 1 else text)


def _settings(job: JobUsage) -> Iterator[Note]:
    for merged in merge_settings(job.records):
        fate, where = merged.fate, fold_hostlist(merged.nodes)
        if fate.applied is None:
            reason = f": {fate.note}" if fate.note else ""
            yield Note("setting", f"{merged.kind} could not be set to {fate.requested} on {where}{reason}.")
        if fate.restored is False:
            yield Note(
                "setting",
                f"{merged.kind} on {where} is not back at {fate.original}: tell the administrator.",
            )


def _caps(job: JobUsage, config: Config) -> Iterator[Note]:
    cap, above = asked_number(job, "cap_watts"), job.seconds_above_cap
    if cap and above and above > NOTABLE_TIME_SHARE * job.elapsed_s:
        highest = max((r.peak_watts for r in job.records if r.peak_watts is not None), default=None)
        low, high = config.bounds.cap_watts
        raised = _rounded_up(highest) if highest and highest > cap else None
        settable = raised is not None and low <= raised <= high
        yield Note(
            "setting",
            f"Power was above the cap for {format_duration(above)} ({percent(above, job.elapsed_s, 0)} of the"
            " time): the hardware cannot go lower under this load.",
            f"--energy-cap={raised}" if settable else "",
        )
    throttled = job.throttled_seconds
    if throttled and throttled > NOTABLE_TIME_SHARE * job.elapsed_s:
        limited = any(merged.kind.endswith("power_limit") for merged in merge_settings(job.records))
        cause = "the power limit that was set" if limited else "heat, or a limit of the machine"
        yield Note(
            "setting",
            f"The hardware ran slower than it could for {format_duration(throttled)}"
            f" ({percent(throttled, job.elapsed_s, 0)} of the time), held back by {cause}.",
        )


def _findings(job: JobUsage) -> Iterator[Note]:
    if job.elapsed_s <= 0 or job.energy_joules is None:
        return
    yield from _idle_gpus(job)
    yield from _busy_cpus(job)
    yield from _balance(job)


def _idle_gpus(job: JobUsage) -> Iterator[Note]:
    drawn = [c for c in job.components if c.name.startswith("gpu[") and c.energy_joules is not None]
    limits = [device.max_cap_watts for device in gpus_of(job) if device.max_cap_watts is not None]
    joules = job.part_joules("gpu")
    if not drawn or joules is None or not limits:
        return
    mean, limit = joules / len(drawn) / job.elapsed_s, min(limits)
    if mean < GPU_WELL_BELOW_LIMIT * limit:
        yield Note(
            "finding",
            f"The GPUs drew {with_unit(mean, 'W')} each on average, {percent(mean, limit, 0)} of their"
            f" {with_unit(limit, 'W')} limit.",
        )


def _busy_cpus(job: JobUsage) -> Iterator[Note]:
    cpu, gpu, total = job.part_joules("cpu"), job.part_joules("gpu"), job.energy_joules
    if cpu and gpu and total and cpu >= CPU_BESIDE_GPU_SHARE * total and gpu >= cpu:
        yield Note("finding", f"The CPUs took {percent(cpu, total, 0)} of the energy beside busy GPUs.")


def _balance(job: JobUsage) -> Iterator[Note]:
    means = {r.node: r.mean_watts for r in job.records if r.mean_watts is not None}
    if len(means) < 2:
        return
    low, high = min(means, key=lambda n: means[n]), max(means, key=lambda n: means[n])
    if means[low] < UNEVEN_NODES * means[high]:
        yield Note(
            "finding",
            f"{low} drew {with_unit(means[low], 'W')} on average, {high} {with_unit(means[high], 'W')}:"
            " is the work spread evenly?",
        )


def _rounded_up(watts: float) -> int:
    """Round up to 10 W."""
    return math.ceil(watts / 10) * 10
