"""Free GPUs and the GPUs of running jobs, for policies that look ahead.

The module also computes when the running jobs are expected to end.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.priority.offered_shapes import OfferedShapeTable
from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.priority.scheduling_tables import ShapeTable
from slurm_energy.scheduling.queue import UNKNOWN_UNITS, UnitCapacity
from slurm_energy.slurm.queue.columns import RUNNING, QueueColumns


def unit_capacity(
    queue: QueueColumns, shapes: ShapeTable, predicted: QueuePredictions
) -> UnitCapacity | None:
    """Return the free GPUs and the GPUs of running jobs, by GPU type.

    The result also contains the expected ends of the running jobs. A running job is expected to end after
    its predicted run time, or at its time limit if this is earlier.

    None is returned if no job permits several shapes (kinds and numbers of GPUs), because the nodes are not
    read in this case. GPUs of a type that no node reports are not tracked. Jobs that name no GPU type are
    not tracked either. The idle powers in the result are 0, because they are unknown here.

    Args:
        queue: pending and running jobs.
        shapes: shapes of the ranked jobs. They define the integer codes of the GPU types.
        predicted: predictions of all jobs, by queue row.
    """
    if not isinstance(shapes, OfferedShapeTable):
        return None
    code = dict(zip(shapes.gpu_kind, shapes.table.hardware.tolist(), strict=True))
    tracked = {gpu_kind: number for gpu_kind, number in code.items() if gpu_kind in shapes.gpus_free}
    free = np.full(max(code.values(), default=-1) + 1, UNKNOWN_UNITS)
    for gpu_kind, number in tracked.items():
        free[number] = shapes.gpus_free[gpu_kind]
    runs = np.array(
        [
            row
            for row in np.flatnonzero((queue.state == RUNNING) & (queue.gpus > 0)).tolist()
            if queue.gpu_kind[row] in tracked
        ],
        np.int64,
    )
    return UnitCapacity(
        free=free,
        unit_idle_watts=np.zeros(len(free)),
        hardware=np.array([tracked[queue.gpu_kind[row]] for row in runs.tolist()], np.int64),
        gpus=queue.gpus[runs],
        end_s=np.fmin(queue.start_s[runs] + predicted.time_s[runs], queue.end_s[runs]),
    )
