"""Loader of `energy.toml`. The loader converts the file to a `Config`.

For each invalid key, the loader reports file, line and key.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy import __version__
from slurm_energy.config.budget_tables import BudgetTable
from slurm_energy.config.cluster_tables import OtherCluster
from slurm_energy.config.database_location import DatabaseLocation
from slurm_energy.config.findings import Finding, InvalidConfigError, Severity, require_valid
from slurm_energy.config.node_type_tables import parse_node_types
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy, policy_name_fault
from slurm_energy.config.release import newer_release
from slurm_energy.config.schema import SECTIONS, Config
from slurm_energy.config.value_checks import cluster_name
from slurm_energy.config.value_types import convert
from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.trusted_files import read_trusted

DEFAULT_PATH = Path("/etc/slurm/energy.toml")
ENVIRONMENT_KEY = "SENERGY_CONFIG"
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_MAX_VALUE_LENGTH = 200
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_.\"-]+)\s*=")


def locate(argument: Path | str | None = None) -> Path:
    """Return the path of the configuration file.

    Args:
        argument: path from the user; None means $SENERGY_CONFIG if it is set, else `DEFAULT_PATH`.
    """
    return Path(argument or os.environ.get(ENVIRONMENT_KEY) or DEFAULT_PATH)


def load(argument: Path | str | None = None, *, trusted: bool = False) -> Config:
    """Load the configuration and check each value separately.

    The package `slurm_energy.validation` checks combinations of values.

    Args:
        argument: path from the user; None means $SENERGY_CONFIG if it is set, else `DEFAULT_PATH`.
        trusted: whether to reject a file that users other than root and this process's user could have
            written. Daemons set this argument.

    Returns:
        The configuration; the defaults if the user names no file and `DEFAULT_PATH` does not exist.

    Raises:
        InvalidConfigError: the file is not TOML, or contains unknown keys or invalid types or values.
        ConfigError: the file cannot be read or is not trusted.
    """
    return load_source(argument, trusted=trusted).config


def load_source(argument: Path | str | None = None, *, trusted: bool = False) -> ConfigSource:
    """Load the configuration like `load`, and return it with the line numbers of its keys.

    Raises:
        InvalidConfigError, ConfigError: under the same conditions as in `load`.
    """
    path = locate(argument)
    if not is_explicit(argument) and not path.exists():
        return parse_source("")
    source = parse_source(read_text(path, trusted=trusted), path)
    require_valid(source.findings)
    return source


def is_explicit(argument: Path | str | None) -> bool:
    """Return whether the user named a configuration file, which must then exist.

    Args:
        argument: path from the user; None means that the file is named only if $SENERGY_CONFIG is set.
    """
    return argument is not None or bool(os.environ.get(ENVIRONMENT_KEY))


def read_text(path: Path, *, trusted: bool = False) -> str:
    """Return the text of the configuration file.

    Args:
        path: path of the file.
        trusted: whether to reject a file that users other than root and this process's user could have
            written.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, or is rejected because of `trusted`.
    """
    try:
        return read_trusted(path).decode() if trusted else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "write one with: senergy config example") from None


def parse(text: str, path: Path | None = None) -> Config:
    """Parse the text of a configuration file.

    Args:
        text: text of the file.
        path: path of the file, for error messages and `Config.path`; None means that the text is not from a
            file.

    Raises:
        InvalidConfigError: the text is not TOML, or contains unknown keys or invalid types or values. The
            error contains all faults.
    """
    source = parse_source(text, path)
    require_valid(source.findings)
    return source.config


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A parsed configuration file, possibly with invalid keys.

    Attributes:
        config: the configuration; invalid keys have their defaults.
        findings: faults of single keys.
        reader: table reader of the file, which looks up the line of a key.
        keys: keys in the file, as (section, key).
    """

    config: Config
    findings: tuple[Finding, ...]
    reader: TableReader
    keys: frozenset[tuple[str, str]]


def parse_source(text: str, path: Path | None = None) -> ConfigSource:
    """Parse the text of a configuration file and collect all faults of single keys.

    Args:
        text: text of the file.
        path: path of the file, for the findings and `Config.path`; None means that the text is not from a
            file.
    """
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
    """Yield the section name and the contents of each table in a parsed file.

    The function `table_label` defines the names of tables in a list of tables.
    """
    for name, value in data.items():
        if isinstance(value, dict):
            yield name, value
        elif isinstance(value, list):
            yield from (
                (table_label(name, i), table) for i, table in enumerate(value) if isinstance(table, dict)
            )


