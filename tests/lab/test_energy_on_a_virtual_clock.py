"""Tests that compare the energy in records with the emulator's exact energy, on a virtual clock.

Other tests make the same comparisons with daemons, Slurm and real time, but each with only one or two
workloads: cluster/test_energy_truth, cluster/test_shared_nodes and node/test_agent_records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from slurm_energy.records import EnergyRecord
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.virtual_node import VirtualNode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], VirtualNode]]:
    """Yield a function that returns the virtual node with a given hardware profile.

    All calls with the same profile return the same node. The jobs of the tests run on it one after another.
    """
    nodes: dict[str, VirtualNode] = {}

    def node(profile: str) -> VirtualNode:
        if profile not in nodes:
            agent = {"idle_watts": idle_watts(profile)}
            nodes[profile] = VirtualNode(tmp_path_factory.mktemp("node"), profile, agent=agent)
        return nodes[profile]

    yield node
    for node_ in nodes.values():
        node_.close()


def idle_watts(profile_name: str) -> dict[str, float]:
    """Return the power of an idle node by component."""
    profile = load_profile(profile_name)
    found = {
        "cpu": profile.cpu.packages * profile.cpu.idle_watts,
        "dram": profile.cpu.packages * profile.memory.idle_watts,
    }
    return {**found, "gpu": profile.gpu.idle_watts} if profile.gpu else found


def joules(record: EnergyRecord) -> dict[str, float | None]:
    return {part.name: part.energy_joules for part in record.components}


@pytest.mark.parametrize(
    ("profile", "kernel", "device", "parts"),
    [
        ("xeon-8358", "gemm", "cpu", ["cpu", "dram"]),
        ("xeon-8358", "triad", "cpu", ["cpu", "dram"]),
        ("xeon-8358", "spmv", "cpu", ["cpu", "dram"]),
        ("epyc-7513-a100", "gemm", "gpu", ["cpu", "gpu[0]", "gpu[3]"]),
        ("xeon-4210-rtx6000", "train", "gpu", ["cpu", "dram", "gpu[0]", "gpu[7]"]),
        ("xeon-h100", "stencil", "gpu", ["cpu", "dram", "gpu[5]"]),
    ],
)
def test_a_record_equals_the_integral_within_a_thousandth(node_of, profile, kernel, device, parts):
    node = node_of(profile)
    job = node.new_job_id()
    node.wait(2.3)
    before, begin_s = node.energy_joules(), node.clock.now_s
    node.begin(job)
    node.run(kernel, device, 11, job)
    node.end(job)
    after, length_s = node.energy_joules(), node.clock.now_s - begin_s
    record = node.records()[job]
    assert record.elapsed_s == pytest.approx(length_s)
    assert record.uncertain_seconds == 0
    for part in parts:
        assert joules(record)[part] == pytest.approx(after[part] - before[part], rel=0.001), part


def run_alone(
    node: VirtualNode, kernel: str, device: str, seconds: float, **flags: str
) -> tuple[float, EnergyRecord]:
    """Run a compute kernel alone in a job on an emulated node.

    The keyword arguments are the energy flags of the job. The function returns the run time in seconds and
    the energy record of the job.
    """
    job_id = node.new_job_id()
    node.begin(job_id, **flags)
    result = node.run(kernel, device, seconds, job_id)
    node.end(job_id)
    return result.seconds, node.records()[job_id]


def package_watts(record: EnergyRecord) -> float:
    return joules(record)["cpu"] / record.elapsed_s


@pytest.mark.parametrize("profile", ["xeon-8358", "xeon-4210-rtx6000"])
def test_powersave_costs_compute_bound_work_time_and_memory_bound_work_hardly_any(node_of, profile):
    runs = {
        (kernel, policy): run_alone(node_of(profile), kernel, "cpu", 8, policy=policy)
        for kernel, policy in itertools.product(("gemm", "triad"), ("performance", "powersave"))
    }
    (slow_s, slow), (fast_s, fast) = runs["gemm", "powersave"], runs["gemm", "performance"]
    assert slow_s >= 1.5 * fast_s
    assert package_watts(slow) <= 0.75 * package_watts(fast)
    assert {part.quality for run in (slow, fast) for part in run.components} == {"measured"}
    assert runs["triad", "powersave"][0] < 1.07 * runs["triad", "performance"][0]


def test_edp_over_gpu_caps_has_the_shape_of_thesis_figure_6_5(node_of):
    caps = (150, 200, 250, 300, 350, 400)
    seconds, edp = {}, {}
    for kernel, cap in itertools.product(("gemm", "triad"), caps):
        flags = {"policy": "cap", "gpu_cap": str(cap)}
        seconds[kernel, cap], record = run_alone(node_of("epyc-7513-a100"), kernel, "gpu", 5, **flags)
        edp[kernel, cap] = record.energy_joules * record.elapsed_s
    assert seconds["gemm", 200] > 1.4 * seconds["gemm", 400]
    assert seconds["triad", 200] < 1.05 * seconds["triad", 400]
    assert min(caps, key=lambda cap: edp["gemm", cap]) in (300, 350)
    assert min(caps, key=lambda cap: edp["triad", cap]) == 200


def test_settings_return_after_the_job(node_of):
    node = node_of("xeon-8358")
    job, before = node.new_job_id(), node.settings
    node.begin(job, policy="powersave")
    assert node.settings != before
    node.end(job)
    assert node.settings == before


CORES, THREADS = 64, 2


@pytest.mark.parametrize(
    "loads",
    [
        [(16, 1, 4.0, 0.0), (4, 6, 0.2, 0.5)],
        [(16, 1, 4.0, 0.0), (4, 1, 1.2, 0.0), (8, 0, 0.0, 0.0)],
        [(32, 3, 1.0, 1.0), (16, 2, 1.5, 0.3), (16, 5, 0.4, 0.2)],
    ],
    ids=["two", "three", "full"],
)
def test_jobs_that_share_a_node_pay_for_what_they_cause(node_of, loads):
    """Each of several jobs on a node is charged the energy that it causes.

    The charged energy is compared with the emulator's exact energy. The load of a job has four values:
    cores, number of kernels, seconds that one kernel takes on the whole idle node, and pause in seconds
    after each kernel.
    """
    node = node_of("xeon-8358")
    idle = idle_watts("xeon-8358")
    loads = {node.new_job_id(): load for load in loads}
    first_cpu, cpus = 0, {}
    for job, (cores, *_) in loads.items():
        cpus[job] = tuple(range(first_cpu, first_cpu + cores))
        first_cpu += cores
        node.begin(job, cores * THREADS)
    begin_s, before = node.clock.now_s, {job: node.dynamic_joules(job) for job in loads}
    runs: dict[int, int] = {}
    left = {job: count for job, (_, count, *_) in loads.items()}
    pause_until = dict.fromkeys(loads, 0.0)
    while any(left.values()) or runs:
        for job, (_, _, seconds, pause_s) in loads.items():
            if job in runs and node.finished(runs[job]):
                del runs[job]
                pause_until[job] = node.clock.now_s + pause_s
            elif job not in runs and left[job] and node.clock.now_s >= pause_until[job]:
                runs[job] = node.submit("gemm", "cpu", seconds, job, cpus=cpus[job])
                left[job] -= 1
        node.wait(0.1)
    length_s = node.clock.now_s - begin_s
    caused = {job: node.dynamic_joules(job) for job in loads}
    for job in loads:
        node.end(job)
    records = node.records()
    for job, (cores, kernels, *_) in loads.items():
        own = joules(records[job])
        static = {part: idle[part] * cores / CORES * length_s for part in ("cpu", "dram")}
        for part, tolerance in (("cpu", 0.03), ("dram", 0.08)):
            expected = static[part] + caused[job][part] - before[job].get(part, 0.0)
            assert own[part] == pytest.approx(expected, rel=tolerance), (job, part)
        assert {part.quality for part in records[job].components} == {"modelled"}
        if not kernels:
            assert own["cpu"] == pytest.approx(static["cpu"], rel=0.01)
    for account in node.manager.status()["energy_accounts"].values():
        assert account["jobs"] + account["idle"] + account["unattributed"] == account["measured"]
