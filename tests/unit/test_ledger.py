"""Tests of the energy that is charged to jobs which share a node.

The energy charged to each job must be exact to the microjoule. The tests include counters that fail or come
late, meters that disagree, and restarts.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from shared_node import CPUS, HandCounter, SharedNode, joules, quality
from test_sampler import decode

from slurm_energy.agent.metering.component_account import ComponentAccount
from slurm_energy.agent.metering.counter_delta import CounterDelta
from slurm_energy.agent.metering.sampler import SampleInterval
from slurm_energy.devices.source_priority import NodePart
from slurm_energy.reports.live_power import node_watts

LOAD = {"cpu": 300.0, "dram": 40.0, "other": 160.0}
IDLE = {"cpu": 100.0, "dram": 20.0, "other": 80.0}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SharedNode]]:
    with contextlib.ExitStack() as stack:

        def node(*arguments: Any, **options: Any) -> SharedNode:
            made = SharedNode(tmp_path, *arguments, **options)
            stack.callback(made.die)
            return made

        yield node


def test_a_sole_job_is_charged_the_whole_node_including_its_meter(make: Callable[..., SharedNode]) -> None:
    node = make()
    node.begin(5, 8)
    node.use(10, LOAD)
    node.end(5)
    record = node.records()[5]
    assert joules(record) == {"cpu": 3000.0, "dram": 400.0, "other": 1600.0, "node": 5000.0}
    assert set(quality(record).values()) == {"measured"}
    sources = {part.name: part.source for part in record.components}
    assert (sources["node"], sources["other"]) == ("pm_counters:node", "pm_counters:node")
    assert (record.energy_joules, record.mean_watts, record.peak_watts) == (5000.0, 500.0, 500.0)


def test_a_meter_that_comes_late_makes_no_peak(make: Callable[..., SharedNode]) -> None:
    node = make()
    node.begin(5, 8)
    for other_watts in (0.0, 320.0):
        node.use(5, {**LOAD, "other": other_watts})
    node.end(5)
    record = node.records()[5]
    assert (record.mean_watts, record.peak_watts) == (500.0, 500.0)


def test_what_the_node_s_meter_lacks_is_added_and_not_counted_twice(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu", "gpu[0]", "node"), adds=frozenset({NodePart.GPU}))
    node.begin(5, 8)
    node.use(10, {"cpu": 300.0, "gpu[0]": 250.0, "other": 50.0})
    node.end(5)
    assert joules(node.records()[5]) == {"cpu": 3000.0, "gpu[0]": 2500.0, "other": 500.0, "node": 6000.0}
    assert node.manager.status()["watts"] == {"cpu": 300.0, "gpu[0]": 250.0, "other": 50.0, "node": 600.0}


def test_jobs_are_charged_for_use_and_for_allocation(make: Callable[..., SharedNode]) -> None:
    node = make(idle_watts=IDLE)
    node.begin(5, 4)
    node.begin(6, 2)
    node.use(10, LOAD, busy={5: 3.0, 6: 1.0}, system=1.0)
    node.end(5)
    node.end(6)
    found = {job: joules(record) for job, record in node.records().items()}
    # Static 1000, 200 and 800 J by 4/8 and 2/8; dynamic 2000, 200 and 800 J by 3/5 and 1/5.
    assert found[5] == {"cpu": 500 + 1200.0, "dram": 100 + 120.0, "other": 400 + 480.0}
    assert found[6] == {"cpu": 250 + 400.0, "dram": 50 + 40.0, "other": 200 + 160.0}
    accounts = node.accounts()
    assert {name: account["idle"] for name, account in accounts.items()} == {
        "cpu": 250_000_000,
        "dram": 50_000_000,
        "other": 200_000_000,
    }
    assert accounts["cpu"]["unattributed"] == 400_000_000
    assert quality(node.records()[5]) == dict.fromkeys(("cpu", "dram", "other"), "modelled")
    assert any("shares the node" in note and "(4 of 8)" in note for note in node.records()[5].notes)


def test_a_sleeping_job_is_charged_its_static_share_only(make: Callable[..., SharedNode]) -> None:
    node = make(idle_watts=IDLE)
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(60, LOAD, busy={5: 4.0, 6: 0.0})
    node.end(6)
    assert joules(node.records()[6]) == {"cpu": 50 * 60.0, "dram": 10 * 60.0, "other": 40 * 60.0}


def test_a_gpu_is_its_holder_s_and_measured(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu", "gpu[0]", "gpu[1]"), idle_watts={"cpu": 100.0, "gpu": 50.0})
    node.begin(5, 2, "0")
    node.begin(6, 2)
    node.use(10, {"cpu": 100.0, "gpu[0]": 300.0, "gpu[1]": 60.0}, busy={5: 1.0, 6: 1.0})
    node.end(5)
    node.end(6)
    found = node.records()
    assert joules(found[5]) == {"cpu": 250.0, "gpu[0]": 3000.0}
    assert quality(found[5]) == {"cpu": "modelled", "gpu[0]": "measured"}
    assert joules(found[6]) == {"cpu": 250.0}
    account = node.accounts()["gpu[1]"]
    assert (account["idle"], account["unattributed"], account["jobs"]) == (500_000_000, 100_000_000, 0)


def test_two_jobs_on_one_gpu_share_it_and_are_marked(make: Callable[..., SharedNode]) -> None:
    node = make(("gpu[0]",), idle_watts={"gpu": 50.0})
    node.begin(5, 2, "0")
    node.begin(6, 2, "0")
    node.use(10, {"gpu[0]": 300.0})
    node.end(5)
    node.end(6)
    for record in node.records().values():
        assert (joules(record), quality(record)) == ({"gpu[0]": 1500.0}, {"gpu[0]": "modelled"})


def test_jobs_come_and_go_between_samples(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu",), idle_watts={"cpu": 80.0})
    node.begin(5, 4)
    node.use(2.5, {"cpu": 100.0}, busy={5: 4.0})
    node.begin(6, 4)
    node.use(1.25, {"cpu": 180.0}, busy={5: 4.0, 6: 4.0}, ticks=False)
    node.end(5)
    node.use(2, {"cpu": 100.0}, busy={6: 4.0})
    node.end(6)
    found = {job: joules(record)["cpu"] for job, record in node.records().items()}
    assert found[5] == pytest.approx(2.5 * (40 + 20) + 1.25 * 90)
    assert found[6] == pytest.approx(1.25 * 90 + 2 * (40 + 20))


def test_a_job_is_found_late_and_nothing_is_counted_twice(make: Callable[..., SharedNode]) -> None:
    """A job whose cgroup is found late is charged for its whole run time, and no energy counts twice.

    In the test, the cgroup of the job is absent for the first five seconds. Meanwhile, the search for the
    cgroup is repeated at growing intervals.
    """
    node = make(("cpu",), idle_watts={"cpu": 0.0})
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(5, {"cpu": 0.0}, busy={6: 0.0})
    node.use(40, {"cpu": 100.0}, busy={5: 3.0, 6: 1.0})
    node.end(5)
    assert joules(node.records()[5])["cpu"] == pytest.approx(3000.0, rel=0.01)


def test_without_any_cpu_time_jobs_share_by_their_cpus(
    make: Callable[..., SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(("cpu",), idle_watts={"cpu": 10.0})
    (node.tree.root / "proc/stat").write_text("")  # senergyd keeps the file open
    monkeypatch.setattr(node, "work", lambda *_: None)
    node.begin(5, 1)
    node.begin(6, 2)
    node.use(10, {"cpu": 70.0})
    node.end(5)
    node.end(6)
    found = node.records()
    assert joules(found[5]) == {"cpu": pytest.approx(10 / 8 * 10 + 200.0)}
    assert joules(found[6]) == {"cpu": pytest.approx(20 / 8 * 10 + 400.0)}
    assert quality(found[6]) == {"cpu": "modelled"}


def test_a_job_of_unknown_size_is_charged_for_use_only_and_is_partial(
    make: Callable[..., SharedNode],
) -> None:
    node = make(("cpu",), idle_watts={"cpu": 80.0})
    node.begin(5, None)
    node.use(10, {"cpu": 100.0}, busy={5: 1.0}, system=1.0)
    node.end(5)
    record = node.records()[5]
    assert (joules(record), quality(record)) == ({"cpu": 100.0}, {"cpu": "partial"})


def test_idle_power_is_learned_when_nothing_runs_and_kept(make: Callable[..., SharedNode]) -> None:
    node = make()
    for _ in range(3):
        node.use(10, IDLE, system=0.05, ticks=False)
        node.manager.housekeeping()
    assert node.manager.status()["idle_watts"] == pytest.approx(IDLE)
    node.kill()
    node.begin(5, 4)
    node.use(10, LOAD, busy={5: 4.0})
    node.end(5)
    assert joules(node.records()[5])["cpu"] == pytest.approx(500 + 2000.0)


def test_a_node_that_is_never_quiet_has_no_idle_power_and_all_is_dynamic(
    make: Callable[..., SharedNode],
) -> None:
    node = make(("cpu",))
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(20, {"cpu": 100.0}, busy={5: 4.0, 6: 0.0})
    node.end(6)
    assert joules(node.records()[6]) == {"cpu": 0.0}
    assert node.manager.status()["idle_watts"] == {}


def test_a_counter_that_is_late_is_split_over_all_of_its_time(make: Callable[..., SharedNode]) -> None:
    """The energy of a counter that was unreadable is divided over the whole unreadable time.

    Only the memory counter is unreadable, for four seconds. Another job begins in this time.
    """
    node = make(("cpu", "dram"), idle_watts={"cpu": 0.0, "dram": 40.0})
    node.begin(5, 4)
    node.counters["dram"].silent = True
    node.use(2, {"cpu": 100.0, "dram": 60.0}, busy={5: 4.0})
    node.begin(6, 4)
    node.use(2, {"cpu": 100.0, "dram": 60.0}, busy={5: 4.0, 6: 4.0})
    assert node.manager.energy(6)[1]["components"]["dram"] is None
    node.counters["dram"].silent = False
    node.use(1, {"cpu": 100.0, "dram": 60.0}, busy={5: 4.0, 6: 4.0})
    node.end(5)
    node.end(6)
    found = node.records()
    # 40 W static: job 5 holds half of it for 5 s, job 6 for 3 s. 100 J dynamic by 20 : 12 s of CPU time.
    assert joules(found[5])["dram"] == pytest.approx(100.0 + 100 * 20 / 32)
    assert joules(found[6])["dram"] == pytest.approx(60.0 + 100 * 12 / 32)
    assert quality(found[5]) == {"cpu": "modelled", "dram": "partial"}  # it may be another counter
    assert (found[5].uncertain_seconds, found[6].uncertain_seconds) == (5.0, 3.0)
    trace = {item.record["job_id"]: item.trace for item in node.manager.spool.items(10**9, 9)}
    assert trace[5]["columns"].keys() == {"cpu", "dram"}


def test_a_device_that_was_gone_costs_its_time_of_the_jobs_that_were_there(
    make: Callable[..., SharedNode],
) -> None:
    node = make(("cpu", "gpu[0]"), idle_watts={"cpu": 0.0, "gpu": 0.0})
    node.begin(5, 8, "0", exclusive=True)
    node.use(2, {"cpu": 100.0, "gpu[0]": 50.0})
    node.counters["gpu[0]"].gone = True
    node.use(3, {"cpu": 100.0, "gpu[0]": 50.0})
    node.counters["gpu[0]"].gone = False
    node.use(4, {"cpu": 100.0, "gpu[0]": 50.0})
    node.end(5)
    record = node.records()[5]
    assert joules(record) == {"cpu": 900.0, "gpu[0]": 250.0}  # 2 s before the gap and 3 s after it
    assert quality(record) == {"cpu": "measured", "gpu[0]": "partial"}
    assert record.uncertain_seconds == 4.0


def test_a_job_with_a_deferred_begin_is_not_charged_for_earlier_time(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu",), {"cpu": 0.0})
    node.begin(1, 4)
    node.use(10, {"cpu": 100}, {1: 2})
    node.work({2: Fraction(3600)})  # senergyd did not run during its prolog
    node.manager.begin(node.env(2, 4), late_s=3600.0)
    node.use(10, {"cpu": 100}, {1: 2, 2: 2})
    node.end(1)
    node.end(2)
    found = {job: joules(record)["cpu"] for job, record in node.records().items()}
    assert found == pytest.approx({1: 1500.0, 2: 500.0}, abs=5.0)


def test_a_part_that_is_gone_for_good_does_not_take_the_others_along(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu", "dram"), {})
    second = HandCounter("cpu")
    second.key = "cpu:1"
    node.die()
    node.counters["cpu:1"] = second
    node.manager = node.start()
    node.begin(1, CPUS, exclusive=True)
    node.use(10, {"cpu": 100, "cpu:1": 50})
    second.gone = True
    node.use(200, {"cpu": 100})
    node.end(1)
    record = node.records()[1]
    assert joules(record)["cpu"] == pytest.approx(100 * 210 + 50 * 10, abs=100 * 61)
    assert quality(record)["cpu"] == "partial"


def test_energy_of_a_counter_excluded_earlier_is_unattributed(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu",), {})
    second = HandCounter("cpu")
    second.key = "cpu:1"
    node.die()
    node.counters["cpu:1"] = second
    node.manager = node.start()
    second.silent = True
    node.use(130, {"cpu": 100, "cpu:1": 50})
    node.kill()
    second.silent = True
    node.begin(1, CPUS, exclusive=True)
    node.use(5, {"cpu": 100, "cpu:1": 50})
    second.silent = False
    node.use(5, {"cpu": 100, "cpu:1": 50})
    node.end(1)
    accounts = node.accounts()["cpu"]
    assert accounts["measured"] == sum(counter.value_uj - 5_000_000 for counter in node.counters.values())
    assert accounts["jobs"] + accounts["idle"] + accounts["unattributed"] == accounts["measured"]
    assert joules(node.records()[1])["cpu"] == pytest.approx(1500, abs=60)


@pytest.mark.parametrize("name", ["cpu:1", "gpu[0]"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_energy_of_a_component_that_is_late_is_not_counted_twice(
    make: Callable[..., SharedNode], name: str, exclusive: bool
) -> None:
    """While a counter of a component is unreadable, `other` contains the energy of this component.

    When the counter reports the energy later, it is subtracted from the energy of `other`.
    """
    node = with_second_package(make(("cpu", "gpu[0]", "node")))
    first = counts(node)
    load = {"cpu": 100, "cpu:1": 50, "gpu[0]": 200, "other": 80}
    node.begin(1, CPUS, "0", exclusive=exclusive)
    node.use(20, load)
    node.counters[name].silent = True
    node.use(300, load)
    node.counters[name].silent = False
    node.use(20, load)
    node.end(1)
    assert quality(node.records()[1])["other"] == "partial"
    node.begin(2, CPUS, "0", exclusive=exclusive)
    node.use(800, load)
    node.kill()
    node.use(1000, load)
    node.end(2)
    assert quality(node.records()[2])["other"] == "partial"  # too low by the late energy
    node.begin(3, CPUS, "0", exclusive=exclusive)
    node.use(100, load)
    node.end(3)
    assert joules(node.records()[3])["other"] == 8000.0
    assert quality(node.records()[3])["other"] != "partial"
    assert measured(node) == counts(node)["node"] - first["node"]


def test_late_energy_of_a_power_that_varied_is_not_counted_twice(make: Callable[..., SharedNode]) -> None:
    """A late reading contains much energy of time in which `other` is charged, and none of later time."""
    node = with_second_package(make(("cpu", "node")))
    first = counts(node)["node"]
    node.use(20, {"cpu": 10, "cpu:1": 10, "other": 10})
    node.counters["cpu:1"].silent = True
    node.use(30, {"cpu": 10, "cpu:1": 900, "other": 10})
    node.use(65, {"cpu": 10, "other": 10})
    node.counters["cpu:1"].silent = False
    node.begin(1, CPUS, exclusive=True)
    node.use(10, {"cpu": 10, "other": 10})
    node.kill()
    node.use(2000, {"cpu": 10, "other": 20})
    node.end(1)
    assert measured(node) == counts(node)["node"] - first


def with_second_package(node: SharedNode) -> SharedNode:
    second = HandCounter("cpu")
    second.key = "cpu:1"
    node.die()
    node.counters["cpu:1"] = second
    node.manager = node.start()
    return node


def counts(node: SharedNode) -> dict[str, int]:
    return {name: counter.value_uj for name, counter in node.counters.items()}


def measured(node: SharedNode) -> int:
    """Return the microjoules of all components together."""
    return sum(account["measured"] for account in node.accounts().values())


def test_continued_uncertainty_is_one_span() -> None:
    account = ComponentAccount(("a", "b"))
    for second in range(100):
        account.add_readings(
            SampleInterval(second, second + 1.0, {"a": CounterDelta(second, 1, certain=False)}, {})
        )
    assert account.uncertain_spans == [(0.0, 100.0)]


def test_energy_reported_after_a_job_s_end_is_missing_and_marked(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu", "dram"), idle_watts={"cpu": 0.0, "dram": 0.0})
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(2, {"cpu": 100.0, "dram": 50.0}, busy={5: 4.0, 6: 4.0})
    node.counters["dram"].silent = True
    node.use(3, {"cpu": 100.0, "dram": 50.0}, busy={5: 4.0, 6: 4.0})
    node.end(5)
    node.counters["dram"].silent = False
    node.use(1, {"cpu": 100.0, "dram": 50.0}, busy={6: 4.0})
    node.end(6)
    found = node.records()
    assert (quality(found[5])["dram"], found[5].uncertain_seconds) == ("partial", 3.0)
    assert joules(found[5])["dram"] == 50.0
    assert node.accounts()["dram"]["unattributed"] == pytest.approx(200e6 * 12 / 28, abs=2)
    assert (quality(found[6])["dram"], found[6].uncertain_seconds) == ("partial", 4.0)


def test_the_node_s_meter_may_be_slower_than_the_parts(make: Callable[..., SharedNode]) -> None:
    """Check a node meter that is slower than the counters of the components.

    The node meter reports every five seconds. The energy of `other` is charged when the node meter
    reports, and is then divided evenly over these seconds.
    """
    node = make(idle_watts=IDLE, slow={"node": 5.0})
    node.begin(5, 8, exclusive=True)
    node.use(4, LOAD)
    assert node.manager.energy(5)[1]["components"] == {"cpu": 1200.0, "dram": 160.0}
    node.use(14, LOAD)
    assert node.manager.energy(5)[1]["components"] == {"cpu": 5400.0, "dram": 720.0}
    assert node_watts(node.manager.status()) == 500.0
    node.end(5)
    record = node.records()[5]
    assert joules(record)["other"] == 18 * 160.0
    assert (record.peak_watts, record.uncertain_seconds) == (500.0, 0.0)
    (item,) = node.manager.spool.items(10**9, 9)
    assert item.trace is not None
    assert decode(item.trace["columns"]["other"]) == [160.0] * 18
    assert decode(item.trace["columns"]["cpu"]) == [300.0] * 18


def test_a_slow_meter_is_read_when_a_job_comes_or_goes(make: Callable[..., SharedNode]) -> None:
    node = make(idle_watts=IDLE, slow={"node": 5.0})
    node.begin(5, 4)
    node.use(2, {"cpu": 100.0, "dram": 20.0, "other": 80.0}, busy={5: 4.0})
    node.begin(6, 4)
    node.use(3, LOAD, busy={5: 0.0, 6: 4.0})
    node.end(6)
    assert joules(node.records()[6])["other"] == pytest.approx(3 * (40 + 80))
    node.end(5)
    assert joules(node.records()[5])["other"] == pytest.approx(5 * 40.0)


def test_meters_that_disagree_for_a_moment_even_out(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu", "node"))
    node.begin(5, 8)
    for lag in (30_000_000, -30_000_000) * 5:  # the node meter lags, then catches up
        node.counters["node"].value_uj -= lag
        node.use(1, {"cpu": 100.0, "other": 20.0})
    node.end(5)
    assert joules(node.records()[5]) == {"cpu": 1000.0, "other": 200.0, "node": 1200.0}


def test_a_meter_that_is_updated_less_often_than_it_is_read_is_no_contradiction(
    make: Callable[..., SharedNode],
) -> None:
    node = make(("cpu", "node"))
    node.begin(5, 8)
    meter = node.counters["node"]
    for _ in range(30):
        shown_uj = meter.value_uj
        node.use(0.05, {"cpu": 100.0, "other": 20.0}, ticks=False)
        now_uj, meter.value_uj = meter.value_uj, shown_uj
        node.manager.sample()
        meter.value_uj = now_uj
        node.use(0.05, {"cpu": 100.0, "other": 20.0})
    node.end(5)
    assert joules(node.records()[5]) == pytest.approx({"cpu": 300.0, "other": 60.0, "node": 360.0})


def test_a_delayed_reading_costs_a_job_nothing(make: Callable[..., SharedNode]) -> None:
    """A job is not charged for energy that the node used between two delayed readings.

    Shortly before the job ends, two seconds pass between the reading of the components and the reading of
    the node meter.
    """
    node = make(("cpu", "node"))
    node.begin(5, 8)
    node.use(5, {"cpu": 100.0, "other": 20.0})

    def hold_up() -> None:
        node.counters["node"].held_up = lambda: None
        node.use(2, {"cpu": 100.0, "other": 20.0}, ticks=False)

    node.counters["node"].held_up = hold_up
    node.use(1, {"cpu": 100.0, "other": 20.0})
    node.use(1, {"cpu": 100.0, "other": 20.0})
    node.end(5)
    assert joules(node.records()[5]) == {"cpu": 900.0, "other": 180.0, "node": 1080.0}


def test_power_of_shared_jobs_is_their_part(make: Callable[..., SharedNode]) -> None:
    node = make(idle_watts=IDLE)
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(12, LOAD, busy={5: 4.0, 6: 0.0})
    status = node.manager.status()
    watts = {job["job_id"]: job["watts"] for job in status["jobs"]}
    assert watts[5] == pytest.approx({"cpu": 250.0, "dram": 30.0, "other": 120.0})
    assert watts[6] == pytest.approx({"cpu": 50.0, "dram": 10.0, "other": 40.0})
    assert node_watts(status) == pytest.approx(500.0)
    assert node.manager.energy(6)[1]["watts"] == pytest.approx(100.0)
    node.end(5)
    node.end(6)
    assert node.records()[5].peak_watts == pytest.approx(400.0)


def test_steps_of_a_shared_job_have_its_joules(make: Callable[..., SharedNode]) -> None:
    node = make(("cpu",), idle_watts={"cpu": 0.0})
    node.begin(5, 4)
    node.begin(6, 4)
    node.use(1, {"cpu": 100.0}, busy={5: 1.0, 6: 1.0})
    node.manager.step("start", 5, "0", pid=4711)
    node.use(2, {"cpu": 100.0}, busy={5: 3.0, 6: 1.0})
    node.manager.step("end", 5, "0")
    node.use(1, {"cpu": 100.0}, busy={5: 1.0, 6: 1.0})
    node.end(5)
    steps = {record.step: joules(record)["cpu"] for record in node.all_records()}
    assert steps == {"0": pytest.approx(150.0), None: pytest.approx(250.0)}


@pytest.mark.parametrize("before_s", [4, 7, 12])
def test_a_short_step_has_its_own_seconds_of_other(make: Callable[..., SharedNode], before_s: int) -> None:
    node = make(idle_watts=dict.fromkeys(LOAD, 0.0))
    for job_id in (1, 2):
        node.begin(job_id, 4)
    node.use(before_s, LOAD, {1: 4, 2: 4})
    node.manager.step("start", 1, "0")
    node.use(3, LOAD, {1: 4, 2: 4})
    node.manager.step("end", 1, "0")
    node.use(9, LOAD, {1: 4, 2: 4})
    (step,) = [record for record in node.all_records() if record.step == "0"]
    assert joules(step) == pytest.approx({"cpu": 450.0, "dram": 60.0, "other": 240.0})
    assert set(quality(step).values()) == {"modelled"}


def test_energy_not_reported_during_a_step_is_unknown_not_zero(make: Callable[..., SharedNode]) -> None:
    node = make(idle_watts=dict.fromkeys(LOAD, 0.0))
    for job_id in (1, 2):
        node.begin(job_id, 4)
    node.use(12, LOAD, {1: 4, 2: 4})
    node.counters["node"].silent = True
    node.manager.step("start", 1, "0")
    node.use(3, LOAD, {1: 4, 2: 4})
    node.manager.step("end", 1, "0")
    (step,) = [record for record in node.all_records() if record.step == "0"]
    assert joules(step)["other"] is None
    assert quality(step)["other"] == "partial"


def test_energy_accounts_are_visible_to_root_only(make: Callable[..., SharedNode]) -> None:
    node = make()
    assert "energy_accounts" not in node.manager.status(reader=1001)
    assert "energy_accounts" in node.manager.status()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 4), st.sampled_from([None, 1, 2, 4, 8])),
        st.tuples(st.just("end"), st.integers(1, 4)),
        st.tuples(st.just("step"), st.integers(1, 4), st.sampled_from(["start", "end"])),
        st.tuples(
            st.just("use"), st.integers(1, 3000), st.lists(st.integers(0, 10**9), min_size=4, max_size=4)
        ),
        st.tuples(st.just("silent"), st.sampled_from(["cpu", "dram", "gpu[0]", "node"]), st.booleans()),
        st.tuples(st.sampled_from(["kill", "house", "tidy"])),
    ),
    max_size=40,
)


@examples(60)
@given(ACTIONS)
def test_jobs_idle_and_unattributed_are_the_node_over_any_history(actions: list[tuple[object, ...]]) -> None:
    """The energy of jobs, idle energy and unattributed energy add up to the energy of the node.

    This holds after any sequence of begin, end, step, sample, kill -9 and unreadable counters.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        components = ("cpu", "dram", "gpu[0]", "node")
        node = SharedNode(Path(folder), components, {"cpu": 50.0, "gpu": 20.0, "other": 30.0})
        stack.callback(node.die)
        first = {name: counter.value_uj for name, counter in node.counters.items()}
        for action in actions:
            _do(node, action)
        for counter in node.counters.values():
            counter.silent = False
        node.use(100, {}, ticks=False)  # nothing waits any longer
        node.manager.housekeeping()
        node.manager.sample()
        for job in range(1, 5):
            node.end(job)
        node.manager.housekeeping()
        accounts = node.accounts()
        for name, account in accounts.items():
            assert account["jobs"] + account["idle"] + account["unattributed"] == account["measured"], name
            assert min(account.values()) >= 0
            paid = sum(round((joules(r).get(name) or 0) * 1e6) for r in node.all_records() if r.step is None)
            assert paid == account["jobs"], name
        for name in ("cpu", "dram", "gpu[0]"):
            assert accounts[name]["measured"] == node.counters[name].value_uj - first[name], name


