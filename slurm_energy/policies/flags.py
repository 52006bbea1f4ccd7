"""Validation of a job's energy flags against the configuration. The values come from untrusted users."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.config import TUNING_MODES, Config
from slurm_energy.devices.gpu.power_profiles import POWER_PROFILES, canonical_name
from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy.policies.catalogue import MONITOR, OBJECTIVES, PolicyInfo, catalogue, default_policy
from slurm_energy.policies.shapes import parse_shapes
from slurm_energy.policies.slack import check_restart, check_slack
from slurm_energy.policies.suggestion import nearest_name
from slurm_energy.quantities import (
    parse_megahertz,
    parse_percent,
    parse_sampling_interval,
    parse_watts,
    shown,
)

FLAGS = {
    "ENERGY_POLICY": "--energy-policy",
    "ENERGY_CAP": "--energy-cap",
    "ENERGY_GPU_CAP": "--energy-gpu-cap",
    "ENERGY_SLOWDOWN": "--energy-slowdown",
    "ENERGY_TUNING": "--energy-tuning",
    "ENERGY_CPU_FREQ": "--energy-cpu-freq",
    "ENERGY_GPU_CLOCK": "--energy-gpu-clock",
    "ENERGY_POWER_PROFILE": "--energy-power-profile",
    "ENERGY_MODEL": "--energy-model",
    "ENERGY_TAG": "--energy-tag",
    "ENERGY_ALTERNATIVES": "--energy-alternatives",
    "ENERGY_SLACK": "--energy-slack",
    "ENERGY_CHECKPOINTABLE": "--energy-checkpointable",
    "ENERGY_SIGNALS": "--energy-signals",
}
LIMIT_FLAGS = (
    "ENERGY_CAP",
    "ENERGY_GPU_CAP",
    "ENERGY_CPU_FREQ",
    "ENERGY_GPU_CLOCK",
    "ENERGY_POWER_PROFILE",
)
"""Flags that fix a setting.

They contradict `monitor`. Without --energy-policy, they request the policy `cap`.
"""
_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}")


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """Validated energy flags of a job. None means that the job did not give the flag.

    Attributes:
        policy: name of the energy policy that applies, which may be the default policy.
        cap_watts: cap in watts on the power of the node's packages, memory and GPUs together.
        gpu_cap_watts: cap in watts on the power of each GPU.
        slowdown_limit: maximum relative increase of the job's time by tuning, as a fraction; None for no
            limit. If the job gave no limit, the limit of the site applies to the objective `energy`.
        tuning_mode: `off`, `advise` or `on`, in ascending order. The lower of the site's mode and the job's
            mode applies. None if the policy names no objective.
        cpu_max_mhz: upper frequency bound of every CPU.
        gpu_clock_mhz: upper bound of the graphics clock of each GPU.
        gpu_power_profile: name of the NVIDIA workload power profile of each GPU.
        model: name of the workload, the value of --energy-model.
        tag: text chosen by the user.
    """

    policy: str = MONITOR
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    slowdown_limit: float | None = None
    tuning_mode: str | None = None
    cpu_max_mhz: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_power_profile: str | None = None
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
        The validated request. If the job requests no policy, the default policy applies, with two
            exceptions. Default `monitor` becomes `cap` if a flag fixes a setting. A default policy without
            an objective becomes `energy` if the flags contain a slowdown limit.

    Raises:
        UsageError: a value is malformed or out of bounds, the policy is unknown, or flags contradict each
            other.
        ForbiddenError: the user may not request the policy.
    """
    given = {name: raw[name] for name in FLAGS if raw.get(name)}
    bounds = config.accepted_bounds
    # Validated only; the queue engine reads the shapes itself.
    parse_shapes(given.get("ENERGY_ALTERNATIVES", ""), FLAGS["ENERGY_ALTERNATIVES"])
    # Validated only; senergyctld reads both durations itself.
    check_slack(given.get("ENERGY_SLACK"), config.deferral)
    check_restart(given.get("ENERGY_CHECKPOINTABLE"), config.deferral)
    # Validated only; senergyd reads the interval from the flags of the running job.
    parse_sampling_interval(given.get("ENERGY_SIGNALS", "off"), FLAGS["ENERGY_SIGNALS"])
    slowdown = _bounded(given, "ENERGY_SLOWDOWN", parse_percent, bounds.slowdown_percent, "%")
    info = _policy(given, config, user, partition)
    limit_percent = config.tuning.slowdown_limit_percent if info.objective == "energy" else None
    if slowdown is not None:
        limit_percent = slowdown
    return PolicyRequest(
        policy=info.name,
        cap_watts=_bounded(given, "ENERGY_CAP", parse_watts, bounds.cap_watts, "W"),
        gpu_cap_watts=_bounded(given, "ENERGY_GPU_CAP", parse_watts, bounds.gpu_cap_watts, "W"),
        slowdown_limit=None if limit_percent is None else limit_percent / 100,
        tuning_mode=_tuning_mode(given, info, config, partition),
        cpu_max_mhz=_bounded(given, "ENERGY_CPU_FREQ", parse_megahertz, bounds.cpu_freq_mhz, "MHz"),
        gpu_clock_mhz=_bounded(given, "ENERGY_GPU_CLOCK", parse_megahertz, bounds.gpu_clock_mhz, "MHz"),
        gpu_power_profile=_power_profile(given),
        model=_word(given, "ENERGY_MODEL"),
        tag=_word(given, "ENERGY_TAG"),
    )


