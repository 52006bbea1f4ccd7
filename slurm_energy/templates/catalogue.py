"""Finds the templates, reads the variables that each declares in its head, and renders them.

A template starts with a Jinja comment that holds TOML: `summary`, and one table per variable with `kind`,
`doc` and, unless a value is required, `default`. An empty value leaves its line out.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slurm_energy import __version__
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.templates import kinds

_FOLDER = Path(__file__).parent
_GROUPS = ("batch", "site")
_HEAD = re.compile(r"\{#-?\n(?P<head>.*?)\n-?#\}\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Variable:
    """One value that a template takes.

    Attributes:
        name: key for --set.
        kind: form of the value, see `kinds`.
        doc: meaning, one line.
        default: value if none is given; None if one must be given.
    """

    name: str
    kind: str
    doc: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Template:
    """One template.

    Attributes:
        name: what people call it.
        group: `batch` for job scripts, `site` for configuration and unit files.
        summary: one line.
        variables: in the order of the file.
        source: the whole file, head included.
    """

    name: str
    group: str
    summary: str
    variables: tuple[Variable, ...]
    source: str


@cache
def names() -> dict[str, Path]:
    """Return the files by template name, batch scripts first."""
    found = {}
    for group in _GROUPS:
        for path in sorted((_FOLDER / group).glob("*.j2")):
            found[path.name.removesuffix(".j2").removesuffix(".sh")] = path
    return found


def find(name: str) -> Template:
    """Read one template.

    Raises:
        NotFoundError: no such template; the known ones are listed.
    """
    path = names().get(name)
    if path is None:
        raise NotFoundError(f"template '{shown(name)}'", "not known", "one of " + ", ".join(names()))
    source = path.read_text(encoding="utf-8")
    match = _HEAD.match(source)
    if match is None:
        raise ValueError(f"{path}: no head")
    head = tomllib.loads(match["head"])
    variables = tuple(
        Variable(key, table["kind"], table["doc"], table.get("default"))
        for key, table in head.items()
        if isinstance(table, dict)
    )
    return Template(name, path.parent.name, head["summary"], variables, source)


def render(template: Template, given: Mapping[str, str], energy_check: kinds.EnergyCheck) -> str:
    """Return the template filled with the given values and the defaults of the others.

    Args:
        template: which one.
        given: values by name.
        energy_check: judges the energy flags, see `kinds.check_energy`.

    Raises:
        UsageError: unknown or missing key, or a value that its kind does not allow.
        ForbiddenError: the policy is not for this user.
    """
    values = _values(template, given)
    by_name = {variable.name: variable for variable in template.variables}
    for name, value in values.items():
        if value:
            values[name] = kinds.check(by_name[name].kind, name, value)
    flags = {by_name[n].kind: value for n, value in values.items() if value}
    energy: dict[str, str] = {kind: flags[kind] for kind in kinds.ENERGY_KINDS if kind in flags}
    if energy:
        kinds.check_energy(energy, energy_check)
    from jinja2 import Environment, StrictUndefined  # slow to import, and `list` does without

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["sh"] = shlex.quote
    return environment.from_string(template.source).render(values, senergy_version=__version__)


def _values(template: Template, given: Mapping[str, str]) -> dict[str, str]:
    known = [variable.name for variable in template.variables]
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"--set {shown(key)}",
                f"template {template.name} has no such key",
                f"{hint}known: {', '.join(known)}",
            )
    values = {}
    for variable in template.variables:
        value = given.get(variable.name, variable.default)
        if value is None or (value == "" and variable.default is None):
            raise UsageError(
                f"template {template.name}",
                f"key '{variable.name}' needs a value ({variable.doc})",
                f"--set {variable.name}=VALUE; known: {', '.join(known)}",
            )
        values[variable.name] = value
    return values
