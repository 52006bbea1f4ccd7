"""Division of the maximum number of deferred (held) jobs among users.

senergyctld may hold only a limited number of jobs to start them later. The module gives users equal
numbers of these jobs. The module needs numpy.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.queue.columns import QueueColumns


def shared_fairly(
    queue: QueueColumns, rows: Ints, deferred: Ints, saving: Floats, held: Collection[int], limit: int
) -> list[int]:
    """Return the jobs to hold, so that users get equal numbers of held jobs.

    The result contains indices of `rows`.

    Args:
        queue: all jobs.
        rows: indices of the deferrable jobs in the queue, shape (d,).
        deferred: the jobs among which the function chooses, as indices of `rows`.
        saving: expected saving by deferring a job; NaN means unknown. The first d values are those of the
            jobs in `rows`.
        held: ids of the jobs that are already held. These jobs have precedence over other jobs of the
            same user.
        limit: maximum number of jobs to hold.
    """
    gain = np.nan_to_num(saving)
    own_first = sorted(
        deferred.tolist(), key=lambda at: (int(queue.job_id[rows[at]]) not in held, -gain[at], at)
    )
    rank: dict[int, int] = {}
    ranked: list[tuple[int, int]] = []
    for at in own_first:
        uid = int(queue.uid[rows[at]])
        rank[uid] = rank.get(uid, -1) + 1
        ranked.append((rank[uid], at))
    return [at for _, at in sorted(ranked, key=lambda pair: pair[0])][:limit]
