"""Tests of emulated CPU times of a node, without FUSE.

The tests cover /proc/stat, /proc/uptime and Slurm's control groups.
"""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_bench import Bench
from property_examples import examples

from slurm_energy_lab.model import KernelRequest
from slurm_energy_lab.tree.job_cgroups import GROUP_RETENTION_S
from slurm_energy_lab.tree.proc_stat import USER_HZ, ProcessorTimes

SCOPE = "/sys/fs/cgroup/system.slice/n1_slurmstepd.scope"


def submit(bench: Bench, job: int | None, cpus, seconds: float = 5.0) -> int:
    with bench.realtime_model.modify() as model:
        request = KernelRequest("monte_carlo", "cpu", cpus=tuple(cpus), full_speed_s=seconds, job_id=job)
        return model.submit(request, model.now_s)


def cpu_lines(bench: Bench) -> dict[str, list[int]]:
    lines = [line.split() for line in bench.read("/proc/stat").splitlines()]
    return {line[0]: [int(word) for word in line[1:]] for line in lines if line[0].startswith("cpu")}


def usage(bench: Bench, job: int) -> dict[str, int]:
    lines = bench.read(f"{SCOPE}/job_{job}/cpu.stat").splitlines()
    return {key: int(value) for key, value in (line.split() for line in lines)}


def test_stat_has_the_kernels_lines_in_its_order():
    bench = Bench("epyc-7513-a100")
    words = [line.split()[0] for line in bench.read("/proc/stat").splitlines()]
    assert words[:65] == ["cpu", *(f"cpu{number}" for number in range(64))]
    assert [word for word in words[65:] if word != "softirq"] == [
        "intr",
        "ctxt",
        "btime",
        "processes",
        "procs_running",
        "procs_blocked",
    ]
    assert all(len(columns) == 10 for columns in cpu_lines(bench).values())
    assert bench.entry("/proc/stat").size == 0


def test_time_of_kernels_is_user_time_of_their_cpus():
    bench = Bench("epyc-7513-a100", cpu__system_cpus=0)
    before = cpu_lines(bench)
    submit(bench, 7, [3, 35], 1000)
    bench.wait(2.5)
    after = cpu_lines(bench)
    assert after["cpu3"][0] == after["cpu35"][0] == 2.5 * USER_HZ
    assert after["cpu"][0] == 5 * USER_HZ
    assert after["cpu4"][0] == 0
    assert after["cpu4"][3] - before["cpu4"][3] == pytest.approx(2.5 * USER_HZ, abs=1)
    assert after["cpu3"][3] - before["cpu3"][3] == 0
    assert "procs_running 2" in bench.read("/proc/stat")


def test_daemons_are_system_time():
    bench = Bench("epyc-7513-a100", cpu__system_cpus=0.32)
    bench.wait(100.0)
    lines = cpu_lines(bench)
    assert lines["cpu"][2] == 32 * USER_HZ
    assert lines["cpu5"][2] == 0.5 * USER_HZ


@pytest.mark.slow
@examples(40)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 63), st.integers(1, 3)), max_size=10))
def test_columns_never_fall_and_fill_the_uptime(steps):
    bench = Bench("epyc-7513-a100", cpu__system_cpus=0.064)
    last = cpu_lines(bench)
    for wait_s, first, count in steps:
        submit(bench, 7, range(first, min(64, first + count * 20)), 0.2)
        bench.wait(wait_s)
        lines = cpu_lines(bench)
        up_s, idle_s = (float(word) for word in bench.read("/proc/uptime").split())
        for name, columns in lines.items():
            assert all(new >= old for new, old in zip(columns, last[name], strict=True))
            cpus = 64 if name == "cpu" else 1
            assert sum(columns) == pytest.approx(cpus * up_s * USER_HZ, abs=4 * cpus)
        assert lines["cpu"][3] == pytest.approx(idle_s * USER_HZ, abs=2)
        last = lines


def test_rounding_never_makes_a_busy_processors_idle_time_fall():
    bench = Bench("epyc-7513-a100", cpu__system_cpus=0)
    bench.wait(1 / 3)
    times = ProcessorTimes(bench.realtime_model, uptime=lambda: 12345.67)
    submit(bench, 7, [0], 1e6)
    idle = []
    for _ in range(500):
        bench.wait(0.0137)
        idle.append(int(times.stat().split(b"\n")[1].split()[4]))
    assert idle == sorted(idle)
    assert idle[-1] == pytest.approx(12345.67 * USER_HZ, abs=1)


def test_a_jobs_group_counts_what_the_node_counts():
    bench = Bench("epyc-7513-a100")
    bench.node.groups.create_group(7)
    assert usage(bench, 7)["usage_usec"] == 0
    submit(bench, 7, [0, 1], 1000)
    submit(bench, 8, [2], 1000)
    bench.wait(3.0)
    found = usage(bench, 7)
    assert found["usage_usec"] == pytest.approx(6e6, rel=1e-4)
    assert found["user_usec"] + found["system_usec"] == found["usage_usec"]
    assert bench.node.tree.get(f"{SCOPE}/job_8") is None


def test_groups_are_removed_after_their_jobs_and_return_with_their_time():
    bench = Bench("epyc-7513-a100")
    groups, alive = bench.node.groups, {8}
    for job in (7, 8):
        groups.create_group(job)
    work = submit(bench, 7, [0], 1000)
    bench.wait(GROUP_RETENTION_S + 1)
    groups.remove_stale(alive.__contains__)
    assert usage(bench, 7)["usage_usec"] > GROUP_RETENTION_S * 1e6 / 2
    with bench.realtime_model.modify() as model:
        model.forget(work)
    held = bench.entry(f"{SCOPE}/job_7/cpu.stat")
    used = usage(bench, 7)
    for _ in range(2):
        bench.wait(GROUP_RETENTION_S / 2 + 1)
        groups.remove_stale(alive.__contains__)
    assert bench.node.tree.get(f"{SCOPE}/job_7") is None
    with pytest.raises(OSError) as gone:
        held.render()
    assert gone.value.errno == errno.ENODEV
    assert usage(bench, 8)["usage_usec"] == 0, "its programs are still there"
    groups.create_group(7)
    assert usage(bench, 7) == used
    alive.clear()
    for _ in range(3):
        bench.wait(GROUP_RETENTION_S)
        groups.remove_stale(alive.__contains__)
    assert not groups.has_groups
