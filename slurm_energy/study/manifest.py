"""The manifest of a study, `study.json`: the run of each step, with hashes of its inputs and outputs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number
from slurm_energy.study.steps import STEPS

FORMAT: Final = 1
"""Format of the manifest and of the directory that this release writes."""
_KEYS: Final = ("command", "inputs", "outputs", "seed", "release", "error")
_MAX_TIME_S: Final = 1e11
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: Final[Mapping[int, Upgrade]] = {}
"""Function that upgrades a manifest to the next format, by the number of the present format."""


class StepState(StrEnum):
    """State of a step. A step that was interrupted stays `running`."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepEntry:
    """Entry of the manifest that describes the last run of a step.

    Attributes:
        state: state of the step.
        started, ended: Unix seconds; None means that the step has not started or not ended.
        command: command line.
        inputs: SHA-256 by input: `objective`, `STEP/result.json`, or `file:PATH` for a file elsewhere.
        outputs: SHA-256 by file in the directory of the step.
        seed: seed of random numbers; None means that the step uses no random numbers.
        release: release of slurm-energy with which the step ran.
        error: reason why the step failed; an empty value means that the step did not fail.
    """

    state: StepState = StepState.NONE
    started: float | None = None
    ended: float | None = None
    command: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    release: str = __version__
    error: str = ""


@dataclass(frozen=True, slots=True)
class StudyManifest:
    """Contents of `study.json`.

    Attributes:
        id: random name of the study.
        created: time of creation in Unix seconds.
        release: release that created the study.
        steps: one entry for each step, by its name.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: float = 0.0
    release: str = __version__
    steps: dict[str, StepEntry] = field(default_factory=lambda: {name: StepEntry() for name in STEPS})

    def with_step(self, name: str, entry: StepEntry) -> StudyManifest:
        """Return a copy of the study's manifest in which the entry of one step is replaced."""
        return replace(self, steps=self.steps | {name: entry})

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        return {"format": FORMAT, **asdict(self)}

    def text(self) -> str:
        """Return the contents of `study.json`."""
        return json.dumps(self.to_json(), indent=2) + "\n"


def parse_manifest(text: str, path: str, upgrades: Mapping[int, Upgrade] = UPGRADES) -> StudyManifest:
    """Parse a manifest. An older format is upgraded.

    Args:
        text: contents of `study.json`.
        path: path of the file, for errors.
        upgrades: functions that upgrade older formats.

    Raises:
        UsageError: the text is damaged, or its format is newer or too old.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(path, f"is not JSON: {error}", "restore it from a backup") from None
    number = data.get("format") if isinstance(data, dict) else None
    if type(number) is not int:
        raise UsageError(path, "is not the manifest of a study", "name a directory of senergy study init")
    if number > FORMAT:
        release = str(data.get("release", "unknown"))[:40]
        raise UsageError(
            path,
            f"has format {number} (release {release}), release {__version__} reads up to {FORMAT}",
            "use the newer release of slurm-energy",
        )
    while number < FORMAT:
        if number not in upgrades:
            raise UsageError(path, f"has format {number}, which no upgrade exists for", "begin a new study")
        data = upgrades[number](data)
        number += 1
    try:
        return _manifest(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            path, f"is damaged: {type(error).__name__} {error}", "restore it from a backup"
        ) from None


def _manifest(data: Mapping[str, Any]) -> StudyManifest:
    entries = {name: _entry(data["steps"].get(name, {})) for name in STEPS}
    return StudyManifest(str(data["id"]), float(data["created"]), str(data["release"]), entries)


def _entry(data: Mapping[str, Any]) -> StepEntry:
    values: dict[str, Any] = {key: data[key] for key in _KEYS if key in data}
    for key in ("command", "release", "error"):
        if not isinstance(values.get(key, ""), str):
            raise TypeError(f"{key} is not a text")
    for key in ("inputs", "outputs"):
        if not all(isinstance(item, str) for pair in values.get(key, {}).items() for item in pair):
            raise TypeError(f"{key} is not an object of texts")
    for name in values.get("outputs", {}):
        if Path(name).name != name:  # a step removes outputs of its last run
            raise ValueError(f"output {name[:40]!r} is outside of its step")
    for key in ("started", "ended"):
        values[key] = float(data[key]) if is_number(data.get(key)) else None
        if values[key] is not None and not 0 <= values[key] <= _MAX_TIME_S:
            raise ValueError(f"{key} is not a time")
    return StepEntry(state=StepState(data.get("state", "none")), **values)
