"""The error with which a senergyctld that is not active refuses requests."""

from __future__ import annotations

from slurm_energy.errors import UnavailableError


class PassiveControllerError(UnavailableError):
    """Error: this senergyctld must not act now, because another one is active or may become active.

    Args:
        why: the reason.
        active: URL of the active controller; None: unknown, or there is none.
    """

    def __init__(self, why: str, active: str | None = None) -> None:
        super().__init__("passive", why)
        self.active = active


def passive_reason(holder: str | None) -> str:
    """Return the reason why a passive controller refuses requests, for its error.

    Args:
        holder: name of the active controller; None: there is none.
    """
    return f"the active controller is {holder}" if holder else "no controller is active now"
