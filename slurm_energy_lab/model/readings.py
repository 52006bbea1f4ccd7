"""Energy and power readings of a node by component name."""

from __future__ import annotations

import math

from slurm_energy.errors import NotFoundError
from slurm_energy_lab.model.integrator import Integrator
from slurm_energy_lab.model.profile import OtherProfile


class Readings:
    """Energy and power of a node by component name.

    Devices are `cpu[i]`, `dram[i]` and `gpu[i]`. Sums are `cpu`, `dram`, `gpu` (only with GPUs), `other` and
    `node`. The power of `other` is base_watts + loss_share x the sum of all devices; `node` is the sum of all
    devices and `other`. `core[i]`, the cores inside `cpu[i]`, can be read, but is neither in `names` nor in
    the sums.
    """

    def __init__(
        self,
        meters: dict[str, list[Integrator]],
        cores: list[Integrator],
        other: OtherProfile,
        start_s: float,
    ) -> None:
        self._cores = {f"core[{i}]": meter for i, meter in enumerate(cores)}
        self._meters = {kind: group for kind, group in meters.items() if group}
        self._parts = {f"{kind}[{i}]": m for kind, group in meters.items() for i, m in enumerate(group)}
        self._other = other
        self._start_s = start_s
        self.names = (*self._parts, *self._meters, "other", "node")

    def joules(self, component: str, now_s: float) -> float:
        """Return the joules that a component used from the start to time `now_s`.

        Raises:
            NotFoundError: the node does not have the component.
        """
        if component in self._parts:
            return self._parts[component].integral_at(now_s)
        if component in self._meters:
            return math.fsum(meter.integral_at(now_s) for meter in self._meters[component])
        if component in self._cores:
            return self._cores[component].integral_at(now_s)
        self._check(component)
        parts = math.fsum(meter.integral_at(now_s) for meter in self._parts.values())
        other = self._other.base_watts * (now_s - self._start_s) + self._other.loss_share * parts
        return other if component == "other" else parts + other

    def watts(self, component: str) -> float:
        """Return the current power of a component in watts.

        Raises:
            NotFoundError: the node has no such component.
        """
        if component in self._parts:
            return self._parts[component].value
        if component in self._meters:
            return math.fsum(meter.value for meter in self._meters[component])
        if component in self._cores:
            return self._cores[component].value
        self._check(component)
        parts = math.fsum(meter.value for meter in self._parts.values())
        other = self._other.base_watts + self._other.loss_share * parts
        return other if component == "other" else parts + other

    def all_joules(self, now_s: float) -> dict[str, float]:
        """Return the joules that each component has used from the start to time `now_s`."""
        return {name: self.joules(name, now_s) for name in self.names}

    def _check(self, component: str) -> None:
        if component not in ("other", "node"):
            raise NotFoundError(
                f"component '{component[:40]}' is not known", todo=f"one of {', '.join(self.names)}"
            )
