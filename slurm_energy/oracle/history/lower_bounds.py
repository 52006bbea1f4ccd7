"""Lower bounds of the predicted time and watts of all jobs in a queue, against cheating.

A prediction affects the job's place in the queue. Users choose job names, scripts and the content of
scripts. A user could therefore lower a prediction by short runs of another program with the same name. Users
cannot freely choose the time limit, because Slurm enforces it. They also cannot choose the resources that
their runs have used.

Therefore the bounds are first computed from the time limit, and from the fraction of the time limit that the
user's runs usually take. Then the user's runs of the same program change the bounds. The change is
proportional to the resources that these runs used, relative to the request of the job (`track_record`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np

from slurm_energy.oracle.history.cap_response import NO_CAPS, convert_run
from slurm_energy.oracle.history.queue_forecast import Numbers
from slurm_energy.oracle.history.run_history import History
from slurm_energy.oracle.history.similarity import ATTRIBUTES, Row, caps_of_row
from slurm_energy.oracle.history.track_record import (
    IGNORED_SHARE,
    PRIOR_FRACTION,
    ResourceRequest,
    bounded,
    rounded_up,
)

HELD: Final = ("held_cpus", "memory_mib")
"""Resources that a job holds beyond the attributes of `similarity`; they do not determine similarity."""

_USER, _PARTITION, _NODES, _CPUS, _GPUS = map(
    ATTRIBUTES.index, ("user", "partition", "nodes", "cpus", "gpus")
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of the predictions of many jobs. Each array has one value per job.

    The last two attributes hold the record of the job's user: how much longer the user's earlier runs took
    than predicted.

    Attributes:
        time_s: lower bound on the predicted run time in seconds, before multiplication by the misprediction
            factor.
        power_watts: lower bound on the predicted watts of the whole job without a power cap.
        overrun_sum: `UserRecord.overrun_sum` of the job's user, decayed to now; 0 if the user is unknown.
        overrun_size_seconds: `UserRecord.overrun_size_seconds` of the job's user, decayed to now; 0 if the
            user is unknown.
    """

    time_s: Numbers
    power_watts: Numbers
    overrun_sum: Numbers
    overrun_size_seconds: Numbers


def bounds_many(
    history: History,
    jobs: Mapping[str, Sequence[Any]],
    limit_s: Sequence[float],
    prior_watts: Sequence[float],
    now: float,
) -> Bounds:
    """Return lower bounds on the run times and the power of many jobs.

    Args:
        history: finished runs, in memory.
        jobs: columns of job attributes, as in `queue_forecast.predict_many`, and the columns `held_cpus` and
            `memory_mib` of `slurm.queue.columns.QueueColumns`. A missing column, None and 0 mean unknown.
        limit_s: time limit of each job in seconds. For a job without a time limit, the caller assumes one.
        prior_watts: watts of each whole job according to the nameplate prediction, without any power cap.
        now: current time in Unix seconds.
    """
    count = len(limit_s)
    columns = np.empty((4, count))
    cache: dict[Any, tuple[float, float]] = {}
    rows = zip(*(jobs.get(name, repeat(None, count)) for name in ATTRIBUTES), strict=False)
    held = zip(*(jobs.get(name, repeat(0, count)) for name in HELD), strict=False)
    for index, key in enumerate(zip(rows, held, limit_s, prior_watts, strict=True)):
        row = key[0]
        if key not in cache:
            cache[key] = _bounds(history, *key)
        user = history.user_record(row[_USER])
        columns[:, index] = *cache[key], *(user.overruns_at(now) if user else (0.0, 0.0))
    return Bounds(*columns)


def _bounds(
    history: History, row: Row, held: tuple[int | None, int | None], limit_s: float, prior_watts: float
) -> tuple[float, float]:
    gpus, nodes = float(row[_GPUS] or 0), float(row[_NODES] or 1)
    cpus, memory_mib = max(float(row[_CPUS] or nodes), float(held[0] or 0)), float(held[1] or 0)
    units, need = gpus or nodes, ResourceRequest(limit_s, nodes, cpus, gpus, memory_mib)
    fraction, watts = PRIOR_FRACTION, prior_watts / units
    partition = history.partition_record(row[_PARTITION], on_gpus=bool(gpus))
    if partition is not None:
        # The typical values of all users do not depend on the runs of a single user.
        limits, programs = partition.limits, partition.programs
        fraction = bounded(fraction, limits.fraction, limits.share_of(need))
        watts = bounded(watts, programs.unit_watts, programs.share_of(need) * programs.measured_part)
    if user := history.user_record(row[_USER]):
        fraction = bounded(fraction, user.fraction, user.share_of(need))
    time_s = fraction * limit_s
    # The most specific runs with sufficient evidence; more general records include them.
    sufficient = [one for one in history.program_records(row) if one.share_of(need) > IGNORED_SHARE]
    if sufficient:
        record, share = sufficient[-1], sufficient[-1].share_of(need)
        time_s = bounded(time_s, record.time_s, share)
        watts = bounded(watts, record.unit_watts, share * record.measured_part)
    caps = caps_of_row(row)
    if caps != NO_CAPS:
        _, slower = convert_run(watts, watts if row[_GPUS] else 0.0, NO_CAPS, caps)
        time_s *= slower
    return rounded_up(min(time_s, limit_s), limit_s), rounded_up(watts * units, prior_watts)
