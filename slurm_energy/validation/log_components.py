"""Check that the names in the setting `log_levels` are packages or modules of slurm_energy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import slurm_energy
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext

_ROOT = Path(slurm_energy.__file__).parent


def check(context: CheckContext) -> Iterator[Finding]:
    """Check that each configured name exists in slurm_energy as a package or a module.

    Yield a warning for each other name.
    """
    for section in ("agent", "controller"):
        for name in getattr(context.config, section).log_levels:
            path = _ROOT.joinpath(*name.split("."))
            if not (path.is_dir() or path.with_suffix(".py").is_file()):
                why = f"'{name}' is neither a package nor a module below slurm_energy"
                yield context.warning(section, "log_levels", why, "for example agent.state or devices")
