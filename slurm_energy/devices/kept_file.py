"""A small file of /sys or /proc that stays open, so that a reading costs one pread(2)."""

from __future__ import annotations

import os

_READ_BYTES = 16_384


class KeptFile:
    """A file that stays open between readings.

    A file that is absent at the first reading counts as absent until `close`: control groups and devices
    have the same files as long as they exist.

    Args:
        path: path of the file.
        max_bytes: maximum number of bytes that a reading returns.
    """

    __slots__ = ("_descriptor", "_is_absent", "_max_bytes", "path")

    def __init__(self, path: str, max_bytes: int = _READ_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._is_absent = False

    def read(self) -> bytes | None:
        """Return the content; None if the file is absent or cannot be read."""
        if self._is_absent:
            return None
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._is_absent = True
                return None
        try:
            return os.pread(self._descriptor, self._max_bytes, 0)
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._is_absent = False
