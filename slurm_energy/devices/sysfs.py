"""Access to files of /sys and /proc: text, numbers, single writes, and counter files that stay open."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

from slurm_energy.devices.driver import DeviceError, DeviceGoneError

_READ_BYTES = 65536
_REASONS = {
    errno.ENODATA: "refused by the driver, perhaps locked by the firmware",
    errno.ENOSYS: "not supported by the driver",
    errno.EBUSY: "not allowed in the current mode",
    errno.EINVAL: "not a value that the driver accepts",
}
_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE})
"""Error numbers that mean a removed device, or a file system that no longer responds."""
_REOPEN_PAUSE_S = 1.0


def read_text(path: str | Path) -> str:
    """Return the text of a file without surrounding white space.

    Raises:
        DeviceError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _READ_BYTES).decode("utf-8", "replace").strip(" \t\n\0")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DeviceError(str(path), error_reason(error)) from None


def read_optional(path: str | Path) -> str | None:
    """Return a file's text without surrounding white space; None if it is absent, empty or unreadable."""
    try:
        return read_text(path) or None
    except DeviceError:
        return None


def read_number(path: Path) -> int | None:
    """Return the integer in a file; None if the file is absent, unreadable or holds no integer."""
    text = read_optional(path)
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def write_text(path: Path, value: str) -> None:
    """Write a value to a sysfs file with a single write(2), as sysfs requires.

    An absent file is not created.

    Raises:
        DeviceError: the driver refused the value. The error contains the driver's reason.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DeviceError(f"{path}: '{value}'", error_reason(error)) from None


def error_reason(error: OSError) -> str:
    """Return the system's error message, with an explanation where the message is misleading for a driver."""
    text = error.strerror or str(error)
    meaning = _REASONS.get(error.errno or 0)
    return f"{text} ({meaning})" if meaning else text


def read_error(path: Path, error: OSError) -> DeviceError:
    """Return the exception that describes a failed read of a device's file.

    It is a DeviceGoneError if the device no longer exists. Otherwise it is a DeviceError with the reason of
    `error`.
    """
    kind = DeviceGoneError if error.errno in _GONE else DeviceError
    return kind(str(path), error_reason(error))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a CPU list of the kernel such as `0-3,8` or `0 1 2` into CPU numbers.

    Raises:
        ValueError: the text is not a list of CPUs.
    """
    numbers: list[int] = []
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key that compares the digits in a text as numbers, so that `cpu2` precedes `cpu10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


class CounterFile:
    """A file that holds one number and stays open, so that a reading costs one pread(2).

    After a failed reading the next reading opens the file again, because the device may have returned. If
    this fails, further readings try to open the file at most once a second.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._not_before = 0.0
        self._code: int | None = None

    def read(self) -> int:
        """Return the number in the file.

        Raises:
            DeviceGoneError: the device is absent.
            DeviceError: the file cannot be read or holds no number.
        """
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._open()
        try:
            return int(os.pread(descriptor, 64, 0))
        except OSError as error:
            self.close()
            raise read_error(self.path, error) from None
        except ValueError:
            self.close()
            raise DeviceError(str(self.path), "not a number") from None

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        self._code = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        now = time.monotonic()
        if self._code is None or now >= self._not_before:
            try:
                self._descriptor, self._code = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC), None
                return self._descriptor
            except OSError as error:
                self._code, self._not_before = error.errno or errno.EIO, now + _REOPEN_PAUSE_S
        raise read_error(self.path, OSError(self._code, os.strerror(self._code)))
