"""Texts of scenario files: shipped scenarios, and files that extend another one."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.simulator.deferral.deferral_schema import SIGNAL_FILES
from slurm_energy.spelling import suggestion

_SHIPPED = Path(__file__).parent / "scenarios"
_FILES = (
    *(("workload", "file"), ("power", "budget_file"), ("power", "price_file"), ("power", "carbon_file")),
    *(("signals", name) for name in SIGNAL_FILES.values()),
)
"""Keys that name files relative to the scenario."""


def shipped() -> list[str]:
    """Return the names of the scenarios that the package contains."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def locate(name: str) -> Path:
    """Return the path of a scenario: the shipped scenario of this name, or else the file `name`."""
    return _SHIPPED / f"{name}.toml" if name in shipped() else Path(name)


def text_of(path: Path) -> str:
    """Return the text of a scenario file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        close = suggestion(path.name, shipped())
        raise ConfigError(
            shown(str(path), 200), reason, close or f"a file, or one of {', '.join(shipped())}"
        ) from None


def with_base(text: str, path: Path, depth: int) -> tuple[dict[str, Any], str]:
    """Return the tables of a scenario file, including the tables that the file inherits.

    The key `extends` of the file names another scenario from which the file inherits. If both scenarios
    contain the same key, the value of the extending file applies.

    Args:
        text: text of the scenario file.
        path: path of the scenario file.
        depth: number of scenarios that extend this one, to detect cycles.

    Returns:
        The merged tables, and the texts of both files.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}", f"not TOML: {error}") from None
    name = data.get("extends")
    if name is None:
        return data, text
    base_path = locate(str(name)) if name in shipped() else path.parent / str(name)
    if depth > 8:
        raise ConfigError(
            f"{path}: extends", "more than 8 scenarios extend one another", "does one extend itself?"
        )
    base, texts = with_base(text_of(base_path), base_path, depth + 1)
    for section, key in _FILES:
        if isinstance(base.get(section), dict) and base[section].get(key):
            base[section][key] = str(base_path.parent.absolute() / str(base[section][key]))
    _inherit_workload_files(base.get("workload"), data.get("workload"), base_path.parent.absolute())
    for site in base["site"].values() if isinstance(base.get("site"), dict) else ():
        for key in ("price_file", "carbon_file"):
            if isinstance(site, dict) and site.get(key):
                site[key] = str(base_path.parent.absolute() / str(site[key]))
    return _over(base, data), f"{texts}\n{text}"


def _inherit_workload_files(base: Any, own: Any, folder: Path) -> None:
    """Prepare the workload files that a scenario inherits from the scenario that it extends.

    Relative paths in `files` of the extended scenario become absolute. If the extending scenario names other
    workload files, the inherited file or files are removed.

    Args:
        base: table `[workload]` of the extended scenario; changed in place.
        own: table `[workload]` of the extending scenario.
        folder: folder of the extended scenario.
    """
    if not isinstance(base, dict):
        return
    if isinstance(base.get("files"), list):
        base["files"] = [str(folder / str(name)) for name in base["files"]]
    if isinstance(own, dict) and ("file" in own or "files" in own):
        for name in ("file", "files"):
            base.pop(name, None)


def _over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the table `base` in which the values from the table `data` are set.

    If a key has a table in both `base` and `data`, the two tables are merged recursively. The table
    `sweep` is an exception. It and all other values, for example lists, are taken from `data` as a whole.
    """
    merged = dict(copy.deepcopy(base))
    for name, value in data.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and name != "sweep":
            value = _over(old, value)
        merged[name] = value
    return merged
