"""Read `energy.toml` into a `Config`, naming file, line and key of whatever is wrong."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

from slurm_energy.config.schema import SECTIONS, Config, EdpEntry, SitePolicy
from slurm_energy.errors import ConfigError
from slurm_energy.ownership import read_trusted
from slurm_energy.quantities import is_number

DEFAULT_PATH = Path("/etc/slurm/energy.toml")
ENVIRONMENT_KEY = "SENERGY_CONFIG"
_POLICY_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PLURALS = {str: "strings", float: "finite numbers", int: "whole numbers"}
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\"-]+)\s*=")


def locate(argument: Path | str | None = None) -> Path:
    """Return the file to read: the argument, else $SENERGY_CONFIG, else the default path."""
    return Path(argument or os.environ.get(ENVIRONMENT_KEY) or DEFAULT_PATH)


def load(argument: Path | str | None = None, *, trusted: bool = False) -> Config:
    """Read and validate the configuration.

    Args:
        argument: path given by the user, see `locate`.
        trusted: also refuse a file that anyone but root or we could have written (daemons).

    Returns:
        The configuration; all defaults if the default file does not exist and none was named.

    Raises:
        ConfigError: not readable, not TOML, unknown key, wrong type or value, or not trustworthy.
    """
    path = locate(argument)
    named = argument is not None or bool(os.environ.get(ENVIRONMENT_KEY))
    if not named and not path.exists():
        return Config()
    try:
        text = read_trusted(path).decode() if trusted else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "write one with: senergy config example") from None
    return parse(text, path)


def parse(text: str, path: Path | None = None) -> Config:
    """Validate configuration text; `path` is only named in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path or 'configuration'}", f"not TOML: {error}") from None
    return _config(TableReader(path, text), data)


def numbered(section: str, place: int) -> str:
    """Return what the table at a place, from 0, of a list of tables is called: `edp`, `edp[2]`, `edp[3]`."""
    return f"{section}[{place + 1}]" if place else section


def _line_index(text: str) -> dict[tuple[str, str], int]:
    """Map (section, key) and (section, '') to line numbers; the tables of a list are `numbered`."""
    index: dict[tuple[str, str], int] = {}
    section, seen = "", collections.Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = table = header[1].replace('"', "")
            if line.lstrip().startswith("[["):
                section = numbered(table, seen[table])
                seen[table] += 1
            index.setdefault((section, ""), number)
        elif assignment := _ASSIGNMENT.match(line):
            name = assignment[1].strip('"')
            index.setdefault((section, name), number)
            index.setdefault((section, name.split(".")[0]), number)  # weights.edp = 1
    return index


class TableReader:
    """Turns tables of a TOML file into dataclasses whose fields are declared with `schema.key`.

    Args:
        path: the file, named in errors.
        text: its content.
    """

    def __init__(self, path: Path | None, text: str) -> None:
        self.path = path
        self._lines = _line_index(text)

    def fail(self, section: str, key: str, why: str, todo: str = "") -> ConfigError:
        """Return the error about a key, or about a whole section if `key` is empty."""
        table = f"{section}.{key}" if key else section  # a key that is a table has a header of its own
        line = next(
            (self._lines[at] for at in ((section, key), (table, ""), (section, "")) if at in self._lines),
            None,
        )
        place = f"{self.path or 'configuration'}" + (f":{line}" if line else "")
        name = f"{section}.{key}" if key else f"[{section}]"
        return ConfigError(f"{place}: {name}", why, todo)

    def section(self, cls: type[Any], name: str, table: Any) -> Any:
        """Return a table as an instance of `cls`.

        Raises:
            ConfigError: an unknown key, a wrong type or value.
        """
        if not isinstance(table, dict):
            raise self.fail(name, "", "must be a table")
        hints = typing.get_type_hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, raw in table.items():
            if key not in fields:
                raise self.fail(name, key, "unknown key", _nearest(key, list(fields)))
            try:
                value = _convert(raw, hints[key])
            except ValueError as error:
                raise self.fail(name, key, f"{error}, not {raw!r}") from None
            check = fields[key].metadata.get("check")
            problem = check(value) if check and value is not None else None
            if problem:
                raise self.fail(name, key, f"{problem}, not {raw!r}")
            values[key] = value
        return cls(**values)

    def sections(self, cls: type[Any], name: str, tables: list[Any]) -> tuple[Any, ...]:
        """Return each table of a list (`[[name]]`); errors as in `section`."""
        return tuple(self.section(cls, numbered(name, place), table) for place, table in enumerate(tables))


def _config(reader: TableReader, data: dict[str, Any]) -> Config:
    known = [*SECTIONS, "policies", "edp"]
    for name in data:
        if name not in known:
            raise reader.fail(name, "", "unknown section", _nearest(name, known))
    values: dict[str, Any] = {
        name: reader.section(cls, name, data.get(name, {})) for name, cls in SECTIONS.items()
    }
    policies = data.get("policies", {})
    if not isinstance(policies, dict):
        raise reader.fail("policies", "", "must be tables such as [policies.night]")
    for name in policies:
        if not _POLICY_NAME.fullmatch(name):
            raise reader.fail(f"policies.{name}", "", "a policy name is a-z, 0-9, - and _, at most 32")
    entries = data.get("edp", [])
    if not isinstance(entries, list):
        raise reader.fail("edp", "", "must be a list of tables: [[edp]]")
    return Config(
        **values,
        policies={n: reader.section(SitePolicy, f"policies.{n}", t) for n, t in policies.items()},
        edp=reader.sections(EdpEntry, "edp", entries),
        path=reader.path,
    )


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{close[0]}'?" if close else "known: " + ", ".join(known)


def _convert(raw: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert(raw, next(a for a in arguments if a is not type(None)))
    if origin is list:
        if not isinstance(raw, list):
            raise ValueError(f"must be a list of {_PLURALS[arguments[0]]}")
        return [_item(item, arguments[0], "list") for item in raw]
    if origin is dict:
        if not isinstance(raw, dict):
            raise ValueError(f"must be a table of {_PLURALS[arguments[1]]}")
        return {name: _item(item, arguments[1], "table") for name, item in raw.items()}
    if origin is tuple:
        if isinstance(raw, list) and len(raw) == len(arguments):
            return tuple(_convert(item, a) for item, a in zip(raw, arguments, strict=True))
        raise ValueError(f"must be a list of {len(arguments)} numbers")
    return _convert_scalar(raw, hint)


def _item(raw: Any, hint: Any, whole: str) -> Any:
    try:
        return _convert_scalar(raw, hint)
    except ValueError:
        raise ValueError(f"must be a {whole} of {_PLURALS[hint]}") from None


def _convert_scalar(raw: Any, hint: Any) -> Any:
    if hint is float and is_number(raw):
        return float(raw)
    if hint is Path and isinstance(raw, str) and raw.startswith("/"):
        return Path(raw)
    if hint in (int, bool, str) and type(raw) is hint:
        return raw
    names = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a string"}
    raise ValueError(f"must be {names.get(hint, 'an absolute path')}")