def _policy(given: Mapping[str, str], config: Config, user: str | None, partition: str | None) -> PolicyInfo:
    policies = catalogue(config)
    name = given.get("ENERGY_POLICY")
    limits = [FLAGS[flag] for flag in LIMIT_FLAGS if flag in given]
    if name is None:
        name = _implied_policy(policies, default_policy(config, user, partition), given, bool(limits))
    info = policies.get(name)
    if info is None:
        allowed = [name for name, policy in policies.items() if policy.allows(user)]
        nearest = nearest_name(name, allowed)
        advice = f"did you mean '{nearest}'? " if nearest else ""
        todo = f"{advice}allowed: {', '.join(allowed)}"
        raise UsageError(f"--energy-policy: '{shown(name)}' is not known", todo=todo)
    if "ENERGY_POLICY" in given or name != default_policy(config, user, partition):
        _check_requested(info, limits, user)
    _check_tuning(info, given)
    return info


def _implied_policy(
    policies: Mapping[str, PolicyInfo], default: str, given: Mapping[str, str], limited: bool
) -> str:
    """Return the energy policy that a job gets if it was submitted without --energy-policy."""
    info = policies.get(default)
    if "ENERGY_SLOWDOWN" in given and (info is None or info.objective is None):
        return "energy"
    return "cap" if limited and default == MONITOR else default


def _check_requested(info: PolicyInfo, limits: Sequence[str], user: str | None) -> None:
    """Check that a user may request an energy policy, and that it permits the job's fixed settings."""
    name = info.name
    if not info.allows(user):
        raise ForbiddenError(f"--energy-policy: '{name}' is not for user {shown(user or 'unknown')}")
    if info.changes_nothing and limits:
        raise UsageError(
            f"--energy-policy: 'monitor' changes nothing, but {limits[0]} was given",
            todo="leave out one of them",
        )
    if info.needs_cap and not limits:
        raise UsageError(
            f"--energy-policy: '{name}' needs a cap or a fixed setting",
            todo="give --energy-cap, --energy-gpu-cap, --energy-cpu-freq, --energy-gpu-clock or "
            "--energy-power-profile",
        )


def _check_tuning(info: PolicyInfo, given: Mapping[str, str]) -> None:
    """Raise an error if the flags about tuning are wrong.

    The tuning mode must exist. Flags about tuning are valid only with a policy that is tuned.
    """
    mode = given.get("ENERGY_TUNING")
    if mode is not None and mode not in TUNING_MODES:
        raise UsageError(
            f"{FLAGS['ENERGY_TUNING']}: '{shown(mode)}' is not a tuning mode",
            todo=f"one of {', '.join(TUNING_MODES)}",
        )
    tuned = [FLAGS[flag] for flag in ("ENERGY_SLOWDOWN", "ENERGY_TUNING") if flag in given]
    if mode == "off":
        tuned.remove(FLAGS["ENERGY_TUNING"])  # true of every policy that is not tuned
    if tuned and info.objective is None:
        raise UsageError(
            f"{tuned[0]}: policy '{info.name}' is not tuned",
            todo=f"choose one of the policies {', '.join(OBJECTIVES)}, or leave the flag out",
        )


def _tuning_mode(
    given: Mapping[str, str], info: PolicyInfo, config: Config, partition: str | None
) -> str | None:
    if info.objective is None:
        return None
    requested = given.get("ENERGY_TUNING", TUNING_MODES[-1])
    site = config.tuning.partition.get(partition or "", config.tuning.mode)
    return min(requested, site, key=TUNING_MODES.index)


def _power_profile(given: Mapping[str, str]) -> str | None:
    text = given.get("ENERGY_POWER_PROFILE")
    if text is None:
        return None
    name = canonical_name(text)
    if name is None:
        nearest = nearest_name(text.replace("-", "_"), [known.lower() for known in POWER_PROFILES])
        advice = f"did you mean '{nearest.upper()}'? " if nearest else ""
        todo = f"{advice}known: {', '.join(POWER_PROFILES)}"
        raise UsageError(f"{FLAGS['ENERGY_POWER_PROFILE']}: '{shown(text)}' is not known", todo=todo)
    return name


def _bounded(
    given: Mapping[str, str],
    name: str,
    parse: Callable[[str, str], float],
    bounds: tuple[float, float],
    unit: str,
) -> float | None:
    """Return the number in a flag after checking the site's bounds; None means that the flag is not given."""
    if name not in given:
        return None
    value, (low, high) = parse(given[name], FLAGS[name]), bounds
    if not low <= value <= high:
        what = f"{FLAGS[name]}: '{shown(given[name])}' is out of bounds"
        raise UsageError(what, todo=f"{low:g} to {high:g} {unit}")
    return value


def _word(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not _WORD.fullmatch(value):
        raise UsageError(
            f"{FLAGS[name]}: '{shown(value)}' cannot be accepted",
            todo="1 to 64 characters of A-Z a-z 0-9 _ . : / + -",
        )
    return value
