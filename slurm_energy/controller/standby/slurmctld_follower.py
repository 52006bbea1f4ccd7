"""Rule that prefers the senergyctld on the host where the active slurmctld runs.

The rule changes the active senergyctld only after a delay, so that it does not switch back and forth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from slurm_energy.accounting.controller_lease import LeaseState
from slurm_energy.slurm.active_slurmctld import ActiveSlurmctld, is_this_host

HYSTERESIS_S: Final = 60.0
"""Time for which another controller must have been beside the active slurmctld before the lease follows."""
PRECEDENCE_S: Final = 6.0
"""Time for which a free lease waits for the controller that is to take it."""


class SlurmctldFollower:
    """Rule that selects the controller on the host of the active slurmctld as the active controller.

    Args:
        slurmctld: determines on which host the active slurmctld runs.
        clock_s: returns monotonic time in seconds.
    """

    def __init__(self, slurmctld: ActiveSlurmctld, clock_s: Callable[[], float]) -> None:
        self._slurmctld, self._clock_s = slurmctld, clock_s
        self._target: str | None = None
        self._target_since_s = 0.0

    def is_beside_slurmctld(self) -> bool | None:
        """Return whether the active slurmctld runs on this host; None means unknown. The call may block."""
        host = self._slurmctld.host()
        return None if host is None else is_this_host(host)

    def successor(self, state: LeaseState, name: str, beside: bool | None) -> str | None:
        """Return the controller that should replace the active controller now; None if no change is needed.

        Args:
            state: state of the lease and of the controllers.
            name: name of the active controller.
            beside: whether the active controller runs on the host of the active slurmctld.
        """
        better = beside_slurmctld(state, name) if beside is False else None
        if better != self._target:
            self._target, self._target_since_s = better, self._clock_s()
        if better is None or self._clock_s() - self._target_since_s < HYSTERESIS_S:
            return None
        return better


def beside_slurmctld(state: LeaseState, except_name: str) -> str | None:
    """Return a passive controller that runs on slurmctld's host and can become active.

    The controller `except_name` is not considered. Return None if there is no such controller.

    Args:
        state: state of the lease and of the controllers. The holder of the lease is active.
        except_name: name of the controller to leave out.
    """
    for one in state.controllers:
        presence = one.presence
        if presence.name != except_name and one.is_present and presence.ready and presence.beside_slurmctld:
            return presence.name
    return None


def may_take(state: LeaseState, name: str, beside: bool | None) -> bool:
    """Return whether a passive controller should take the lease now and thus become active.

    Args:
        state: state of the lease and of the controllers.
        name: name of the passive controller.
        beside: whether the passive controller runs on the host of the active slurmctld; None means
            unknown.
    """
    free_s = state.free_s
    if free_s is None:
        return False
    if state.instance is None and state.successor is not None:
        return state.successor == name or free_s >= PRECEDENCE_S
    return bool(beside) or free_s >= PRECEDENCE_S or beside_slurmctld(state, name) is None
