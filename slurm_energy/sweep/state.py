"""State of a sweep in a JSON file, from which a later call continues.

Only one process at a time may use the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.errors import AlreadyRunningError, EnergyError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.runs import SweepRun

VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,40}", re.ASCII)
_PYTHON_FILE = re.compile(rb"[A-Za-z0-9_./+-]{1,255}\.py(?![A-Za-z0-9_])")


def check_name(name: str) -> str:
    """Return the name of a sweep, which is part of the jobs' --energy-tag.

    Raises:
        UsageError: the name has other characters than allowed, or more than 40 characters.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name: '{shown(name)}'", "is invalid", "1 to 40 characters of A-Z a-z 0-9 _ . + -"
        )
    return name


@dataclass(slots=True)
class SweepState:
    """A sweep and its runs so far.

    Attributes:
        name: name of the sweep.
        tag: text of --energy-tag of the sweep's jobs. Runs of a variant of the program have this text with a
            suffix.
        script_digest: SHA-256 of the batch script, which may not change during a sweep.
        options: sbatch options that the user gave.
        arguments: arguments of the batch script.
        points: combinations of settings to measure; the first one is the reference.
        runs: all runs of points so far.
        token: random text that makes the names of the jobs unique.
        preset: name of the preset that the points come from; empty means no preset.
        programs: names of the Python files that the batch script runs.
        repetitions: number of repetitions of each point that the user requested; 0 means unknown.
    """

    name: str
    tag: str
    script_digest: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    runs: list[SweepRun] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    preset: str = ""
    programs: tuple[str, ...] = ()
    repetitions: int = 0

    @property
    def in_flight(self) -> list[SweepRun]:
        """Runs of the sweep whose jobs may still run in Slurm."""
        return [run for run in self.runs if run.is_in_flight]

    def refuse_other(self, wanted: SweepState, path: Path) -> None:
        """Raise an error if a saved sweep is not the sweep that the user requests.

        Args:
            wanted: sweep that the user requests.
            path: file of this state, for the error.

        Raises:
            UsageError: the sweeps differ. The message names the first difference.
        """
        for what, key in (
            ("the batch script", "script_digest"),
            ("the sbatch options", "options"),
            ("the arguments of the script", "arguments"),
            ("the factors", "points"),
            ("the tag", "tag"),
        ):
            if getattr(self, key) != getattr(wanted, key):
                todo = "--restart discards its results; --name NAME or --state FILE starts another sweep"
                raise UsageError(f"{path}: {what} of this sweep changed", todo=todo)

    def to_json(self) -> dict[str, Any]:
        """Return the state as a dict for JSON."""
        return {
            "version": VERSION,
            "name": self.name,
            "tag": self.tag,
            "script_digest": self.script_digest,
            "options": list(self.options),
            "arguments": list(self.arguments),
            "token": self.token,
            "preset": self.preset,
            "programs": list(self.programs),
            "repetitions": self.repetitions,
            "points": [[list(pair) for pair in point.settings] for point in self.points],
            "runs": [run.to_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, data: Any) -> SweepState:
        """Build a state from a dict that `to_json` returned.

        Raises:
            UsageError: a key is missing, or a value has the wrong type.
        """
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise UsageError("not the state of a sweep of this release")
        try:
            texts = [data[key] for key in ("name", "tag", "script_digest", "token")]
            lists = [tuple(data[key]) for key in ("options", "arguments")]
            points = tuple(SweepPoint(tuple((n, v) for n, v in pairs)) for pairs in data["points"])
            runs = [SweepRun.from_json(item) for item in data["runs"]]
            # The state files of earlier releases lack the following keys.
            preset, programs = data.get("preset", ""), tuple(data.get("programs", ()))
            repetitions = data.get("repetitions", 0)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"key {shown(str(error), 100)} is missing or invalid") from None
        settings = [text for point in points for pair in point.settings for text in pair if text is not None]
        if not all(
            isinstance(text, str) for text in [*texts, *lists[0], *lists[1], *settings, preset, *programs]
        ):
            raise UsageError("a value is not a text")
        if type(repetitions) is not int or repetitions < 0:
            raise UsageError("repetitions is not a number")
        if not points or any(run.point >= len(points) for run in runs):
            raise UsageError("a run has no point")
        name, tag, digest, token = texts
        return cls(
            check_name(name),
            tag,
            digest,
            lists[0],
            lists[1],
            points,
            runs,
            token,
            preset,
            programs,
            repetitions,
        )


def programs_of(content: bytes) -> tuple[str, ...]:
    """Return the names of the Python files that a batch script names, without folders and duplicates."""
    paths = (match.decode("ascii") for match in _PYTHON_FILE.findall(content))
    return tuple(dict.fromkeys(path.rpartition("/")[2] for path in paths))


def digest(content: bytes) -> str:
    """Return the SHA-256 of a batch script as hexadecimal text."""
    return sha256(content).hexdigest()


def load(path: Path) -> SweepState | None:
    """Read the saved state of a sweep (runs of a job at several settings) from a file.

    The result is None if the file does not exist.

    Raises:
        UsageError: the file is not the state of a sweep.
        EnergyError: the file cannot be read, or belongs to another user.
    """
    try:
        content = atomic_file.read(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name another file with --state") from None
    try:
        return SweepState.from_json(json.loads(content))
    except (ValueError, RecursionError):
        raise UsageError(str(path), "is not the state of a sweep", "name another file with --state") from None
    except UsageError as error:
        raise UsageError(str(path), str(error), "name another file with --state") from None


def save(state: SweepState, path: Path) -> None:
    """Write the state of a sweep to a file, atomically and durably.

    Raises:
        EnergyError: the file cannot be written.
    """
    try:
        atomic_file.write(path, json.dumps(state.to_json(), indent=1).encode() + b"\n", mode=0o644)
    except OSError as error:
        raise EnergyError(
            str(path), error.strerror or str(error), "name a writable file with --state"
        ) from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager that prevents other processes from using a state file.

    The lock file beside the state file is not removed, because two processes could otherwise hold a lock at
    the same time.

    Raises:
        AlreadyRunningError: another process uses the state file.
        EnergyError: the lock file cannot be created.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnergyError(str(lock), error.strerror or str(error), "name another file with --state") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError(str(path), "another process continues this sweep") from None
        yield
    finally:
        os.close(descriptor)


def variant_tag(tag: str, program_settings: Sequence[tuple[str, str | None]]) -> str:
    """Return the --energy-tag for the jobs of one variant of the program.

    Variants differ in environment variables or sbatch options. The response of variants to power settings may
    differ. Each variant therefore has its own tag.

    Args:
        tag: tag of the sweep.
        program_settings: the settings in which the variant differs from the reference; empty if there is no
            difference.
    """
    if not program_settings:
        return tag
    return f"{tag}+{sha256(json.dumps([list(pair) for pair in program_settings]).encode()).hexdigest()[:8]}"