def table_label(section: str, position: int) -> str:
    """Return the name of a table in a list of tables: `edp`, `edp[2]`, `edp[3]` for index 0, 1 and 2."""
    return f"{section}[{position + 1}]" if position else section


def _line_index(text: str) -> dict[tuple[str, str], int]:
    """Return the line number of each key and of each table header of a TOML text.

    The first line has number 1. The entry of a key is (section, key), and the entry of a table header is
    (section, ''). If the text has a list of tables, `table_label` gives each of these tables its section
    name.
    """
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
    """A converter of the tables in a TOML file to dataclasses.

    The fields of the dataclasses are declared with `value_checks.key`.

    Args:
        path: path of the file, for error messages; None means that the text is not from a file.
        text: text of the file.

    Attributes:
        newer_release: release for which the file was written (`cluster.release`), if it is newer than the
            installed release of slurm-energy. Otherwise the text is empty.
    """

    def __init__(self, path: Path | None, text: str) -> None:
        self.path = path
        self.newer_release = ""
        self._lines = _line_index(text)

    def fail(self, section: str, key: str, why: str, todo: str = "") -> InvalidConfigError:
        """Return an error about a key, or about a section if `key` is empty.

        Args:
            section: section, as in `table_label`.
            key: key in the section; an empty value means the whole section.
            why: description of the fault.
            todo: the remedy; an empty value means that the remedy follows from the fault.
        """
        return InvalidConfigError([self.finding(section, key, why, todo)])

    def finding(
        self, section: str, key: str, why: str, todo: str = "", severity: Severity = Severity.ERROR
    ) -> Finding:
        """Return a finding about a key or a section, with the line number of the key or section.

        Args:
            section: section, as in `table_label`.
            key: key in the section, or `partition.gpu` for a key of an inner table; an empty value means the
                whole section.
            why: description of the fault.
            todo: the remedy; an empty value means that the remedy follows from the fault.
            severity: severity of the finding.
        """
        name = f"{section}.{key}" if key else f"[{section}]"
        return Finding(severity, name, why, todo, str(self.path or ""), self.line(section, key))

    def unknown(self, section: str, key: str, what: str, known: Iterable[str]) -> Finding:
        """Return a finding about an unknown key or section.

        The finding is an error. If the file is for a newer release of slurm-energy, the finding is a warning,
        because that release may know the key or section.

        Args:
            section: section, as in `table_label`.
            key: key in the section; an empty value means the whole section.
            what: `key` or `section`.
            known: known names, from which a similar one is suggested.
        """
        if self.newer_release:
            why = f"unknown to release {__version__} and ignored: the file is for {self.newer_release}"
            return self.finding(section, key, why, severity=Severity.WARNING)
        return self.finding(section, key, f"unknown {what}", suggest_name(key or section, list(known)))

    def _deprecated(self, section: str, key: str, new_key: str) -> Finding:
        why = "is deprecated and will be removed in the next minor release"
        return self.finding(section, key, why, f"write {new_key}", Severity.WARNING)

    def line(self, section: str, key: str) -> int | None:
        """Return the line number of a key, or of the key's table if the key is not in the file.

        Returns:
            The line, counted from 1; None means that neither the key nor its table is in the file.
        """
        table, _, inner = key.partition(".")
        outer, _, last = section.rpartition(".")  # agent.sampling_hz = 10 in [node_types.gpu]
        candidates = [(section, key), (f"{section}.{key}", ""), (section, "")]
        candidates += [(outer, f"{last}.{key}"), (outer, last), (outer, "")] if outer else []
        if inner:  # the inner table has a header, or is written inline
            candidates[1:1] = [(f"{section}.{table}", inner), (section, table), (f"{section}.{table}", "")]
        return next((self._lines[candidate] for candidate in candidates if candidate in self._lines), None)

    def section(self, cls: type[Any], name: str, table: Any) -> Any:
        """Convert a table to an instance of `cls`.

        Args:
            cls: dataclass whose fields are declared with `value_checks.key`.
            name: name of the section, for errors.
            table: parsed table.

        Raises:
            InvalidConfigError: the table contains unknown keys or invalid types or values.
        """
        value, findings = self.collect(cls, name, table)
        require_valid(findings)
        return value

    def sections(self, cls: type[Any], name: str, tables: list[Any]) -> tuple[Any, ...]:
        """Convert each table of a list of tables (`[[name]]`) to an instance of `cls`.

        Raises:
            InvalidConfigError: one of the tables contains unknown keys or invalid types or values.
        """
        return tuple(
            self.section(cls, table_label(name, position), table) for position, table in enumerate(tables)
        )

    def collect(self, cls: type[Any], name: str, table: Any) -> tuple[Any, list[Finding]]:
        """Return a table as an instance of `cls`, and the faults of the table's keys.

        Args:
            cls: dataclass whose fields are declared with `value_checks.key`. Invalid keys have their
                defaults.
            name: name of the section, for the findings.
            table: parsed table.
        """
        if not isinstance(table, dict):
            return cls(), [self.finding(name, "", "must be a table")]
        hints = typing.get_type_hints(cls) if table else {}  # takes milliseconds for all sections
        fields = {f.name: f for f in dataclasses.fields(cls)}
        replaced = {f.metadata["replaces"]: f.name for f in fields.values() if f.metadata["replaces"]}
        values, findings = {}, []
        for key, raw in table.items():
            if key in replaced and replaced[key] not in table:
                findings.append(self._deprecated(name, key, replaced[key]))
                key = replaced[key]
            if key not in fields:
                findings.append(self.unknown(name, key, "key", fields))
                continue
            try:
                value = convert(raw, hints[key])
                check = fields[key].metadata.get("check")
                problem = check(value) if check and value is not None else None
            except ValueError as error:
                problem = str(error)
            if problem:
                # The location of a database may contain a password, wherever it is wrong.
                value_text = "" if hints[key] is DatabaseLocation else f", not {_quoted(raw)}"
                findings.append(self.finding(name, key, problem + value_text))
            else:
                values[key] = value
        return cls(**values), findings


