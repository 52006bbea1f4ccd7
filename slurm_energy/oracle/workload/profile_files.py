"""Reader and writer of JSON files with workload profiles (operations and memory of a network).

The files come from the package slurm-energy or from users.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError, NotFoundError
from slurm_energy.oracle.workload.optimizers import OPTIMIZERS
from slurm_energy.oracle.workload.profile import QUANTITIES, SCHEMA, Affine, WorkloadProfile
from slurm_energy.quantities import shown

_DIRECTORY = Path(__file__).resolve().parent / "profiles"
_COUNTS = ("parameters", "trainable", "parameter_tensors")
_TEXTS = ("name", "description", "origin", "optimizer", "dataset")
_MAX_VALUE = 1e24
"""Bound on the values in a file, so that predictions stay finite."""


@functools.cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


def find_profile(name_or_path: str) -> WorkloadProfile:
    """Return the workload profile with a name, or the profile in a `.json` file.

    Raises:
        NotFoundError: no profile has this name. The message lists similar names.
        ConfigError: the file is invalid.
    """
    if name_or_path.endswith(".json"):
        return load_profile(Path(name_or_path))
    if name_or_path in _adopted:
        return _adopted[name_or_path]
    name = name_or_path.lower().replace("_", "-")
    if name in profile_names():
        return _shipped(name)
    near = difflib.get_close_matches(name, profile_names(), n=3, cutoff=0.4)
    raise NotFoundError(
        f"model '{shown(name_or_path)}'",
        "no such workload profile",
        f"near names: {', '.join(near or profile_names())}; or the path of a profile",
    )


def adopt_profile(path: Path) -> WorkloadProfile:
    """Read a profile file and register the profile, so that `find_profile` finds it by its name.

    Calibrations refer to workloads by this name.

    Raises:
        ConfigError: the file is invalid, or another profile has the same name.
    """
    profile = load_profile(path)
    existing = _adopted.get(profile.name) or (
        _shipped(profile.name) if profile.name in profile_names() else profile
    )
    if replace(existing, description="", origin="") != replace(profile, description="", origin=""):
        raise ConfigError(f"{path}: name", f"another profile is called {shown(profile.name)}", "rename it")
    return _adopted.setdefault(profile.name, profile)


_adopted: dict[str, WorkloadProfile] = {}


@functools.cache
def _shipped(name: str) -> WorkloadProfile:
    return load_profile(_DIRECTORY / f"{name}.json")


def load_profile(path: Path) -> WorkloadProfile:
    """Read a workload profile from a JSON file.

    Raises:
        ConfigError: the file is unreadable or not JSON, a key is missing, or a value is invalid.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(str(path), reason, "trace the model again") from None
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ConfigError(f"{path}: schema", f"is not {SCHEMA}", "trace the model again")
    fields = {field.name: field for field in dataclasses.fields(WorkloadProfile)}
    for key in data:
        if key not in fields:
            raise ConfigError(f"{path}: {shown(key)}", "unknown key")
    for key, field in fields.items():
        if field.default is dataclasses.MISSING and key not in data:
            raise ConfigError(f"{path}: {key}", "is missing")
    return WorkloadProfile(**{key: _value(path, key, value) for key, value in data.items()})


def save_profile(profile: WorkloadProfile, path: Path) -> None:
    """Write a workload profile to a JSON file with one key per line.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in profile.to_json().items())
    try:
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "name a file that you may write") from None


def _value(path: Path, key: str, value: Any) -> Any:
    if key in QUANTITIES:
        if not (isinstance(value, list) and len(value) == 2 and all(map(_finite, value))):
            raise ConfigError(f"{path}: {key}", "is not [fixed, per sample]")
        return Affine(float(value[0]), float(value[1]))
    if key == "shared_weights" and type(value) is not bool:
        raise ConfigError(f"{path}: {key}", "is neither true nor false")
    if key in _COUNTS and not (type(value) is int and 0 <= value < _MAX_VALUE):
        raise ConfigError(f"{path}: {key}", "is not a count")
    if key in _TEXTS and not isinstance(value, str):
        raise ConfigError(f"{path}: {key}", "is not a string")
    if key == "samples_per_epoch" and not (value is None or (type(value) is int and 0 < value < _MAX_VALUE)):
        raise ConfigError(f"{path}: {key}", "is not a count")
    if key == "optimizer" and value not in OPTIMIZERS:
        raise ConfigError(f"{path}: {key}", f"is not one of {', '.join(OPTIMIZERS)}")
    return value


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and -_MAX_VALUE < value < _MAX_VALUE
