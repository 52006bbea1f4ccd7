"""Tests of the attribution of energy to jobs.

The sum of all charges must equal the measured energy to the microjoule. The tests also check the rule of the
attribution and the example in the documentation.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.metering.attribution import (
    EnergySplit,
    JobResourceTime,
    NodeMeasurement,
    apportion,
    rest_of_node,
    split_energy,
)
from slurm_energy.agent.metering.idle_power import IdlePower
from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, TRAFFIC

DOCUMENT = Path(__file__).parents[2] / "docs/attribution.md"
SECOND = 10**9
CPU = 10 * SECOND  # a CPU for the ten seconds of the examples
JOULE = 10**6  # microjoules of a joule

WEIGHTS = st.lists(st.integers(0, 10**18), min_size=1, max_size=12)


@given(st.integers(0, 10**15), WEIGHTS)
def test_parts_add_up_and_are_within_one_of_their_due(total: int, weights: list[int]) -> None:
    if not any(weights):
        weights[0] = 1
    parts = apportion(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - total * weight) < sum(weights)
        assert weight or not part


def test_largest_remainders_get_the_rest() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(7, [10, 20, 29]) == [1, 2, 4]
    assert apportion(0, [0, 0]) == [0, 0]
    for total, weights in ((5, [0, 0]), (-1, [1]), (5, [-1, 2]), (5, [])):
        with pytest.raises(ValueError, match="apportion"):
            apportion(total, weights)


SHARES = st.dictionaries(st.integers(0, 2), st.fractions(0, 1, max_denominator=8), max_size=3)
CLAIMS = st.lists(
    st.builds(
        JobResourceTime,
        job=st.text("abcdef", min_size=1, max_size=3),
        held_ns=st.integers(0, 64 * 10**10),
        cpu_time_ns=st.none() | st.integers(0, 10**12),
        gpus=SHARES,
        monitored=st.dictionaries(
            st.sampled_from([TRAFFIC, CORE_ENERGY]), st.none() | st.integers(0, 10**13)
        ),
    ),
    max_size=5,
    unique_by=lambda claim: claim.job,
)
ENERGY = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, 10**12) for name in ("cpu", "dram", "gpu[0]", "gpu[1]", "other")}
)
INTERVALS = st.builds(
    NodeMeasurement,
    capacity_ns=st.integers(0, 10**14),
    busy_ns=st.none() | st.integers(0, 10**13),
    energy_uj=ENERGY,
    static_uj=ENERGY,
    monitored=st.dictionaries(st.sampled_from([TRAFFIC, CORE_ENERGY]), st.integers(0, 10**13)),
)


def column(result: EnergySplit, component: str) -> int:
    jobs = sum(parts[component] for parts in result.jobs.values())
    return jobs + result.idle[component] + result.unattributed[component]


@given(INTERVALS, CLAIMS)
def test_jobs_idle_and_unattributed_are_the_node_to_the_microjoule(
    interval: NodeMeasurement, claims: list[JobResourceTime]
) -> None:
    result = split_energy(interval, claims)
    assert set(result.jobs) == {claim.job for claim in claims}
    for component, energy_uj in interval.energy_uj.items():
        assert column(result, component) == energy_uj
        parts = [result.idle[component], result.unattributed[component]]
        parts += [job[component] for job in result.jobs.values()]
        assert min(parts) >= 0


@given(INTERVALS, CLAIMS, st.randoms())
def test_the_order_of_the_jobs_does_not_matter(
    interval: NodeMeasurement, claims: list[JobResourceTime], random: object
) -> None:
    result = split_energy(interval, claims)
    random.shuffle(claims)  # type: ignore[attr-defined]
    assert split_energy(interval, claims) == result


@given(INTERVALS)
def test_a_job_with_the_whole_node_gets_everything(interval: NodeMeasurement) -> None:
    """A job that has all CPUs, all GPUs and all CPU time is charged the whole energy of the node."""
    gpus = {0: Fraction(1), 1: Fraction(1)}
    job = JobResourceTime("a", max(1, interval.capacity_ns), max(1, interval.busy_ns or 0), gpus)
    result = split_energy(interval, [job])
    for component, energy_uj in interval.energy_uj.items():
        if component == "other" and not any(name != "other" for name in interval.energy_uj):
            continue
        spent = sum(
            energy - min(energy, interval.static_uj.get(name, 0))
            for name, energy in interval.energy_uj.items()
            if name != "other"
        )
        if component == "other" and spent == 0:
            continue
        assert result.jobs["a"][component] == energy_uj


@given(INTERVALS, CLAIMS)
def test_without_jobs_no_energy_is_charged_to_jobs(
    interval: NodeMeasurement, claims: list[JobResourceTime]
) -> None:
    result = split_energy(interval, [])
    for component, energy_uj in interval.energy_uj.items():
        static = min(energy_uj, interval.static_uj.get(component, 0))
        assert (result.idle[component], result.unattributed[component]) == (static, energy_uj - static)


def shared(
    energy_uj: int, quantity: str, total: int | None, *jobs: tuple[int, int | str | None]
) -> tuple[list[int], int, list[str]]:
    """Divide the dynamic energy of a component among jobs, for tests of the attribution.

    Args:
        energy_uj: dynamic energy in microjoules.
        quantity: quantity that the processor counts for each job, such as memory traffic.
        total: counted use of the whole component.
        *jobs: for each job, a pair of CPU seconds and counted use. The text "uncounted" in place
            of the counted use means that the processor does not count the job.
    """
    component = {TRAFFIC: "dram", CORE_ENERGY: "cpu"}[quantity]
    claims = [
        JobResourceTime(
            str(i), SECOND, seconds * SECOND, monitored={} if use == "uncounted" else {quantity: use}
        )  # type: ignore[dict-item]
        for i, (seconds, use) in enumerate(jobs)
    ]
    busy_ns = 100 * SECOND
    result = split_energy(
        NodeMeasurement(
            10**12, busy_ns, {component: energy_uj}, monitored={} if total is None else {quantity: total}
        ),
        claims,
    )
    parts = [result.jobs[claim.job][component] for claim in claims]
    return parts, result.unattributed[component], [result.methods[component][c.job] for c in claims]


def test_memory_energy_is_divided_by_traffic_and_the_rest_of_it_is_unattributed() -> None:
    assert shared(1000, TRAFFIC, 100, (50, 30), (30, 60)) == ([300, 600], 100, [TRAFFIC, TRAFFIC])


def test_a_job_with_unknown_traffic_shares_the_rest_with_processes_outside_jobs() -> None:
    """A job with unknown memory traffic shares the remaining energy with processes outside jobs.

    The processor counted 100 bytes, and the first job caused 60 of them. The energy of the other 40 bytes is
    divided by CPU time between the second job and the processes outside jobs. The second job used 60 s of
    their 80 s and gets three quarters of this energy.
    """
    parts, rest, methods = shared(1000, TRAFFIC, 100, (20, 60), (60, None))
    assert (parts, rest, methods) == ([600, 300], 100, [TRAFFIC, "CPU time"])


def test_a_job_whose_traffic_was_not_counted_gets_its_share_of_the_cpu_time() -> None:
    parts, rest, methods = shared(1000, TRAFFIC, 90, (10, 60), (50, "uncounted"))
    assert (parts, rest) == ([333, 500], 167)
    assert methods == [TRAFFIC, "CPU time"]


def test_without_a_total_or_any_traffic_memory_energy_is_divided_by_cpu_time() -> None:
    for total in (None, 0):
        use = None if total is None else 0
        assert shared(1000, TRAFFIC, total, (30, use), (60, use))[:2] == ([300, 600], 100)


def test_core_energy_is_charged_as_counted_and_the_rest_of_the_package_by_cpu_time() -> None:
    """The energy of the cores is divided by the counts of the processor, other energy by CPU time.

    In the example, the package used 1000 microjoules. The cores used 800 of these. The processor counts
    that two jobs used 500 and 200 of the 800. The other 200 microjoules of the package are divided in
    proportion to CPU time. The two jobs used 30 and 60 CPU seconds, and everything else on the node used
    10.
    """
    parts, rest, methods = shared(1000, CORE_ENERGY, 800, (30, 500), (60, 200))
    assert (parts, rest, methods) == ([560, 320], 120, [CORE_ENERGY, CORE_ENERGY])


def test_core_energy_above_the_measured_energy_divides_all_of_it() -> None:
    assert shared(1000, CORE_ENERGY, 2000, (30, 1500), (60, 500))[:2] == ([750, 250], 0)


def node(**more: object) -> NodeMeasurement:
    values: dict[str, object] = {
        "capacity_ns": 64 * CPU,
        "busy_ns": 340 * SECOND,
        "energy_uj": {"cpu": 3000 * JOULE},
        "static_uj": {"cpu": 1000 * JOULE},
    }
    return NodeMeasurement(**{**values, **more})  # type: ignore[arg-type]


def test_a_sleeping_job_gets_its_static_share_only() -> None:
    result = split_energy(
        node(), [JobResourceTime("busy", 32 * CPU, 320 * SECOND), JobResourceTime("asleep", 16 * CPU, 0)]
    )
    assert result.jobs["asleep"]["cpu"] == 250 * JOULE  # 16 of 64 CPUs of 1000 J
    assert result.idle["cpu"] == 250 * JOULE
    assert result.unattributed["cpu"] == round(2000 * JOULE * 20 / 340)


def test_more_cpus_than_the_node_has_share_what_there_is() -> None:
    result = split_energy(
        node(static_uj={"cpu": 3000 * JOULE}),
        [JobResourceTime("a", 64 * CPU, 1), JobResourceTime("b", 64 * CPU, 1)],
    )
    assert [result.jobs[job]["cpu"] for job in "ab"] == [1500 * JOULE, 1500 * JOULE]
    assert result.idle["cpu"] == 0


def test_jobs_whose_cpu_time_is_not_known_share_what_is_left() -> None:
    known, one, two = (
        JobResourceTime("a", 32 * CPU, 40 * SECOND),
        JobResourceTime("b", 16 * CPU),
        JobResourceTime("c", 8 * CPU),
    )
    result = split_energy(node(static_uj={}), [known, one, two])
    # 300 s are left; 24 CPUs can do 240 s of them, 160 and 80; 60 s are the system's.
    assert result.jobs["b"]["cpu"] == round(3000 * JOULE * 160 / 340)
    assert result.jobs["c"]["cpu"] == round(3000 * JOULE * 80 / 340)
    assert result.unattributed["cpu"] == round(3000 * JOULE * 60 / 340)


def test_a_whole_gpu_is_the_job_s_and_an_unused_one_is_idle() -> None:
    interval = node(energy_uj={"gpu[0]": 500, "gpu[1]": 70}, static_uj={"gpu[0]": 60, "gpu[1]": 60})
    result = split_energy(interval, [JobResourceTime("a", 1 * CPU, 0, {0: Fraction(1)})])
    assert result.jobs["a"] == {"gpu[0]": 500, "gpu[1]": 0}
    assert (result.idle["gpu[1]"], result.unattributed["gpu[1]"]) == (60, 10)


@given(
    st.integers(1, 10**15),
    st.lists(
        st.tuples(st.integers(0, 10**12), st.fractions(0, 1, max_denominator=8)), min_size=1, max_size=5
    ),
    st.integers(1, 4),
)
def test_a_job_s_share_of_a_node_is_the_mean_of_its_cpu_share_and_gpu_share(
    static_uj: int, held: list[tuple[int, Fraction]], gpu_count: int
) -> None:
    jobs = [
        JobResourceTime(f"{i}", ns, 0, {0: share / len(held)} if share else {})
        for i, (ns, share) in enumerate(held)
    ]
    capacity_ns = 1 + sum(ns for ns, _ in held)
    measured = NodeMeasurement(
        capacity_ns,
        0,
        {"other": static_uj},
        {"other": static_uj},
        gpus=tuple(f"gpu[{i}]" for i in range(gpu_count)),
    )
    result = split_energy(measured, jobs)
    for job, (ns, share) in zip(jobs, held, strict=True):
        expected = static_uj * (Fraction(ns, capacity_ns) + share / len(held) / gpu_count) / 2
        assert abs(result.jobs[job.job]["other"] - expected) < 1


def test_mig_instances_share_a_gpu_by_their_size() -> None:
    interval = node(energy_uj={"gpu[0]": 700}, static_uj={"gpu[0]": 70})
    claims = [
        JobResourceTime("a", 1 * CPU, 0, {0: Fraction(4, 7)}),
        JobResourceTime("b", 1 * CPU, 0, {0: Fraction(2, 7)}),
    ]
    result = split_energy(interval, claims)
    assert [result.jobs[job]["gpu[0]"] for job in "ab"] == [40 + 420, 20 + 210]
    assert result.idle["gpu[0]"] == 10


def test_losses_follow_what_causes_them() -> None:
    energy = {"cpu": 1000, "gpu[0]": 1000, "other": 500}
    interval = node(energy_uj=energy, static_uj={"cpu": 200, "gpu[0]": 200, "other": 100}, busy_ns=100)
    claims = [JobResourceTime("gpu", 16 * CPU, 0, {0: Fraction(1)}), JobResourceTime("cpu", 48 * CPU, 100)]
    result = split_energy(interval, claims)
    # Static 100: means of 1/4 and 1, and of 3/4 and 0; dynamic 400 by 800 : 800.
    # Of 62.5 and 37.5 the first by name is rounded up.
    assert [result.jobs[job]["other"] for job in ("gpu", "cpu")] == [62 + 200, 37 + 1 + 200]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=30))
def test_the_rest_of_the_node_never_is_negative_and_loses_nothing(pairs: list[tuple[int, int]]) -> None:
    debt, rest_sum = 0, 0
    for node_uj, parts_uj in pairs:
        rest, debt = rest_of_node(node_uj, parts_uj, debt)
        assert rest >= 0 and debt >= 0
        rest_sum += rest
    assert sum(n for n, _ in pairs) + debt == sum(p for _, p in pairs) + rest_sum


def test_the_document_s_example_is_what_the_code_does() -> None:
    """The code computes the same energies as the example in docs/attribution.md.

    The document has one table with the measured energy of the components, and one with the energy that is
    charged (assigned) to each job, both in joules.
    """
    rows = re.findall(r"^\| (\w[\w\[\], ]*?) *\|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    numbers = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    energy = dict(zip(("cpu", "dram", "gpu[0]", "other"), map(int, numbers["measured"]), strict=True))
    static = dict(zip(energy, map(int, numbers["of it static"]), strict=True))
    interval = NodeMeasurement(
        capacity_ns=64 * CPU,
        busy_ns=340 * SECOND,
        energy_uj={name: joules * JOULE for name, joules in energy.items()},
        static_uj={name: joules * JOULE for name, joules in static.items()},
    )
    claims = [
        JobResourceTime("A", 32 * CPU, 240 * SECOND, {0: Fraction(1)}),
        JobResourceTime("B", 16 * CPU, 80 * SECOND),
    ]
    result = split_energy(interval, claims)
    expected = {
        "job A": result.jobs["A"],
        "job B": result.jobs["B"],
        "idle": result.idle,
        "unattributed": result.unattributed,
    }
    for name, parts in expected.items():
        assert numbers[name] == [f"{parts[component] / JOULE:.6f}" for component in energy], name


def _quiet_seconds(idle: IdlePower, *seconds: tuple[float, float]) -> None:
    for read_duration_s, watts in seconds:
        idle.set_read_duration(read_duration_s)
        idle.observe(1.0, {"cpu": round(watts * JOULE)}, ["cpu"])


def test_a_late_reading_makes_no_idle_power() -> None:
    """A reading that takes long does not yield a wrong idle power.

    A reading that takes 0.8 s may be 0.4 s late. A window of 10 s that begins or ends with such a reading
    shows 96 W instead of the real idle power of 100 W.
    """
    idle = IdlePower()
    idle.set_read_duration(0.8)
    _quiet_seconds(idle, (0.001, 60), *[(0.001, 100)] * 35)
    assert idle.watts("cpu") is None
    _quiet_seconds(idle, *[(0.001, 100)] * 5)
    assert idle.watts("cpu") == pytest.approx(100, rel=0.0101)

    idle = IdlePower()
    _quiet_seconds(idle, *[(0.001, 100)] * 9, (0.8, 60))
    assert idle.watts("cpu") is None
    _quiet_seconds(idle, (0.001, 140))
    assert idle.watts("cpu") == 100.0


def test_idle_power_is_the_lowest_quiet_mean() -> None:
    idle = IdlePower()
    for _ in range(10):
        idle.observe(1.0, {"cpu": 120 * JOULE, "gpu[0]": 50 * JOULE}, quiet=["cpu"])
    assert (idle.watts("cpu"), idle.watts("gpu[0]")) == (120.0, None)
    for energy in [90] * 9:
        idle.observe(1.0, {"cpu": energy * JOULE}, quiet=["cpu"])
    idle.observe(1.0, {"cpu": 10 * JOULE}, quiet=[])  # a job began, so the window does not count
    assert idle.watts("cpu") == 120.0
    for energy in [95] * 10:
        idle.observe(1.0, {"cpu": energy * JOULE}, quiet=["cpu"])
    assert idle.watts("cpu") == 95.0
    assert idle.static_uj(2.0, {"cpu": 500 * JOULE, "gpu[0]": 5}) == {"cpu": 190 * JOULE}
    assert idle.static_uj(2.0, {"cpu": 100}) == {"cpu": 100}
    assert IdlePower(learned_watts=idle.dump()).watts("cpu") == 95.0


def test_the_site_s_idle_power_is_not_replaced() -> None:
    idle = IdlePower(configured_watts={"cpu": 80.0})
    for _ in range(10):
        idle.observe(1.0, {"cpu": 50 * JOULE}, quiet=["cpu"])
    assert idle.watts("cpu") == 80.0


def test_a_counter_that_stands_still_teaches_no_idle_power() -> None:
    idle = IdlePower()
    idle.observe(9.95, {"cpu": 0}, ["cpu"])
    assert idle.watts("cpu") is None
    idle.observe(5.0, {"cpu": 500_000_000}, ["cpu"])
    idle.observe(4.0, {"cpu": 0}, ["cpu"])
    idle.observe(5.0, {"cpu": 500_000_000}, ["cpu"])
    assert idle.watts("cpu") is None
