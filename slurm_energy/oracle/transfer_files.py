"""Reading and writing of the TOML tables [transfer] and [evidence] in calibration files."""

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

_MAX_MAGNITUDE: Final = 100.0
"""Bound of logarithms and slopes, far beyond any real value."""
_TRANSFER: Final = ("sources", "cap_share", "workloads")
_SCORES: Final = ("time_scores", "power_scores")
_OFFSETS: Final = tuple(spec.name for spec in dataclasses.fields(WorkloadOffsets))


def transfer_lines(name: str, transfer: Transfer) -> list[str]:
    """Return the lines of a TOML table of a calibration file.

    The table stores the data with which predictions are transferred between kinds of devices.
    `read_transfer` reads the table.

    Args:
        name: name of the table.
        transfer: the data to store.
    """
    lines = ["", f"[{name}]", f"sources = [{', '.join(map(toml, transfer.sources))}]"]
    lines.append(f"cap_share = {_number(transfer.cap_share)}")
    lines += [f"{key} = {_numbers(getattr(transfer, key))}" for key in _SCORES]
    for workload, offsets in sorted(transfer.workloads.items()):
        lines += ["", f"[{name}.workloads.{toml(workload)}]"]
        lines += [f"{key} = {_numbers(getattr(offsets, key))}" for key in _OFFSETS]
    return lines


def evidence_lines(evidence: Evidence) -> list[str]:
    """Return the lines of the table [evidence] of a calibration file.

    The table holds the measurements from which predictions for a kind of device are made. `read_evidence`
    reads it.
    """
    lines = ["", "[evidence]", f"models = [{', '.join(map(toml, evidence.models))}]"]
    lines += [f"{name} = {_numbers(evidence.columns.get(name, ()))}" for name in COLUMNS]
    return lines + transfer_lines("evidence.prior", evidence.prior)


def read_transfer(path: Path, name: str, data: Any) -> Transfer:
    """Check a table of a calibration file that `transfer_lines` wrote, and return its content.

    Args:
        path: calibration file, for error messages.
        name: name of the table, for error messages.
        data: parsed table.

    Raises:
        ConfigError: a key or value is invalid. The message names the file and the key.
    """
    where = f"{path}: {name}"
    values = _table(where, data, (*_TRANSFER, *_SCORES), optional=("workloads", *_SCORES))
    sources = values["sources"]
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise ConfigError(f"{where}.sources", "is not a list of names")
    cap_share = _checked(f"{where}.cap_share", values["cap_share"])
    if not 0 < cap_share <= 1:
        raise ConfigError(f"{where}.cap_share", "is not above 0 and at most 1")
    if not isinstance(values["workloads"], dict):
        raise ConfigError(f"{where}.workloads", "is not a table")
    workloads = {
        workload: _offsets(f"{where}.workloads.{shown(workload)}", table)
        for workload, table in values["workloads"].items()
    }
    scores = {key: _scores(f"{where}.{key}", values[key]) for key in _SCORES if key in values}
    return Transfer(tuple(sources), cap_share, workloads, **scores)


def read_evidence(path: Path, data: Any) -> Evidence:
    """Check the table [evidence] of a calibration file and return its content.

    The table holds the data from which a kind of device with few or no measurements is predicted.

    Args:
        path: calibration file, for error messages.
        data: parsed table.

    Raises:
        ConfigError: a key or value is invalid. The message names the file and the key.
    """
    where = f"{path}: evidence"
    values = _table(where, data, ("models", *COLUMNS, "prior"))
    models = values["models"]
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise ConfigError(f"{where}.models", "is not a list of names")
    if len(models) > MAX_ROWS:
        raise ConfigError(f"{where}.models", f"has more than {MAX_ROWS} entries")
    columns = {}
    for name in COLUMNS:
        column = _list(f"{where}.{name}", values[name], unknown=name == "power_residual")
        if len(column) != len(models):
            raise ConfigError(f"{where}.{name}", "does not have one number per model")
        columns[name] = column
    for name, max_value in (("batch", math.inf), ("cap_share", 1.0)):
        if not all(0 < value <= max_value for value in columns[name]):
            raise ConfigError(f"{where}.{name}", "has numbers out of range")
    return Evidence(
        read_transfer(path, "evidence.prior", values["prior"]), tuple(models), columns if models else {}
    )


def _offsets(where: str, data: Any) -> WorkloadOffsets:
    values = _table(where, data, _OFFSETS)
    batches, time, supply = (_list(f"{where}.{key}", values[key]) for key in _OFFSETS)
    if not batches or min(batches) <= 0 or sorted(set(batches)) != list(batches):
        raise ConfigError(f"{where}.batches", "is not a list of increasing numbers above 0")
    if not len(batches) == len(time) == len(supply):
        raise ConfigError(where, "has lists of different lengths")
    return WorkloadOffsets(batches, time, supply)


def _scores(where: str, data: Any) -> tuple[float, ...]:
    values = _list(where, data)
    if len(values) != len(SCORE_LEVELS) or values[0] <= 0 or sorted(values) != list(values):
        raise ConfigError(where, f"is not a list of {len(SCORE_LEVELS)} increasing numbers above 0")
    return values


def _table(
    where: str, data: Any, keys: Iterable[str], optional: Sequence[str] = ("workloads",)
) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(where, "is not a table")
    known_keys = set(keys)
    for key in data:
        if key not in known_keys:
            raise ConfigError(f"{where}.{shown(key)}", "unknown key")
    for key in sorted(known_keys - set(data)):
        if key not in optional:
            raise ConfigError(f"{where}.{key}", "is missing")
    return {"workloads": {}} | data


def _list(where: str, data: Any, *, unknown: bool = False) -> tuple[float, ...]:
    if not isinstance(data, list):
        raise ConfigError(where, "is not a list of numbers")
    max_magnitude = 1e12 if where.endswith(("batch", "batches")) else _MAX_MAGNITUDE
    return tuple(_checked(where, value, max_magnitude, unknown=unknown) for value in data)


def _checked(
    where: str, value: Any, max_magnitude: float = _MAX_MAGNITUDE, *, unknown: bool = False
) -> float:
    if type(value) not in (int, float) or not (
        abs(value) <= max_magnitude or (unknown and math.isnan(value))
    ):
        raise ConfigError(
            where, f"{shown(repr(value), 40)} is not a number from {-max_magnitude:g} to {max_magnitude:g}"
        )
    return float(value)


def _number(value: float) -> str:
    return repr(float(f"{value:.8g}"))


def _numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(map(_number, values))}]"
