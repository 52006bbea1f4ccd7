"""Summaries of the sections of a job over all its processes.

A section is a named part of the program whose time and energy are measured. The summaries can be exported to
CSV and pandas.

All processes of a job on one node measure the same joules. A sum over the processes would therefore count
these joules several times; `summarise` avoids this error.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.profiling.user_files import list_directory, open_regular
from slurm_energy.quantities import is_number
from slurm_energy.safe_text import escape_csv

_KEYS = ("job_id", "step", "node", "rank", "pid", "thread", "start", "seconds", "total_joules", "mean_watts")
_TAIL = ("source", "age_s", "failed")
_TEXTS: Final = ("section", "step", "node", "thread", "source", "failed")
_NUMBERS: Final = ("job_id", "rank", "total_joules", "mean_watts", "age_s")
_MAX_LINE_BYTES: Final = 1 << 20
_MAX_NUMBER: Final = 1e18
SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class SectionSummary:
    """Summary of one section over all processes of a job.

    Attributes:
        path: names of the nested sections, from the outermost section to this section.
        calls: number of executions in all processes.
        processes: number of threads, over all processes, that executed the section.
        nodes: number of nodes on which the section was executed.
        seconds: total time that a thread spent in the section; the maximum over the threads.
        energy_joules: joules by component over all nodes; None for a component whose energy is unknown.
        total_joules: joules of all components; None if the energy of any component is unknown.
        failed: number of executions that ended in an exception.
    """

    path: tuple[str, ...]
    calls: int
    processes: int
    nodes: int
    seconds: float
    energy_joules: dict[str, float | None]
    total_joules: float | None
    failed: int

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a dict for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"path": list(self.path)}


def read_lines(directory: Path | str) -> list[dict[str, Any]]:
    """Return the measured sections of programs that files in a directory contain, ordered by start.

    The files have names `*.jsonl`. Incomplete lines are skipped, because killed programs may leave them
    behind. Lines with impossible values, FIFOs, devices and symbolic links of other users are also skipped,
    because the directory may belong to another user.

    Returns:
        One dict per section, with the keys described in docs/user-guide.md.

    Raises:
        NotFoundError: the directory does not exist or contains no section.
        UsageError: the path contains a symbolic link of another user.
    """
    folder = Path(directory)
    lines: list[dict[str, Any]] = []
    try:
        names = list_directory(folder) or []
    except OSError:
        names = []
    for name in sorted(name for name in names if name.endswith(".jsonl")):
        with contextlib.suppress(OSError, UsageError), open_regular(folder / name) as file:
            lines += filter(None, map(_parsed, iter(lambda: file.readline(_MAX_LINE_BYTES), b"")))
    if not lines:
        raise NotFoundError(
            f"{folder}", "contains no section", "name the directory that the job's programs wrote to"
        )
    return sorted(lines, key=lambda line: line["start"])


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
        path, joules = line["path"], line["energy_joules"]
        is_valid = bool(path) and isinstance(path, list) and all(isinstance(name, str) for name in path)
        is_valid = is_valid and isinstance(joules, dict) and all(map(_number_or_none, joules.values()))
        is_valid = is_valid and all(map(_is_possible, (line["start"], line["seconds"], line["pid"])))
        is_valid = is_valid and all(_number_or_none(line.get(name)) for name in _NUMBERS)
        is_valid = is_valid and all(isinstance(line.get(name), str | None) for name in _TEXTS)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return line if is_valid else None


def _number_or_none(value: Any) -> bool:
    return value is None or _is_possible(value)


def _is_possible(value: Any) -> bool:
    return is_number(value) and abs(value) < _MAX_NUMBER


def summarise(lines: Iterable[dict[str, Any]]) -> list[SectionSummary]:
    """Return one summary per section, in the order in which the sections first appear.

    If executions of a section overlap in time on one node, the energy of the overlapping executions is
    counted once: as the maximum of the energies that the processes measured. The energies of executions that
    follow one another are added up, and so are the energies of different nodes. If executions overlap only in
    part, the result is a lower bound.

    Args:
        lines: sections, as `read_lines` returns them.
    """
    sections: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in lines:
        sections.setdefault(tuple(line["path"]), []).append(line)
    return [_summary(path, own) for path, own in sections.items()]


def _summary(path: tuple[str, ...], lines: list[dict[str, Any]]) -> SectionSummary:
    nodes: dict[str, list[dict[str, Any]]] = {}
    seconds: dict[tuple[Any, ...], float] = {}
    for line in lines:
        nodes.setdefault(str(line.get("node")), []).append(line)
        key = _process(line)
        seconds[key] = seconds.get(key, 0.0) + line["seconds"]
    parts = [group for own in nodes.values() for group in _overlapping(own)]
    names = dict.fromkeys(name for line in lines for name in line["energy_joules"])
    energy = {name: _sum(_max_joules(group, name) for group in parts) for name in names}
    return SectionSummary(
        path=path,
        calls=len(lines),
        processes=len(seconds),
        nodes=len(nodes),
        seconds=max(seconds.values()),
        energy_joules=energy,
        total_joules=energy["node"] if "node" in energy else _sum(energy.values()),
        failed=sum(line.get("failed") is not None for line in lines),
    )


def _process(line: dict[str, Any]) -> tuple[Any, ...]:
    return line.get("node"), line["pid"], line.get("thread")


def _overlapping(lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield groups of executions of a program section that overlap in time.

    Two executions of a group need not overlap each other directly: other executions of the group may connect
    them.

    Args:
        lines: executions of one section on one node.
    """
    group: list[dict[str, Any]] = []
    end = -math.inf
    for line in sorted(lines, key=lambda line: line["start"]):
        if group and line["start"] >= end:
            yield group
            group, end = [], -math.inf
        group.append(line)
        end = max(end, line["start"] + line["seconds"])
    yield group


def _max_joules(group: list[dict[str, Any]], name: str) -> float | None:
    sums: dict[tuple[Any, ...], float | None] = {}
    for line in group:
        key, joules = _process(line), line["energy_joules"].get(name)
        so_far = sums.get(key, 0.0)
        sums[key] = None if so_far is None or joules is None else so_far + joules
    totals = [value for value in sums.values() if value is not None]
    return max(totals) if totals else None


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known_values = [value for value in listed if value is not None]
    return math.fsum(known_values) if known_values and len(known_values) == len(listed) else None


def flat(line: dict[str, Any]) -> dict[str, Any]:
    """Return a measured section of a program as one flat row for a table.

    The row contains the path of the section as text, and a column `joules.NAME` for each component.

    Args:
        line: section, as `read_lines` returns it.
    """
    row = {"section": SEPARATOR.join(line["path"])} | {key: line.get(key) for key in _KEYS}
    row |= {f"joules.{name}": joules for name, joules in line["energy_joules"].items()}
    return row | {key: line.get(key) for key in _TAIL}


def to_csv(lines: Iterable[dict[str, Any]]) -> str:
    """Return the profiled sections of a program as CSV text with a header.

    Unknown values are empty.

    Args:
        lines: sections, as `read_lines` returns them.
    """
    rows = [flat(line) for line in lines]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: escape_csv(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def frame(directory: Path | str) -> Any:
    """Return the measured program sections in a directory as a pandas DataFrame.

    The frame has one row per execution of a section.

    Raises:
        ImportError: pandas is not installed.
        NotFoundError: the directory does not exist or contains no section.
    """
    return importlib.import_module("pandas").DataFrame([flat(line) for line in read_lines(directory)])
