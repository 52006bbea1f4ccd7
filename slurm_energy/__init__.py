"""Energy measurement, prediction and control for Slurm clusters.

This package is layered: a module imports only from the layers below its own
(`docs/architecture.md`, section "Rooms"). `slurm_energy.profile` is for programs inside jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_energy.profiling.profiler import profile as profile

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what programs use only when they use it: every command imports this module."""
    if name == "profile":
        from slurm_energy.profiling.profiler import profile

        return profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
