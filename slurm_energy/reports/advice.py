"""Notes under the energy label: what to distrust, what went wrong, what to try next.

Every note follows from figures of the job itself and, where it can, ends in a line for the batch script.
The thresholds are stated here once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from slurm_energy.quantities import format_duration
from slurm_energy.reports.fields import asked_number
from slurm_energy.reports.nodelist import fold
from slurm_energy.reports.scaling import percent, plain, with_unit
from slurm_energy.reports.settings import merge_settings, split_setting
from slurm_energy.reports.usage import MEASURED_PARTS, Usage

GPU_WELL_BELOW_LIMIT = 0.75
GPU_CAP_OF_MEAN = 0.9
CPU_BESIDE_GPU_SHARE = 0.25
UNEVEN_NODES = 0.6
NOTABLE_TIME_SHARE = 0.05
UNTUNED_POLICIES = ("monitor", "performance")
PART_NAMES = {"cpu": "CPU", "dram": "DRAM", "gpu": "GPU", "other": "other parts", "node": "node meter"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Note:
    """One remark.

    Attributes:
        kind: `trust` (read the figures with care), `setting` (something did not work), `try` (idea).
        text: one or two sentences.
        directive: line for the batch script, without `#SBATCH`; empty if there is none.
    """

    kind: Literal["trust", "setting", "try"]
    text: str
    directive: str = ""


def notes(job: Usage) -> list[Note]:
    """Return all remarks on a job, the most important first."""
    return [*_trust(job), *_settings(job), *_caps(job), *_ideas(job)]


def _trust(job: Usage) -> Iterator[Note]:
    if job.missing_nodes:
        verb = "has" if job.missing_nodes == 1 else "have"
        yield Note(
            "trust",
            f"{job.missing_nodes} of {job.job.nodes} nodes {verb} not delivered a record (yet): these figures"
            f" are those of {fold(job.nodes)} only.",
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


def _settings(job: Usage) -> Iterator[Note]:
    for merged in merge_settings(job.records):
        fate, where = merged.fate, fold(merged.nodes)
        if fate.applied is None:
            reason = f": {fate.note}" if fate.note else ""
            yield Note("setting", f"{merged.kind} could not be set to {fate.asked} on {where}{reason}.")
        if fate.restored is False:
            yield Note(
                "setting",
                f"{merged.kind} on {where} is not back at {fate.original}: tell the administrator.",
            )


def _caps(job: Usage) -> Iterator[Note]:
    cap, above = asked_number(job, "cap_watts"), job.seconds_above_cap
    if cap and above and above > NOTABLE_TIME_SHARE * job.elapsed_s:
        highest = max((r.peak_watts for r in job.records if r.peak_watts is not None), default=None)
        raised = f"energy-cap={_rounded(highest)}" if highest and highest > cap else ""
        yield Note(
            "setting",
            f"Power was above the cap for {format_duration(above)} ({percent(above, job.elapsed_s, 0)} of the"
            " time): the hardware cannot go lower under this load.",
            f"--{raised}" if raised else "",
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


def _ideas(job: Usage) -> Iterator[Note]:
    if job.elapsed_s <= 0 or job.energy_joules is None:
        return
    gpu = list(_gpu_idea(job))
    yield from gpu
    yield from _cpu_idea(job)
    yield from _balance(job)
    if not gpu and job.first.policy in UNTUNED_POLICIES:
        yield Note(
            "try",
            "This run was not tuned. Run it again under the policy that aims at the least energy times"
            " delay, and compare both with: senergy job ID ID --html FILE",
            "--energy-policy=edp",
        )


def _gpu_idea(job: Usage) -> Iterator[Note]:
    gpus = [c for c in job.components if c.name.startswith("gpu[") and c.energy_joules is not None]
    joules = job.part_joules("gpu")
    limit = gpu_limit_watts(job)
    if not gpus or joules is None or limit is None or asked_number(job, "gpu_cap_watts"):
        return
    mean = joules / len(gpus) / job.elapsed_s
    if mean < GPU_WELL_BELOW_LIMIT * limit:
        yield Note(
            "try",
            f"The GPUs drew {with_unit(mean, 'W')} each on average, {percent(mean, limit, 0)} of their"
            f" {with_unit(limit, 'W')} limit, so memory or input sets the pace. A cap just below the mean"
            " costs little time:",
            f"--energy-gpu-cap={_rounded(GPU_CAP_OF_MEAN * mean)}",
        )


def gpu_limit_watts(job: Usage) -> float | None:
    """Return the GPUs' power limit before the job, if a setting recorded it."""
    limits = []
    for record in job.records:
        for setting in record.applied:
            kind, _ = split_setting(setting.setting)
            number = _NUMBER.match(setting.original or "")
            if kind.endswith("power_limit") and not kind.startswith("powercap") and number:
                limits.append(float(number[0]))
    return max(limits, default=None)


def _cpu_idea(job: Usage) -> Iterator[Note]:
    cpu, gpu, total = job.part_joules("cpu"), job.part_joules("gpu"), job.energy_joules
    if not (cpu and gpu and total) or cpu < CPU_BESIDE_GPU_SHARE * total or gpu < cpu:
        return
    if job.first.policy in UNTUNED_POLICIES:
        yield Note(
            "try",
            f"The CPUs took {percent(cpu, total, 0)} of the energy beside busy GPUs. If they only feed them,"
            " let them clock down:",
            "--energy-policy=balanced",
        )


def _balance(job: Usage) -> Iterator[Note]:
    means = {r.node: r.mean_watts for r in job.records if r.mean_watts is not None}
    if len(means) < 2:
        return
    low, high = min(means, key=lambda n: means[n]), max(means, key=lambda n: means[n])
    if means[low] < UNEVEN_NODES * means[high]:
        yield Note(
            "try",
            f"{low} drew {with_unit(means[low], 'W')} on average, {high} {with_unit(means[high], 'W')}:"
            " is the work spread evenly?",
        )


def _rounded(watts: float) -> str:
    """Round to 10 W, and never to 0."""
    return str(max(10, round(watts / 10) * 10))
