"""The templates: lookup, declaration of their variables, and rendering.

A template begins with a Jinja comment, called the head, that contains TOML. The head has the key `summary`
and one table per variable. A table has `kind`, `doc` and, unless the user must give a value, `default`. The
key `uses` lists variables that several batch templates share. The file `base/variables.toml` declares shared
variables. If the head has a table for a shared variable, its entries override those of the shared
declaration. A line is omitted if the variable that it uses is empty. The site's own templates are in one
directory. A template of the site replaces the shipped template of the same name.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy.errors import ConfigError, EnergyError, NotFoundError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion
from slurm_energy.templates import value_kinds
from slurm_energy.trusted_files import read_trusted

_FOLDER = Path(__file__).parent
_GROUPS = ("batch", "site")
_BASE = "base"
_FILE = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]{0,62}?)(\.sh)?\.j2")
_HEAD = re.compile(r"\{#-?\n(?P<head>.*?)\n-?#\}\n", re.DOTALL)
_KEY = re.compile(r"[a-z_][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class TemplateVariable:
    """A variable of a template.

    Attributes:
        name: name of the variable, used as key in --set.
        kind: kind of value, one of `value_kinds.names()`.
        doc: meaning of the variable in one line.
        default: default value; None if the user must give a value.
        option: sbatch option that receives the value; empty if the text of the template uses the value
            instead.
        sweep: factor of a sweep, such as `env.BATCH_SIZE`. `--best` gives the variable the best value of this
            factor. Empty if the variable has no factor.
    """

    name: str
    kind: str
    doc: str
    default: str | None
    option: str = ""
    sweep: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A template of a batch script or a site file.

    Attributes:
        name: name of the template.
        group: `batch` or `site` (configuration and unit files) for shipped templates, `own` for templates of
            the site.
        summary: purpose of the template in one line.
        variables: variables that only this template has, then variables shared with other templates.
        source: text of the template file, including the head.
        path: path of the template file.
    """

    name: str
    group: str
    summary: str
    variables: tuple[TemplateVariable, ...]
    source: str
    path: Path


def names(folder: Path | None = None) -> dict[str, Path]:
    """Return the paths of all template files by template name.

    The shipped templates come first: the batch scripts, then the files for sites. The site's own
    templates follow. A template of the site replaces a shipped template with the same name.

    Args:
        folder: directory of the site's templates, `NAME.sh.j2` or `NAME.j2`, which need not exist; None
            means shipped templates only.

    Raises:
        EnergyError: the directory cannot be read.
    """
    try:
        own = _files(folder) if folder is not None and folder.is_dir() else {}
    except OSError as error:
        raise EnergyError(f"{folder}", error.strerror or str(error)) from None
    shipped = {name: path for name, path in _shipped().items() if name not in own}
    return {**shipped, **own}


@cache
def _shipped() -> dict[str, Path]:
    return {name: path for group in _GROUPS for name, path in _files(_FOLDER / group).items()}


def _files(folder: Path) -> dict[str, Path]:
    matches = {path: _FILE.fullmatch(path.name) for path in sorted(folder.iterdir())}
    return {match["name"]: path for path, match in matches.items() if match}


def find(name: str, folder: Path | None = None) -> Template:
    """Load the template `name`.

    Args:
        name: name of the template.
        folder: directory of the site's templates, which need not exist; None means shipped templates only.

    Raises:
        NotFoundError: no template has this name; the error lists the existing names.
        ConfigError: a template of the site is invalid or not trusted.
        EnergyError: the directory cannot be read.
    """
    known = names(folder)
    path = known.get(name)
    if path is None:
        todo = f"{suggestion(name, known)} one of {', '.join(known)}".lstrip()
        raise NotFoundError(f"template '{shown(name)}'", "not known", todo)
    source = _text(path)
    match = _HEAD.match(source)
    if match is None:
        raise ConfigError(f"{path}:1", "has no head", 'begin with a comment: {# summary = "..." #}')
    try:
        head = tomllib.loads(match["head"])
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: head", f"is not TOML: {error}") from None
    group = path.parent.name if path.is_relative_to(_FOLDER) else "own"
    summary = head.get("summary")
    if not isinstance(summary, str):
        raise ConfigError(f"{path}: head", "has no summary", 'write summary = "one line"')
    return Template(name, group, shown(summary, 200), tuple(_variables(head, path)), source, path)


def _text(path: Path) -> str:
    """Return the text of a template file.

    Raises:
        ConfigError: the file cannot be read, or it is not UTF-8. The error is also raised if the file was
            added by the site and users without permission could have changed it.
    """
    try:
        data = path.read_bytes() if path.is_relative_to(_FOLDER) else read_trusted(path)
        return data.decode("utf-8-sig").replace("\r\n", "\n")  # bash takes no CR
    except OSError as error:
        raise ConfigError(f"{path}", error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}", f"is not UTF-8 text: byte {error.start}") from None


@cache
def _shared() -> dict[str, dict[str, Any]]:
    return tomllib.loads((_FOLDER / _BASE / "variables.toml").read_text(encoding="utf-8"))


