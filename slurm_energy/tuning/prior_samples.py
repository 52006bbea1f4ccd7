"""Random samples from the generic prior (the expected response of a job to settings).

All jobs use the same samples, which are drawn once per process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.tuning.device_response import DeviceResponse
from slurm_energy.tuning.ensemble import Single

SAMPLES = 1000
_SEED = 12


@dataclass(frozen=True)
class PriorSamples:
    """K random samples of unknown properties of a job and its hardware, as a prior for tuning.

    These properties depend neither on the job's measurements nor on the ranges of its hardware. Each array
    has the shape (K, 1).

    Attributes:
        gpu: responses of the GPUs; None for a job without GPUs.
        cpu: responses of the processors; None if the processors are not tuned.
        busy_share: share of time in which the GPUs are busy.
        gpu_idle_share: idle power of a GPU as a share of its default limit.
        limit_yield: power that a GPU draws under a binding power limit, as a share of this limit.
        gpu_share: the GPUs' share of the job's power, for jobs in which this share is not measured.
        hidden_host_share: share of time in which the host works beside the GPUs.
        host_dynamic_share: share of the host's power that falls with its clock.
        used_clock: graphics clock of the untuned job as a share of the maximum graphics clock.
        used_cpu_clock: CPU clock of the untuned job as a share of the maximum. With a frequency table, the
            maximum is the base frequency, and a boosting processor exceeds this maximum.
        package_yield: power that a package draws under a binding power limit, as a share of this limit.
        profile_time: effect of a GPU power profile on the logarithm of the time.
        profile_power: effect of a GPU power profile on the logarithm of the power.
        preference_time: effect of an energy performance preference on the logarithm of the time.
        preference_power: effect of an energy performance preference on the logarithm of the power.
    """

    gpu: DeviceResponse | None
    cpu: DeviceResponse | None
    busy_share: Single
    gpu_idle_share: Single
    limit_yield: Single
    gpu_share: Single
    hidden_host_share: Single
    host_dynamic_share: Single
    used_clock: Single
    used_cpu_clock: Single
    package_yield: Single
    profile_time: Single
    profile_power: Single
    preference_time: Single
    preference_power: Single


@functools.lru_cache(maxsize=8)
def prior_samples(
    *, has_gpu: bool, has_cpu: bool, beyond_table: bool, samples: int = SAMPLES
) -> PriorSamples:
    """Return samples of possible responses of a job to hardware settings.

    The samples are drawn at random from a general prior.

    Args:
        has_gpu: whether the job has GPUs.
        has_cpu: whether the processors of the job are tuned.
        beyond_table: whether the processors boost beyond the maximum of their frequency table.
        samples: number of samples, K.
    """
    generator = np.random.default_rng(_SEED)
    gpu = None
    if has_gpu:
        gpu, generator.bit_generator.state = _gpu_response(samples)
    cpu = DeviceResponse(generator, samples, like_gpus=False) if has_cpu else None

    def draw(low: float, high: float) -> Single:
        return generator.uniform(low, high, samples).astype(np.float32)[:, None]

    def choose(share: float, first: Single, other: Single) -> Single:
        return np.where(chance[:, None] < share, first, other)

    chance = generator.random(samples)
    busy_share = choose(0.5, draw(0.85, 1.0), draw(0.3, 1.0))
    gpu_idle_share, limit_yield, gpu_share = draw(0.06, 0.28), draw(0.93, 1.0), draw(0.5, 0.95)
    hidden_share = draw(0.2, 1.0)
    chance = generator.random(samples)
    hidden_host_share = choose(0.7, hidden_share, np.zeros_like(hidden_share))
    host_dynamic_share, used_clock = draw(0.05, 0.5), draw(0.7, 1.0)
    return PriorSamples(
        gpu,
        cpu,
        busy_share,
        gpu_idle_share,
        limit_yield,
        gpu_share,
        hidden_host_share,
        host_dynamic_share,
        used_clock,
        used_cpu_clock=draw(1.0, 1.6) if beyond_table else used_clock,
        package_yield=draw(0.93, 1.0),
        profile_time=np.abs(draw(-0.03, 0.05)),
        profile_power=draw(-0.12, 0.02),
        preference_time=draw(-0.005, 0.04),
        preference_power=draw(-0.10, 0.02),
    )


def prepare_gpu_samples() -> None:
    """Draw the random samples of GPU properties, so that the first job need not wait for them.

    Drawing takes 50 ms and may run in any thread.
    """
    _gpu_response(SAMPLES)


@functools.lru_cache(maxsize=2)
def _gpu_response(samples: int) -> tuple[DeviceResponse, Mapping[str, Any]]:
    """Return random samples of how GPUs respond to power limits, and a state of the random generator.

    The state is the state of the generator after these samples have been drawn. A caller can restore it
    and draw further samples.
    """
    generator = np.random.default_rng(_SEED)
    return DeviceResponse(generator, samples, like_gpus=True), generator.bit_generator.state
