"""Brute-force checks of simulated schedules under constraints, written without the code of the simulator."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np

from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraints import (
    Constraints,
    JobLimits,
    NodeReservation,
    Partition,
    Qos,
)
from slurm_energy.simulator.engine import Simulation
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

EPSILON = 1e-6


def random_case(seed, *, priorities=True):
    """Return a random case for a simulation: kinds of nodes, constraints and a workload.

    The time limit of each job equals its run time.
    """
    random = np.random.default_rng(seed)
    kinds = [
        NodeKind(f"k{i}", int(random.integers(1, 5)), int(random.integers(1, 5)), memory_gib=memory)
        for i, memory in enumerate(random.choice([8.0, 16.0, math.inf], random.integers(1, 3)))
    ]
    nodes = sum(kind.nodes for kind in kinds)

    def some_nodes():
        chosen = np.flatnonzero(random.random(nodes) < 0.7)
        return tuple(chosen.tolist()) or None

    def limits():
        return JobLimits(
            priority=int(random.integers(-1, 2)) if priorities else 0,
            **{
                name: int(random.integers(low, 6)) if random.random() < 0.3 else 0
                for name, low in (
                    *(("max_jobs", 1), ("max_units", 2), ("max_jobs_per_user", 1)),
                    *(("max_units_per_user", 2), ("max_units_per_job", 2)),
                )
            },
            max_time_s=float(random.choice([math.inf, 60.0])),
        )

    constraints = Constraints(
        tuple(Partition(f"p{i}", limits(), some_nodes(), 50.0) for i in range(2)),
        tuple(Qos(f"q{i}", limits()) for i in range(2)),
        tuple(
            NodeReservation(
                f"r{i}",
                some_nodes(),
                float(random.integers(0, 200)),
                float(random.integers(10, 80)),
                float(random.choice([0.0, 250.0])),
            )
            for i in range(random.integers(0, 3))
        ),
        (("a", int(random.integers(1, 4))),),
    )
    count = int(random.integers(1, 30))
    time_s = random.integers(1, 90, count).astype(float)
    kind = random.integers(0, len(kinds), count)
    jobs = workload(
        np.arange(count + 1),
        {
            "submit_s": np.sort(random.integers(0, 300, count)).astype(float),
            "user": random.integers(0, 2, count),
            "time_limit_s": time_s,
            "unit_memory_gib": random.choice([np.nan, 1.0, 3.0, 5.0], count),
            "partition": random.integers(-1, 3, count),
            "qos": random.integers(-1, 3, count),
            "reservation": np.where(random.random(count) < 0.2, random.integers(0, 2, count), -1),
            "licenses": random.integers(0, 2, (count, 1)),
        },
        {"units": random.integers(1, 9, count), "time_s": time_s, "hardware": kind},
        users=("u0", "u1"),
        partitions=("p0", "p1", "other"),
        qos_names=("q0", "q1", "other"),
        reservations=("r0", "r1"),
        license_names=("a",),
    )
    return kinds, constraints, jobs


class BruteForce:
    """Simulation whose constraints are checked at every event by plain loops over nodes and jobs.

    The constraints are partitions, QOS and reservations.
    """

    def __init__(self, kinds, constraints, jobs, discipline):
        self.kinds, self.constraints, self.jobs, self.discipline = kinds, constraints, jobs, discipline
        self.kind_of = [index for index, kind in enumerate(kinds) for _ in range(kind.nodes)]
        settings = ScheduleSettings(discipline, constraints=constraints)
        self.simulation = Simulation(jobs, kinds, policy("fcfs"), settings, self.check)
        self.starts, self.known_windows = {}, {}
        self.promised = {}

    def entry(self, table, names, column, job):
        name = names[column[job]] if column[job] >= 0 else None
        return next((one for one in table if one.name == name), None)

    def partition(self, job):
        return self.entry(self.constraints.partitions, self.jobs.partitions, self.jobs.partition, job)

    def qos(self, job):
        return self.entry(self.constraints.qos, self.jobs.qos_names, self.jobs.qos, job)

    def reservation(self, job):
        table = self.constraints.reservations
        return self.entry(table, self.jobs.reservations, self.jobs.reservation, job)

    def windows(self, reservation):
        if reservation.name not in self.known_windows:
            begins = [
                reservation.begin_s + i * reservation.every_s for i in range(40 if reservation.every_s else 1)
            ]
            self.known_windows[reservation.name] = [(begin, begin + reservation.length_s) for begin in begins]
        return self.known_windows[reservation.name]

    def may_use(self, job, node, start_s):
        """Return whether a job that starts at `start_s` may use a node until the end of the job.

        The scenario's partitions and reservations are checked.
        """
        partition, own = self.partition(job), self.reservation(job)
        end_s = start_s + self.jobs.time_s[job]
        if self.kind_of[node] != self.jobs.hardware[job]:
            return False
        if partition is not None and partition.nodes is not None and node not in partition.nodes:
            return False
        if own is not None:
            if own.nodes is not None and node not in own.nodes:
                return False
            if not any(b <= start_s and end_s <= e + EPSILON for b, e in self.windows(own)):
                return False
        for other in self.constraints.reservations:
            if other is own or (other.nodes is not None and node not in other.nodes):
                continue
            if any(b < end_s - EPSILON and start_s < e for b, e in self.windows(other)):
                return False
        return True

    def memory(self, job):
        value = self.jobs.unit_memory_gib[job]
        return value if value > 0 else 0.0

    def held(self, runs):
        units, memory, licenses = [0] * len(self.kind_of), [0.0] * len(self.kind_of), 0
        for job, allocation in runs:
            for node, count in allocation:
                units[node] += count
                memory[node] += count * self.memory(job)
            licenses += int(self.jobs.licenses[job, 0])
        return units, memory, licenses

    def exceeded_limits(self, jobs):
        """Return whether the given running jobs exceed a limit of their partition or QOS."""
        for table, of in ((self.constraints.partitions, self.partition), (self.constraints.qos, self.qos)):
            for one in table:
                group = [job for job in jobs if of(job) is one]
                limits = one.limits
                sets = [(group, limits.max_jobs, limits.max_units)]
                for user in (0, 1):
                    own = [job for job in group if self.jobs.user[job] == user]
                    sets.append((own, limits.max_jobs_per_user, limits.max_units_per_user))
                for members, max_jobs, max_units in sets:
                    if max_jobs and len(members) > max_jobs:
                        return True
                    if max_units and sum(self.jobs.units[members]) > max_units:
                        return True
                if limits.max_units_per_job and any(self.jobs.units[group] > limits.max_units_per_job):
                    return True
                if any(self.jobs.time_limit_s[group] > limits.max_time_s):
                    return True
        return False

    def fits(self, job, start_s, runs):
        """Return whether a job could start at a time beside running jobs, by checking each constraint."""
        units, memory, licenses = self.held(runs)
        if licenses + self.jobs.licenses[job, 0] > self.constraints.licenses[0][1]:
            return False
        if self.exceeded_limits([*(run[0] for run in runs), job]):
            return False
        capacity = 0
        for node, kind in enumerate(self.kind_of):
            if not self.may_use(job, node, start_s):
                continue
            free, need = self.kinds[kind].units - units[node], self.memory(job)
            if need and self.kinds[kind].memory_gib < math.inf:
                free = min(free, (self.kinds[kind].memory_gib - memory[node] + EPSILON) // need)
            capacity += free
        return capacity >= self.jobs.units[job]

    def is_open(self, job, now_s):
        own = self.reservation(job)
        return own is None or any(b <= now_s < e for b, e in self.windows(own))

    def check(self, now_s, _watts):
        """Check the state of the simulation after all events at the same time have been processed."""
        simulation = self.simulation
        running = simulation._runs.running
        runs = [(job, run.allocation) for job, run in running.items()]
        units, memory, licenses = self.held(runs)
        for node, kind in enumerate(self.kind_of):
            assert units[node] <= self.kinds[kind].units
            assert memory[node] <= self.kinds[kind].memory_gib + EPSILON
        assert licenses <= self.constraints.licenses[0][1]
        assert not self.exceeded_limits(list(running))
        for job, run in running.items():
            assert sum(count for _, count in run.allocation) == self.jobs.units[job]
            assert all(self.may_use(job, node, run.start_s) for node, _ in run.allocation)
            self.starts[job] = run.start_s
        self.check_pending(now_s, runs)

    def priority(self, job):
        partition, qos = self.partition(job), self.qos(job)
        return (
            -(partition.limits.priority if partition else 0),
            -(qos.limits.priority if qos else 0),
            job,
        )

    def check_pending(self, now_s, runs):
        """Check that the simulator has started every job that could start.

        The check looks at the first waiting job that limits and reservations permit to start. The check
        fails if this job would fit on the free nodes now. With backfill, the function also stores the latest
        start that the simulator promises to the first waiting job, for a later check.
        """
        jobs = [run[0] for run in runs]
        waiting = sorted(self.simulation._pending, key=self.priority)
        eligible = [
            job for job in waiting if self.is_open(job, now_s) and not self.exceeded_limits([*jobs, job])
        ]
        if not eligible:
            return
        first = eligible[0]
        assert not self.fits(first, now_s, runs), f"job {first} could start at {now_s}"
        backfills = self.discipline in (Discipline.EASY, Discipline.CONSERVATIVE)
        if backfills and first == waiting[0] and first not in self.promised:
            self.promised[first] = self.latest_start_s(first, runs)

    def latest_start_s(self, job, runs):
        """Return the latest time at which a job starts if no other job starts before it.

        The job then starts as soon as it fits: after the end of a running job, or after a change of a
        reservation. Infinity means that it never fits.
        """
        ends = {run[0]: self.starts[run[0]] + self.jobs.time_s[run[0]] for run in runs}
        times = {*ends.values()}
        for reservation in self.constraints.reservations:
            for window in self.windows(reservation):
                times.update(window)
        now_s = self.simulation._events.now_s
        for time_s in sorted(time for time in times if time > now_s):
            if self.fits(job, time_s, [run for run in runs if ends[run[0]] > time_s]):
                return time_s
        return math.inf


class ResourceChecks(BruteForce):
    """Checks of random simulations in which each job can run in two shapes (sets of resources).

    Nodes may fail or be off, and jobs may be interrupted. The checks state that no job uses more than the
    permitted resources.
    """

    def __init__(self, seed, discipline, policy_name):
        random = np.random.default_rng([seed, 1])
        kinds, constraints, jobs = random_case(seed)
        kinds = [
            replace(kind, boot_s=7.0, failures_per_s=float(random.choice([0.0, 1 / 3000])), repair_s=20.0)
            for kind in kinds
        ]
        count = jobs.count
        double = np.repeat(np.arange(count), 2)
        jobs = replace(
            jobs,
            first=np.arange(count + 1) * 2,
            deadline_s=np.where(random.random(count) < 0.3, jobs.submit_s + 3 * jobs.time_s, np.nan),
            time_limit_s=np.where(random.random(count) < 0.5, 2 * jobs.time_s, np.nan),
            hardware=random.integers(0, len(kinds), 2 * count),
            units=random.integers(1, 9, 2 * count),
            batch=np.zeros(2 * count, np.int64),
            cap_watts=np.full(2 * count, np.nan),
            time_s=jobs.time_s[double],
            power_watts=random.uniform(1, 9, 2 * count),
            predicted_time_s=jobs.time_s[double],
            predicted_watts=random.uniform(1, 9, 2 * count),
        )
        settings = ScheduleSettings(
            discipline,
            constraints=constraints,
            idle_off_s=float(random.choice([5.0, 60.0])) if random.random() < 0.5 else None,
            kill_at_limit=bool(random.random() < 0.5),
            preemption=Preemption(checkpoint_s=10.0, restart_s=2.0),
            seed=seed,
        )
        self.kinds, self.constraints, self.jobs = kinds, constraints, jobs
        self.kind_of = [index for index, kind in enumerate(kinds) for _ in range(kind.nodes)]
        self.known_windows = {}
        self.simulation = Simulation(jobs, kinds, policy(policy_name), settings, self.check)

    def check(self, now_s, _watts):
        running = self.simulation._runs.running
        units, memory, licenses = self.held([(job, run.allocation) for job, run in running.items()])
        for node, kind in enumerate(self.kind_of):
            assert units[node] <= self.kinds[kind].units
            assert memory[node] <= self.kinds[kind].memory_gib + EPSILON
        assert licenses <= self.constraints.licenses[0][1]
        for job, run in running.items():
            assert sum(count for _, count in run.allocation) == self.jobs.units[run.shape]
            for node, _ in run.allocation:
                assert self.kind_of[node] == self.jobs.hardware[run.shape]
                self.check_node(job, run, node)
        for table, of in ((self.constraints.partitions, self.partition), (self.constraints.qos, self.qos)):
            for one in table:
                group = [run for job, run in running.items() if of(job) is one]
                sets = [(group, one.limits.max_jobs, one.limits.max_units)]
                for user in (0, 1):
                    own = [run for run in group if self.jobs.user[run.job] == user]
                    sets.append((own, one.limits.max_jobs_per_user, one.limits.max_units_per_user))
                for members, max_jobs, max_units in sets:
                    assert not max_jobs or len(members) <= max_jobs
                    assert not max_units or sum(self.jobs.units[run.shape] for run in members) <= max_units

    def check_node(self, job, run, node):
        partition, own = self.partition(job), self.reservation(job)
        end_s = run.start_s + run.limit_s
        assert partition is None or partition.nodes is None or node in partition.nodes
        if own is not None:
            assert own.nodes is None or node in own.nodes
            assert any(b <= run.start_s and end_s <= e + EPSILON for b, e in self.windows(own))
        for other in self.constraints.reservations:
            if other is not own and (other.nodes is None or node in other.nodes):
                assert not any(b < end_s - EPSILON and run.start_s < e for b, e in self.windows(other))


def check_case(seed, discipline, *, priorities=True):
    """Simulate a random case and check every event by brute force.

    Return the result of the simulation, and the `BruteForce` object that checked the events.
    """
    kinds, constraints, jobs = random_case(seed, priorities=priorities)
    force = BruteForce(kinds, constraints, jobs, discipline)
    return force.simulation.run(), force


if __name__ == "__main__":  # arguments: number of random cases, first seed
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[1])):
        for rule in Discipline:
            simulated, checks = check_case(number, rule, priorities=number % 2 == 0)
            if number % 2:
                for waiter, latest_s in checks.promised.items():
                    assert simulated.accounts.start_s[waiter] <= latest_s + EPSILON, (number, rule, waiter)
            for name in ("zeus", "kairos", "metis"):
                ResourceChecks(number, rule, name).simulation.run()
    print(f"{sys.argv[1]} cases under {len(Discipline)} disciplines: no fault")
