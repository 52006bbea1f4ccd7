"""Decisions about which parameters of the training model the available measurements determine.

Parameters that the measurements do not determine are not searched. The module also extracts the information
that the measurements contribute to predictions for other kinds of device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.transfer.evidence import fit_evidence, latent_values
from slurm_energy.oracle.transfer.prior import LIMITS, NO_TRANSFER, Array, Transfer, WorkloadOffsets

SWEEP_CAPS: Final = 4
"""Minimum number of power limits of one configuration that form a sweep."""
SWEEP_RANGE: Final = 0.4
"""Minimum distance between the lowest and the highest limit of a sweep, as a share of the design power."""
MIN_SWEEPS: Final = 4
"""Minimum number of sweeps that determine the parameters of the device's response."""
WORKLOAD_SWEEPS, WORKLOAD_ROWS = 3, 12
"""Minimum numbers of sweeps and of measurements that determine the factors of a workload."""
PRIOR_CONFIGURATIONS: Final = 10.0
"""Number of measured configurations at which the device's own usual power limit and that of other kinds have
equal weight.
"""
_CAP_SHARES: Final = np.arange(0.3, 1.0001, 0.005)


def configurations(rows: Sequence[Measurement]) -> dict[tuple[Any, ...], list[int]]:
    """Divide measurements into groups that differ only in the power limit.

    A group belongs to one configuration, which is the combination of all attributes except the power
    limit.

    Returns:
        By configuration, the indices of its measurements, in ascending order of the power limit.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index in np.argsort(column(rows, "cap_watts"), kind="stable").tolist():
        row = rows[index]
        groups.setdefault((*row.row, row.gpus, row.precision), []).append(index)
    return groups


def sweeps(hardware: Hardware, rows: Sequence[Measurement]) -> list[list[int]]:
    """Return the groups of measurements that show how a job responds to power limits.

    Each group is a list of indices into `rows`. The measurements of a group differ only in the power limit.
    The group has at least `SWEEP_CAPS` different limits, and the limits span at least `SWEEP_RANGE` of the
    design power.
    """
    caps = np.minimum(column(rows, "cap_watts"), hardware.tdp_watts)
    return [
        indices
        for indices in configurations(rows).values()
        if len(set(caps[indices])) >= SWEEP_CAPS and np.ptp(caps[indices]) >= SWEEP_RANGE * hardware.tdp_watts
    ]


def sweeps_determine_response(hardware: Hardware, rows: Sequence[Measurement]) -> bool:
    """Return whether measurements suffice to fit how a device responds to power limits.

    A sweep is a group of measurements of the same workload at several power limits. There must be enough
    sweeps, and at least half of the measurements must belong to sweeps.
    """
    sweep_groups = sweeps(hardware, rows)
    return len(sweep_groups) >= MIN_SWEEPS and 2 * sum(map(len, sweep_groups)) >= len(rows)


def workloads_with_own_factors(hardware: Hardware, rows: Sequence[Measurement]) -> list[str]:
    """Return the names of the workloads that have enough measurements for factors of their own.

    The factors of a workload correct its predicted time and power. A workload is identified by the name
    of its network.
    """
    models = [row.model for row in rows]
    swept = [rows[indices[0]].model for indices in sweeps(hardware, rows)]
    return [
        model
        for model in sorted(set(models))
        if models.count(model) >= WORKLOAD_ROWS and swept.count(model) >= WORKLOAD_SWEEPS
    ]


def with_own_cap(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Transfer:
    """Return a copy of `prior` with the usual power limit adjusted to the measurements.

    The usual limit is the power limit that is best on average over jobs, divided by the design power (TDP).
    The usual limit in the copy is a weighted mean of two values: the usual limit of `prior`, and the usual
    limit in the measurements (`usual_cap_share`). The second value has more weight if more jobs were measured
    under at least three limits.

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device.
        prior: knowledge from other kinds of device.
    """
    own = usual_cap_share(hardware, rows)
    if own is None:
        return prior
    count = sum(len(indices) > 2 for indices in configurations(rows).values())
    weight = count / (count + PRIOR_CONFIGURATIONS)
    return replace(prior, cap_share=round((1.0 - weight) * prior.cap_share + weight * own, 4))


def usual_cap_share(hardware: Hardware, rows: Sequence[Measurement]) -> float | None:
    """Return the power limit with the least mean energy-delay product over all jobs.

    The limit is given as a share of the design power. A job for which a limit was not measured counts with
    its nearest measured limit. If all limits in a range are equally good, the middle of the range is
    returned. The result is None if no job was measured under at least three limits.
    """
    caps = np.minimum(column(rows, "cap_watts"), hardware.tdp_watts)
    products = column(rows, "step_s") ** 2 * column(rows, "power_watts")
    groups = [
        np.array(indices)
        for indices in configurations(rows).values()
        if len(indices) > 2 and np.isfinite(products[indices]).all()
    ]
    if not groups:
        return None
    losses = [
        np.mean(
            [_edp_loss(caps[indices], products[indices], share * hardware.tdp_watts) for indices in groups]
        )
        for share in _CAP_SHARES
    ]
    best = _CAP_SHARES[np.array(losses) <= min(losses) + 1e-12]
    return round(float(best.mean()), 4)


def learn_transfer(hardware: Hardware, rows: Sequence[Measurement]) -> Transfer:
    """Return what measurements on one kind of device tell about other kinds.

    The result is used to predict kinds of device with few measurements.

    Args:
        hardware: the measured kind of device.
        rows: measurements on this kind of device.
    """
    evidence = fit_evidence(hardware, rows, NO_TRANSFER)
    time, supply = (latent_values(hardware, rows, evidence, name)[0] for name in ("time", "supply"))
    batch, models = column(rows, "batch"), np.array([row.model for row in rows])
    workloads = {}
    for model in sorted(set(models.tolist())):
        batches = np.unique(batch[models == model])
        firsts = [int(np.flatnonzero((models == model) & (batch == value))[0]) for value in batches]
        workloads[model] = WorkloadOffsets(
            tuple(batches.tolist()),
            _rounded(time[firsts]),
            _rounded(np.clip(supply[firsts], *LIMITS["supply"])),
        )
    return Transfer(
        sources=(hardware.name,),
        cap_share=usual_cap_share(hardware, rows) or NO_TRANSFER.cap_share,
        workloads=workloads,
    )


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(np.round(values, 4).tolist())


def _edp_loss(caps: Array, products: Array, cap_watts: float) -> float:
    return float(products[np.argmin(np.abs(caps - cap_watts))] / products.min() - 1.0)