def _variables(head: Mapping[str, Any], path: Path) -> list[TemplateVariable]:
    """Return the variables that the head of a batch script template declares.

    Args:
        head: parsed TOML of the head of the template.
        path: path of the template file, for errors.

    Raises:
        ConfigError: a declaration is invalid. The error names the file and the key.
    """
    shared, uses = _shared(), head.get("uses", [])
    if not isinstance(uses, list) or not all(isinstance(name, str) and name in shared for name in uses):
        raise ConfigError(f"{path}: uses", "is not a list of shared keys", f"known: {', '.join(shared)}")
    own = {name: table for name, table in head.items() if isinstance(table, dict)}
    tables = {name: table for name, table in own.items() if name not in uses}
    tables |= {name: {**shared[name], **own.get(name, {})} for name in uses}
    for name, table in tables.items():
        wrong = _fault(name, table)
        if wrong:
            raise ConfigError(f"{path}: {shown(name)}", wrong)
    return [
        TemplateVariable(
            name,
            table["kind"],
            table["doc"],
            table.get("default"),
            table.get("option", ""),
            table.get("sweep", ""),
        )
        for name, table in tables.items()
    ]


def _fault(name: str, table: Mapping[str, Any]) -> str:
    """Return what is wrong with the declaration of the variable `name`.

    `table` is the TOML table that declares the variable. The result is empty if the declaration is valid.
    """
    if not _KEY.fullmatch(name):
        return "is not a valid key: write a-z, 0-9 and _"
    if unknown := sorted(set(table) - {"kind", "doc", "default", "option", "sweep"}):
        return (
            f"has an entry '{shown(unknown[0])}' that is not known: write kind, doc, default, option or sweep"
        )
    if not all(isinstance(value, str) for value in table.values()):
        return "has an entry that is not text"
    if not value_kinds.known(table.get("kind", "")):
        return f"kind '{shown(table.get('kind', ''))}' is not known: one of {', '.join(value_kinds.names())}"
    return "" if table.get("doc") else "has no doc"


def render(template: Template, given: Mapping[str, str], energy_check: value_kinds.EnergyCheck) -> str:
    """Return the text of a template with the given values. Other variables have their defaults.

    Args:
        template: template to be rendered.
        given: values by name of the variable.
        energy_check: function that checks energy flags; its argument maps names such as `ENERGY_GPU_CAP` to
            values.

    Raises:
        UsageError: a key is unknown or missing, or a value is invalid for its kind.
        ForbiddenError: this user may not use the energy policy.
        ConfigError: a template of the site has an error.
    """
    values = _values(template, given)
    by_name = {variable.name: variable for variable in template.variables}
    for name, value in values.items():
        if value:
            values[name] = value_kinds.check(by_name[name].kind, name, value)
    flags = {by_name[n].kind: value for n, value in values.items() if value}
    energy: dict[str, str] = {kind: flags[kind] for kind in value_kinds.ENERGY_KINDS if kind in flags}
    if energy:
        value_kinds.check_energy(energy, energy_check)
    options = [
        _option(by_name[name], value) for name, value in values.items() if by_name[name].option and value
    ]
    return _render_text(template, {**values, "options": [option for option in options if option]})


def _option(variable: TemplateVariable, value: str) -> str:
    """Return the sbatch option, without dashes, that sets a variable of a template to a value.

    A variable of the kind `yesno` is an option without a value: the result is the option if `value` is
    `yes`, and empty if it is `no`.
    """
    if variable.kind == "yesno":
        return variable.option if value == "yes" else ""
    return f"{variable.option}={value}"


def _render_text(template: Template, values: Mapping[str, Any]) -> str:
    """Return the text of a template, rendered with values.

    Raises:
        ConfigError: a template of the site has an error; names file and line.
    """
    from jinja2 import (
        FunctionLoader,
        StrictUndefined,
        TemplateError,
    )  # slow to import, and not needed for the list
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def load(name: str) -> str | None:
        path = (template.path.parent if template.group == "own" else _FOLDER / _BASE) / name
        if not _FILE.fullmatch(name):
            return None
        shipped = _FOLDER / _BASE / name
        return _text(path) if path.is_file() else _text(shipped) if shipped.is_file() else None

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(load),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = shlex.quote
    try:
        return environment.from_string(template.source).render(values, senergy_version=__version__)
    except (RecursionError, MemoryError) as error:
        why = (
            "includes itself, or is nested too deeply"
            if isinstance(error, RecursionError)
            else "grows too large"
        )
        raise ConfigError(f"{template.path}", why) from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if template.group != "own":
            raise
        number = getattr(error, "lineno", None)
        line = f":{number}" if number else ""
        raise ConfigError(f"{template.path}{line}", f"{type(error).__name__}: {shown(str(error))}") from None


def _values(template: Template, given: Mapping[str, str]) -> dict[str, str]:
    known = [variable.name for variable in template.variables]
    for key in given:
        if key not in known:
            todo = f"{suggestion(key, known)} known: {', '.join(known)}".lstrip()
            raise UsageError(f"--set {shown(key)}", f"template {template.name} has no such key", todo)
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
