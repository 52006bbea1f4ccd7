"""Parsers of values that are written to emulated sysfs files.

They accept and reject the same texts as the functions of the Linux kernel. Each parser raises OSError with
the error number that the function of the Linux kernel returns.
"""

from __future__ import annotations

import errno
import re

from slurm_energy_lab.tree.entries import refuse

_DECIMAL = re.compile(rb"\+?([0-9]+)\n?")
_ANY_BASE = re.compile(rb"\+?(0[xX][0-9a-fA-F]+|[0-9]+)\n?")
_SCANNED = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def _until_nul(data: bytes) -> bytes:
    return data.partition(b"\0")[0]


def decimal_u64(data: bytes) -> int:
    """Parse a number as `kstrtoull(buf, 10)` does: optional sign +, digits, optional newline.

    A NUL byte ends the text.

    Raises:
        OSError: EINVAL for any other text, ERANGE for a number above 64 bits.
    """
    match = _DECIMAL.fullmatch(_until_nul(data))
    if match is None:
        refuse(errno.EINVAL)
    return _bounded(int(match[1]), 64)


def any_base_unsigned(data: bytes, bits: int = 64) -> int:
    """Parse a number as `kstrtoul(buf, 0)` does: decimal, hexadecimal (0x...), or octal (0...).

    Raises:
        OSError: EINVAL for any other text, ERANGE for a number above `bits` bits.
    """
    match = _ANY_BASE.fullmatch(_until_nul(data))
    if match is None:
        refuse(errno.EINVAL)
    digits = match[1].decode()
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
    if base == 8 and not set(digits) <= set("01234567"):
        refuse(errno.EINVAL)
    return _bounded(int(digits, base), bits)


def scanned_integer(data: bytes) -> int:
    """Parse a number as `sscanf(buf, "%d")` does: leading blanks and a number.

    Text after the number is ignored.

    Raises:
        OSError: EINVAL if there is no number.
    """
    match = _SCANNED.match(_until_nul(data))
    if match is None:
        refuse(errno.EINVAL)
    return int(match[1])


def boolean(data: bytes) -> bool:
    """Parse a Boolean as `kstrtobool` does.

    As in Linux, only the first character counts (y, t, 1; n, f, 0), or the first two for `on` and `off`.

    Raises:
        OSError: EINVAL for any other text.
    """
    text = _until_nul(data)[:2].lower()
    if text[:1] in (b"y", b"t", b"1") or text == b"on":
        return True
    if text[:1] not in (b"n", b"f", b"0") and text != b"of":
        refuse(errno.EINVAL)
    return False


def word(data: bytes, limit: int) -> str:
    """Parse a word as `sscanf(buf, "%<limit>s")` does: the first word, truncated to `limit` bytes.

    Raises:
        OSError: EINVAL if there is no word.
    """
    words = _until_nul(data).split()
    if not words:
        refuse(errno.EINVAL)
    return words[0][:limit].decode("ascii", "replace")


def _bounded(value: int, bits: int) -> int:
    if value >= 1 << bits:
        refuse(errno.ERANGE)
    return value
