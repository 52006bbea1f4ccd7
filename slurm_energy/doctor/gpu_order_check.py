"""Check of `senergy doctor`: whether the order in which Slurm numbers the NVIDIA GPUs is known.

The agent identifies the GPUs of a job by these numbers.
"""

from __future__ import annotations

from pathlib import Path

from slurm_energy.devices.hardware import NodeHardware
from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState
from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.gpu_order import detected_gpus, read_gpu_order

_NAME = "GPU numbers"
_COST = (
    "Slurm's number N is assumed to be /dev/nvidiaN; if wrong, jobs get the energy and limits of other GPUs"
)
_FIX = "let gres.conf name the GPUs of this node, as Gres in slurm.conf counts them"


def inspect_gpu_order(conf: Path | None, node: str, hardware: NodeHardware) -> tuple[str, str]:
    """Return the order in which Slurm numbers the NVIDIA GPUs, and the reason why the order is unknown.

    The order is empty if it is unknown. Both results are empty if the order does not matter, see
    `HostFindings.gpu_order_error`.

    Args:
        conf: path of slurm.conf; None if there is none.
        node: Slurm's name of the node.
        hardware: the node's hardware.
    """
    gpus = detected_gpus(hardware.gpus)
    if conf is None or not gpus:
        return "", ""
    try:
        return str(read_gpu_order(conf, node, gpus)), ""
    except UnavailableError as error:
        return "", str(error)


def gpu_order_checks(findings: HostFindings) -> list[CheckResult]:
    """Check whether the order in which Slurm numbers the NVIDIA GPUs is known.

    An unknown order is a fault if the minor numbers of the GPUs differ from the order of NVML. The result is
    empty if the order does not matter.
    """
    if findings.gpu_order:
        return [CheckResult(_NAME, CheckState.OK, findings.gpu_order)]
    if not findings.gpu_order_error:
        return []
    differs = any(gpu.minor not in (None, gpu.index) for gpu in findings.hardware.gpus)
    state = CheckState.DEGRADED if differs else CheckState.ABSENT
    return [CheckResult(_NAME, state, f"order unknown: {findings.gpu_order_error}", _COST, _FIX)]
