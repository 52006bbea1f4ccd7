"""Power and energy of nodes in their power states.

The module also computes the break-even time of powering a node down.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.errors import UsageError


@dataclass(frozen=True, slots=True)
class NodeEnergy:
    """Power and duration of each power state, for the nodes in one pool.

    Attributes:
        idle_watts: power of an idle node that is on.
        off_watts: power of a node that is powered down, for example the power of its BMC.
        boot_s, boot_watts: duration in seconds and mean power of booting.
        shutdown_s, shutdown_watts: duration in seconds and mean power of shutting down.
    """

    idle_watts: float
    off_watts: float = 0.0
    boot_s: float = 0.0
    boot_watts: float = 0.0
    shutdown_s: float = 0.0
    shutdown_watts: float = 0.0

    def __post_init__(self) -> None:
        values = (self.idle_watts, self.off_watts, self.boot_s, self.boot_watts, self.shutdown_s)
        if not all(0 <= value < float("inf") for value in (*values, self.shutdown_watts)):
            raise UsageError("power saving", "a power or duration of nodes is negative or not a number")

    @property
    def saved_watts(self) -> float:
        """Return the power in watts that a node saves while it is off instead of idle."""
        return self.idle_watts - self.off_watts

    @property
    def cycle_joules(self) -> float:
        """Return the energy in joules of one shutdown and one boot.

        The energy of the boot counts in full, because a boot delays the job that needs the node. The shutdown
        takes place within the idle gap, so only its energy above `off_watts` counts.
        """
        return self.boot_s * self.boot_watts + self.shutdown_s * (self.shutdown_watts - self.off_watts)

    @property
    def break_even_s(self) -> float:
        """Return the shortest idle gap in which powering down saves energy; infinity if none saves energy."""
        if self.saved_watts <= 0:
            return float("inf")
        return max(self.shutdown_s, self.cycle_joules / self.saved_watts)

    def saving_joules(self, gap_s: float) -> float:
        """Return the energy in joules saved by powering a node down for an idle gap of `gap_s` seconds.

        The node boots again when a job needs it.
        """
        return self.saved_watts * gap_s - self.cycle_joules
