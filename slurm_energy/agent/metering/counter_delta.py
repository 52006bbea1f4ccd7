"""Energy between two readings of a counter.

Between the readings the counter may have wrapped or been reset, or the machine may have been suspended.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_energy.devices.driver import EnergyCounter
from slurm_energy.quantities import counter_delta

SAFE_PART_OF_RANGE = 0.9
"""An interval is uncertain if its energy at maximum power would exceed this fraction of the range."""
UPDATE_SLACK_S = 0.5
"""Counters update every 1 ms (RAPL) to 100 ms (NVML), so energy may appear this much later."""
_STILL_S = 10.0
"""A counter that stays unchanged for longer is not trusted, because even idle components draw power."""
_JITTER_UJ = 3_000_000
"""A counter that never wraps may decrease by less than this without a reset; some count in joules."""


class CounterDelta(NamedTuple):
    """The energy that one counter counted up to the end of a sample interval.

    Attributes:
        start: time of the counter's previous reading, in seconds since boot. This time is before the start of
            the sample interval if the counter is not read with every sample.
        energy_uj: microjoules; a lower bound if `certain` is False.
        certain: True if the counter cannot have wrapped or been reset unnoticed.
    """

    start: float
    energy_uj: int
    certain: bool


def energy_between(
    counter: EnergyCounter, earlier_uj: int, later_uj: int, length_s: float, still_s: float = 0.0
) -> tuple[int, bool]:
    """Return the energy between two readings of a counter, and whether the energy is certain.

    The energy is in microjoules. A counter for which `range_uj` is None never wraps. There are two signs
    that a counter was reset, for example because its driver was reloaded:

    - A counter that never wraps has fallen by more than its jitter. The result is then the later
      reading, which is the energy since the reset.
    - The energy is more than the hardware can use between the readings. The result is then 0.

    In both cases the energy is not certain. The energy is not certain either if the counter, or a register
    that its driver unwraps only at a reading, may have wrapped unnoticed between the readings.

    Args:
        counter: the counter; its ranges and maximum power are used.
        earlier_uj: the earlier reading in microjoules.
        later_uj: the later reading in microjoules.
        length_s: seconds between the readings.
        still_s: seconds before the earlier reading in which the counter did not change. The difference of
            the readings may include energy of these seconds.
    """
    max_uj = counter.max_watts * 1e6
    range_uj = counter.range_uj
    moved = later_uj != earlier_uj
    certain = still_s <= _STILL_S if moved else still_s + length_s <= _STILL_S
    if counter.unread_range_uj is not None:
        certain = certain and length_s * max_uj <= SAFE_PART_OF_RANGE * counter.unread_range_uj
    if range_uj is not None:
        energy_uj = counter_delta(earlier_uj, later_uj, range_uj)
        certain = certain and length_s * max_uj <= SAFE_PART_OF_RANGE * range_uj
    elif later_uj >= earlier_uj:
        energy_uj = later_uj - earlier_uj
    elif earlier_uj - later_uj <= _JITTER_UJ:
        return 0, certain
    else:
        energy_uj, certain = later_uj, False
    if energy_uj > max_uj * (length_s + still_s + UPDATE_SLACK_S):
        return 0, False
    return energy_uj, certain


def min_energy_across_suspend(counter: EnergyCounter, earlier_uj: int, later_uj: int, length_s: float) -> int:
    """Return the minimum energy in microjoules between two readings, one before and one after a suspend.

    During the suspend the counter may have continued, stopped or restarted from 0. If its value has
    decreased, the energy is at least the later reading, whether the counter wrapped or was reset.

    Args:
        counter: the counter, for its maximum power.
        earlier_uj: the reading before the suspend in microjoules.
        later_uj: the reading after the suspend in microjoules.
        length_s: seconds between the readings.
    """
    energy_uj = later_uj - earlier_uj if later_uj >= earlier_uj else later_uj
    max_uj = counter.max_watts * 1e6 * (length_s + UPDATE_SLACK_S)
    return energy_uj if energy_uj <= max_uj else 0
