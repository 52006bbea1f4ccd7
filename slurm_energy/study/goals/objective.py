"""The objective of a study: targets, limits, scope and season, from `objective.toml`.

The file is validated like energy.toml. All faults are reported at once, each with file, line and key.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

from slurm_energy.config.findings import Finding, InvalidConfigError, Severity, require_valid
from slurm_energy.config.loader import TableReader, table_label
from slurm_energy.config.value_checks import between, key, one_of, parsed_by
from slurm_energy.errors import ConfigError
from slurm_energy.study.data.time_zone import time_zone
from slurm_energy.study.goals.indicators import KPIS, Direction, Kpi

FILE_NAME: Final = "objective.toml"
_GROUPS: Final = ("cluster", "account")
_FINDINGS: Final = ("improves", "keeps", "twin_error", "predicts")
_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_MAX_EXCLUDED_DAYS: Final = 20_000


def parse_days(text: str) -> list[date]:
    """Return the days of `2026-12-24` or of the inclusive period `2026-12-24/2027-01-02`.

    Raises:
        ValueError: the text has another form. The message describes the fault.
    """
    first, _, last = text.partition("/")
    try:
        begin = date.fromisoformat(first.strip())
        end = date.fromisoformat(last.strip()) if last else begin
    except ValueError:
        raise ValueError(f"'{text[:40]}' is not a date 2026-12-24 or a period DATE/DATE") from None
    if not 0 <= (end - begin).days < _MAX_EXCLUDED_DAYS:
        raise ValueError(f"'{text[:40]}' ends before it begins, or is longer than {_MAX_EXCLUDED_DAYS} days")
    return [begin + timedelta(days=number) for number in range((end - begin).days + 1)]


def _days(value: list[str]) -> str | None:
    try:
        for text in value:
            parse_days(text)
    except ValueError as error:
        return str(error)
    return None


def _date_or_empty(value: str) -> None:
    if value:
        date.fromisoformat(value)


def _timezone(value: str) -> str | None:
    try:
        time_zone(value)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class StudyScope:
    """Section `[scope]` of a study's objective: which jobs the study covers.

    An empty list means that all partitions or all accounts are covered.
    """

    partitions: list[str] = key([], "Partitions.")
    accounts: list[str] = key([], "Accounts.")
    begin: str = key(
        "", "First day, as 2026-09-01; empty: the first day of the data.", parsed_by(_date_or_empty)
    )
    end: str = key("", "Last day; empty: the last full day of the data.", parsed_by(_date_or_empty))


@dataclass(frozen=True, slots=True)
class StudySeason:
    """Section `[season]` of a study's objective: time zone of the days, and days to exclude."""

    timezone: str = key("", "Time zone in which days begin, as Europe/Paris; empty: UTC.", _timezone)
    exclude: list[str] = key(
        [], "Days that are not like others: holidays, maintenance. Dates or periods DATE/DATE.", _days
    )

    def excluded(self) -> set[date]:
        """Return the days that the season excludes from the study."""
        return {day for text in self.exclude for day in parse_days(text)}


@dataclass(frozen=True, slots=True)
class StudyPrices:
    """Section `[prices]` of a study's objective: conversion of energy to cost and emissions.

    If a value is None, the key performance indicator (KPI) that needs it is unknown.
    """

    currency: str = key("EUR", "Currency of the cost.")
    price_per_kwh: float | None = key(None, "Price of electricity per kWh.", between(0, 1e6), show=0.20)
    carbon_g_per_kwh: float | None = key(
        None, "Carbon intensity of electricity in g CO2e per kWh.", between(0, 1e5), show=300.0
    )
    price_file: str = key(
        "", "CSV of `senergy grid export price` instead of price_per_kwh, beside this file."
    )
    carbon_file: str = key(
        "", "CSV of `senergy grid export carbon` instead of carbon_g_per_kwh, beside this file."
    )
    pue: float = key(1.0, "Power usage effectiveness: factor for cost and emissions.", between(1, 10))


@dataclass(frozen=True, slots=True)
class StudyStatistics:
    """Section `[statistics]` of a study's objective: how certain the results must be."""

    confidence: float = key(0.95, "Confidence of all intervals.", between(0.5, 0.999))
    power: float = key(
        0.8, "Probability with which an effect of the wanted size is to be found.", between(0.5, 0.999)
    )
    resamples: int = key(2000, "Number of bootstrap samples.", between(100, 100_000))


@dataclass(frozen=True, slots=True)
class StudyTarget:
    """Target of a study: a wanted change of a key performance indicator (KPI).

    A target is a section `[[target]]` of the study's objective. The first target is the main one.
    """

    kpi: str = key("energy_per_work_kwh", "KPI.", one_of(*KPIS))
    change_percent: float = key(-5.0, "Wanted change; negative for a reduction.", between(-100, 10_000))

    @property
    def indicator(self) -> Kpi:
        """The key performance indicator (KPI) that this target wants to change."""
        return KPIS[self.kpi]


