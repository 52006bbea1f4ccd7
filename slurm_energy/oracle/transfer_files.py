"""The tables [transfer] and [evidence] of calibration files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_energy.config.schema_document import toml
from slurm_energy.errors import ConfigError
from slurm_energy.oracle.transfer.evidence import COLUMNS, MAX_ROWS, Evidence
from slurm_energy.oracle.transfer.prior import Transfer, WorkloadOffsets
from slurm_energy.oracle.transfer.ranges import SCORE_LEVELS
from slurm_energy.quantities import shown

_LARGEST: Final = 100.0
"""Bound of logarithms and slopes: far beyond any real one."""
_TRANSFER: Final = ("sources", "cap_share", "workloads")
_SCORES: Final = ("time_scores", "power_scores")
_OFFSETS: Final = tuple(spec.name for spec in dataclasses.fields(WorkloadOffsets))


def transfer_lines(name: str, transfer: Transfer) -> list[str]:
    """Return the lines of a table that `read_transfer` takes."""
    lines = ["", f"[{name}]", f"sources = [{', '.join(map(toml, transfer.sources))}]"]
    lines.append(f"cap_share = {_number(transfer.cap_share)}")
    lines += [f"{key} = {_numbers(getattr(transfer, key))}" for key in _SCORES]
    for workload, offsets in sorted(transfer.workloads.items()):
        lines += ["", f"[{name}.workloads.{toml(workload)}]"]
        lines += [f"{key} = {_numbers(getattr(offsets, key))}" for key in _OFFSETS]
    return lines


def evidence_lines(evidence: Evidence) -> list[str]:
    """Return the lines of [evidence]."""
    lines = ["", "[evidence]", f"models = [{', '.join(map(toml, evidence.models))}]"]
    lines += [f"{name} = {_numbers(evidence.columns.get(name, ()))}" for name in COLUMNS]
    return lines + transfer_lines("evidence.prior", evidence.prior)


def read_transfer(path: Path, name: str, data: Any) -> Transfer:
    """Check a table and return it.

    Raises:
        ConfigError: names file and key.
    """
    place = f"{path}: {name}"
    values = _table(place, data, (*_TRANSFER, *_SCORES), optional=("workloads", *_SCORES))
    sources = values["sources"]
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise ConfigError(f"{place}.sources", "is not a list of names")
    cap_share = _checked(f"{place}.cap_share", values["cap_share"])
    if not 0 < cap_share <= 1:
        raise ConfigError(f"{place}.cap_share", "is not above 0 and at most 1")
    if not isinstance(values["workloads"], dict):
        raise ConfigError(f"{place}.workloads", "is no table")
    workloads = {
        workload: _offsets(f"{place}.workloads.{shown(workload)}", table)
        for workload, table in values["workloads"].items()
    }
    scores = {key: _scores(f"{place}.{key}", values[key]) for key in _SCORES if key in values}
    return Transfer(tuple(sources), cap_share, workloads, **scores)


def read_evidence(path: Path, data: Any) -> Evidence:
    """Check [evidence] and return it.

    Raises:
        ConfigError: names file and key.
    """
    place = f"{path}: evidence"
    values = _table(place, data, ("models", *COLUMNS, "prior"))
    models = values["models"]
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise ConfigError(f"{place}.models", "is not a list of names")
    if len(models) > MAX_ROWS:
        raise ConfigError(f"{place}.models", f"has more than {MAX_ROWS} entries")
    columns = {}
    for name in COLUMNS:
        column = _list(f"{place}.{name}", values[name], unknown=name == "power_residual")
        if len(column) != len(models):
            raise ConfigError(f"{place}.{name}", "has not one number for each model")
        columns[name] = column
    for name, most in (("batch", math.inf), ("cap_share", 1.0)):
        if not all(0 < value <= most for value in columns[name]):
            raise ConfigError(f"{place}.{name}", "has numbers out of range")
    return Evidence(
        read_transfer(path, "evidence.prior", values["prior"]), tuple(models), columns if models else {}
    )


def _offsets(place: str, data: Any) -> WorkloadOffsets:
    values = _table(place, data, _OFFSETS)
    batches, time, supply = (_list(f"{place}.{key}", values[key]) for key in _OFFSETS)
    if not batches or min(batches) <= 0 or sorted(set(batches)) != list(batches):
        raise ConfigError(f"{place}.batches", "is not a list of rising numbers above 0")
    if not len(batches) == len(time) == len(supply):
        raise ConfigError(place, "has lists of different lengths")
    return WorkloadOffsets(batches, time, supply)


def _scores(place: str, data: Any) -> tuple[float, ...]:
    values = _list(place, data)
    if len(values) != len(SCORE_LEVELS) or values[0] <= 0 or sorted(values) != list(values):
        raise ConfigError(place, f"is not a list of {len(SCORE_LEVELS)} rising numbers above 0")
    return values


def _table(
    place: str, data: Any, keys: Iterable[str], optional: Sequence[str] = ("workloads",)
) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(place, "is no table")
    known = set(keys)
    for key in data:
        if key not in known:
            raise ConfigError(f"{place}.{shown(key)}", "unknown key")
    for key in sorted(known - set(data)):
        if key not in optional:
            raise ConfigError(f"{place}.{key}", "is missing")
    return {"workloads": {}} | data


def _list(place: str, data: Any, *, unknown: bool = False) -> tuple[float, ...]:
    if not isinstance(data, list):
        raise ConfigError(place, "is not a list of numbers")
    largest = 1e12 if place.endswith(("batch", "batches")) else _LARGEST
    return tuple(_checked(place, value, largest, unknown=unknown) for value in data)


def _checked(place: str, value: Any, largest: float = _LARGEST, *, unknown: bool = False) -> float:
    if type(value) not in (int, float) or not (abs(value) <= largest or (unknown and math.isnan(value))):
        raise ConfigError(place, f"{shown(repr(value), 40)} is not a number from {-largest:g} to {largest:g}")
    return float(value)


def _number(value: float) -> str:
    return repr(float(f"{value:.8g}"))


def _numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(map(_number, values))}]"
