"""Energy measurement, prediction and control for Slurm clusters.

The package is layered: a module imports only from its own package and from lower layers
(`docs/architecture.md`, section "Rooms"). A program in a job can use these functions:

- `slurm_energy.profile` measures the energy of a section of the program.
- `slurm_energy.watch` and `slurm_energy.phase` record the phases of the program's steps.
- `slurm_energy.progress` reports completed work.
- `slurm_energy.adjusted` returns values that the controller adjusts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_energy.profiling.adjusted_value import adjusted as adjusted
    from slurm_energy.profiling.phases import phase as phase
    from slurm_energy.profiling.phases import watch as watch
    from slurm_energy.profiling.profiler import profile as profile
    from slurm_energy.profiling.progress import progress as progress
    from slurm_energy.profiling.progress import report_steps as report_steps
    from slurm_energy.profiling.progress import track as track

__version__ = "0.2.0"


_MODULE_OF = {
    "adjusted": "adjusted_value",
    "phase": "phases",
    "profile": "profiler",
    "progress": "progress",
    "report_steps": "progress",
    "track": "progress",
    "watch": "phases",
}
"""Functions for programs in jobs, and their modules in `slurm_energy.profiling`."""


def __getattr__(name: str) -> Any:
    """Import a function for programs in jobs when it is first used.

    An import at the top would slow down every command, because every command imports this module.
    """
    if name in _MODULE_OF:
        from importlib import import_module

        function = getattr(import_module(f"slurm_energy.profiling.{_MODULE_OF[name]}"), name)
        globals()[name] = function
        return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
