"""CPU seconds and dynamic energy of the jobs on an emulated node.

The values of all jobs, the daemons and the idle time add up exactly to the values of the node.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy_lab.model import FrequencyRequest, KernelRequest, NodeModel, kernel_names, load_profile
from slurm_energy_lab.model.job_usage import MAX_TRACKED_JOBS

XEON = load_profile("xeon-8358", {"cpufreq.driver": "intel_cpufreq"})
A100 = load_profile("epyc-7513-a100")
MODEST = examples(60)

jobs = st.sampled_from([None, 7, 8, 9])
cpu_sets = st.tuples(st.integers(0, 60), st.integers(1, 64)).map(
    lambda pair: tuple(range(pair[0], min(64, sum(pair))))
)
steps = st.one_of(
    st.tuples(st.just("cpu"), jobs, cpu_sets, st.sampled_from(kernel_names()), st.floats(0.05, 2)),
    st.tuples(st.just("gpu"), jobs, cpu_sets, st.sampled_from(kernel_names()), st.floats(0.05, 2)),
    st.tuples(st.just("load"), jobs, cpu_sets, st.sampled_from("ab"), st.floats(0, 40)),
    st.tuples(st.just("freq"), st.integers(15, 36), cpu_sets, st.just(""), st.just(0.0)),
    st.tuples(st.just("stop"), st.integers(1, 6), cpu_sets, st.just(""), st.just(0.0)),
)
schedules = st.lists(st.tuples(st.floats(0.001, 2), steps), max_size=12)


def apply(model: NodeModel, step: tuple) -> None:
    kind, who, cpus, name, amount = step
    if kind == "load":
        model.set_real_load(name, cpus, amount, who)
    elif kind == "freq":
        model.set_cpufreq_all(FrequencyRequest("performance", 1_500_000, who * 100_000))
    elif kind == "stop":
        model.forget(who)
    elif kind == "gpu" and model.profile.gpu:
        gpus = (cpus[0] % 4, cpus[-1] % 4)
        model.submit(KernelRequest(name, "gpu", None, cpus, gpus, amount, who), model.now_s)
    else:
        model.submit(KernelRequest(name, "cpu", None, cpus, (), amount, who), model.now_s)


def check_sums(model: NodeModel) -> None:
    now_s, usage = model.now_s, model.usage()
    everybody = [*usage.jobs(), None]
    busy = [
        seconds + usage.system_cpu_seconds(now_s) / model.profile.cpu.cpus
        for seconds in usage.busy_seconds(now_s)
    ]
    used = math.fsum(usage.cpu_seconds(job, now_s) for job in everybody)
    assert used + usage.system_cpu_seconds(now_s) == pytest.approx(math.fsum(busy), rel=1e-9)
    assert all(0 <= seconds <= now_s * (1 + 1e-9) for seconds in busy)
    idle = usage.idle_joules(now_s)
    dynamic = [usage.dynamic_joules(job, now_s) for job in everybody]
    for part in ("cpu", "dram", "other", "node", *(["gpu", "gpu[1]"] if model.profile.gpu else [])):
        total = idle[part] + math.fsum(one[part] for one in dynamic)
        assert total == pytest.approx(model.energy_joules(part), rel=1e-9)
        assert all(one[part] >= -1e-9 for one in dynamic)


@MODEST
@given(schedules, st.sampled_from([XEON, A100]))
def test_jobs_daemons_and_idle_add_up_to_the_node(schedule, profile):
    model = NodeModel(profile)
    before: dict = {}
    for wait_s, step in schedule:
        model.advance(model.now_s + wait_s)
        apply(model, step)
        check_sums(model)
        usage = model.usage()
        now = {job: usage.cpu_seconds(job, model.now_s) for job in usage.jobs()}
        assert all(now[job] >= seconds * (1 - 1e-12) for job, seconds in before.items())
        before = now
    model.advance(model.now_s + 20)
    check_sums(model)


@MODEST
@given(schedules, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_the_number_of_readings_has_no_influence(schedule, cuts):
    once, often = NodeModel(A100), NodeModel(A100)
    for wait_s, step in schedule:
        for cut in sorted(cuts):
            often.advance(once.now_s + wait_s * cut)
            often.usage().dynamic_joules(7, often.now_s)
        for model in (once, often):
            model.advance(once.now_s + wait_s if model is once else once.now_s)
            apply(model, step)
    for job in (7, 8, 9, None):
        seconds = [model.usage().cpu_seconds(job, model.now_s) for model in (once, often)]
        joules = [model.usage().dynamic_joules(job, model.now_s) for model in (once, often)]
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-9, abs=1e-9)
        assert joules[0] == pytest.approx(joules[1], rel=1e-9, abs=1e-9)


def quiet(profile: str = "xeon-8358") -> NodeModel:
    """Return a node without daemons."""
    return NodeModel(load_profile(profile, {"cpu.system_cpus": 0}))


def start(model: NodeModel, job: int | None, cpus, kernel="gemm", device="cpu", **more) -> int:
    return model.submit(
        KernelRequest(kernel, device, cpus=tuple(cpus), job_id=job, full_speed_s=100.0, **more), model.now_s
    )


def seconds_of(model: NodeModel, job: int | None) -> float:
    return model.usage().cpu_seconds(job, model.now_s)


def test_a_kernel_keeps_each_of_its_logical_cpus_busy():
    model = quiet()
    start(model, 7, [0, 1, 64])
    model.advance(2.0)
    busy = model.usage().busy_seconds(2.0)
    assert {cpu: busy[cpu] for cpu in range(128) if busy[cpu]} == {0: 2.0, 1: 2.0, 64: 2.0}
    assert seconds_of(model, 7) == 6.0
    assert model.usage().busy_cpus() == 3
    model.forget(1)
    model.advance(5.0)
    assert seconds_of(model, 7) == 6.0


def test_kernels_on_one_cpu_share_its_time_and_siblings_do_not():
    model = quiet()
    start(model, 7, [0])
    start(model, 8, [0, 64])
    model.advance(4.0)
    assert (seconds_of(model, 7), seconds_of(model, 8)) == (2.0, 6.0)


def test_real_load_counts_on_every_cpu_named_and_not_under_a_kernel():
    model = quiet()
    model.set_real_load("a", range(4), 2.0, 7)
    model.advance(2.0)
    assert seconds_of(model, 7) == 4.0
    start(model, 8, [64, 65])
    model.advance(4.0)
    assert seconds_of(model, 7) == 6.0, "cores 0 and 1 belong to the kernel"
    assert seconds_of(model, 8) == 4.0
    model.set_real_load("b", [2, 66], 1.0)
    model.set_real_load("a", range(4), 4.0, 7)
    model.advance(6.0)
    assert seconds_of(model, 7) == pytest.approx(6.0 + 2 * (0.5 + 1)), "CPU 2 is shared, CPU 3 is not"
    assert seconds_of(model, None) == pytest.approx(2 * (0.5 + 1))


def test_a_gpu_kernel_keeps_one_cpu_of_its_job_busy_per_gpu():
    model = quiet("epyc-7513-a100")
    start(model, 7, [4, 5, 36, 37], "triad", "gpu", gpus=(2, 3))
    model.advance(3.0)
    busy = model.usage().busy_seconds(3.0)
    assert {cpu for cpu in range(64) if busy[cpu]} == {36, 37}
    assert seconds_of(model, 7) == 6.0
    feeding = model.usage().dynamic_joules(7, 3.0)["cpu"]
    assert feeding == pytest.approx(3.0 * (A100.cpu.awake_watts + 2 * A100.gpu.host_watts))


def test_daemons_use_time_but_no_power_beyond_idle():
    model = NodeModel(load_profile("xeon-8358", {"cpu.system_cpus": 0.5}))
    start(model, 7, range(128))
    model.advance(10.0)
    assert model.usage().system_cpu_seconds(10.0) == 5.0
    assert seconds_of(model, 7) == pytest.approx(1280.0 - 5.0)
    assert model.usage().dynamic_joules(7, 10.0)["node"] == pytest.approx(
        model.energy_joules("node") - model.usage().idle_joules(10.0)["node"]
    )


def test_shared_power_is_divided_by_own_power():
    model = quiet()
    start(model, 7, [0, 64], "monte_carlo")
    start(model, 8, [1, 65, 2, 66, 3, 67], "monte_carlo")
    model.advance(5.0)
    small, large = (model.usage().dynamic_joules(job, 5.0)["cpu"] for job in (7, 8))
    assert large == pytest.approx(3 * small)
    gpus = quiet("epyc-7513-a100")
    start(gpus, 7, [0], "triad", "gpu", gpus=(0,))
    start(gpus, 8, [1, 2], "triad", "gpu", gpus=(1, 2))
    gpus.advance(5.0)
    small, large = (gpus.usage().dynamic_joules(job, 5.0)["cpu"] for job in (7, 8))
    assert large == pytest.approx(2 * small)
    check_sums(gpus)


def test_real_load_draws_its_share_of_a_core():
    model = quiet()
    model.set_real_load("a", [0, 64], 0.2, 7)
    model.set_real_load("b", [0, 64], 0.6, 8)
    model.advance(5.0)
    small, large = (model.usage().dynamic_joules(job, 5.0) for job in (7, 8))
    assert (large["cpu"], large["dram"]) == pytest.approx((3 * small["cpu"], 3 * small["dram"]))
    model.set_real_load("a", [0, 64], 1.4, 7)
    assert model.cpu_utilisation(0) == 1.0
    model.advance(10.0)
    after = [model.usage().dynamic_joules(job, 10.0)["cpu"] for job in (7, 8)]
    assert after[0] - small["cpu"] == pytest.approx(1.0 / 0.6 * (after[1] - large["cpu"]))
    check_sums(model)


def test_equal_work_gets_equal_energy_and_power_hungry_work_more():
    """Jobs with the same CPU time and the same kernel get equal energy.

    A third job with the same CPU time runs a kernel that uses more memory. Its energy differs.
    """
    model = quiet()
    start(model, 7, [*range(8), *range(64, 72)], "gemm")
    start(model, 8, [*range(8, 16), *range(72, 80)], "gemm")
    start(model, 9, [*range(16, 24), *range(80, 88)], "spmv")
    model.advance(5.0)
    usage = model.usage()
    assert seconds_of(model, 7) == seconds_of(model, 8) == seconds_of(model, 9)
    first, second, third = (usage.dynamic_joules(job, 5.0) for job in (7, 8, 9))
    assert first == pytest.approx(second)
    assert third["dram"] > 4 * first["dram"], "spmv lives from memory"
    assert abs(third["cpu"] / first["cpu"] - 1) > 0.05


def test_a_job_alone_in_a_package_is_charged_as_if_alone_in_the_node():
    shared, alone = quiet(), quiet()
    start(shared, 8, [*range(32, 64), *range(96, 128)], "triad")
    for model in (shared, alone):
        start(model, 7, [*range(32), *range(64, 96)], "gemm")
        model.advance(5.0)
    ours = [model.usage().dynamic_joules(7, 5.0) for model in (shared, alone)]
    assert ours[0] == pytest.approx(ours[1], rel=1e-12)


def test_jobs_on_one_gpu_divide_its_dynamic_energy():
    model = quiet("epyc-7513-a100")
    start(model, 7, [0], "gemm", "gpu", gpus=(0,))
    start(model, 8, [1], "spmv", "gpu", gpus=(0,))
    model.advance(2.0)
    usage = model.usage()
    first, second = (usage.dynamic_joules(job, 2.0) for job in (7, 8))
    whole = model.energy_joules("gpu[0]") - 2.0 * A100.gpu.idle_watts
    assert first["gpu[0]"] + second["gpu[0]"] == pytest.approx(whole)
    assert first["gpu[0]"] > 1.2 * second["gpu[0]"] > 0
    assert first["gpu[1]"] == 0
    assert first["cpu"] == pytest.approx(second["cpu"]), "one thread each feeds it"


def test_energy_of_untracked_jobs_is_conserved():
    model = quiet()
    for job in range(1, MAX_TRACKED_JOBS + 11):
        work = start(model, job, [0, 64])
        model.advance(model.now_s + 0.5)
        model.forget(work)
    usage = model.usage()
    assert usage.jobs() == tuple(range(11, MAX_TRACKED_JOBS + 11))
    assert usage.cpu_seconds(5, model.now_s) == 0
    assert usage.cpu_seconds(None, model.now_s) == pytest.approx(10.0)
    check_sums(model)


def test_a_job_runs_while_any_of_its_loads_does():
    model = quiet("epyc-7513-a100")
    usage = model.usage()
    model.set_real_load("a", [0], 0.5, 7)
    work = start(model, 8, [], "triad", "gpu", gpus=(1,))
    assert (usage.running(7), usage.running(8), usage.running(9)) == (True, True, False)
    model.set_real_load("a", [0], 0.0, 7)
    model.forget(work)
    model.usage()
    assert (usage.running(7), usage.running(8)) == (False, False)


@pytest.mark.parametrize(("key", "value"), [("cpu.system_cpus", 128), ("cpu.system_cpus", -1)])
def test_an_invalid_load_of_daemons_is_refused(key, value):
    with pytest.raises(Exception, match="system_cpus"):
        load_profile("xeon-8358", {key: value})
