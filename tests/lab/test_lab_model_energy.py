"""Energies of the emulated node equal the exact integrals of its power.

This holds for any sequence of settings, compute kernels and loads.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy_lab.model import FrequencyRequest, KernelRequest, NodeModel, kernel_names, load_profile

XEON = load_profile("xeon-8358", {"cpufreq.driver": "intel_cpufreq", "rapl.mmio": True})
A100 = load_profile("epyc-7513-a100")
MODEST = examples(40)

khz = st.integers(800, 3400).map(lambda mhz: mhz * 1000)
steps = st.one_of(
    st.tuples(st.just("freq"), st.sampled_from(XEON.cpufreq.governors), khz, khz),
    st.tuples(st.just("limit"), st.integers(0, 1), st.floats(40, 320), st.floats(0.05, 5)),
    st.tuples(st.just("load"), st.sampled_from("ab"), st.integers(1, 128), st.floats(0, 40)),
    st.tuples(st.just("gpu"), st.integers(0, 3), st.floats(100, 400), st.sampled_from([None, 600, 1005])),
)
schedules = st.lists(st.tuples(st.floats(0.001, 3), steps), max_size=12)


def apply(model: NodeModel, step: tuple) -> None:
    """Apply one step of a random schedule to the node model.

    The step changes one setting or one load of the node.
    """
    kind, first, second, third = step
    if kind == "freq":
        low, high = sorted((second, third))
        model.set_cpufreq_all(FrequencyRequest(first, low, high, setspeed_khz=high))
    elif kind == "limit" and model.profile.rapl.constraints:
        model.set_package_limit(first, "long_term", second, third, True)
    elif kind == "load":
        model.set_real_load(first, range(min(second, model.profile.cpu.cpus)), third)
    elif kind == "gpu" and model.profile.gpu:
        model.set_gpu(first, second, None if third is None else (third, third))


def all_joules(model: NodeModel) -> dict[str, float]:
    return {name: model.energy_joules(name) for name in model.components()}


@MODEST
@given(schedules)
def test_energy_is_power_times_time_segment_by_segment(schedule):
    """The energies of the node model equal the sums of power times time between events.

    The power of the model changes only at events.
    """
    model = NodeModel(XEON, 100.0)
    model.submit(KernelRequest("train", "cpu", full_speed_s=3.0), 100.0)
    sums = {name: [] for name in model.components()}
    for wait_s, step in schedule:
        until_s = model.now_s + wait_s
        while model.now_s < until_s:
            event_s = model.next_event_s()
            stop_s = until_s if event_s is None else min(until_s, event_s)
            before = {name: model.power_watts(name) for name in sums}
            span_s = stop_s - model.now_s
            model.advance(stop_s)
            for name, watts in before.items():
                sums[name].append(watts * span_s)
        apply(model, step)
    for name, pieces in sums.items():
        assert model.energy_joules(name) == pytest.approx(math.fsum(pieces), rel=1e-9, abs=1e-9)


@MODEST
@given(schedules, st.lists(st.floats(0, 1), min_size=1, max_size=5), st.sampled_from([XEON, A100]))
def test_the_number_of_readings_has_no_influence(schedule, cuts, profile):
    """The energies of the node model do not depend on how often the model is read.

    advance(a); advance(b) gives the same result as advance(b). Energies and end times agree to 1e-9.
    """
    once, often = NodeModel(profile), NodeModel(profile)
    device = "gpu" if profile.gpu else "cpu"
    for model in (once, often):
        model.submit(KernelRequest("train", device, full_speed_s=2.0), 0.0)
    now_s = 0.0
    for wait_s, step in [*schedule, (200.0, ("none", 0, 0, 0))]:
        for cut in sorted(cuts):
            often.advance(now_s + wait_s * cut)
            assert often.energy_joules("node") >= 0
        now_s += wait_s
        for model in (once, often):
            model.advance(now_s)
            apply(model, step)
    assert all_joules(often) == pytest.approx(all_joules(once), rel=1e-9)
    first, second = once.result(1), often.result(1)
    assert (first is None) == (second is None)
    if first and second:
        assert second.end_s == pytest.approx(first.end_s, rel=1e-9)


@MODEST
@given(schedules)
def test_energies_never_decrease_and_devices_add_up(schedule):
    model = NodeModel(A100)
    model.submit(KernelRequest("gemm", "gpu", gpus=(1, 2), full_speed_s=2.0), 0.0)
    last = all_joules(model)
    for wait_s, step in schedule:
        model.advance(model.now_s + wait_s)
        apply(model, step)
        now = all_joules(model)
        assert all(now[name] >= last[name] for name in now)
        gpus = math.fsum(now[f"gpu[{i}]"] for i in range(4))
        assert now["gpu"] == pytest.approx(gpus)
        assert now["node"] == pytest.approx(now["cpu"] + now["dram"] + now["gpu"] + now["other"])
        assert model.energy_joules("core[0]") <= now["cpu[0]"]
        last = now


@MODEST
@given(schedules, st.sampled_from(kernel_names()))
def test_the_work_of_a_kernel_is_the_same_under_any_settings(schedule, kernel):
    """The total work of a compute kernel is the same although settings change while it runs.

    Changes of settings may only change the speed of the kernel.
    """
    calm, busy = NodeModel(XEON), NodeModel(XEON)
    request = KernelRequest(kernel, "cpu", full_speed_s=2.0)
    for model in (calm, busy):
        model.submit(request, 0.0)
    for wait_s, step in schedule:
        busy.advance(busy.now_s + wait_s)
        apply(busy, step)
    done = []
    for model in (calm, busy):
        model.advance(1e4)
        result = model.result(1)
        assert result is not None
        done.append(result)
    assert (done[0].flops, done[0].bytes, done[0].size) == (done[1].flops, done[1].bytes, done[1].size)


def test_a_kernel_stopped_half_way_has_used_half_its_time():
    """A clock change during a compute kernel does not change the work that was already done.

    The kernel completes a quarter of its work at a lower clock and the rest at a higher clock. It then
    takes a quarter of its time at the lower clock plus three quarters of its time at the higher clock.
    """
    profile = load_profile("xeon-8358", {"cpufreq.driver": "intel_cpufreq"})
    seconds = {}
    for frequency in (1500000, 3000000):
        model = NodeModel(profile)
        model.set_cpufreq_all(FrequencyRequest("userspace", 800000, 3400000, setspeed_khz=frequency))
        model.submit(KernelRequest("monte_carlo", "cpu", full_speed_s=4.0), 0.0)
        model.advance(100.0)
        seconds[frequency] = model.result(1).seconds
    model = NodeModel(profile)
    model.set_cpufreq_all(FrequencyRequest("userspace", 800000, 3400000, setspeed_khz=1500000))
    model.submit(KernelRequest("monte_carlo", "cpu", full_speed_s=4.0), 0.0)
    model.advance(seconds[1500000] / 4)
    model.set_cpufreq_all(FrequencyRequest("userspace", 800000, 3400000, setspeed_khz=3000000))
    model.advance(100.0)
    expected_s = seconds[1500000] / 4 + seconds[3000000] * 3 / 4
    assert model.result(1).seconds == pytest.approx(expected_s, rel=1e-9)


def test_a_result_holds_the_energy_between_its_ends():
    model = NodeModel(A100, 5.0)
    model.advance(10.0)
    work = model.submit(KernelRequest("triad", "gpu", gpus=(2,), full_speed_s=3.0), 12.0)
    before = {name: model.energy_joules(name) for name in model.components()}
    assert model.result(work) is None
    model.advance(model.next_event_s())
    result = model.result(work)
    assert (result.start_s, result.end_s) == (12.0, pytest.approx(15.0))
    assert result.seconds == pytest.approx(3.0)
    for name, joules in result.energy_joules.items():
        assert joules == pytest.approx(model.energy_joules(name) - before[name])
    assert result.energy_joules["gpu[0]"] == pytest.approx(3.0 * A100.gpu.idle_watts)


def test_idle_power_is_the_profiles():
    model = NodeModel(A100)
    assert model.power_watts("cpu[0]") == A100.cpu.idle_watts
    assert model.power_watts("dram") == A100.memory.idle_watts
    assert model.power_watts("gpu") == pytest.approx(4 * A100.gpu.idle_watts)
    assert model.next_event_s() is None
    parts = A100.cpu.idle_watts + A100.memory.idle_watts + 4 * A100.gpu.idle_watts
    other = A100.other.base_watts + A100.other.loss_share * parts
    assert model.power_watts("node") == pytest.approx(parts + other)


def test_model_time_never_decreases():
    model = NodeModel(XEON, 10.0)
    model.advance(20.0)
    model.advance(15.0)
    assert model.now_s == 20.0
    assert model.energy_joules("cpu[0]") == pytest.approx(10 * XEON.cpu.idle_watts)


def test_a_forgotten_run_frees_its_cores_and_result():
    model = NodeModel(XEON)
    kept = model.submit(KernelRequest("gemm", "cpu", cpus=(0, 1), full_speed_s=0.01), 0.0)
    stopped = model.submit(KernelRequest("gemm", "cpu", cpus=(2, 3)), 0.0)
    model.advance(5.0)
    assert model.running() == (stopped,)
    model.forget(stopped)
    assert model.power_watts("cpu[0]") == XEON.cpu.idle_watts
    assert model.result(kept) is not None
    model.forget(kept)
    for work in (kept, stopped):
        with pytest.raises(NotFoundError, match=f"unknown kernel run {work}"):
            model.result(work)


def test_unknown_arguments_are_named():
    model = NodeModel(XEON)
    with pytest.raises(NotFoundError, match=r"component 'gpu\[0\]' is not known: one of cpu\[0\]"):
        model.energy_joules("gpu[0]")
    with pytest.raises(NotFoundError, match="component 'psys'"):
        model.power_watts("psys")
    with pytest.raises(UsageError, match="CPU 128 does not exist: 0 to 127"):
        model.effective_khz(128)
    with pytest.raises(UsageError, match="GPU 0 does not exist: xeon-8358 has 0"):
        model.gpu_state(0)
    with pytest.raises(UsageError, match="package 2 does not exist"):
        model.set_package_limit(2, "long_term", 100, 1, True)
    with pytest.raises(UsageError, match="real load 'x': -1 busy cores"):
        model.set_real_load("x", (0,), -1)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (KernelRequest("fft", "cpu"), "kernel 'fft' is not known: one of gemm"),
        (KernelRequest("gemm", "gpu"), "device 'gpu' does not exist on xeon-8358"),
        (KernelRequest("gemm", "fpga", size=10), "device 'fpga' does not exist"),
        (KernelRequest("gemm", "cpu", size=0), "gemm: size 0 is invalid"),
        (KernelRequest("gemm", "cpu", size=-4), "gemm: size -4"),
        (KernelRequest("gemm", "cpu", size=float("nan")), "gemm: size nan"),
        (KernelRequest("gemm", "cpu", size=1e300), "gemm: size 1e"),
        (KernelRequest("gemm", "cpu", full_speed_s=0), "gemm: 0 seconds"),
        (KernelRequest("gemm", "cpu", cpus=(0, 500)), "CPU 500 does not exist"),
    ],
)
def test_impossible_kernels_are_refused(request_, message):
    model = NodeModel(XEON)
    with pytest.raises(UsageError, match=message):
        model.submit(request_, 1.0)
    assert model.running() == ()
