"""Time of one training step, as the sum of its parts. Pure functions of numbers or arrays that broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.oracle.training.demand import StepDemand
from slurm_energy.oracle.training.parameters import Scalars, Theta
from slurm_energy.oracle.training.saturation import Saturation


@dataclass(frozen=True, slots=True)
class DeviceParameters:
    """Peak rates of a kind of device in one precision, in the form that the equations need.

    Attributes:
        matrix_flops_per_s: peak rate of matrix products and convolutions.
        alu_flops_per_s: peak rate of all other operations.
        memory_bytes_per_s: peak memory bandwidth.
        l2_bytes: size of the last-level cache.
        link_bytes_per_s: bandwidth to the neighbours in a ring.
        tdp_watts: design power.
    """

    matrix_flops_per_s: Any
    alu_flops_per_s: Any
    memory_bytes_per_s: Any
    l2_bytes: Any
    link_bytes_per_s: Any
    tdp_watts: Any


def saturation_product(dims: tuple[Any, ...], references: tuple[Any, ...], function: Saturation) -> Any:
    """Return the product of `function(size / reference)` over all dimensions of an operation, 0 to 1.

    Args:
        dims: size of the operation along each dimension.
        references: size at which the operation saturates along each dimension.
        function: saturation function.

    Source: thesis, Eq. 4.11.
    """
    product: Any = 1.0
    for size, reference in zip(dims, references, strict=True):
        product = product * function(size / reference)
    return product


def efficiency(beta: Any, saturated: Any, *scalars: Any) -> Any:
    """Return which fraction of the device's peak rate an operation reaches.

    Args:
        beta: fraction of the peak rate that a large operation reaches.
        saturated: result of `saturation_product`.
        scalars: further factors on the efficiency.

    Source: thesis, Eq. 4.10.
    """
    share = beta * saturated
    for scalar in scalars:
        share = share * scalar
    return share


def operation_s(flops: Any, peak_flops_per_s: Any, share: Any, factor: Any) -> Any:
    """Return the time in seconds that the matrix units or the ALU of a device take for operations.

    Args:
        flops: number of operations.
        peak_flops_per_s: peak rate of the matrix units or of the ALU.
        share: fraction of the peak rate that the operations reach.
        factor: factor by which the time is multiplied.

    Source: thesis, Eq. 4.9.
    """
    return flops / (peak_flops_per_s * share) * factor


def miss_share(working_set_bytes: Any, l2_bytes: Any, miss_floor: Any) -> Any:
    """Return the share of memory accesses that miss the last-level cache.

    The share is the size of the working set divided by the size of the cache, but at least `miss_floor` and
    at most 1.

    Source: thesis, Eq. 4.13 (f_L2).
    """
    return np.minimum(1.0, np.maximum(miss_floor, working_set_bytes / l2_bytes))


def memory_s(moved_bytes: Any, bytes_per_s: Any, missed: Any, factor: Any) -> Any:
    """Return the seconds that memory traffic takes.

    Args:
        moved_bytes: bytes read and written.
        bytes_per_s: memory bandwidth.
        missed: share of accesses that miss the cache.
        factor: factor by which the time is multiplied.

    Source: thesis, Eq. 4.13.
    """
    return moved_bytes / bytes_per_s * missed * factor


def all_reduce_s(gpus: Any, hop_s: Any, gradient_bytes: Any, bytes_per_s: Any) -> Any:
    """Return the seconds of a ring all-reduce among `gpus` devices; 0 for one device.

    Args:
        gpus: number of devices.
        hop_s: latency of one hop of the ring.
        gradient_bytes: size of all gradients on one device.
        bytes_per_s: bandwidth to the neighbours in the ring.

    Source: thesis, Eq. 4.8.
    """
    others = gpus - 1.0
    return 2.0 * others * hop_s + 2.0 * others / gpus * gradient_bytes / bytes_per_s


def overlapped_s(first_s: Any, second_s: Any, overlap: Any) -> Any:
    """Return the total time of two activities that partly overlap in time.

    The fraction `overlap` of the shorter activity runs at the same time as the longer activity. An overlap
    of 1 gives the maximum, as the thesis assumes for compute and memory (Eq. 4.7). An overlap of 0 gives the
    sum, as the thesis assumes for device and kernel launches.
    """
    return np.maximum(first_s, second_s) + (1.0 - overlap) * np.minimum(first_s, second_s)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the parts of a step at the maximum clock, summed over all accumulation passes.

    Attributes:
        gemm_s: matrix products.
        conv_s: convolutions.
        alu_s: other operations.
        memory_s: memory traffic.
        optimizer_s: update of the weights by the optimizer.
        link_s: communication between devices that does not overlap with computation.
        launch_s: launches of compute kernels by the host.
        supply_s: work of the host, a fixed time per step plus a time per sample.
    """

    gemm_s: Any
    conv_s: Any
    alu_s: Any
    memory_s: Any
    optimizer_s: Any
    link_s: Any
    launch_s: Any
    supply_s: Any

    @property
    def host_s(self) -> Any:
        """Seconds that the host needs per step, to launch kernels and to supply data."""
        return self.launch_s + self.supply_s

    @property
    def compute_s(self) -> Any:
        """Seconds of matrix products, convolutions and other operations together at the maximum clock."""
        return self.gemm_s + self.conv_s + self.alu_s


