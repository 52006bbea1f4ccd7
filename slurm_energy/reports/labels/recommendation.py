"""Recommended settings for the next run of a job, each with a measured or predicted saving.

A setting is recommended only if its saving is known as a number and the devices accept the setting. Devices
and their limits are read from the job's records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slurm_energy.config import Config, EdpEntry
from slurm_energy.errors import EnergyError
from slurm_energy.oracle.hardware.hardware_files import find_hardware
from slurm_energy.oracle.prediction import Prediction, PredictionRequest
from slurm_energy.policies import catalogue
from slurm_energy.policies.edp_table import cpu_entry, gpu_entry
from slurm_energy.records import JobDevice
from slurm_energy.reports.acct.fields import requested_cap
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.labels.settings import split_setting
from slurm_energy.reports.usage import JobUsage

UNTUNED_POLICIES = ("monitor", "performance", "auto")
MIN_EDP_GAIN = 0.03
"""Minimum predicted saving of the energy-delay product, as a share, for which a cap is recommended."""
MODEL_TOLERANCE = 0.3
"""Largest deviation of measured from predicted power, as a share, at which a prediction is used."""
_CAP_STEP_WATTS = 10
_FIGURE = re.compile(r"\d ?%")


def recommendations(job: JobUsage, config: Config) -> Iterator[Note]:
    """Yield at most one recommended setting as a note: a predicted power cap, else the energy policy `edp`.

    A power cap can be predicted if the job names its model.
    """
    if job.elapsed_s <= 0 or job.energy_joules is None or job.first.policy not in UNTUNED_POLICIES:
        return
    note = _predicted_cap(job, config) or measured_recommendation(job, config)
    if note is not None:
        yield note


def gpus_of(job: JobUsage) -> list[JobDevice]:
    """Return the GPUs of the job on all nodes, as its records describe them."""
    return [device for record in job.records for device in record.devices if device.name != "cpu"]


@dataclass(frozen=True, slots=True)
class PredictedCap:
    """A power cap per GPU with its predicted effect.

    Attributes:
        watts: power cap per GPU in watts.
        limit_watts: power limit per GPU during the job.
        time_ratio: predicted time with the cap, divided by the predicted time without a cap.
        energy_ratio: predicted energy of the GPUs with the cap, divided by the prediction without a cap.
        basis: data on which the prediction is based.
    """

    watts: int
    limit_watts: float
    time_ratio: float
    energy_ratio: float
    basis: str


def _predicted_cap(job: JobUsage, config: Config) -> Note | None:
    cap = predicted_cap(job, config)
    if cap is None:
        return None
    return Note(
        "try",
        f"A cap of {cap.watts} W per GPU is predicted to change time by {_change(cap.time_ratio)} and the"
        f" GPUs' energy by {_change(cap.energy_ratio)} ({cap.basis}).",
        f"--energy-gpu-cap={cap.watts}",
    )


def predicted_cap(job: JobUsage, config: Config) -> PredictedCap | None:
    """Return the power cap with the lowest predicted energy-delay product for a finished job.

    The result is None if no cap can be predicted. A prediction requires that the job names its model and ran
    without power settings.
    """
    if job.elapsed_s <= 0 or job.energy_joules is None or job.first.policy not in UNTUNED_POLICIES:
        return None
    gpus, model = gpus_of(job), job.first.model
    products = {gpu.product for gpu in gpus}
    if not model or len(products) != 1 or requested_cap(job, "gpu_cap_watts") or _is_capped(job):
        return None
    product = products.pop()
    try:
        hardware = find_hardware(product)
    except EnergyError:
        return None
    low = max(hardware.min_cap_watts if gpu.min_cap_watts is None else gpu.min_cap_watts for gpu in gpus)
    limit = min(hardware.max_cap_watts if gpu.max_cap_watts is None else gpu.max_cap_watts for gpu in gpus)
    request = PredictionRequest(model=model, gpu_kind=product, gpus=len(gpus), nodes=len(job.records))
    bounds = config.for_node(job.records[0].node).bounds
    before, best, cap = _search(request, limit, _caps(low, limit, bounds.gpu_cap_watts))
    if before is None or best is None or not _agrees(job, before):
        return None
    if best.edp_js > (1 - MIN_EDP_GAIN) * before.edp_js:
        return None
    time, energy = (
        new.mean / old.mean
        for new, old in ((best.duration_s, before.duration_s), (best.energy_joules, before.energy_joules))
    )
    return PredictedCap(cap, limit, time, energy, best.basis)


def _agrees(job: JobUsage, predicted: Prediction) -> bool:
    """Return whether the job's GPUs drew about the power that was predicted for its model.

    If the measured and the predicted power differ, the job does not run the model that it names.
    """
    joules = job.component_joules("gpu")
    if joules is None:
        return False
    ratio = joules / job.elapsed_s / predicted.power_watts.mean
    return abs(ratio - 1) <= MODEL_TOLERANCE


def _is_capped(job: JobUsage) -> bool:
    setting_types = (
        split_setting(setting.setting)[0] for record in job.records for setting in record.applied
    )
    return any(
        setting_type.endswith("power_limit") and not setting_type.startswith("powercap")
        for setting_type in setting_types
    )


def _caps(low: float, limit: float, bounds: tuple[float, float]) -> list[int]:
    """Return candidate GPU power caps in watts that the GPUs accept and the site allows.

    Args:
        low: minimum cap that the GPUs accept.
        limit: current power limit; all candidates are below this limit.
        bounds: minimum and maximum cap that the site allows.
    """
    first = math.ceil(max(low, bounds[0]) / _CAP_STEP_WATTS) * _CAP_STEP_WATTS
    return [cap for cap in range(first, math.ceil(limit), _CAP_STEP_WATTS) if cap <= bounds[1]]


def _search(
    request: PredictionRequest, limit: float, caps: Sequence[int]
) -> tuple[Prediction | None, Prediction | None, int]:
    """Find the best power cap of a job by the training model.

    Return three values: the prediction under the current limit, the prediction under the best cap, and the
    best cap in watts. Both predictions are None if the model was never measured on this kind of GPU or does
    not represent the job, or if numpy is not installed.

    Args:
        request: prediction request for the job.
        limit: current power limit per GPU in watts.
        caps: candidate power caps per GPU in watts.
    """
    try:
        from slurm_energy.oracle.training_oracle import TrainingOracle
    except ImportError:  # numpy belongs to an extra
        return None, None, 0
    oracle = TrainingOracle()

    def predict_at(cap_watts: float) -> Prediction | None:
        return oracle.predict(replace(request, gpu_cap_watts=cap_watts))

    before = predict_at(limit)
    if before is None or not caps or not before.observations or before.notes:
        return None, None, 0
    candidates = [(answer, cap) for cap in caps if (answer := predict_at(cap)) is not None]
    best, cap = min(candidates, key=lambda item: item[0].edp_js)
    return before, best, cap


def measured_recommendation(job: JobUsage, config: Config) -> Note | None:
    """Recommend the energy policy `edp` if the settings of `edp` were measured on these devices."""
    if job.elapsed_s <= 0 or job.energy_joules is None or job.first.policy not in UNTUNED_POLICIES:
        return None
    policy = catalogue(config)["edp"]
    if policy.base != "edp" or not policy.allows(job.job.user or job.first.user):
        return None
    gpus = gpus_of(job)
    processors = {_processor(record.devices) for record in job.records}
    processor = processors.pop() if len(processors) == 1 else ""
    if gpus:
        products = {gpu.product for gpu in gpus}
        if len(products) != 1 or requested_cap(job, "gpu_cap_watts"):
            return None
        product = products.pop()
        entry = gpu_entry(config, processor, product, job.first.model)
        settings_text = _gpu_settings(entry, gpus) if entry and _binds(entry, job, len(gpus)) else ""
    else:
        product = processor
        entry = cpu_entry(config, processor, (), job.first.model) if processor else None
        watts = entry.max_frequency_mhz if entry else None
        settings_text = f"at most {watts:g} MHz" if watts else ""
    if entry is None or not settings_text or not _FIGURE.search(entry.source):
        return None
    return Note(
        "try",
        f"Policy edp starts from {settings_text} here, which was measured on"
        f" {entry.gpu or entry.cpu or product}: {entry.source}."
        " Compare both runs with: senergy job ID ID --html FILE",
        "--energy-policy=edp",
    )


def _processor(devices: Sequence[JobDevice]) -> str:
    """Return the product name of the job's processors; empty if the records do not contain it."""
    return next((device.product for device in devices if device.name == "cpu"), "")


