"""The Slurm release for which a plugin was built, read from the plugin's ELF file without loading it.

Every Slurm plugin exports `plugin_version`, which is SLURM_VERSION_NUMBER of slurm/slurm_version.h: one byte
each for major, minor and micro. The format is elf(5), 64-bit little-endian as on all platforms of Slurm.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from slurm_energy.slurm.release import Release

_MAGIC: Final = b"\x7fELF\x02\x01"
_DYNAMIC_SYMBOLS: Final = 11
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NAME: Final = b"plugin_version"
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_PLUGINS_READ: Final = 5


def plugin_release(path: Path) -> Release | None:
    """Return the Slurm release for which a plugin was built.

    Args:
        path: path of the plugin.

    Returns:
        The release; None means that the file is not an ELF file with the symbol `plugin_version`, or is too
        large.

    Raises:
        OSError: the file cannot be read.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        return None
    try:
        number = _exported_number(path.read_bytes())
    except (struct.error, IndexError, ValueError):
        return None
    return None if number is None else Release(number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF)


def installed_release(directories: Iterable[Path]) -> Release | None:
    """Return the release of the first Slurm plugin in the given directories; None if there is no plugin.

    Plugins of slurm-energy are skipped.
    """
    for directory in directories:
        for plugin in sorted(directory.glob("*.so"))[:_PLUGINS_READ]:
            try:
                release = plugin_release(plugin)
            except OSError:
                continue
            if release is not None and "energy" not in plugin.name:
                return release
    return None


def _exported_number(data: bytes) -> int | None:
    if not data.startswith(_MAGIC):
        return None
    sections = list(_sections(data))
    for section in sections:
        if section[1] != _DYNAMIC_SYMBOLS:
            continue
        names_at = sections[section[6]][4]
        for name, _, _, index, address, _ in _SYMBOL.iter_unpack(data[section[4] : section[4] + section[5]]):
            end = names_at + name + len(_NAME)
            if data[names_at + name : end] == _NAME and data[end] == 0 and index:
                home = sections[index]
                (number,) = struct.unpack_from("<I", data, address - home[3] + home[4])
                return int(number)
    return None


def _sections(data: bytes) -> Iterator[tuple[int, ...]]:
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for index in range(count):
        yield _SECTION.unpack_from(data, offset + index * size)