def _config(reader: TableReader, data: dict[str, Any]) -> tuple[Config, list[Finding]]:
    reader.newer_release = newer_release(data)
    known = [*SECTIONS, "policies", "edp", "budgets", "node_types", "clusters"]
    findings = [reader.unknown(name, "", "section", known) for name in data if name not in known]

    def collect(cls: type[Any], name: str, table: Any) -> Any:
        value, faults = reader.collect(cls, name, table)
        findings.extend(faults)
        return value

    values: dict[str, Any] = {name: collect(cls, name, data.get(name, {})) for name, cls in SECTIONS.items()}

    def collect_list(cls: type[Any], name: str) -> tuple[Any, ...]:
        tables = data.get(name, [])
        if not isinstance(tables, list):
            findings.append(reader.finding(name, "", f"must be a list of tables: [[{name}]]"))
            return ()
        return tuple(collect(cls, table_label(name, position), t) for position, t in enumerate(tables))

    def collect_tables(cls: type[Any], section: str, fault: Callable[[str], str | None]) -> dict[str, Any]:
        tables = data.get(section, {})
        if not isinstance(tables, dict):
            findings.append(reader.finding(section, "", f"must be tables such as [{section}.night]"))
            return {}
        faults = ((name, why) for name in tables if (why := fault(name)))
        findings.extend(reader.finding(f"{section}.{shown(name)}", "", why) for name, why in faults)
        return {name: collect(cls, f"{section}.{name}", table) for name, table in tables.items()}

    node_types, faults = parse_node_types(reader, data.get("node_types", {}), SECTIONS)
    findings += faults
    config = Config(
        **values,
        node_types=node_types,
        policies=collect_tables(SitePolicy, "policies", policy_name_fault),
        edp=collect_list(EdpEntry, "edp"),
        budgets=collect_list(BudgetTable, "budgets"),
        clusters=collect_tables(OtherCluster, "clusters", cluster_name),
        path=reader.path,
    )
    return config, findings


def _quoted(raw: Any) -> str:
    """Return the text of a value for a message, cut to `_MAX_VALUE_LENGTH` characters."""
    text = repr(raw)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 3] + "..."


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return advice for an unknown name: the most similar name in `known`, or all names in `known`."""
    folded = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), folded, 1)
    return f"did you mean '{folded[close[0]]}'?" if close else "known: " + ", ".join(known)