@dataclass(frozen=True, slots=True)
class StudyLimit:
    """Limit of one KPI in a study, configured by a table `[[limit]]`.

    A limit consists of one or more bounds that the KPI must not cross.
    """

    kpi: str = key("mean_jct_s", "KPI.", one_of(*KPIS))
    worse_percent: float | None = key(
        None, "Permitted worsening against the baseline, in percent.", between(0, 1e6), show=5.0
    )
    worse_deviations: float | None = key(
        None, "Permitted worsening, in standard deviations of the days of the baseline.", between(0, 100)
    )
    maximum: float | None = key(None, "Permitted maximum, in the unit of the KPI.")
    minimum: float | None = key(None, "Permitted minimum, in the unit of the KPI.")
    per: str = key(
        "cluster", "cluster: one value; account: the value of each account by itself.", one_of(*_GROUPS)
    )

    @property
    def indicator(self) -> Kpi:
        """Key performance indicator (KPI) to which the limit applies."""
        return KPIS[self.kpi]

    def bounds(self, baseline: float, deviation: float) -> tuple[float, float]:
        """Return the minimum and the maximum that this limit permits for its KPI.

        Args:
            baseline: mean of the KPI in the baseline.
            deviation: standard deviation of the daily values in the baseline; NaN means unknown.
        """
        low = float("-inf") if self.minimum is None else self.minimum
        high = float("inf") if self.maximum is None else self.maximum
        margins = []
        if self.worse_percent is not None:
            margins.append(abs(baseline) * self.worse_percent / 100)
        if self.worse_deviations is not None:
            margins.append(deviation * self.worse_deviations)
        for margin in margins:
            if margin != margin or baseline != baseline:
                continue  # an unknown baseline gives no relative bound
            if self.indicator.better is Direction.LOWER:
                high = min(high, baseline + margin)
            else:
                low = max(low, baseline - margin)
        return low, high


@dataclass(frozen=True, slots=True)
class StudyConclusion:
    """A statement (`[[conclusion]]`) that the report of a study confirms or rejects by the results."""

    text: str = key("", "Statement, as it is shown in the report.")
    kpi: str = key("energy_kwh", "KPI.", one_of(*KPIS))
    finding: str = key(
        "improves",
        "improves: the interval of the effect excludes zero, and the estimate improves by at least percent; "
        "keeps: every limit on the KPI is kept; "
        "twin_error: the error of the twin on the held-out days is at most percent; "
        "predicts: the interval contains the prediction of the step choose.",
        one_of(*_FINDINGS),
    )
    percent: float | None = key(None, "Bound in percent, for improves and twin_error.", between(0, 1e4))


@dataclass(frozen=True, slots=True)
class StudyObjective:
    """Validated contents of `objective.toml`.

    Attributes:
        title: title of the study.
        targets: wanted changes. The first target is the main target.
        limits: bounds that KPIs must not cross.
        conclusions: statements that the report judges.
        path: path of the file. Relative paths in the file start at its directory.
    """

    title: str
    targets: tuple[StudyTarget, ...]
    limits: tuple[StudyLimit, ...]
    scope: StudyScope = field(default_factory=StudyScope)
    season: StudySeason = field(default_factory=StudySeason)
    prices: StudyPrices = field(default_factory=StudyPrices)
    statistics: StudyStatistics = field(default_factory=StudyStatistics)
    conclusions: tuple[StudyConclusion, ...] = ()
    path: Path = Path(FILE_NAME)

    def beside(self, name: str) -> Path:
        """Return the path of a file that objective.toml names, relative to the folder of objective.toml."""
        return self.path.parent / name

    def digest(self, *sections: str) -> str:
        """Return the SHA-256 of some sections of the objective.

        The digest includes the files that these sections name.

        Args:
            sections: sections to include: `targets`, `limits`, `scope`, `season`, `prices`, `statistics`.
        """
        values = asdict(self)
        text = json.dumps({name: values[name] for name in sections}, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode())
        for name in (self.prices.price_file, self.prices.carbon_file) if "prices" in sections else ():
            if name and self.beside(name).is_file():
                digest.update(self.beside(name).read_bytes())
        return digest.hexdigest()

    def kpi_names(self) -> list[str]:
        """Return the names of the KPIs in targets and limits, in order and without repetitions."""
        return list(dict.fromkeys([*(t.kpi for t in self.targets), *(g.kpi for g in self.limits)]))


_TABLES: Final[Mapping[str, type[Any]]] = {
    "scope": StudyScope,
    "season": StudySeason,
    "prices": StudyPrices,
    "statistics": StudyStatistics,
}
_LISTS: Final[Mapping[str, type[Any]]] = {
    "target": StudyTarget,
    "limit": StudyLimit,
    "conclusion": StudyConclusion,
}


