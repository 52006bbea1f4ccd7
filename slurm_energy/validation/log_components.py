"""Checks of `log_levels`: the named parts of the program must exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import slurm_energy
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext

_ROOT = Path(slurm_energy.__file__).parent


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield warnings about names that are neither a package nor a module of slurm_energy."""
    for section in ("agent", "controller"):
        for name in getattr(context.config, section).log_levels:
            path = _ROOT.joinpath(*name.split("."))
            if not (path.is_dir() or path.with_suffix(".py").is_file()):
                why = f"'{name}' is neither a package nor a module below slurm_energy"
                yield context.warning(section, "log_levels", why, "for example agent.state or devices")
