"""The parameters of the training model for one kind of device: meaning, bounds and defaults. Plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_energy.oracle.training.residuals import Residuals
    from slurm_energy.oracle.transfer.evidence import Evidence
    from slurm_energy.oracle.transfer.prior import Transfer


@dataclass(frozen=True, slots=True)
class Bound:
    """Interval of the values that a model parameter may have.

    Attributes:
        low: minimum.
        high: maximum.
        logarithmic: whether the calibration searches over the logarithm of the parameter. The logarithm is
            used for intervals that span decades.
    """

    low: float
    high: float
    logarithmic: bool = False


def _parameter(default: float, low: float, high: float, meaning: str, *, decades: bool = False) -> Any:
    return field(default=default, metadata={"bound": Bound(low, high, decades), "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Theta:
    """Parameters of a device and its software in the training model, found by calibration.

    A value is a number, or an array that broadcasts with the other values. The symbols in brackets are
    those of the thesis (4.3.5).
    """

    beta_gemm: Any = _parameter(0.7, 0.05, 1.0, "share of peak that matrix products reach [beta]")
    beta_conv: Any = _parameter(0.6, 0.05, 1.0, "share of peak that convolutions reach [beta]")
    beta_alu: Any = _parameter(0.5, 0.01, 1.0, "share of peak that other operations reach [beta]")
    ref_gemm_m: Any = _parameter(64.0, 1.0, 1e5, "rows at which products saturate [R]", decades=True)
    ref_gemm_n: Any = _parameter(64.0, 1.0, 1e4, "columns at which products saturate [R]", decades=True)
    ref_gemm_k: Any = _parameter(64.0, 1.0, 1e4, "inner size at which products saturate [R]", decades=True)
    ref_conv_pixels: Any = _parameter(
        2e4, 10.0, 1e7, "pixels at which convolutions saturate [R]", decades=True
    )
    ref_conv_in: Any = _parameter(16.0, 1.0, 1e4, "input channels that saturate [R]", decades=True)
    ref_conv_out: Any = _parameter(16.0, 1.0, 1e4, "output channels that saturate [R]", decades=True)
    time_gemm: Any = _parameter(1.0, 0.1, 10.0, "factor on time of matrix products [C_op]", decades=True)
    time_conv: Any = _parameter(1.0, 0.1, 10.0, "factor on time of convolutions [C_op]", decades=True)
    time_alu: Any = _parameter(1.0, 0.1, 50.0, "factor on time of other operations [C_op]", decades=True)
    time_memory: Any = _parameter(1.0, 0.1, 10.0, "factor on memory time [C_mem]", decades=True)
    miss_floor: Any = _parameter(0.5, 0.05, 1.0, "minimum share of accesses that miss the cache [lambda]")
    time_optimizer: Any = _parameter(1.2, 0.5, 5.0, "factor on the optimizer's time", decades=True)
    kernel_s: Any = _parameter(8e-6, 1e-6, 1e-4, "seconds to launch a kernel [t_kern]", decades=True)
    fixed_s: Any = _parameter(5e-4, 1e-6, 5e-2, "other seconds per step [T_fixed]", decades=True)
    link_share: Any = _parameter(0.75, 0.1, 1.0, "share of the link's bandwidth that all-reduce reaches")
    hop_s: Any = _parameter(5e-6, 1e-7, 1e-3, "latency of one hop of the ring [L_hop]", decades=True)
    exposed: Any = _parameter(1.0, 0.0, 1.0, "share of communication not hidden behind the backward pass")
    low_gemm: Any = _parameter(1.0, 0.02, 20.0, "factor on products in 16 bits [C_GEMM,BF16]", decades=True)
    low_conv: Any = _parameter(1.0, 0.02, 20.0, "factor on convolutions in 16 bits", decades=True)
    low_alu: Any = _parameter(1.0, 0.02, 20.0, "factor on other operations in 16 bits", decades=True)
    overlap: Any = _parameter(0.7, 0.0, 1.0, "hidden share of the shorter of compute and memory; thesis: 1")
    overlap_host: Any = _parameter(0.6, 0.0, 1.0, "hidden share of the shorter of device and host; thesis: 0")
    static_share: Any = _parameter(0.25, 0.02, 0.5, "power without work, share of TDP [P_static / P_TDP]")
    power_scale: Any = _parameter(1.0, 0.3, 3.0, "factor on power above static [C_P,global]", decades=True)
    power_gemm: Any = _parameter(0.8, 0.0, 3.0, "weight of time in matrix products in utilisation")
    power_conv: Any = _parameter(0.8, 0.0, 3.0, "weight of time in convolutions in utilisation")
    power_alu: Any = _parameter(0.4, 0.0, 3.0, "weight of time in other operations in utilisation")
    power_memory: Any = _parameter(0.5, 0.0, 3.0, "weight of memory time in utilisation")
    power_link: Any = _parameter(0.2, 0.0, 1.0, "utilisation while communicating")
    power_wait: Any = _parameter(0.02, 0.0, 0.5, "utilisation while the device waits for launches")
    voltage_floor: Any = _parameter(0.45, 0.3, 0.8, "lowest voltage, share of the highest")
    voltage_knee: Any = _parameter(
        0.55, 0.35, 0.9, "clock, share of the highest, below which voltage is flat"
    )
    clock_floor: Any = _parameter(
        0.13, 0.05, 0.5, "lowest clock that a power limit leads to, share of highest"
    )
    memory_knee: Any = _parameter(
        0.3, 0.05, 0.95, "clock below which memory slows down, share of the highest"
    )


@dataclass(frozen=True, slots=True)
class Scalars:
    """Factors that describe how a workload deviates from the model on one kind of device.

    The factors are S in the thesis.

    The default factors are neutral and apply to a workload that was never measured. Source: thesis, 4.3.5.2
    and Table 4.2 (ALBERT); the other factors are additions to the thesis.
    """

    compute: Any = _parameter(1.0, 0.1, 10.0, "factor on compute time", decades=True)
    memory: Any = _parameter(1.0, 0.1, 10.0, "factor on memory time", decades=True)
    host: Any = _parameter(1.0, 0.1, 10.0, "factor on launch time", decades=True)
    sample_s: Any = _parameter(
        1e-9, 1e-9, 0.05, "seconds of the host per sample (reading, decoding)", decades=True
    )
    padding: Any = _parameter(0.0, 0.0, 1.0, "exponent of batch / crowd_batch in the work per sample")
    crowding: Any = _parameter(
        0.0, 0.0, 3.0, "exponent of batch / crowd_batch in the host's seconds per sample"
    )
    crowd_batch: Any = _parameter(
        64.0, 8.0, 1e4, "batch above which padding and crowding begin", decades=True
    )
    core_power: Any = _parameter(1.0, 0.2, 5.0, "factor on power of compute", decades=True)
    memory_power: Any = _parameter(1.0, 0.2, 5.0, "factor on power of memory", decades=True)


def bounds_of(cls: type[Any]) -> dict[str, Bound]:
    """Return the bound of each parameter of the class `cls` (`Theta` or `Scalars`) by parameter name."""
    return {spec.name: spec.metadata["bound"] for spec in dataclasses.fields(cls)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Range of the model's errors on measurements: 5 and 95 % quantiles of measured / predicted.

    Attributes:
        time_low: 5 % quantile of measured / predicted time.
        time_high: 95 % quantile of measured / predicted time.
        power_low: 5 % quantile of measured / predicted power.
        power_high: 95 % quantile of measured / predicted power.
    """

    time_low: float
    time_high: float
    power_low: float
    power_high: float


