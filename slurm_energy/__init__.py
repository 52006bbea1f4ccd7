"""Energy measurement, prediction and control for Slurm clusters.

The package is layered: a module imports only from its own package and from lower layers
(`docs/architecture.md`, section "Rooms"). Programs in jobs measure their sections with
`slurm_energy.profile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_energy.profiling.profiler import profile as profile

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the function `profile` when it is first used.

    An import at the top would slow down every command, because every command imports this module.
    """
    if name == "profile":
        from slurm_energy.profiling.profiler import profile

        return profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
