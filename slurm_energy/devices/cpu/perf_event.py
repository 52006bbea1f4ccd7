"""Counting events of the kernel's perf subsystem on one CPU, for all processes.

Opening an event requires CAP_PERFMON, or perf_event_paranoid <= 0. Source: kernel,
include/uapi/linux/perf_event.h; man 2 perf_event_open.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241}
_ATTR_BYTES = 64
"""PERF_ATTR_SIZE_VER0: size of the first published perf_event_attr, which every kernel accepts."""
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
_FLAG_CLOEXEC = 1 << 3
_ALL_PROCESSES = -1


def open_event(pmu_type: int, config: int, cpu: int, *, user_only: bool = False) -> int:
    """Open a counting event on one CPU for all processes.

    Args:
        pmu_type: number of the PMU, from its `type` file.
        config: number of the event within the PMU.
        cpu: logical CPU.
        user_only: whether to count in user mode only, not in the kernel or a hypervisor.

    Returns:
        A file descriptor. Eight bytes read from it are the count.

    Raises:
        OSError: the kernel refused the event.
    """
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(38, f"perf_event_open: unknown machine {platform.machine()}")
    options = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR if user_only else 0
    # Type, size, config, sampling period, sample type, read format, options.
    attributes = struct.pack("=IIQQQQQ", pmu_type, _ATTR_BYTES, config, 0, 0, 0, options)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attributes.ljust(_ATTR_BYTES, b"\0")),
        ctypes.c_int(_ALL_PROCESSES),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_FLAG_CLOEXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


def read_count(descriptor: int) -> int:
    """Return the count of an event in its own units.

    Args:
        descriptor: file descriptor from `open_event`.

    Raises:
        OSError: the count cannot be read.
    """
    return int.from_bytes(os.read(descriptor, 8), "little")
