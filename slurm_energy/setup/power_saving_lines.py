"""Lines of slurm.conf that power saving needs.

Setup prints these lines, and the administrator adds them to slurm.conf.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_energy.setup.site import SlurmSite

_DISABLED: Final = frozenset({"", "-1", "infinite"})
_PASS: Final = "power_save_interval="


def power_saving_lines(site: SlurmSite, library: Path) -> list[str]:
    """Return instructions for the administrator: which lines to add to slurm.conf for power saving.

    Each instruction is one text. The result is empty if no line is missing.

    Args:
        site: Slurm on this host.
        library: directory of the files of slurm-energy.
    """
    lines = []
    for key, purpose in (("SuspendProgram", "powers nodes down"), ("ResumeProgram", "boots nodes")):
        if not site.value(key.lower()):
            lines.append(f"slurm.conf: add {key}=PROGRAM, the program of the site that {purpose}")
    if site.value("suspendtime", "-1").lower() in _DISABLED:
        lines.append("slurm.conf: add SuspendTime=31536000: power saving is on, and senergyctld decides")
    for key, purpose in (("SuspendTimeout", "of a shutdown"), ("ResumeTimeout", "of a boot")):
        if not site.value(key.lower()):
            lines.append(f"slurm.conf: add {key}=SECONDS, the maximum duration {purpose}")
    if not site.value("prologslurmctld"):
        program = library / "prolog_slurmctld"
        purpose = "batch jobs start when their nodes have booted"
        lines.append(f"slurm.conf: add PrologSlurmctld={program}: {purpose}")
    if not any(item.startswith(_PASS) for item in site.items("slurmctldparameters")):
        lines.append(f"slurm.conf: add {_PASS}1 to SlurmctldParameters: shutdowns end without delay")
    return [*lines, "restart slurmctld after these changes: docs/power-saving.md"] if lines else []
