"""Registry of deferral policies by name.

A policy is one function in one file of `policies/`. A site's Python file can register further policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling import named_policies

Plan = Callable[[DeferralQueue, DeferralOptions], DeferralPlan]
OFF: Final = "off"
_KIND: Final = "deferral policy"
_BUILT_IN: Final = "slurm_energy.deferral.policies."


@dataclass(frozen=True, slots=True)
class DeferralPolicy:
    """A deferral policy.

    Attributes:
        name: name in commands and configuration, lower case.
        function: the planning function. `plan` checks its result.
        summary: one-line description, the first line of the function's docstring.
    """

    name: str
    function: Plan
    summary: str

    def plan(self, queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
        """Return the planned starts of the pending jobs of a queue.

        Raises:
            UsageError: a site's own policy failed, or a plan is invalid. The message states the reason on one
                line.
        """
        try:
            plan = self.function(queue, options)
            wrong = _fault(plan, queue)
        except (Exception, SystemExit) as error:
            if self.function.__module__.startswith(_BUILT_IN):
                raise
            why = f"{type(error).__name__}: {shown(str(error), 120)}"
            raise UsageError(f"deferral policy '{self.name}'", why) from None
        if wrong:
            raise UsageError(
                f"deferral policy '{self.name}'", wrong, "see DeferralPlan in slurm_energy.deferral"
            )
        return plan


_policies: dict[str, DeferralPolicy] = {}


def register(name: str) -> Callable[[Plan], Plan]:
    """Return a decorator that registers a planning function under a name as a deferral policy.

    Raises:
        UsageError: another function is already registered under this name.
    """

    def decorate(function: Plan) -> Plan:
        entry = DeferralPolicy(name, function, named_policies.summary(function))
        named_policies.add(_policies, entry, _KIND)
        return function

    return decorate


def policy(name: str) -> DeferralPolicy:
    """Return the deferral policy registered under a name.

    Raises:
        NotFoundError: there is no policy of this name. The message suggests the nearest names.
    """
    _load_built_in()
    return named_policies.named(_policies, name, _KIND)


def names() -> list[str]:
    """Return the names of all registered deferral policies, sorted."""
    _load_built_in()
    return sorted(_policies)


def plan(name: str, queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Return the planned starts of pending jobs under the deferral policy `name`."""
    return policy(name).plan(queue, options)


def _fault(plan: DeferralPlan, queue: DeferralQueue) -> str:
    """Return why a deferral plan is invalid; an empty string if the plan is valid.

    A plan states the start of each job.
    """
    start_s = np.asarray(plan.start_s)
    if start_s.shape != (queue.count,):
        return f"it has {start_s.size} starts for {queue.count} jobs"
    if np.any(np.isnan(start_s)) or np.any(start_s < queue.now_s):
        return "a start is not a number or lies in the past"
    latest_s = np.where(queue.deferrable, queue.latest_start_s, queue.now_s)
    late = start_s > latest_s
    if np.any(late):
        return f"job {int(queue.job_id[np.argmax(late)])} would start later than its latest start"
    return ""


def _load_built_in() -> None:
    from slurm_energy.deferral import policies

    named_policies.import_modules(policies)
