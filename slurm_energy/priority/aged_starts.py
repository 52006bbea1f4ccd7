"""How many jobs of each user have started lately after waiting past the bound. No Slurm command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_energy.slurm.queue.columns import RUNNING, QueueColumns


@dataclass(slots=True)
class AgedStarts:
    """Starts of the last `wait_bound_s`, as seen in the queue; those of ended jobs are lost in a restart."""

    _starts: dict[tuple[int, float], int] = field(default_factory=dict)

    def by_user(self, queue: QueueColumns, now_s: float, wait_bound_s: float) -> Mapping[int, int]:
        """Return the number of such starts by uid.

        Args:
            queue: all jobs. Tasks of an array count one by one.
            now_s: Unix seconds.
            wait_bound_s: bound on waiting, also the time for which a start counts.
        """
        since = np.fmax(queue.submit_s, queue.eligible_s)
        aged = (queue.state == RUNNING) & (queue.start_s - since >= wait_bound_s)
        for row in np.flatnonzero(aged).tolist():
            self._starts[int(queue.job_id[row]), float(queue.start_s[row])] = int(queue.uid[row])
        self._starts = {start: uid for start, uid in self._starts.items() if now_s - start[1] <= wait_bound_s}
        return Counter(self._starts.values())
