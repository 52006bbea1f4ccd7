"""One pass of the simulated scheduler over the queue.

The scheduling policy ranks the pending jobs. The discipline, such as backfill, selects the jobs that start
now.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from slurm_energy.scheduling.backfill import Candidate, Discipline, choose
from slurm_energy.scheduling.queue import Ints, Queue
from slurm_energy.scheduling.ranking import AGED, Ranking
from slurm_energy.simulator.cluster import Allocation, Cluster
from slurm_energy.simulator.constraints.constrained_selection import ConstrainedSelection
from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.power.budget_control import BudgetControl
from slurm_energy.simulator.power.power_commitment import PowerCommitment
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.job_demand import JobDemand
from slurm_energy.simulator.workloads.workload import Workload

PassSteps = Generator[Queue, Ranking, None]
"""A scheduling pass that yields its queue and waits for the ranking of this queue."""


class SchedulingPass:
    """Scheduling pass: selects the pending jobs that start now.

    Args:
        jobs: workload with all jobs.
        cluster: the nodes of the cluster.
        settings: discipline (such as backfill), budget and options of the policy.
        runs: the running jobs.
        events: event queue, which provides the simulated time.
        demand: resources that jobs need, and resources that are free.
        commitment: committed power of the cluster, see `PowerCommitment`.
        control: control loop of the power budget; None without a budget.
        start: function that starts a job in a shape, which is one way to run the job.
        constrained: selects jobs if the scenario has further constraints, such as memory or partitions; None
            if only units (GPUs, cores or nodes) and power restrict jobs.
        looks_ahead: whether the policy plans later starts and therefore gets the capacity of the cluster
            together with the queue.
    """

    def __init__(
        self,
        jobs: Workload,
        cluster: Cluster,
        settings: ScheduleSettings,
        *,
        runs: RunningJobs,
        events: EventQueue,
        demand: JobDemand,
        commitment: PowerCommitment,
        control: BudgetControl | None,
        start: Callable[[int, int, Allocation | None], object],
        constrained: ConstrainedSelection | None = None,
        looks_ahead: bool = False,
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._settings = settings
        self._runs = runs
        self._events = events
        self._demand = demand
        self._commitment = commitment
        self._control = control
        self._start = start
        self._constrained = constrained
        self._looks_ahead = looks_ahead
        self._size = jobs.sizes(cluster.total)

    def steps(self, pending: Iterable[int]) -> PassSteps:
        """Run one scheduling pass as a generator.

        The generator yields the queue of the pending jobs. The caller gets a ranking of this queue from the
        scheduling policy, or from a learning agent, and sends it to the generator. The generator then starts
        jobs in the order of the ranking.

        `pending` contains the rows of the pending jobs in the workload.
        """
        rows = np.fromiter(pending, np.int64)
        now_s = self._events.now_s
        queue, shapes = self._jobs.queue(
            *(rows, now_s, self._runs.left, self._runs.users(now_s), self._size, self._runs.held_s)
        )
        if self._settings.signals is not None:
            queue = replace(queue, signals=self._settings.signals.columns(now_s))
        self._mark_possible(queue, rows, shapes)
        if self._looks_ahead:
            queue = replace(queue, capacity=self._runs.capacity())
        ranking = yield queue
        candidates = list(self._candidates(ranking, rows, shapes, queue.jobs.job_id))
        for chosen, allocation in self._chosen(candidates, now_s):
            if self._may_start(chosen):
                self._start(chosen.job, chosen.shape, allocation)

    def _chosen(
        self, candidates: Sequence[Candidate], now_s: float
    ) -> Iterator[tuple[Candidate, Allocation | None]]:
        """Yield the jobs that start now, each with its allocation.

        The allocation is the list of units (GPUs, cores or whole nodes) that the job gets. It is None if the
        simulation has no constraints that determine the units of a job.
        """
        discipline = self._settings.discipline
        if self._constrained is not None:
            yield from self._constrained.choose(discipline, candidates)
            return
        free = self._demand.free()
        boots = self._control is not None and self._commitment.switches_off
        need_now = self._demand.need_now if boots else None
        for chosen in choose(discipline, candidates, now_s, free, need_now, self._demand.releases):
            yield chosen, None

    def _mark_possible(self, queue: Queue, rows: Ints, shapes: Ints) -> None:
        """Mark in `queue` the shapes (ways to run a job) from which the policy may choose.

        Under the discipline packing, a shape is marked if the free resources suffice for it now (thesis,
        Algorithm 3). There is one exception: if a job has waited longer than the bound on waiting, all its
        shapes are marked, and it gets a reservation. Under the other disciplines all shapes are marked, and a
        job waits for its chosen shape.

        Power counts as a resource only if the power budget applies to every policy. The policy Charon keeps
        the budget itself and ranks jobs without regard to power.

        Args:
            queue: table of the pending jobs, modified in place.
            rows: row of each job of `queue` in the workload.
            shapes: row of each shape of `queue` in the workload.
        """
        table = queue.alternatives
        fits = table.gpus <= self._cluster.total[table.hardware]
        if self._constrained is not None:
            fits &= self._constrained.possible(shapes)
        if self._settings.discipline == Discipline.PACKING:
            aged = queue.wait_s >= self._settings.options.wait_bound_s
            now = fits & (table.gpus <= self._cluster.free[table.hardware])
            if self._constrained is not None:
                jobs = np.repeat(rows, np.diff(table.first))
                now[now] = self._constrained.possible_now(jobs[now], shapes[now])
            if self._settings.hard_budget and self._control is not None:
                watts = self._demand.added_watts(shapes[now]) + self._demand.retained_watts(
                    shapes[now].tolist()
                )
                now[now] &= watts <= self._control.headroom_watts()
            fits &= np.repeat(aged, np.diff(table.first)) | now
        table.possible[:] = fits

    def _candidates(self, ranking: Ranking, rows: Ints, shapes: Ints, job_id: Ints) -> Iterator[Candidate]:
        if self._control is not None:
            chosen = shapes[ranking.choice[ranking.choice >= 0]]
            self._control.added_watts(chosen.tolist())  # computing all at once is faster
        for index in ranking.order(job_id):
            choice, job = ranking.choice[index], int(rows[index])
            if choice < 0:
                continue
            shape = int(shapes[choice])
            limit_s = self._runs.expected_s(job, shape)
            candidate = Candidate(
                job, shape, self._demand.need(shape), limit_s, bool(ranking.tier[index] == AGED)
            )
            if self._demand.keeps_floors(candidate, starts=False):
                yield candidate
            elif candidate.aged:
                return  # no other job may delay it

    def _may_start(self, candidate: Candidate) -> bool:
        """Return whether a job may start under the power budget.

        Two conditions must hold. First, the budget must admit the job. Second, enough power must be free
        under the present power limits of the running jobs. If only the second condition fails, the method
        lowers power limits of running jobs. The job may then start in a later scheduling pass.
        """
        if self._control is None:
            return True
        watts = float(self._demand.added_watts(np.array([candidate.shape]))[0])
        keeps_floors = self._demand.keeps_floors(candidate, starts=True)
        retained_watts = float(self._demand.retained_watts([candidate.shape])[0])
        return keeps_floors and self._control.admit(watts + retained_watts) and self._control.make_room(watts)
