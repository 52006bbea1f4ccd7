"""The error with which a senergyctld that is not active refuses requests."""

from __future__ import annotations

from slurm_energy.errors import UnavailableError


class PassiveControllerError(UnavailableError):
    """Error: this senergyctld must not act, because another senergyctld is active or may become active.

    Args:
        why: the reason why this senergyctld must not act.
        active: URL of the active controller; None means that the URL is unknown, or no controller is active.
    """

    def __init__(self, why: str, active: str | None = None) -> None:
        super().__init__("passive", why)
        self.active = active


def passive_reason(holder: str | None) -> str:
    """Return the reason why a passive controller refuses requests, for the error message.

    Args:
        holder: name of the active controller; None means that no controller is active.
    """
    return f"the active controller is {holder}" if holder else "no controller is active now"