def _gpu_settings(entry: EdpEntry, gpus: Sequence[JobDevice]) -> str:
    """Return text that recommends the GPU settings of a row of the site's table for the policy `edp`.

    The text is empty if a GPU would not accept the settings.
    """
    cap = entry.gpu_cap_watts
    if cap is None:
        return f"at most {entry.gpu_clock_mhz:g} MHz on the GPUs" if entry.gpu_clock_mhz else ""
    accepted = [
        gpu.min_cap_watts is not None
        and gpu.max_cap_watts is not None
        and gpu.min_cap_watts <= cap < gpu.max_cap_watts
        for gpu in gpus
    ]
    return f"{cap:g} W per GPU" if all(accepted) else ""


def _binds(entry: EdpEntry, job: JobUsage, count: int) -> bool:
    """Return whether the job's GPUs drew more power on average than the cap of an EDP table entry.

    Otherwise the cap would hardly affect the job, and the saving measured for the entry would not apply. An
    entry without a cap always counts as binding.

    Args:
        entry: entry of the EDP table.
        job: job with its energy records.
        count: number of GPUs of the job.
    """
    joules = job.component_joules("gpu")
    if entry.gpu_cap_watts is None:
        return True
    return joules is not None and joules / job.elapsed_s / count > entry.gpu_cap_watts


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"