def read_objective(path: Path) -> StudyObjective:
    """Read an objective file.

    Raises:
        InvalidConfigError: contains all faults of the file.
        ConfigError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "write one with: senergy study init") from None
    return parse_objective(text, path)


def parse_objective(text: str, path: Path) -> StudyObjective:
    """Parse and check the text of an objective file. `path` serves error messages and relative paths.

    Raises:
        InvalidConfigError: contains all faults.
    """
    reader = TableReader(path, text)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line = _LINE.search(str(error))
        number = int(line[1]) if line else None
        raise InvalidConfigError(
            [Finding(Severity.ERROR, "", f"not TOML: {error}", file=str(path), line=number)]
        ) from None
    findings: list[Finding] = [
        reader.unknown(name, "", "section", ["title", *_TABLES, *_LISTS])
        for name in data
        if name not in ("title", *_TABLES, *_LISTS)
    ]
    values: dict[str, Any] = {}
    for name, section in _TABLES.items():
        values[name], faults = reader.collect(section, name, data.get(name, {}))
        findings += faults
    for name in _LISTS:
        values[f"{name}s"], faults = _tables(reader, name, data.get(name, []))
        findings += faults
    title = data.get("title", path.parent.name)
    if not isinstance(title, str):
        findings.append(reader.finding("title", "", "must be a string"))
    if not findings:
        objective = StudyObjective(title=str(title), path=path, **values)
        findings = _combined_faults(objective, reader)
        if not findings:
            return objective
    require_valid(findings)
    raise AssertionError("every finding of an objective is an error")


def _tables(reader: TableReader, name: str, tables: object) -> tuple[tuple[Any, ...], list[Finding]]:
    if not isinstance(tables, list):
        return (), [reader.finding(name, "", f"must be a list of tables: [[{name}]]")]
    values, findings = [], []
    for position, table in enumerate(tables):
        value, faults = reader.collect(_LISTS[name], table_label(name, position), table)
        values.append(value)
        findings += faults
    return tuple(values), findings


def _combined_faults(objective: StudyObjective, reader: TableReader) -> list[Finding]:
    """Return the faults of a study's objective that involve several keys of the file."""
    findings = []
    if not objective.targets:
        findings.append(reader.finding("target", "", "at least one is needed", "write a table [[target]]"))
    for position, target in enumerate(objective.targets):
        falls = target.indicator.better is Direction.LOWER
        if target.change_percent == 0 or (target.change_percent < 0) != falls:
            todo = (
                f"write a {'negative' if falls else 'positive'} number: {target.indicator.better} is better"
            )
            label = table_label("target", position)
            findings.append(reader.finding(label, "change_percent", "is no improvement", todo))
    for position, limit in enumerate(objective.limits):
        bounds = (limit.worse_percent, limit.worse_deviations, limit.maximum, limit.minimum)
        if all(bound is None for bound in bounds):
            todo = "give worse_percent, worse_deviations, maximum or minimum"
            findings.append(reader.finding(table_label("limit", position), "", "has no bound", todo))
    findings += _conclusion_faults(objective, reader)
    scope = objective.scope
    if scope.begin and scope.end and scope.end < scope.begin:
        findings.append(reader.finding("scope", "end", "is before begin"))
    needed = {"cost": ("price_per_kwh", "price_file"), "carbon_kg": ("carbon_g_per_kwh", "carbon_file")}
    for kpi, (figure, file) in needed.items():
        has_value = getattr(objective.prices, figure) is not None or getattr(objective.prices, file)
        if kpi in objective.kpi_names() and not has_value:
            todo = f"give {figure} or {file}"
            findings.append(reader.finding("prices", "", f"is needed for the KPI {kpi}", todo))
    return findings


def _conclusion_faults(objective: StudyObjective, reader: TableReader) -> list[Finding]:
    """Return the faults in the conclusions of an objective file.

    A fault is a missing text, a missing key, or a key that has no effect.
    """
    findings = []
    limited = {limit.kpi for limit in objective.limits}
    for position, one in enumerate(objective.conclusions):
        label = table_label("conclusion", position)
        if not one.text:
            findings.append(reader.finding(label, "text", "is missing", "write the statement"))
        if one.finding == "twin_error" and one.percent is None:
            findings.append(reader.finding(label, "percent", "is needed for twin_error"))
        if one.finding in ("keeps", "predicts") and one.percent is not None:
            findings.append(reader.finding(label, "percent", f"has no effect on {one.finding}", "remove it"))
        if one.finding == "keeps" and one.kpi not in limited:
            todo = f"write a table [[limit]] with kpi = '{one.kpi}'"
            findings.append(reader.finding(label, "kpi", "has no limit", todo))
    return findings
