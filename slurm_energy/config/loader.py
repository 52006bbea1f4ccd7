"""Loader of `energy.toml`: converts the file to a `Config` and names file, line and key of each fault."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.config.findings import Finding, InvalidConfigError, Severity, require_valid
from slurm_energy.config.schema import SECTIONS, Config, EdpEntry, SitePolicy
from slurm_energy.errors import ConfigError
from slurm_energy.quantities import is_number, shown
from slurm_energy.trusted_files import read_trusted

DEFAULT_PATH = Path("/etc/slurm/energy.toml")
ENVIRONMENT_KEY = "SENERGY_CONFIG"
_POLICY_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_MAX_VALUE_LENGTH = 200
_PLURALS = {Path: "absolute paths", str: "strings", float: "finite numbers", int: "whole numbers"}
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\"-]+)\s*=")


def locate(argument: Path | str | None = None) -> Path:
    """Return the path of the configuration: the argument, else $SENERGY_CONFIG, else the default path."""
    return Path(argument or os.environ.get(ENVIRONMENT_KEY) or DEFAULT_PATH)


def load(argument: Path | str | None = None, *, trusted: bool = False) -> Config:
    """Load the configuration and check each value by itself; `slurm_energy.validation` checks the rest.

    Args:
        argument: path from the user, see `locate`.
        trusted: also reject a file that users other than root and this one could have written (daemons).

    Returns:
        The configuration; the defaults if no file is named and the default file does not exist.

    Raises:
        InvalidConfigError: not TOML, unknown keys, invalid types or values.
        ConfigError: the file cannot be read or is not trusted.
    """
    path = locate(argument)
    if not is_explicit(argument) and not path.exists():
        return Config()
    return parse(read_text(path, trusted=trusted), path)


def is_explicit(argument: Path | str | None) -> bool:
    """Return whether the user named a file. That file must then exist."""
    return argument is not None or bool(os.environ.get(ENVIRONMENT_KEY))


def read_text(path: Path, *, trusted: bool = False) -> str:
    """Return the text of the configuration file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, or, with `trusted`, is not trusted.
    """
    try:
        return read_trusted(path).decode() if trusted else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "write one with: senergy config example") from None


def parse(text: str, path: Path | None = None) -> Config:
    """Parse a configuration; `path` appears in error messages only.

    Raises:
        InvalidConfigError: contains all faults: not TOML, unknown keys, invalid types or values.
    """
    source = parse_source(text, path)
    require_valid(source.findings)
    return source.config


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A parsed configuration file, possibly with faults.

    Attributes:
        config: the configuration; faulty keys have their defaults.
        findings: faults of single keys.
        reader: knows the line of each key.
        keys: keys in the file, as (section, key).
    """

    config: Config
    findings: tuple[Finding, ...]
    reader: TableReader
    keys: frozenset[tuple[str, str]]


def parse_source(text: str, path: Path | None = None) -> ConfigSource:
    """Parse a configuration and collect all faults of single keys instead of stopping at the first."""
    reader = TableReader(path, text)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line = _TOML_LINE.search(str(error))
        finding = Finding(
            Severity.ERROR,
            "",
            f"not TOML: {error}",
            file=str(path or ""),
            line=int(line[1]) if line else None,
        )
        return ConfigSource(Config(path=path), (finding,), reader, frozenset())
    config, findings = _config(reader, data)
    keys = frozenset((name, key) for name, table in _tables(data) for key in table)
    return ConfigSource(config, tuple(findings), reader, keys)


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each table with its section; tables of a list are named by `table_label`."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield name, value
        elif isinstance(value, list):
            yield from (
                (table_label(name, i), table) for i, table in enumerate(value) if isinstance(table, dict)
            )


def table_label(section: str, position: int) -> str:
    """Return the name of a table in a list of tables by position, from 0: `edp`, `edp[2]`, `edp[3]`."""
    return f"{section}[{position + 1}]" if position else section


def _line_index(text: str) -> dict[tuple[str, str], int]:
    """Map (section, key) and (section, '') to line numbers; tables of a list are named by `table_label`."""
    index: dict[tuple[str, str], int] = {}
    section, counts = "", collections.Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = table = header[1].replace('"', "")
            if line.lstrip().startswith("[["):
                section = table_label(table, counts[table])
                counts[table] += 1
            index.setdefault((section, ""), number)
        elif assignment := _ASSIGNMENT.match(line):
            name = assignment[1].strip('"')
            index.setdefault((section, name), number)
            index.setdefault((section, name.split(".")[0]), number)  # weights.edp = 1
    return index


