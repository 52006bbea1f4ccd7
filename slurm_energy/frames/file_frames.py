"""Data frames with the results of `senergy simulate` and `senergy sweep`, read from files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.frames.typed_frame import pandas_module
from slurm_energy.sweep.data_frame import read_sweep

_TABLES: Final = ("jobs", "power", "summary")


def simulation(folder: str | Path, table: str = "summary") -> Any:
    """Return one table of the results that `senergy simulate --out DIR` wrote.

    Args:
        folder: path of the directory DIR or, if the scenario has several variants, path of the directory of
            one variant.
        table: `summary` (one row per policy and seed), `jobs` or `power`. The frames of jobs and of power
            contain the rows of all policies, distinguished by the column `policy`.

    Returns:
        Data frame with the columns of the files; names contain units (`time_s`, `energy_joules`).

    Raises:
        NotFoundError: the directory does not contain the files of the table.
        UsageError: the table is unknown, or a file cannot be parsed.
        UnavailableError: pandas, or pyarrow for Parquet files, is not installed.
    """
    pandas = pandas_module()
    if table not in _TABLES:
        raise UsageError(f"table: '{table}' is unknown", todo=f"one of {', '.join(_TABLES)}")
    pattern = "summary.*" if table == "summary" else f"{table}-*.*"
    paths = [path for path in sorted(Path(folder).glob(pattern)) if path.suffix in _readers(pandas)]
    if not paths:
        raise NotFoundError(f"{folder}", f"no file {pattern} of senergy simulate --out")
    frames = []
    for path in paths:
        try:
            frame = _readers(pandas)[path.suffix](path)
        except (ValueError, OSError) as error:
            raise UsageError(f"{path}", f"cannot be read: {error}") from None
        if table != "summary":
            frame.insert(0, "policy", path.stem.removeprefix(f"{table}-"))
        frames.append(frame)
    return pandas.concat(frames, ignore_index=True)


def _readers(pandas: Any) -> Mapping[str, Callable[[Path], Any]]:
    return {
        ".csv": pandas.read_csv,
        ".parquet": pandas.read_parquet,
        ".json": lambda path: pandas.DataFrame(json.loads(path.read_text())),
    }


def sweep(path: str | Path) -> Any:
    """Return the points (combinations of settings) of a sweep, one row per point; row 0 is the reference.

    Args:
        path: state file of `senergy sweep`, or a directory that contains exactly one state file.

    Raises:
        NotFoundError: the file does not exist.
        UsageError: the file is not the state of a sweep, or the directory contains several state files.
        UnavailableError: pandas is not installed.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted(place.glob("senergy-sweep-*.json"))
        if len(files) > 1:
            raise UsageError(f"{path}", f"{len(files)} sweeps", f"name one, such as {files[0].name}")
        if not files:
            raise NotFoundError(f"{path}", "no senergy-sweep-*.json in this directory")
        place = files[0]
    return read_sweep(place)
