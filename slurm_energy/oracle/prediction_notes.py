"""Texts of a prediction for a training job: its assumptions, its limits and missing measurements."""

from __future__ import annotations

from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.prediction import Prediction, PredictionRequest
from slurm_energy.oracle.training.parameters import Calibration
from slurm_energy.oracle.workload import WorkloadProfile
from slurm_energy.quantities import format_duration


def unmeasured_case(
    profile: WorkloadProfile, kind: Hardware, calibration: Calibration, precision: str, count: float
) -> str:
    """Return a remark if a measured workload was not measured in the predicted case.

    The remark is appended to the text `basis` of the prediction. The case is the precision and the number of
    devices. The result is empty if the workload was measured in this precision with at least this number of
    devices. It is also empty for workloads that were never measured, which `transfer_notes` covers.

    Args:
        profile: the workload.
        kind: kind of the devices.
        calibration: calibration for this kind of device.
        precision: precision of the prediction.
        count: number of devices.
    """
    if profile.name not in calibration.workloads and not calibration.evidence_count(profile.name):
        return ""
    if count <= calibration.max_measured_gpus(profile.name, precision):
        return ""
    devices = f"{count:g} {kind.kind.upper()}{'' if count == 1 else 's'}"
    return f", not measured in {precision} with {devices}: wide range"


def transfer_notes(profile: WorkloadProfile, kind: Hardware, calibration: Calibration) -> list[str]:
    """Return a note if the predictor was not calibrated for the workload on this kind of device.

    The result is a list with one note, or an empty list.
    """
    if profile.name in calibration.workloads:
        return []
    count = calibration.evidence_count(profile.name)
    if not count:
        return [f"{profile.name} was never measured on {kind.name}: wide range"]
    rows = "1 measurement" if count == 1 else f"{count} measurements"
    sources = ", ".join(calibration.evidence.prior.sources) if calibration.evidence else ""
    return [f"{rows} of {profile.name} on {kind.name}, otherwise as on other kinds ({sources or 'none'})"]


def assumption_notes(
    request: PredictionRequest, profile: WorkloadProfile, precision: str, default_batch: int
) -> tuple[str, ...]:
    """Return a note that lists the assumptions of a prediction.

    An assumption replaces an attribute that is missing in the request. The result is empty if no attribute
    is missing.
    """
    parts = []
    if not request.samples:
        parts.append(f"one epoch of {profile.dataset or 'its data set'}")
    if not request.batch:
        parts.append(f"{default_batch} samples per GPU and step")
    if not request.precision:
        parts.append(precision)
    return (f"assumed: {', '.join(parts)}",) if parts else ()


def limitation_notes(request: PredictionRequest, kind: Hardware, prediction: Prediction) -> list[str]:
    """Return notes about parts of the prediction request that the model cannot take into account."""
    notes, limit_s = [], request.time_limit_s
    if limit_s and prediction.duration_s.mean > limit_s:
        notes.append(
            f"the predicted time exceeds the limit of {format_duration(limit_s)}: the job would be killed"
        )
    if (request.nodes or 1) > 1:
        notes.append("the model covers one node only: the GPUs are assumed to be linked within one")
    if request.cap_watts is not None:
        notes.append("the model covers power limits of GPUs only: the limit per node is ignored")
    if request.gpu_cap_watts and request.gpu_cap_watts < kind.min_cap_watts:
        notes.append(f"the lowest power limit of {kind.name} is {kind.min_cap_watts:g} W: it is used instead")
    return notes
