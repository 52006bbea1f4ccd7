"""Checkpoint of a training program: a file, replaced atomically, from which any number of ranks continues."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slurm_energy import atomic_file
from slurm_energy.errors import UnavailableError

_FORMAT = 1


class TrainingCheckpoint:
    """The checkpoint file of a program.

    Args:
        path: file on a file system that all nodes share; None: no checkpoints.
        every_s: seconds between two checkpoints.
    """

    def __init__(self, path: Path | None, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._written_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last checkpoint is old enough for another one."""
        return self._path is not None and time.monotonic() - self._written_s >= self._every_s

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file.

        Raises:
            UnavailableError: the file cannot be written; the previous one remains.
        """
        if self._path is None:
            return
        buffer = io.BytesIO()
        torch.save({"format": _FORMAT, **content}, buffer)
        try:
            atomic_file.write(self._path, buffer.getvalue())
        except OSError as error:
            todo = "name a file in a directory that exists on all nodes"
            raise UnavailableError(f"checkpoint {self._path}", error.strerror or "", todo) from None
        self._written_s = time.monotonic()

    def read(self) -> Mapping[str, Any] | None:
        """Return the content of the file; None if there is none.

        Raises:
            UnavailableError: the file is not a checkpoint of this version.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            content = torch.load(self._path, map_location="cpu")
            if content["format"] == _FORMAT:
                return dict(content)
            reason = f"has format {content['format']}"
        except Exception as error:  # torch.load raises errors of many kinds
            reason = str(error).partition("\n")[0]
        raise UnavailableError(f"checkpoint {self._path}", reason, "remove it to start from the beginning")
