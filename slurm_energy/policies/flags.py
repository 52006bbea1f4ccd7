"""Validation of a job's energy flags against the configuration. The values come from untrusted users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.config import Config
from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy.policies.catalogue import MONITOR, catalogue, default_policy
from slurm_energy.policies.shapes import parse_shapes
from slurm_energy.policies.suggestion import nearest_name
from slurm_energy.quantities import parse_watts, shown

FLAGS = {
    "ENERGY_POLICY": "--energy-policy",
    "ENERGY_CAP": "--energy-cap",
    "ENERGY_GPU_CAP": "--energy-gpu-cap",
    "ENERGY_MODEL": "--energy-model",
    "ENERGY_TAG": "--energy-tag",
    "ENERGY_ALTERNATIVES": "--energy-alternatives",
}
_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}")


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """Validated energy flags of a job. None means that the job did not give the flag.

    Attributes:
        policy: name of the energy policy that applies, which may be the default policy.
        cap_watts: cap in watts on the power of the node's packages, memory and GPUs together.
        gpu_cap_watts: cap in watts on the power of each GPU.
        model: name of the workload.
        tag: text chosen by the user.
    """

    policy: str = MONITOR
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    model: str | None = None
    tag: str | None = None


def validate_flags(
    raw: Mapping[str, str], config: Config, user: str | None = None, partition: str | None = None
) -> PolicyRequest:
    """Validate the energy flags of a job.

    Args:
        raw: values by name in the job-control environment (`ENERGY_POLICY`, `ENERGY_CAP`, ...). Other names
            are ignored. An empty value means that the flag was not given.
        config: bounds, policies and defaults.
        user: owner of the job; None if unknown.
        partition: partition of the job; None if unknown.

    Returns:
        The validated request. A cap without a policy requests the policy `cap` if the default policy is
            `monitor`.

    Raises:
        UsageError: a value is malformed or out of bounds, the policy is unknown, or flags contradict each
            other.
        ForbiddenError: the user may not request the policy.
    """
    given = {name: raw[name] for name in FLAGS if raw.get(name)}
    bounds = config.bounds
    cap = _watts(given, "ENERGY_CAP", bounds.cap_watts)
    gpu_cap = _watts(given, "ENERGY_GPU_CAP", bounds.gpu_cap_watts)
    # Validated only; the queue engine reads the shapes itself.
    parse_shapes(given.get("ENERGY_ALTERNATIVES", ""), FLAGS["ENERGY_ALTERNATIVES"])
    return PolicyRequest(
        policy=_policy(given, config, user, partition, capped=cap is not None or gpu_cap is not None),
        cap_watts=cap,
        gpu_cap_watts=gpu_cap,
        model=_word(given, "ENERGY_MODEL"),
        tag=_word(given, "ENERGY_TAG"),
    )


def _policy(
    given: Mapping[str, str], config: Config, user: str | None, partition: str | None, *, capped: bool
) -> str:
    policies = catalogue(config)
    name = given.get("ENERGY_POLICY")
    if name is None:
        name = default_policy(config, user, partition)
        return "cap" if capped and name == MONITOR else name
    info = policies.get(name)
    if info is None:
        allowed = [name for name, policy in policies.items() if policy.allows(user)]
        nearest = nearest_name(name, allowed)
        advice = f"did you mean '{nearest}'? " if nearest else ""
        todo = f"{advice}allowed: {', '.join(allowed)}"
        raise UsageError(f"--energy-policy: '{shown(name)}' is not known", todo=todo)
    if not info.allows(user):
        raise ForbiddenError(f"--energy-policy: '{name}' is not for user {shown(user or 'unknown')}")
    if info.changes_nothing and capped:
        raise UsageError(
            "--energy-policy: 'monitor' changes nothing, but a cap was given",
            todo="leave out the policy or the cap",
        )
    if info.needs_cap and not capped:
        raise UsageError(
            f"--energy-policy: '{name}' needs a cap", todo="give --energy-cap or --energy-gpu-cap"
        )
    return name


def _watts(given: Mapping[str, str], name: str, bounds: tuple[float, float]) -> float | None:
    if name not in given:
        return None
    return _bounded(parse_watts(given[name], FLAGS[name]), given[name], FLAGS[name], bounds)


def _bounded(value: float, text: str, flag: str, bounds: tuple[float, float]) -> float:
    low, high = bounds
    if not low <= value <= high:
        raise UsageError(f"{flag}: '{shown(text)}' is out of bounds", todo=f"{low:g} to {high:g} W")
    return value


def _word(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not _WORD.fullmatch(value):
        raise UsageError(
            f"{FLAGS[name]}: '{shown(value)}' cannot be accepted",
            todo="1 to 64 characters of A-Z a-z 0-9 _ . : / + -",
        )
    return value
