"""Checks of section `priority` of the configuration: scheduling policy, weights and intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from slurm_energy.config.findings import Finding
from slurm_energy.errors import EnergyError, install_extra
from slurm_energy.trusted_files import read_trusted
from slurm_energy.validation.check_context import CheckContext, DaemonRole

if TYPE_CHECKING:
    from slurm_energy.scheduling import Policy

_STALE_CYCLES: Final = 3.0


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about section `priority`.

    The section is checked even if `priority.mode` is `off`, because the mode may be changed later.
    """
    yield from _check_intervals(context)
    try:
        from slurm_energy import scheduling
    except ImportError as error:
        why = f"{error.name or error} is not installed"
        if context.config.priority.mode != "off" and context.role is DaemonRole.CONTROLLER:
            yield context.error("priority", "mode", why, f'{install_extra("scheduling")}, or mode = "off"')
        else:
            yield context.unchecked("priority", "policy", why, install_extra("scheduling"))
        return
    settings = context.config.priority
    if settings.policy_file is not None:
        if not context.trusted:
            why = f"{settings.policy_file} is not executed: other users could have written the configuration"
            yield context.unchecked("priority", "policy", why)
            return
        try:
            read_trusted(settings.policy_file)  # the next line executes it
            scheduling.load_file(settings.policy_file)
        except (OSError, EnergyError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield context.error("priority", "policy_file", f"{settings.policy_file}: {reason}")
            return
    try:
        policy = scheduling.policy(settings.policy)
    except EnergyError as error:
        yield context.error("priority", "policy", error.what, error.todo)
        return
    try:
        scheduling.check_weights(settings.weights)
    except EnergyError as error:
        yield context.error("priority", "weights", error.what.removeprefix("weights: "), error.todo)
    else:
        yield from _check_weights(context, policy)
    if settings.preempt and not policy.preempts:
        yield context.warning(
            "priority", "preempt", f"has no effect: policy '{policy.name}' does not preempt"
        )


def _check_intervals(context: CheckContext) -> Iterator[Finding]:
    settings = context.config.priority
    least_s = _STALE_CYCLES * settings.interval_s
    if settings.mode == "plugin" and settings.stale_s < least_s:
        yield context.error(
            "priority",
            "stale_s",
            f"the table is written every {settings.interval_s:g} s and would often be stale",
            f"write {least_s:g} or more",
        )
    if 0 < settings.shape_selection_delay_s < settings.interval_s:
        yield context.warning(
            "priority",
            "shape_selection_delay_s",
            f"{settings.shape_selection_delay_s:g} s end before the ranking, every {settings.interval_s:g} s",
            "write a little more than priority.interval_s",
        )


def _check_weights(context: CheckContext, policy: Policy) -> Iterator[Finding]:
    weights = context.config.priority.weights
    if any(weight < 0 for weight in weights.values()):
        name = next(name for name, weight in weights.items() if weight < 0)
        yield context.error("priority", f"weights.{name}", "must not be negative")
    if policy.weights is None:
        return
    unused = sorted(set(weights) - policy.weights)
    if unused:
        yield context.warning(
            "priority",
            f"weights.{unused[0]}",
            f"has no effect: policy '{policy.name}' does not use it",
            f"it uses {', '.join(sorted(policy.weights))}",
        )
    if policy.weights <= set(weights) and not any(weights[name] for name in policy.weights):
        yield context.error(
            "priority", "weights", f"all are 0: policy '{policy.name}' would rank all jobs alike"
        )
