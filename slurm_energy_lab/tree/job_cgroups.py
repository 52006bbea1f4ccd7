"""Emulated cgroups (version 2) of Slurm jobs, with the CPU time of the emulated processors.

Path: `system.slice/NODE_slurmstepd.scope/job_JOB/cpu.stat`. Sources: Slurm, cgroup_v2.html (several
slurmds on a machine); Linux, Documentation/admin-guide/cgroup-v2.rst. The real processes of the lab
(cluster of emulated nodes) run in other, real cgroups (`cpu_throttle`). These count the CPU time of
the machine.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree, refuse
from slurm_energy_lab.tree.stated_signals import StatedSignals

ROOT = "/sys/fs/cgroup/system.slice"
GROUP_RETENTION_S = 60.0
"""Time for which a job's group remains after its last activity. Slurm removes it at the end of the job."""


class _Group:
    """Emulated cgroup of one job.

    Attributes:
        active_s: time of the job's last activity in seconds.
        gone: whether the cgroup has been removed.
        signals: signals that the job's programs state; None before the first statement.
    """

    def __init__(self, realtime_model: RealtimeModel, job_id: int, now_s: float) -> None:
        self._realtime_model = realtime_model
        self._job_id = job_id
        self._highest_usec = 0
        self.active_s = now_s
        self.gone = False
        self.signals: StatedSignals | None = None

    def stat(self) -> bytes:
        """Return the content of the emulated file cpu.stat of a job's cgroup.

        Raises:
            OSError: ENODEV after the removal of the cgroup, as in Linux.
        """
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
    """Emulated cgroups of the jobs of one node.

    The cgroup of a job appears with the job's first program or compute kernel.
    """

    def __init__(
        self, tree: Tree, realtime_model: RealtimeModel, node: str, clock: Callable[[], float]
    ) -> None:
        """Add the directory of the node's slurmstepd scope.

        Args:
            tree: file tree in which the cgroups appear.
            realtime_model: the node's model.
            node: Slurm's name of the node.
            clock: monotonic clock in seconds.
        """
        self._tree = tree
        self._realtime_model = realtime_model
        self._clock = clock
        self._scope = f"{ROOT}/{node}_slurmstepd.scope"
        self._groups: dict[int, _Group] = {}
        tree.directory(self._scope)

    @property
    def has_groups(self) -> bool:
        """Whether the node has a cgroup of any job."""
        return bool(self._groups)

    def create_group(self, job_id: int) -> None:
        """Create the cgroup of a job unless it exists. Record that the job is active now."""
        group = self._groups.get(job_id)
        if group is None:
            group = self._groups[job_id] = _Group(self._realtime_model, job_id, self._clock())
            self._tree.add(f"{self._scope}/job_{job_id}/cpu.stat", File(group.stat, size=0))
        group.active_s = self._clock()

    def state_signals(self, job_id: int, run_id: int, values: Mapping[str, float]) -> None:
        """Show signals of a job's program as files in the job's emulated cgroup.

        The emulated program sets the values of these signals. The values are not measured.

        Args:
            job_id: id of the job. The job must have a cgroup.
            run_id: id of the program's run.
            values: values by signal name. The names are those in `stated_signals.STATED`.
        """
        group = self._groups[job_id]
        if group.signals is None:
            group.signals = StatedSignals(self._tree, f"{self._scope}/job_{job_id}", self._clock)
        group.signals.state(run_id, values)

    def end_signals(self, run_id: int) -> None:
        """Stop showing the signals of a program."""
        for group in list(self._groups.values()):
            if group.signals is not None:
                group.signals.end(run_id)

    def remove_stale(self, alive: Callable[[int], bool]) -> None:
        """Remove the cgroups of jobs that were not active for `GROUP_RETENTION_S` seconds.

        Args:
            alive: function that returns for a job id whether real programs of the job still run.
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