def step_times(
    work: StepDemand,
    device: DeviceParameters,
    theta: Theta,
    scalars: Scalars,
    function: Saturation,
    gpus: Any = 1.0,
    accumulation: Any = 1.0,
) -> StepTimes:
    """Return the time of each part of a training step at the maximum clock.

    Args:
        work: demand of one pass and one update of the weights.
        device: peak rates.
        theta: parameters of the device.
        scalars: factors of the workload.
        function: saturation function.
        gpus: number of devices that train together, each with its own batch.
        accumulation: passes per update (G_acc of Eq. 4.7).
    """
    crowd = np.maximum(1.0, work.batch / scalars.crowd_batch)
    grown = _raised(crowd, scalars.padding) * accumulation
    gemm_s, conv_s, alu_s = _operations_s(work, device, theta, scalars.compute * grown, function)
    ring_s = all_reduce_s(gpus, theta.hop_s, work.gradient_bytes, device.link_bytes_per_s * theta.link_share)
    launches = work.kernels * accumulation + work.optimizer_kernels
    return StepTimes(
        gemm_s=gemm_s,
        conv_s=conv_s,
        alu_s=alu_s,
        memory_s=_traffic_s(work, device, theta) * scalars.memory * grown,
        optimizer_s=_update_s(work, device) * theta.time_optimizer,
        link_s=ring_s * theta.exposed,
        launch_s=launches * theta.kernel_s * scalars.host,
        supply_s=theta.fixed_s
        + scalars.sample_s * _raised(crowd, scalars.crowding) * work.batch * accumulation,
    )


def _operations_s(
    work: StepDemand, device: DeviceParameters, theta: Theta, factor: Any, function: Saturation
) -> tuple[Any, Any, Any]:
    """Return the predicted times of the three classes of operations in a training step, in seconds.

    The classes are matrix products, convolutions and other operations. Each time is multiplied by `factor`.
    """
    gemm_references = (theta.ref_gemm_m, theta.ref_gemm_n, theta.ref_gemm_k)
    conv_references = (theta.ref_conv_pixels, theta.ref_conv_in, theta.ref_conv_out)
    gemm = efficiency(theta.beta_gemm, saturation_product(work.gemm_dims, gemm_references, function))
    conv = efficiency(theta.beta_conv, saturation_product(work.conv_dims, conv_references, function))
    alu = efficiency(theta.beta_alu, 1.0)

    def seconds(flops: Any, peak: Any, share: Any, time: Any, low: Any) -> Any:
        return operation_s(flops, peak, share, time * (1.0 + work.low_precision * (low - 1.0))) * factor

    matrix = device.matrix_flops_per_s
    return (
        seconds(work.gemm_flops, matrix, gemm, theta.time_gemm, theta.low_gemm),
        seconds(work.conv_flops, matrix, conv, theta.time_conv, theta.low_conv),
        seconds(work.alu_flops, device.alu_flops_per_s, alu, theta.time_alu, theta.low_alu),
    )


def _traffic_s(work: StepDemand, device: DeviceParameters, theta: Theta) -> Any:
    """Return how long the memory traffic of one forward and backward pass takes, in seconds."""
    missed = miss_share(work.bytes_moved / np.maximum(work.kernels, 1.0), device.l2_bytes, theta.miss_floor)
    return memory_s(work.bytes_moved, device.memory_bytes_per_s, missed, theta.time_memory)


def _update_s(work: StepDemand, device: DeviceParameters) -> Any:
    """Return the predicted duration of the optimizer step in seconds.

    The duration is the time of its operations or the time of its memory traffic, whichever is longer.
    """
    return np.maximum(
        work.optimizer_flops / device.alu_flops_per_s, work.optimizer_bytes / device.memory_bytes_per_s
    )


def _raised(base: Any, exponent: Any) -> Any:
    """Return base ** exponent. If the exponent is the number 0, return 1 without computing the power."""
    return 1.0 if isinstance(exponent, float) and exponent == 0.0 else base**exponent


def device_s(times: StepTimes, theta: Theta, clock: Any = 1.0) -> Any:
    """Return the seconds in which the device works during a training step.

    Communication is not included.

    Args:
        times: parts of the step at the maximum clock.
        theta: parameters of the device.
        clock: current clock as a fraction of the maximum clock. Operations slow down with the clock; memory
            slows down only below `theta.memory_knee`.
    """
    slowed = 1.0 / np.minimum(1.0, clock / theta.memory_knee)
    passes = overlapped_s(times.compute_s / clock, times.memory_s * slowed, theta.overlap)
    return passes + times.optimizer_s * slowed


def step_s(times: StepTimes, theta: Theta, clock: Any = 1.0) -> Any:
    """Return the seconds of a training step at a given clock of the device.

    Source: thesis, Eq. 4.7, in which the parameters `overlap` and `overlap_host` are 1 and 0.

    Args:
        times: parts of the step at the maximum clock.
        theta: parameters of the device.
        clock: clock as a fraction of the maximum clock.
    """
    return overlapped_s(device_s(times, theta, clock) + times.link_s, times.host_s, theta.overlap_host)
