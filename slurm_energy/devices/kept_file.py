"""A small file of /sys or /proc that stays open, so that a reading costs one pread(2)."""

from __future__ import annotations

import os

_READ_BYTES = 16_384
_READINGS_BETWEEN_SEARCHES = 7


class KeptFile:
    """A file that stays open between readings.

    The file may be absent, and may appear later. For example, the kernel adds files to a control group
    (cgroup) when a cgroup controller is enabled. While the file is absent, only every eighth reading
    tries to open it.

    Args:
        path: path of the file.
        max_bytes: maximum number of bytes that a reading returns.
    """

    __slots__ = ("_descriptor", "_max_bytes", "_pause", "path")

    def __init__(self, path: str, max_bytes: int = _READ_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._pause = 0

    def read(self) -> bytes | None:
        """Return the content of the file; None if the file is absent or cannot be read."""
        if self._pause > 0:
            self._pause -= 1
            return None
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._pause = _READINGS_BETWEEN_SEARCHES
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
        self._pause = 0
