"""Memory modules (DIMMs) from the firmware's SMBIOS table: size and type of each occupied slot.

The kernel shows the table to root in /sys/firmware/dmi/tables/DMI. Source: DMTF DSP0134 (SMBIOS), 6.1.2
(structure header), 6.1.3 (strings), 7.18 (Memory Device, type 17).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("sys/firmware/dmi/tables/DMI")
_MAX_BYTES = 1 << 20
_MEMORY_DEVICE = 17
_END_OF_TABLE = 127
_HEADER_BYTES = 4
_TYPES = {
    0x0F: "SDRAM",
    0x12: "DDR",
    0x13: "DDR2",
    0x18: "DDR3",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "Logical non-volatile device",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}
_UNKNOWN_SIZE = 0xFFFF
_EXTENDED_SIZE = 0x7FFF


@dataclass(frozen=True, slots=True)
class MemoryModule:
    """The memory module in an occupied slot.

    Attributes:
        slot: label of the slot on the board, for example `DIMM_A1`.
        size_bytes: capacity; None if the firmware does not state the capacity.
        memory_type: `DDR4`, `DDR5`, `HBM2`, ...; empty if unknown.
    """

    slot: str
    size_bytes: int | None
    memory_type: str


def memory_modules(root: Path) -> list[MemoryModule]:
    """Return the memory modules of the node; an empty list if the SMBIOS table is absent or unreadable.

    Args:
        root: directory that contains /sys.
    """
    try:
        with (root / _TABLE).open("rb") as file:
            return parse_table(file.read(_MAX_BYTES))
    except OSError:
        return []


def parse_table(table: bytes) -> list[MemoryModule]:
    """Return the memory modules in an SMBIOS table. Truncated or malformed structures are skipped."""
    modules = []
    for structure_type, body, strings in _structures(table):
        if structure_type == _MEMORY_DEVICE and (module := _memory_module(body, strings)) is not None:
            modules.append(module)
    return modules


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """Yield each structure in an SMBIOS table, as (type number, formatted part, strings).

    The formatted part is the bytes of the structure before its strings.
    """
    offset = 0
    while offset + _HEADER_BYTES <= len(table):
        structure_type, length = table[offset], table[offset + 1]
        end = table.find(b"\0\0", offset + length)
        if length < _HEADER_BYTES or offset + length > len(table) or end < 0:
            return
        texts = table[offset + length : end].split(b"\0")
        yield (
            structure_type,
            table[offset : offset + length],
            [text.decode("ascii", "replace").strip() for text in texts],
        )
        if structure_type == _END_OF_TABLE:
            return
        offset = end + 2


def _memory_module(body: bytes, strings: list[str]) -> MemoryModule | None:
    """Convert an SMBIOS structure of type 17 to a memory module; return None for an empty slot.

    Args:
        body: formatted part of the structure.
        strings: strings of the structure, to which the formatted part refers by number.
    """
    if len(body) < 0x13:
        return None
    size = int.from_bytes(body[0x0C:0x0E], "little")
    if size == 0:
        return None
    number = body[0x10]
    slot = strings[number - 1] if 0 < number <= len(strings) else ""
    return MemoryModule(slot, _size_bytes(size, body), _TYPES.get(body[0x12], ""))


def _size_bytes(size: int, body: bytes) -> int | None:
    if size == _UNKNOWN_SIZE:
        return None
    if size == _EXTENDED_SIZE:
        megabytes = int.from_bytes(body[0x1C:0x20], "little") & 0x7FFFFFFF if len(body) >= 0x20 else 0
        return megabytes << 20 or None
    return (size & 0x7FFF) << (10 if size & 0x8000 else 20)
