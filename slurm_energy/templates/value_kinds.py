"""Kinds of template values, with one check for each kind.

Values in `#SBATCH` lines and configuration lines cannot be quoted. The kinds of these values therefore allow
no spaces, quotes or line breaks. The filter `sh` of the templates quotes values in shell code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import expand_ranges
from slurm_energy.quantities import shown

_FORMS: Final[dict[str, tuple[str, str]]] = {
    "name": (r"[A-Za-z0-9_.@%+=:,-]{1,128}", "letters, digits and _ . @ % + = : , -"),
    "nodes": (r"[A-Za-z0-9_.,\[\]-]{1,1024}", "a node list such as n[1-4]"),
    "count": (r"[1-9]\d{0,8}", "a whole number from 1"),
    "port": (r"[1-9]\d{3,4}", "a port from 1000"),
    "array": (r"\d[0-9,:-]{0,255}(%\d{1,6})?", "task numbers such as 0-9 or 1-99%4"),
    "time": (
        r"\d{1,6}|\d{1,6}:\d\d(:\d\d)?|\d{1,4}-\d{1,2}(:\d\d){0,2}",
        "minutes, MM:SS, HH:MM:SS, D-HH or D-HH:MM:SS",
    ),
    "memory": (r"[1-9]\d{0,9}[KMGT]?", "a size such as 16G"),
    "word": (r"[A-Za-z0-9_.:/+-]{1,64}", "1 to 64 characters of A-Z a-z 0-9 _ . : / + -"),
    "file": (r"[A-Za-z0-9_.@%+=:,/-]{1,255}", "a path without spaces or quotes"),
    "path": (r"/[A-Za-z0-9_.@%+=:,/-]{0,255}", "an absolute path without spaces or quotes"),
    "user": (r"[a-z_][a-z0-9_-]{0,31}", "a user name"),
    "yesno": (r"yes|no", "yes or no"),
    "text": (r"[^\x00-\x1f\x7f]{1,4096}", "one line of text"),
    "shell": (r"[^\x00-\x1f\x7f]{1,4096}", "one line of shell code"),
}
ENERGY_KINDS: Final = (
    "policy",
    "cap",
    "gpu_cap",
    "slowdown",
    "tuning",
    "cpu_freq",
    "gpu_clock",
    "power_profile",
    "model",
    "tag",
    "alternatives",
)


def check(kind: str, name: str, value: str) -> str:
    """Return the value of a template variable if the value is valid. Otherwise raise an error.

    The kind of the variable determines which values are valid. In a value of the kind `alternatives`, ranges
    are expanded. The kinds in `ENERGY_KINDS` are not checked here, because the values of these kinds depend
    on each other and on the configuration. `check_energy` checks them.

    Args:
        kind: kind of the variable, one of `names()`.
        name: name of the variable, for the error.
        value: value of the variable; must not be empty.

    Raises:
        UsageError: the value is invalid. The message names the variable, the value and the expected form.
    """
    if kind == "alternatives":
        return expand_ranges(value)
    if kind in ENERGY_KINDS:
        return value
    form, words = _FORMS[kind]
    if not re.fullmatch(form, value, re.ASCII if kind not in ("text", "shell") else 0):
        raise UsageError(f"--set {name}: '{shown(value)}' cannot be accepted", todo=f"write {words}")
    return value


def names() -> list[str]:
    """Return all kinds of values that the variables of a template can have, such as `count`."""
    return [*_FORMS, *ENERGY_KINDS]


def known(kind: str) -> bool:
    """Return whether `kind` is the name of a kind of template value."""
    return kind in names()


EnergyCheck = Callable[[dict[str, str]], object]


def check_energy(values: dict[str, str], checker: EnergyCheck) -> None:
    """Check the energy flags of a template together, as they are checked when a job is submitted.

    Args:
        values: non-empty values by kind (`policy`, `cap`, ...).
        checker: function that checks the values; its argument maps names in the job-control environment,
            such as `ENERGY_GPU_CAP`, to values.

    Raises:
        UsageError: a value is invalid, or values contradict each other.
        ForbiddenError: this user may not use the energy policy.
    """
    checker({f"ENERGY_{kind.upper()}": value for kind, value in values.items()})
