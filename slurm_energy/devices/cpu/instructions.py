"""Counter of the instructions that a set of CPUs retires in user mode.

The module uses perf events. Virtual machines often lack this event.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from slurm_energy.devices.cpu.perf_event import open_event, read_count

_PERF_TYPE_HARDWARE: Final = 0
_PERF_COUNT_HW_INSTRUCTIONS: Final = 1


class InstructionCounter:
    """Counter of instructions that any process executes on a job's CPUs.

    Args:
        cpus: logical CPUs that no other job uses.
    """

    def __init__(self, cpus: Iterable[int]) -> None:
        self._descriptors: list[int] = []
        try:
            for cpu in cpus:
                self._descriptors.append(
                    open_event(_PERF_TYPE_HARDWARE, _PERF_COUNT_HW_INSTRUCTIONS, cpu, user_only=True)
                )
        except OSError:  # not permitted, no such event, or too many open files
            self.close()

    def read(self) -> float | None:
        """Return the number of instructions since the counter was opened; None if the kernel counts none."""
        try:
            return float(sum(map(read_count, self._descriptors))) if self._descriptors else None
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """End the count."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors.clear()
