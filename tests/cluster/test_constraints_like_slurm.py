"""The simulator and a real Slurm start the same jobs first when constraints limit the choice.

Random queues wait on drained nodes. When the nodes are resumed, Slurm's scheduler and backfill select jobs
by memory, partition, priority tier, time limits and a maintenance reservation. The simulator selects jobs
with the discipline `conservative`. All time limits of a queue differ, because a job that starts a second
later ends a second later. Slurm's backfill plans whole nodes even for jobs that share nodes. Slurm therefore
sometimes starts fewer of these jobs at once.
"""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
from small_cluster import SmallCluster, marks, wait_until

from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraints import Constraints, JobLimits, NodeReservation, Partition
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

pytestmark = [*marks(), pytest.mark.soak, pytest.mark.timeout(900)]
JOBS, CASES = 10, 24
MIN_AGREEMENT = 0.9
MAINTENANCE_MINUTES = 6
EXTRA = """\
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=10
"""
PARTITIONS = (
    ("partitionname=small", "nodes=n1,n2", "maxtime=4", "prioritytier=10", "state=up"),
    ("partitionname=wide", "nodes=n1,n2,n3", "maxtime=60", "state=up"),
)


class PlainCluster(SmallCluster):
    """A Slurm cluster without the plugins of slurm-energy."""

    def write_plugstack(self, arguments: str | None = None) -> None:
        (self.directory / "plugstack.conf").write_text("")


def random_queue(seed):
    """Return a random queue for a comparison with Slurm.

    The queue has one row per job: number of CPUs, MB per CPU, time limit in minutes, and partition.
    """
    random = np.random.default_rng(seed)
    minutes = random.permutation(np.arange(1, JOBS + 1))
    return [
        (
            int(random.integers(1, 7)),
            int(random.choice([20, 200, 400])),
            int(minutes[job]),
            "small" if random.random() < 0.35 else "wide",
        )
        for job in range(JOBS)
    ]


def simulated_starts(queue):
    """Return the indices of the jobs that the simulator starts at time 0."""
    constraints = Constraints(
        partitions=(
            Partition("small", JobLimits(priority=10, max_time_s=240.0), nodes=(0, 1)),
            Partition("wide"),
        ),
        reservations=(NodeReservation("maintenance", (2,), MAINTENANCE_MINUTES * 60.0 - 30.0, 600.0),),
    )
    names = ("small", "wide")
    seconds = [60.0 * minutes for _, _, minutes, _ in queue]
    jobs = workload(
        np.arange(JOBS + 1),
        {
            "submit_s": np.zeros(JOBS),
            "time_limit_s": seconds,
            "unit_memory_gib": [memory / 1024 for _, memory, _, _ in queue],
            "partition": [names.index(partition) for *_, partition in queue],
        },
        {"units": [cpus for cpus, *_ in queue], "time_s": seconds},
        partitions=names,
    )
    kinds = [NodeKind("n", 3, 4, memory_gib=1000 / 1024)]
    settings = ScheduleSettings(Discipline.CONSERVATIVE, constraints=constraints)
    result = simulate(jobs, kinds, policy("fcfs"), settings)
    return {job for job in range(JOBS) if result.accounts.start_s[job] == 0.0}


def slurm_starts(cluster, queue):
    """Return the jobs that a real Slurm starts after its drained nodes are resumed.

    The function waits until the set of started jobs stays the same.
    """
    nodes = ("nodename=n[1-3]",)
    assert cluster.run("scontrol", "update", *nodes, "state=drain", "reason=test").returncode == 0
    reservation = (
        "reservationname=maintenance",
        f"starttime=now+{MAINTENANCE_MINUTES}minutes",
        "duration=10",
    )
    made = cluster.run(
        "scontrol", "create", "reservation", *reservation, "nodes=n3", "flags=maint", "user=root"
    )
    assert made.returncode == 0, made.stderr
    ids = []
    for cpus, memory, minutes, partition in queue:
        options = (
            f"-n{cpus}",
            f"--mem-per-cpu={memory}",
            f"-t{minutes}",
            f"-p{partition}",
            "--wrap=sleep 900",
        )
        done = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--no-requeue", *options)
        ids.append(done.stdout.strip() if done.returncode == 0 else "")  # above the limit of the partition
    cluster.run("scontrol", "update", *nodes, "state=resume")
    chosen, seen = set(), 0
    deadline = time.monotonic() + 60
    while seen < 4 and time.monotonic() < deadline:
        time.sleep(1.5)
        listing = cluster.run("squeue", "--noheader", "--states=R,CF,CG", "--format=%i").stdout.split()
        now = {job for job, name in enumerate(ids) if name in listing}
        seen = seen + 1 if now == chosen and now else 0
        chosen = now
    cluster.run("scancel", "--user=root", "--signal=KILL")
    cluster.run("scancel", "--user=root")
    wait_until(lambda: not cluster.run("squeue", "--noheader").stdout.split(), "empty queue", cluster)
    cluster.run("scontrol", "delete", "reservationname=maintenance")
    return chosen


def test_the_simulator_starts_the_jobs_that_slurm_starts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("c")
    agreed = wrong = 0
    try:
        with PlainCluster(directory, directory, directory, extra=EXTRA, hooks="") as cluster:
            for partition in PARTITIONS:
                assert cluster.run("scontrol", "create", *partition).returncode == 0
            for seed in range(CASES):
                queue = random_queue(seed)
                live, simulated = slurm_starts(cluster, queue), simulated_starts(queue)
                agreed += JOBS - len(live ^ simulated)
                wrong += len(live ^ simulated)
                print(seed, "slurm", sorted(live), "simulator", sorted(simulated), queue)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{agreed} of {agreed + wrong} decisions agree")
    assert agreed >= MIN_AGREEMENT * (agreed + wrong)
