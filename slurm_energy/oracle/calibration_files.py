"""Reading, checking and writing of calibration files (TOML).

The package contains calibration files, and sites can add others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurm_energy.config.schema_document import toml
from slurm_energy.errors import ConfigError, EnergyError
from slurm_energy.oracle.hardware import find_hardware
from slurm_energy.oracle.training.parameters import Calibration, Scalars, Spread, Theta, bounds_of
from slurm_energy.oracle.training.residuals import EXTRAPOLATION_NODES, Residuals
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.transfer.evidence import Evidence
from slurm_energy.oracle.transfer.prior import Transfer, combined
from slurm_energy.oracle.transfer_files import evidence_lines, read_evidence, read_transfer, transfer_lines
from slurm_energy.quantities import shown

_DIRECTORY = Path(__file__).resolve().parent / "calibrated"
_MAX_VALUE = 1e18
_PLAIN = ("hardware", "saturation", "basis", "fitted_unix_s", "rows")
_OTHERS = ("workloads", "supply_ratios", "measured_gpus", "residuals", "transfer", "evidence")
_TABLES: dict[str, type[Any]] = {"theta": Theta, "measured_spread": Spread, "unmeasured_spread": Spread}


@functools.cache
def shipped_calibration(hardware: str) -> Calibration:
    """Return the calibration of the training model for a kind of device, from the shipped files.

    If slurm-energy contains no measurements of a GPU, the calibration predicts the GPU from measured GPUs
    of other kinds (`oracle.transfer`).

    Args:
        hardware: name of the hardware file.
    """
    path = _DIRECTORY / f"{hardware}.toml"
    if path.exists():
        return load_calibration(path)
    with contextlib.suppress(EnergyError):
        if find_hardware(hardware).kind != "gpu":
            return Calibration(hardware)
    prior = shipped_prior(hardware)
    return Calibration(
        hardware,
        evidence=Evidence(prior),
        basis=f"not measured, predicted from {' and '.join(prior.sources)}",
    )


@functools.cache
def shipped_prior(hardware: str) -> Transfer:
    """Return what is known about one kind of device from measurements of other kinds.

    The result combines the calibrations of all other kinds that slurm-energy contains.

    Args:
        hardware: name of the hardware file.
    """
    others = [load_calibration(path) for path in sorted(_DIRECTORY.glob("*.toml")) if path.stem != hardware]
    return combined([other.transfer for other in others if other.transfer is not None])


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = [
        "# Written by senergy calibrate. [theta]: the device; [workloads.*]: factors of single workloads;",
        "# [*_spread]: 5 and 95 % quantiles of measured / predicted, of workloads with factors and without;",
        "# [measured_gpus.*]: largest number of devices that were measured together, by precision;",
        "# [residuals.*]: factors on time and power by batch (rows) and power limit (columns);",
        "# [transfer]: knowledge for other kinds; [evidence]: prior from other kinds, and few measurements.",
    ]
    plain = {key: getattr(calibration, key) for key in _PLAIN}
    lines += [f"{key} = {toml(value)}" for key, value in plain.items() if value is not None]
    tables = {name: getattr(calibration, name) for name in _TABLES}
    tables |= {f"workloads.{toml(name)}": values for name, values in sorted(calibration.workloads.items())}
    for name, values in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {float(f'{value:.6g}')!r}" for key, value in dataclasses.asdict(values).items()]
    lines += ["", "[supply_ratios]"]
    lines += [
        f"{toml(name)} = {float(f'{value:.6g}')!r}" for name, value in calibration.supply_ratios.items()
    ]
    for name, counts in sorted((calibration.measured_gpus or {}).items()):
        lines += ["", f"[measured_gpus.{toml(name)}]"]
        lines += [f"{precision} = {count}" for precision, count in sorted(counts.items())]
    for (name, precision), residuals in sorted(calibration.residuals.items()):
        lines += ["", f"[residuals.{toml(name)}.{precision}]"]
        lines += [f"{key} = {_numbers(value)}" for key, value in dataclasses.asdict(residuals).items()]
    if calibration.transfer is not None:
        lines += transfer_lines("transfer", calibration.transfer)
    if calibration.evidence is not None:
        lines += evidence_lines(calibration.evidence)
    try:
        _replace(path.resolve(), "\n".join(lines) + "\n")
    except OSError as error:
        raise _unwritable(path, error) from None


def check_writable(path: Path) -> None:
    """Check that `save_calibration` can write a file, before a calibration that takes hours starts.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _is_special(path):
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
    except OSError as error:
        raise _unwritable(path, error) from None


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically. If `path` is a pipe or a terminal, the text is written to it directly."""
    if _is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(str(path), error.strerror or str(error), "name a file that you may write")


def _numbers(values: Any) -> str:
    """Return the TOML text of a list of numbers, or of a list of lists with one line per inner list."""
    if not isinstance(values[0], (int, float)):
        return "[\n" + "".join(f"    {_numbers(row)},\n" for row in values) + "]"
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: the file is unreadable or not TOML, a key is unknown, or a value is out of bounds. The
            message names the file and the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "name a file that senergy calibrate wrote") from None
    for key in data:
        if key not in (*_PLAIN, *_TABLES, *_OTHERS):
            raise ConfigError(f"{path}: {shown(key)}", "unknown key")
    _check_plain(path, data)
    tables = {name: _table(path, name, cls, data.get(name)) for name, cls in _TABLES.items() if name in data}
    workloads = {
        name: _table(path, f"workloads.{shown(name)}", Scalars, values)
        for name, values in _entries(f"{path}: workloads", data.get("workloads", {}))
    }
    ratios = data.get("supply_ratios", {})
    if not isinstance(ratios, dict) or not all(map(_not_negative, ratios.values())):
        raise ConfigError(f"{path}: supply_ratios", "is not a table of numbers of at least 0")
    plain = {key: data[key] for key in _PLAIN if key in data}
    residuals = _residuals(path, data.get("residuals", {}))
    return Calibration(
        **plain,
        **tables,
        workloads=workloads,
        supply_ratios=ratios,
        measured_gpus=_measured_gpus(path, data["measured_gpus"]) if "measured_gpus" in data else None,
        residuals=residuals,
        transfer=read_transfer(path, "transfer", data["transfer"]) if "transfer" in data else None,
        evidence=read_evidence(path, data["evidence"]) if "evidence" in data else None,
    )


def _check_plain(path: Path, data: dict[str, Any]) -> None:
    """Check the scalar values of a calibration file; all except `hardware` are optional."""
    if data.get("saturation", "sigmoid") not in [*SATURATIONS]:
        raise ConfigError(f"{path}: saturation", f"is not one of {', '.join(SATURATIONS)}")
    if not isinstance(data.get("hardware"), str):
        raise ConfigError(f"{path}: hardware", "is missing or not a string")
    if not isinstance(data.get("basis", ""), str):
        raise ConfigError(f"{path}: basis", "is not a string")
    if not _not_negative(data.get("fitted_unix_s", 0)):
        raise ConfigError(f"{path}: fitted_unix_s", "is not a number of at least 0")
    if not (type(data.get("rows", 0)) is int and data.get("rows", 0) >= 0):
        raise ConfigError(f"{path}: rows", "is not a count")


def _measured_gpus(path: Path, tables: Any) -> dict[str, dict[str, int]]:
    measured: dict[str, dict[str, int]] = {}
    for name, by_precision in _entries(f"{path}: measured_gpus", tables):
        where = f"{path}: measured_gpus.{shown(name)}"
        measured[name] = dict(_entries(where, by_precision))
        if not all(type(count) is int and count > 0 for count in measured[name].values()):
            raise ConfigError(where, "is not a table of counts above 0")
    return measured


def _residuals(path: Path, tables: Any) -> dict[tuple[str, str], Residuals]:
    residuals = {}
    for name, by_precision in _entries(f"{path}: residuals", tables):
        for precision, values in _entries(f"{path}: residuals.{shown(name)}", by_precision):
            where = f"{path}: residuals.{shown(name)}.{shown(precision)}"
            tables = dict(_entries(where, values))
            if set(tables) != {spec.name for spec in dataclasses.fields(Residuals)}:
                raise ConfigError(where, "must have exactly the keys batches, caps_watts, time and power")
            _check_tables(where, tables)
            residuals[name, precision] = Residuals(**tables)
    return residuals


def _entries(where: str, table: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(table, dict):
        raise ConfigError(where, "is not a table")
    return table.items()


def _check_tables(where: str, tables: dict[str, Any]) -> None:
    batches, caps = tables["batches"], tables["caps_watts"]
    for key, axis, min_count in (("batches", batches, 2 * EXTRAPOLATION_NODES + 1), ("caps_watts", caps, 1)):
        if not _positive(axis) or len(axis) < min_count or sorted(set(axis)) != axis:
            raise ConfigError(f"{where}.{key}", f"is not {min_count} or more increasing numbers above 0")
    for key in ("time", "power"):
        table = tables[key]
        if not isinstance(table, list) or len(table) != len(batches):
            raise ConfigError(f"{where}.{key}", "does not have one row per batch")
        if not all(_positive(row) and len(row) == len(caps) for row in table):
            raise ConfigError(f"{where}.{key}", "does not have one factor above 0 per limit in each row")


def _is_quantile(key: str, value: float) -> bool:
    """Return whether a value is plausible for a quantile of measured values over predicted values.

    `key` names the quantile. It ends with `_low` for a low quantile. A low quantile must be at most 1, and a
    high quantile at least 1, so that a prediction lies in its own range. A value too far from 1 is not
    plausible, so that products of such values stay finite.
    """
    return 1e-6 <= value <= 1.0 if key.endswith("_low") else 1.0 <= value <= 1e6


def _positive(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) in (int, float) and 0 < value < _MAX_VALUE for value in values
    )


def _not_negative(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MAX_VALUE


def _table(path: Path, name: str, cls: type[Any], values: Any) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {name}", "is not a table")
    known_keys = {spec.name for spec in dataclasses.fields(cls)}
    bounds = bounds_of(cls) if cls is not Spread else {}
    for key, value in values.items():
        where = f"{path}: {name}.{shown(key)}"
        if key not in known_keys:
            raise ConfigError(where, "unknown key")
        if type(value) not in (int, float) or not -_MAX_VALUE < value < _MAX_VALUE:
            raise ConfigError(where, "is not a number")
        bound = bounds.get(key)
        if bound is not None and not bound.low * 0.999 - 1e-12 <= value <= bound.high * 1.001:
            raise ConfigError(where, f"{value} is not from {bound.low} to {bound.high}")
        if bound is None and not _is_quantile(key, value):
            raise ConfigError(where, f"{value} excludes 1 from the range")
    try:
        return cls(**values)
    except TypeError:
        raise ConfigError(f"{path}: {name}", "a key is missing") from None
