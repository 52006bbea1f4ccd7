"""One run of a step of an energy study.

The run writes the output files of the step. It stores partial work, so that an interrupted run can continue.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__, atomic_file
from slurm_energy.errors import UsageError

RESULT_NAME: Final = "result.json"
FILE_MODE: Final = 0o644
_PARTIAL: Final = "partial"
_BLOCK_BYTES: Final = 1 << 20


class StepRun:
    """One run of a step of an energy study. `StudyDirectory.running` creates the object.

    Args:
        folder: directory of the step.
        resumed: whether partial work of an earlier run is kept. Otherwise the partial work is removed.

    Attributes:
        folder: directory of the step.
        resumed: whether the step continues the partial work of an interrupted run with the same inputs.
        outputs: SHA-256 of the files written so far.
        finished: whether `finish` was called.
    """

    def __init__(self, folder: Path, resumed: bool) -> None:
        self.folder = folder
        self.resumed = resumed
        self.outputs: dict[str, str] = {}
        self.finished = False
        self._partial = self.folder / _PARTIAL
        if not resumed:
            self.clear_partial()
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def partial(self, name: str) -> Any:
        """Return the partial work that `save_partial` stored under a name; None if nothing is stored."""
        try:
            return json.loads((self._partial / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def save_partial(self, name: str, value: Any) -> None:
        """Store partial work as JSON. If this run is interrupted, a later run can use it."""
        self._write(self._partial / f"{name}.json", json.dumps(value).encode())

    def partial_folder(self) -> Path:
        """Return the directory in which a step of a study keeps unfinished work in files other than JSON."""
        return self._partial

    def write(self, name: str, data: bytes | str) -> Path:
        """Write an output file of a study step, and return the path of the file.

        The SHA-256 of the content is recorded as an output of the step.
        """
        content = data.encode() if isinstance(data, str) else data
        path = self.folder / name
        self._write(path, content)
        self.outputs[name] = hashlib.sha256(content).hexdigest()
        return path

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result of this step of the study to `result.json`.

        The file also contains the release of slurm-energy and the time. The step counts as done when this
        run ends.
        """
        document = {"release": __version__, "time": time.time(), **result}
        self.write(RESULT_NAME, json.dumps(_finite(document), indent=2, allow_nan=False) + "\n")
        self.finished = True

    def clear_partial(self) -> None:
        """Remove the intermediate files of the unfinished step."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            atomic_file.write(path, data, mode=FILE_MODE)
        except OSError as error:
            raise unwritable(path, error) from None


def file_sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if the file cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file or directory that cannot be written."""
    return UsageError(f"{path}", error.strerror or str(error), "name a directory that you may write")


def _finite(value: Any) -> Any:
    """Return a JSON value in which NaN and infinities are replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