SHARED_WEIGHTS = "shared-weights"
"""Name of the factors for networks with shared weights (special case of the thesis, Table 4.2)."""
UNMEASURED = Spread(0.3, 3.0, 0.6, 1.6)
"""Spread that is assumed for a kind of device without measurements."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters of the training model for one kind of device, and statistics of the model's errors.

    The parameters are fitted to measurements.

    Attributes:
        hardware: name of the hardware file.
        theta: parameters of the device, plain numbers.
        workloads: by profile name, the factors of the workloads measured on the device.
        supply_ratios: by profile name, the host's seconds per sample divided by the device's seconds per
            sample, at batch size 32.
        residuals: by profile name and precision, the measured deviations from the model.
        saturation: name of the saturation function, a key of `SATURATIONS`.
        measured_gpus: by profile name and precision, the largest number of devices with which the workload
            was measured. None means unknown.
        measured_spread: error range of predictions for a workload in `workloads`, if the workload was
            measured in the predicted precision and with at least the predicted number of devices.
        unmeasured_spread: error range of all other predictions.
        basis: one line that states the data of the fit.
        fitted_unix_s: time of the fit in Unix seconds; None means unknown.
        rows: number of measurements.
        transfer: what these measurements contribute to predictions for other kinds of device. None means that
            there are too few measurements.
        evidence: data for predictions of workloads that are not in `workloads` (`oracle.transfer`). None
            means that the other workloads are predicted by the mean over all factors in `workloads`.
    """

    hardware: str
    theta: Theta = field(default_factory=Theta)
    workloads: Mapping[str, Scalars] = field(default_factory=dict)
    supply_ratios: Mapping[str, float] = field(default_factory=dict)
    residuals: Mapping[tuple[str, str], Residuals] = field(default_factory=dict)
    saturation: str = "sigmoid"
    measured_gpus: Mapping[str, Mapping[str, int]] | None = None
    measured_spread: Spread = UNMEASURED
    unmeasured_spread: Spread = UNMEASURED
    basis: str = "not calibrated: defaults"
    fitted_unix_s: float | None = None
    rows: int = 0
    transfer: Transfer | None = None
    evidence: Evidence | None = None

    def max_measured_gpus(self, workload: str, precision: str) -> float:
        """Return the largest number of devices with which a workload was measured in a precision.

        The result is 0 if it was never measured in this precision, and infinite if this is unknown.
        """
        if self.measured_gpus is None:
            return math.inf
        return self.measured_gpus.get(workload, {}).get(precision, 0)

    def evidence_count(self, workload: str) -> int:
        """Return the number of measurements of a workload in `evidence`; 0 without evidence."""
        return 0 if self.evidence is None else self.evidence.count(workload)
