"""Reader of node profiles (TOML files). It validates every key.

Errors name the file and the key. No other module depends on the file format.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy_lab.model import random_profile
from slurm_energy_lab.model.profile import (
    ACTIVE_DRIVERS,
    CPUFREQ_DRIVERS,
    CpufreqProfile,
    CpuProfile,
    GpuProfile,
    NodeProfile,
    RaplProfile,
)

Rule = tuple[str, bool, str]
"""Key, whether its value is valid, and the error message if not."""

_DIRECTORY = Path(__file__).resolve().parent.parent / "profiles"
_RANDOM = re.compile(r"random-(cpu|gpu)-(\d{1,9})")
UNKNOWN_PROFILE = "random-gpu-0"
"""Name of the demonstration's profile of hardware that no table lists."""
_GENERIC_GOVERNOR = "schedutil"
"""Default governor of current kernels for drivers with the generic governors."""
_DRIVER_EPP = "balance_performance"


def profile_names() -> tuple[str, ...]:
    """Return the names of the node profiles that come with the package."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.toml")))


def draw_profile(seed: int, gpus: bool) -> dict[str, Any]:
    """Return the data of a node profile with random coefficients within physical ranges.

    The profile is also available by name: `random-gpu-SEED` or `random-cpu-SEED`.

    Args:
        seed: seed of the random numbers.
        gpus: whether the node has GPUs.
    """
    return random_profile.draw(seed, gpus, profile_data)


def profile_data(name_or_path: str | Path) -> dict[str, Any]:
    """Return the unchecked data of a profile file.

    Args:
        name_or_path: as in `load_profile`.

    Raises:
        ConfigError: the name is unknown, or the file is unreadable or not TOML.
    """
    if match := _RANDOM.fullmatch(str(name_or_path)):
        return draw_profile(int(match[2]), match[1] == "gpu")
    path = _path(name_or_path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"profile {path}", why=str(error)) from None


def load_profile(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> NodeProfile:
    """Read a node profile.

    Args:
        name_or_path: a name in `profile_names()`, the name of a random profile (see `draw_profile`), or a
            path that ends in `.toml`.
        overrides: values by dotted key, for example `{"cpufreq.driver": "acpi-cpufreq"}`. If the driver is
            overridden, the governor and the energy performance preference are the defaults of the new driver,
            unless they are overridden too.

    Raises:
        ConfigError: the name is unknown, the file is unreadable, or a key is unknown, missing or invalid.
    """
    data = profile_data(name_or_path)
    path = Path(name_or_path) if _RANDOM.fullmatch(str(name_or_path)) else _path(name_or_path)
    for key, value in (overrides or {}).items():
        _override(path, data, key, value)
    _complete_cpufreq(path, data)
    _complete_gpu(path, data)
    profile: NodeProfile = _build(path, "", NodeProfile, data)
    for key, why in _faults(profile):
        raise ConfigError(f"profile {path}: {key}", why=why)
    return profile


def _path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    if str(name_or_path) not in profile_names():
        raise ConfigError(
            f"profile '{str(name_or_path)[:60]}' is not known",
            todo=f"one of {', '.join(profile_names())}, random-cpu-SEED, random-gpu-SEED, or the path of a "
            ".toml file",
        )
    return _DIRECTORY / f"{name_or_path}.toml"


def _override(path: Path, data: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    if sections == ["resctrl"]:  # no shipped profile has this section
        data.setdefault("resctrl", {})
    table: Any = data
    for section in sections:
        table = table.get(section) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"profile {path}: override '{key}'", why="no such section")
    if key == "cpufreq.driver" and value != table.get("driver"):
        table.pop("governor", None)
        table.pop("epp", None)
    table[last] = value


def _complete_cpufreq(path: Path, data: dict[str, Any]) -> None:
    """Add the values that follow from the cpufreq driver to the profile data.

    The values are the governor, the energy performance preference, the frequency table and `cpuinfo_max_khz`.
    """
    cpufreq = data.get("cpufreq")
    if not isinstance(cpufreq, dict):
        raise ConfigError(f"profile {path}: cpufreq", why="section missing")
    driver, table = cpufreq.get("driver"), cpufreq.pop("table_khz", None)
    if not isinstance(table, list) or not table or not all(isinstance(khz, int) for khz in table):
        raise ConfigError(f"profile {path}: cpufreq.table_khz", why="not a list of kHz")
    active = driver in ACTIVE_DRIVERS
    cpufreq.setdefault("governor", "powersave" if active else _GENERIC_GOVERNOR)
    cpufreq.setdefault("epp", _DRIVER_EPP if active else None)
    uses_table = driver == "acpi-cpufreq"
    cpufreq["available_khz"] = table if uses_table else []
    cpufreq["cpuinfo_max_khz"] = table[0] if uses_table else cpufreq.get("max_khz")


def _complete_gpu(path: Path, data: dict[str, Any]) -> None:
    """Complete the GPU section of a hardware profile with the list of graphics clocks.

    The file states only the maximum, the minimum and the step of the clocks.
    """
    gpu = data.get("gpu")
    if not isinstance(gpu, dict) or "graphics_clocks_mhz" in gpu:
        return
    steps = gpu.pop("graphics_clocks", None)
    keys = ("highest_mhz", "lowest_mhz", "step_mhz")
    if not (isinstance(steps, dict) and all(isinstance(steps.get(k), int) and steps[k] > 0 for k in keys)):
        raise ConfigError(
            f"profile {path}: gpu.graphics_clocks", why=f"needs {', '.join(keys)}, whole numbers"
        )
    highest, lowest, step = (steps[key] for key in keys)
    gpu["graphics_clocks_mhz"] = list(range(highest, lowest - 1, -step))


def _build(path: Path, prefix: str, cls: type[Any], data: Any) -> Any:
    """Build an instance of the dataclass `cls` from a TOML table.

    `prefix` is the dotted key of the table.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"profile {path}: {prefix or 'file'}", why="not a table")
    hints = typing.get_type_hints(cls)
    dotted = f"{prefix}." if prefix else ""
    if unknown := sorted(set(data) - set(hints)):
        raise ConfigError(f"profile {path}: {dotted}{unknown[0]}", why="unknown key")
    values = {}
    for field in dataclasses.fields(cls):
        if field.name not in data and field.default is not dataclasses.MISSING:
            continue
        if field.name not in data and not _optional(hints[field.name]):
            raise ConfigError(f"profile {path}: {dotted}{field.name}", why="missing")
        values[field.name] = _convert(path, dotted + field.name, hints[field.name], data.get(field.name))
    return cls(**values)