class TableReader:
    """A converter of TOML tables to dataclasses whose fields are declared with `value_checks.key`.

    Args:
        path: path of the file, for error messages.
        text: contents of the file.
    """

    def __init__(self, path: Path | None, text: str) -> None:
        self.path = path
        self._lines = _line_index(text)

    def fail(self, section: str, key: str, why: str, todo: str = "") -> InvalidConfigError:
        """Return an error about a key, or about a section if `key` is empty."""
        return InvalidConfigError([self.finding(section, key, why, todo)])

    def finding(
        self, section: str, key: str, why: str, todo: str = "", severity: Severity = Severity.ERROR
    ) -> Finding:
        """Return a finding about a key (`partition.gpu` for a key of an inner table) or a section."""
        name = f"{section}.{key}" if key else f"[{section}]"
        return Finding(severity, name, why, todo, str(self.path or ""), self.line(section, key))

    def line(self, section: str, key: str) -> int | None:
        """Return the line of a key, else of its table; None: neither is in the file."""
        table, _, inner = key.partition(".")
        candidates = [(section, key), (f"{section}.{key}", ""), (section, "")]
        if inner:  # the inner table has a header, or is written inline
            candidates[1:1] = [(f"{section}.{table}", inner), (section, table), (f"{section}.{table}", "")]
        return next((self._lines[candidate] for candidate in candidates if candidate in self._lines), None)

    def section(self, cls: type[Any], name: str, table: Any) -> Any:
        """Convert a table to an instance of `cls`.

        Raises:
            InvalidConfigError: unknown keys, invalid types or values.
        """
        value, findings = self.collect(cls, name, table)
        require_valid(findings)
        return value

    def sections(self, cls: type[Any], name: str, tables: list[Any]) -> tuple[Any, ...]:
        """Convert each table of a list (`[[name]]`); the errors are those of `section`."""
        return tuple(
            self.section(cls, table_label(name, position), table) for position, table in enumerate(tables)
        )

    def collect(self, cls: type[Any], name: str, table: Any) -> tuple[Any, list[Finding]]:
        """Return a table as an instance of `cls`, with defaults for faulty keys, and the faults."""
        if not isinstance(table, dict):
            return cls(), [self.finding(name, "", "must be a table")]
        hints = typing.get_type_hints(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        values, findings = {}, []
        for key, raw in table.items():
            if key not in fields:
                findings.append(self.finding(name, key, "unknown key", suggest_name(key, list(fields))))
                continue
            try:
                value = _convert(raw, hints[key])
                check = fields[key].metadata.get("check")
                problem = check(value) if check and value is not None else None
            except ValueError as error:
                problem = str(error)
            if problem:
                findings.append(self.finding(name, key, f"{problem}, not {_quoted(raw)}"))
            else:
                values[key] = value
        return cls(**values), findings


def _config(reader: TableReader, data: dict[str, Any]) -> tuple[Config, list[Finding]]:
    known = [*SECTIONS, "policies", "edp"]
    findings = [
        reader.finding(name, "", "unknown section", suggest_name(name, known))
        for name in data
        if name not in known
    ]

    def collect(cls: type[Any], name: str, table: Any) -> Any:
        value, faults = reader.collect(cls, name, table)
        findings.extend(faults)
        return value

    values: dict[str, Any] = {name: collect(cls, name, data.get(name, {})) for name, cls in SECTIONS.items()}
    policies, entries = data.get("policies", {}), data.get("edp", [])
    if not isinstance(policies, dict):
        findings.append(reader.finding("policies", "", "must be tables such as [policies.night]"))
        policies = {}
    for name in policies:
        if not _POLICY_NAME.fullmatch(name):
            why = "a policy name is a letter a-z, then a-z, 0-9, - and _, at most 32 characters"
            findings.append(reader.finding(f"policies.{shown(name)}", "", why))
    if not isinstance(entries, list):
        findings.append(reader.finding("edp", "", "must be a list of tables: [[edp]]"))
        entries = []
    config = Config(
        **values,
        policies={n: collect(SitePolicy, f"policies.{n}", t) for n, t in policies.items()},
        edp=tuple(collect(EdpEntry, table_label("edp", position), t) for position, t in enumerate(entries)),
        path=reader.path,
    )
    return config, findings


def _quoted(raw: Any) -> str:
    """Return a value for a message; long values are cut."""
    text = repr(raw)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 3] + "..."


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return the advice for an unknown name: the most similar known name, else all known names."""
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), folded, 1)
    return f"did you mean '{folded[close[0]]}'?" if close else "known: " + ", ".join(known)


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
    if hint is Path and isinstance(raw, str) and raw.startswith("/") and raw.isprintable():
        return Path(raw)
    if hint in (int, bool, str) and type(raw) is hint:
        return raw
    names = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a string"}
    raise ValueError(f"must be {names.get(hint, 'an absolute path')}")