LATE_COMPONENTS = ["cpu", "cpu:1", "dram", "gpu[0]"]
ABSENCES = st.lists(
    st.one_of(
        st.tuples(st.just("silent"), st.sampled_from(LATE_COMPONENTS), st.booleans()),
        st.tuples(st.just("use"), st.integers(1, 90), st.lists(st.integers(0, 500), min_size=5, max_size=5)),
        st.tuples(st.sampled_from(["begin", "end", "kill"])),
    ),
    max_size=20,
)


@examples(30)
@given(ABSENCES)
def test_components_together_are_the_node_s_meter_whatever_is_unreadable(
    actions: list[tuple[Any, ...]],
) -> None:
    """The energies of all components and of `other` add up to the energy of the node meter.

    Energy that a component reports late is in `other` already. The sum is checked after `other` has been
    reduced by all late energy.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        node = SharedNode(Path(folder), ("cpu", "dram", "gpu[0]", "node"), {"cpu": 50.0, "gpu": 20.0})
        stack.callback(node.die)
        first = counts(with_second_package(node))["node"]
        for what, *more in actions:
            if what == "silent":
                node.counters[more[0]].silent = more[1]
            elif what == "use":
                node.use(more[0], dict(zip([*LATE_COMPONENTS, "other"], more[1], strict=True)))
            elif what == "kill":
                node.kill()
            else:
                getattr(node, what)(1, *([4, "0"] if what == "begin" else []))
        for counter in node.counters.values():
            counter.silent = False
        node.use(100, {})
        node.begin(2, 4)
        node.use(100, {"other": 10_000.0})  # more than all late energy
        node.end(2)  # charges all energy so far
        assert measured(node) == counts(node)["node"] - first


def _do(node: SharedNode, action: tuple[object, ...]) -> None:
    what, *more = action
    if what == "begin":
        job, cpus = more
        node.begin(job, cpus, "0" if job == 1 else "")  # type: ignore[arg-type]
    elif what == "end":
        node.end(more[0])  # type: ignore[arg-type]
    elif what == "step":
        node.manager.step(str(more[1]), int(more[0]), "0")  # type: ignore[call-overload]
    elif what == "use":
        milliseconds, (cpu, dram, gpu, other) = more  # type: ignore[misc]
        node.clock.now += milliseconds / 1000
        for name, energy in {"cpu": cpu, "dram": dram, "gpu[0]": gpu, "other": other}.items():
            node.move(name, energy)
        node.work({job: Fraction(milliseconds * job, 4000) for job in range(1, 4)}, Fraction(1, 100))
        node.manager.sample()
    elif what == "silent":
        node.counters[str(more[0])].silent = bool(more[1])
    elif what == "kill":
        node.kill()
    elif what == "house":
        node.manager.housekeeping()
    else:
        node.manager.finalize_jobs()