def _optional(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)


def _convert(path: Path, key: str, hint: Any, value: Any) -> Any:
    """Return the value of a TOML key converted to the type `hint` of the dataclass field."""
    if _optional(hint):
        if value is None:
            return None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if dataclasses.is_dataclass(hint):
        return _build(path, key, typing.cast("type[Any]", hint), value)
    if typing.get_origin(hint) is tuple:
        return _convert_tuple(path, key, typing.get_args(hint), value)
    accepts = {float: (int, float), int: (int,), str: (str,), bool: (bool,)}[hint]
    if not isinstance(value, accepts) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"profile {path}: {key}", why=f"{value!r} is not {hint.__name__}")
    if isinstance(value, (int, float)) and not 0 <= value < math.inf:
        raise ConfigError(f"profile {path}: {key}", why=f"{value!r} is below 0 or not finite")
    return hint(value)


def _convert_tuple(path: Path, key: str, arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"profile {path}: {key}", why="not a list")
    if arguments[-1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise ConfigError(f"profile {path}: {key}", why=f"not {len(arguments)} values")
    pairs = zip(arguments, value, strict=True)
    return tuple(_convert(path, f"{key}[{index}]", hint, item) for index, (hint, item) in enumerate(pairs))


def _faults(profile: NodeProfile) -> list[tuple[str, str]]:
    """Return the key and the reason of every invalid value in a hardware profile.

    A value is also invalid if it contradicts another value.
    """
    rules = _cpu_rules(profile.cpu, profile.cpufreq) + _rapl_rules(profile.rapl)
    meters = profile.other.power_meters in (None, "acpi", "grace", "none")
    rules.append(("other.power_meters", meters, "not acpi, grace or none"))
    if profile.resctrl is not None:
        rules.append(("resctrl.num_rmids", profile.resctrl.num_rmids > 0, "the root group needs one"))
    if profile.gpu is not None:
        rules += _gpu_rules(profile.gpu)
    return [(key, why) for key, holds, why in rules if not holds]


def _cpu_rules(cpu: CpuProfile, cpufreq: CpufreqProfile) -> list[Rule]:
    return [
        ("cpu.packages", cpu.cpus > 0 and cpu.packages > 0, "no CPUs"),
        ("cpu.numa_nodes", 0 < cpu.numa_nodes <= cpu.cores, "not 1 to the number of cores"),
        ("cpu.turbo_bins", _rising_cores(cpu.turbo_bins, cpu.cores_per_package), "not rising cores"),
        ("cpu.turbo_bins", all(khz <= cpufreq.max_khz for _, khz in cpu.turbo_bins), "above max_khz"),
        ("cpu.flops_per_cycle", cpu.flops_per_cycle > 0, "must be above 0"),
        ("cpu.package_bytes_per_s", cpu.package_bytes_per_s > 0, "must be above 0"),
        ("cpu.core_bytes_per_s", cpu.core_bytes_per_s > 0, "must be above 0"),
        ("cpu.core_memory_cycles_share", cpu.core_memory_cycles_share <= 1, "above 1"),
        ("cpu.voltage_max", 0 < cpu.voltage_floor <= cpu.voltage_max, "below voltage_floor"),
        ("cpu.voltage_knee_khz", cpu.voltage_knee_khz < cpufreq.max_khz, "not below max_khz"),
        ("cpu.system_cpus", cpu.system_cpus < cpu.cpus, "not below the number of CPUs"),
        ("cpufreq.driver", cpufreq.driver in CPUFREQ_DRIVERS, f"one of {', '.join(CPUFREQ_DRIVERS)}"),
        ("cpufreq.governor", cpufreq.governor in cpufreq.governors, "not offered by the driver"),
        ("cpufreq.min_khz", 0 < cpufreq.min_khz <= cpufreq.base_khz, "not up to base_khz"),
        ("cpufreq.base_khz", cpufreq.base_khz <= cpufreq.max_khz, "above max_khz"),
        ("cpufreq.table_khz", _falling(cpufreq.available_khz), "not falling"),
    ]


def _rapl_rules(rapl: RaplProfile) -> list[Rule]:
    return [
        (
            "rapl.constraints",
            [c.name for c in rapl.constraints] in ([], ["long_term"], ["long_term", "short_term"]),
            "not long_term, short_term in this order",
        ),
        (
            "rapl.constraints",
            all(c.window_s > 0 for c in rapl.constraints),
            "window_s must be above 0",
        ),
        ("rapl.dies", rapl.dies is None or 1 <= rapl.dies <= 16, "not 1 to 16"),
    ]


def _gpu_rules(gpu: GpuProfile) -> list[Rule]:
    return [
        ("gpu.count", gpu.count > 0, "no GPUs: leave the section out"),
        ("gpu.graphics_clocks_mhz", _falling(gpu.graphics_clocks_mhz), "not falling"),
        ("gpu.graphics_clocks_mhz", len(gpu.graphics_clocks_mhz) > 0, "empty"),
        ("gpu.memory_clocks_mhz", len(gpu.memory_clocks_mhz) > 0, "empty"),
        ("gpu.memory_clocks_mhz", _falling(gpu.memory_clocks_mhz), "not falling"),
        ("gpu.power_profiles", len(gpu.power_profiles) <= 32, "more than 32"),
        (
            "gpu.power_profiles",
            all(0 <= n < 255 for one in gpu.power_profiles for n in (one.number, *one.conflicts)),
            "numbers are 0 to 254",
        ),
        ("gpu.flops_per_s", gpu.flops_per_s > 0, "must be above 0"),
        ("gpu.bytes_per_s", gpu.bytes_per_s > 0, "must be above 0"),
        ("gpu.voltage_max", 0 < gpu.voltage_floor <= gpu.voltage_max, "below voltage_floor"),
        ("gpu.bandwidth_knee_mhz", gpu.bandwidth_knee_mhz > 0, "must be above 0"),
        (
            "gpu.default_limit_watts",
            gpu.min_limit_watts <= gpu.default_limit_watts <= gpu.max_limit_watts,
            "not between min_limit_watts and max_limit_watts",
        ),
    ]


def _falling(numbers: tuple[int, ...]) -> bool:
    return all(left > right for left, right in itertools.pairwise(numbers)) and all(numbers)


def _rising_cores(bins: tuple[tuple[int, int], ...], cores: int) -> bool:
    counts = [count for count, _ in bins]
    return bool(counts) and counts == sorted(set(counts)) and counts[0] > 0 and counts[-1] >= cores
