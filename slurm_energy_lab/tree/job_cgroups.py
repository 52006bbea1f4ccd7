"""Slurm's control groups of version 2 as the emulated processors would fill them.

`system.slice/NODE_slurmstepd.scope/job_JOB/cpu.stat`: Slurm, cgroup_v2.html (several slurmds on a machine);
Linux, Documentation/admin-guide/cgroup-v2.rst. The groups in which the lab's processes really are count
the machine's time and are elsewhere (`throttle`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree, refuse

ROOT = "/sys/fs/cgroup/system.slice"
GROUP_RETENTION_S = 60.0
"""How long a job's group stays after nothing of the job runs any more; Slurm removes it at the job's end."""


class _Group:
    """One job's group."""

    def __init__(self, realtime_model: RealtimeModel, job_id: int, now_s: float) -> None:
        self._realtime_model = realtime_model
        self._job_id = job_id
        self._highest_usec = 0
        self.active_s = now_s
        self.gone = False

    def stat(self) -> bytes:
        """Return the content of cpu.stat; a removed group has none, as with the kernel's."""
        if self.gone:
            refuse(errno.ENODEV)
        with self._realtime_model.now() as model:
            seconds = model.usage().cpu_seconds(self._job_id, model.now_s)
        self._highest_usec = max(self._highest_usec, int(seconds * 1e6))
        return (
            f"usage_usec {self._highest_usec}\nuser_usec {self._highest_usec}\nsystem_usec 0\n"
            "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n"
        ).encode()


class JobCgroups:
    """The groups of one node's jobs; they come with a job's first program or kernel."""

    def __init__(
        self, tree: Tree, realtime_model: RealtimeModel, node: str, clock: Callable[[], float]
    ) -> None:
        """Prepare.

        Args:
            tree: where the groups appear.
            realtime_model: the node's model.
            node: Slurm's name of the node.
            clock: seconds that only rise.
        """
        self._tree = tree
        self._realtime_model = realtime_model
        self._clock = clock
        self._scope = f"{ROOT}/{node}_slurmstepd.scope"
        self._groups: dict[int, _Group] = {}
        tree.directory(self._scope)

    @property
    def has_groups(self) -> bool:
        """Whether there is a group."""
        return bool(self._groups)

    def create_group(self, job_id: int) -> None:
        """Make a job's group, if it is not there."""
        group = self._groups.get(job_id)
        if group is None:
            group = self._groups[job_id] = _Group(self._realtime_model, job_id, self._clock())
            self._tree.add(f"{self._scope}/job_{job_id}/cpu.stat", File(group.stat, size=0))
        group.active_s = self._clock()

    def remove_stale(self, alive: Callable[[int], bool]) -> None:
        """Remove groups of jobs that ended long ago.

        Args:
            alive: whether a job's real programs are still there.
        """
        now_s = self._clock()
        with self._realtime_model.now() as model:
            usage = model.usage()
            running = {job_id for job_id in self._groups if usage.running(job_id)}
        for job_id, group in list(self._groups.items()):
            if job_id in running or alive(job_id):
                group.active_s = now_s
            elif now_s - group.active_s > GROUP_RETENTION_S:
                group.gone = True
                del self._groups[job_id]
                self._tree.remove(f"{self._scope}/job_{job_id}")
