"""Checkpoint of a training program.

The checkpoint is a file that is replaced atomically. A program can continue from it with any number of
ranks.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slurm_energy import atomic_file
from slurm_energy.errors import ForbiddenError, UnavailableError

_FORMAT = 1
_WRITE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOADS_PLAIN_DATA = int(torch.__version__.partition(".")[0]) >= 2
"""Whether PyTorch can refuse files with code and still load numbers and texts; the default since 2.6."""


class TrainingCheckpoint:
    """The checkpoint file of a program.

    Args:
        path: file on a file system that all nodes share; None means no checkpoints.
        every_s: seconds between two checkpoints.
    """

    def __init__(self, path: Path | None, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._written_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether `every_s` seconds have passed since the last checkpoint."""
        return self._path is not None and time.monotonic() - self._written_s >= self._every_s

    def write(self, content: Mapping[str, Any]) -> None:
        """Write a checkpoint, which replaces the content of the file.

        Raises:
            UnavailableError: the file cannot be written. The previous file remains.
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
        """Return the content of the file; None if there is no file.

        A checkpoint may contain code. A checkpoint that another user could have written is therefore not
        read.

        Raises:
            UnavailableError: the file is not a checkpoint of this version.
            ForbiddenError: another user could have written the checkpoint.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            with self._path.open("rb") as file:
                self._require_own(os.fstat(file.fileno()))
                content = torch.load(file, map_location="cpu", weights_only=_LOADS_PLAIN_DATA)
            if content["format"] == _FORMAT:
                return dict(content)
            reason = f"has format {content['format']}"
        except ForbiddenError:
            raise
        except Exception as error:  # torch.load raises errors of many kinds
            reason = str(error).partition("\n")[0]
        raise UnavailableError(f"checkpoint {self._path}", reason, "remove it to start from the beginning")

    def _require_own(self, status: os.stat_result) -> None:
        if status.st_uid not in (0, os.geteuid()):
            why = f"belongs to another user (uid {status.st_uid})"
            raise ForbiddenError(f"checkpoint {self._path}", why, "copy it if you trust this user")
        if status.st_mode & _WRITE_BY_OTHERS:
            raise ForbiddenError(f"checkpoint {self._path}", "can be written by other users", "chmod go-w")
