"""Emulated files in /sys/firmware/dmi/tables.

The files contain the firmware's table of DIMMs in the format of SMBIOS 3.

The module follows DMTF DSP0134: 5.2.2 (64-bit entry point), 6.1.2 and 6.1.3 (structures and their strings),
7.18 (type 17). Only root can read the two files (drivers/firmware/dmi_scan.c). The table contains DIMMs only.
"""

from __future__ import annotations

import struct

from slurm_energy_lab.model.profile import MemoryProfile
from slurm_energy_lab.tree.entries import File, Tree

FOLDER = "/sys/firmware/dmi/tables"
_MEMORY_DEVICE, _END_OF_TABLE = 17, 127
_DIMM_FORM = 9
_TYPES = {"DDR3": 0x18, "DDR4": 0x1A, "DDR5": 0x22, "HBM2": 0x21, "HBM3": 0x24}
_UNKNOWN_TYPE = 0x02
_EXTENDED, _LARGEST_MB = 0x7FFF, 0x7FFE


def add_dmi(tree: Tree, memory: MemoryProfile) -> None:
    """Add the SMBIOS files of an emulated node to a file tree.

    The files are the entry point and the table with the memory modules (DIMMs).
    """
    modules = [_module(memory, number) for number in range(memory.dimms)]
    table = b"".join([*modules, _structure(_END_OF_TABLE, len(modules), b"")])
    tree.add(f"{FOLDER}/DMI", File(table, 0o400, size=len(table)))
    entry = _entry_point(len(table))
    tree.add(f"{FOLDER}/smbios_entry_point", File(entry, 0o400, size=len(entry)))


def _module(memory: MemoryProfile, number: int) -> bytes:
    """Return the entry of the SMBIOS table (structure type "memory device") that describes one DIMM.

    The field for the size is too small for a DIMM of 32 GiB or more. The size of such a DIMM is in the
    extended field.

    Args:
        memory: the node's memory.
        number: number of the DIMM, from 0.
    """
    large = memory.dimm_mb > _LARGEST_MB
    body = struct.pack(
        "<HHHHHBBBBBHHBBBBBIHHHH",
        0xFFFE,  # no array structure
        0xFFFE,  # no error information
        72,
        64,
        _EXTENDED if large else memory.dimm_mb,
        _DIMM_FORM,
        0,
        1,
        2,
        _TYPES.get(memory.kind, _UNKNOWN_TYPE),
        0x80,  # synchronous
        memory.speed_mts,
        0,
        0,
        0,
        0,
        0,
        memory.dimm_mb if large else 0,
        memory.speed_mts,
        1200,
        1200,
        1200,
    )
    return _structure(_MEMORY_DEVICE, number, body, f"DIMM_{number:02d}", f"BANK {number}")


def _structure(kind: int, handle: int, body: bytes, *strings: str) -> bytes:
    texts = b"".join(text.encode() + b"\0" for text in strings) or b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), handle) + body + texts + b"\0"


def _entry_point(table_bytes: int) -> bytes:
    """Return the 64-bit entry point of the emulated SMBIOS tables.

    Its checksum byte makes the sum of all its bytes 0.
    """
    fields = struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, 3, 3, 0, 1, 0, table_bytes, 0)
    return fields[:5] + bytes([-sum(fields) & 0xFF]) + fields[6:]
