"""Model of a training step with default parameters, for devices without a calibration.

The model computes time and power of a step from a few quantities in which kinds of GPU differ. The module
`prior` describes these quantities (latent quantities). All functions are pure and accept numbers or arrays
that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from slurm_energy.oracle.training.parameters import Scalars, Theta
from slurm_energy.oracle.training.power import clock_under, step_watts
from slurm_energy.oracle.training.timing import StepTimes, device_s, step_s
from slurm_energy.oracle.transfer.prior import Array

DEFAULTS: Final = Theta()
NEUTRAL: Final = Scalars()
_STEPS: Final = {"demand": 0.08, "supply": 0.3, "idle": 0.2}
"""Half the distance between the two points from which a slope is computed. The distance is wide, because the
model has kinks where a power limit begins to take effect.
"""
_MAX_STATIC: Final = 0.98


@dataclass(frozen=True, slots=True)
class LatentModel:
    """Training model of n steps under power limits, as a function of the latent quantities.

    A latent quantity is an estimated property of a kind of device. All other parameters of the model have
    their default values: the parameters of the device are `DEFAULTS`, the factors of the workload are
    `NEUTRAL`.

    Attributes:
        times: duration of each part of the steps at the maximum clock, computed with the default values.
        tdp_watts: design power.
        cap_watts: power limits.
        clock: clock limits as shares of the maximum clock.
    """

    times: StepTimes
    tdp_watts: Any
    cap_watts: Any
    clock: Any = 1.0

    def at(self, demand: Any, supply: Any, idle: Any) -> tuple[Array, Array, Array]:
        """Return seconds per step, mean watts of a device, and the clock divided by the maximum clock.

        `demand`, `supply` and `idle` are latent quantities: properties in which kinds of device differ, see
        `prior.LATENTS`. The results have the shape of these arguments.
        """
        factor = np.exp(demand)
        static = np.minimum(DEFAULTS.static_share * factor, _MAX_STATIC)
        scale = DEFAULTS.power_scale * factor * (1.0 - DEFAULTS.static_share) / (1.0 - static)
        theta = replace(DEFAULTS, static_share=static, power_scale=scale)  # multiplies all power by `factor`
        host_s = self.times.supply_s + device_s(self.times, DEFAULTS) * np.exp(supply)
        times = replace(self.times, supply_s=host_s)
        clock = clock_under(times, theta, NEUTRAL, self.tdp_watts, self.cap_watts, self.clock)
        seconds = step_s(times, theta, clock)
        waiting = np.maximum(0.0, seconds - device_s(times, theta, clock) - times.link_s) / seconds
        watts = step_watts(times, theta, NEUTRAL, self.tdp_watts, clock)
        watts = watts + (np.exp(idle) - 1.0) * static * self.tdp_watts * waiting
        return seconds, np.minimum(watts, self.tdp_watts), clock

    def logarithms(self, **latents: Array) -> tuple[Array, Array, Array]:
        """Return the logarithms of three predicted values.

        The values are the seconds per step, the watts, and the slowdown (maximum clock divided by the
        clock).

        Args:
            latents: estimated quantities of the model (demand, supply and idle), by name.
        """
        seconds, watts, clock = self.at(**latents)
        return np.log(seconds), np.log(watts), -np.log(clock)

    def slopes(self, latents: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
        """Return the derivatives of ln(time) and ln(power) with respect to each latent quantity.

        A latent quantity is a property in which kinds of device differ. The keys are the names of the latent
        quantities.

        Args:
            latents: values of the latent quantities demand, supply and idle at which the derivatives are
                taken, shape (n,) each.
        """
        count = len(latents["demand"])
        slopes_of = {"time": (np.ones(count), np.zeros(count))}
        for name, step in _STEPS.items():
            above, below = (
                self.logarithms(**(latents | {name: latents[name] + sign * step})) for sign in (1.0, -1.0)
            )
            slopes_of[name] = ((above[0] - below[0]) / (2.0 * step), (above[1] - below[1]) / (2.0 * step))
        return slopes_of
