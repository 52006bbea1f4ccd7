"""Table of measured training steps for tests. The test sets the seconds and watts of the steps.

The table has one row per model, batch size and limit. Import this module only if numpy and scipy are
installed; the tests that use it are skipped without them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from slurm_energy.oracle.calibration.measurements import Measurement


def grid(
    models: Sequence[str],
    batches: Sequence[float],
    caps: Sequence[float],
    *,
    precision: str = "fp32",
    optimizer: str = "adamw",
) -> list[Measurement]:
    """Return one measurement per combination of model, batch size and power limit, on one GPU.

    Each step takes 1 s and draws 1 W. Limits are in watts; infinity means no limit.
    """
    return [
        Measurement(model, batch, 1.0, precision, optimizer, cap, 1.0, 1.0)
        for model, batch, cap in itertools.product(models, batches, caps)
    ]


def measured(
    rows: Iterable[Measurement], seconds: Iterable[float], watts: Iterable[float]
) -> list[Measurement]:
    """Return copies of the measurements with new seconds per step and new watts.

    The new values are in the order of `rows`.
    """
    return [
        dataclasses.replace(row, step_s=float(step_s), power_watts=float(power_watts))
        for row, step_s, power_watts in zip(rows, seconds, watts, strict=True)
    ]
