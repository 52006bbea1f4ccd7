"""Test energy measurement: counter differences, sampling, energy meters of jobs, power traces."""

from __future__ import annotations

import base64
import json
import math
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.counter_delta import CounterDelta
from slurm_energy.agent.metering.job_meter import Charge, JobMeter, PowerMonitor
from slurm_energy.agent.metering.sampler import SampleInterval, Sampler
from slurm_energy.agent.metering.trace import MAX_POINTS, TraceBuilder
from slurm_energy.agent.worker_thread import TimerGrid
from slurm_energy.devices.driver import DeviceError, DeviceGoneError, EnergyCounter, ThrottleSensor


class HandClock(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.slept = 0.0
        self.wall_step = 0.0

    def boottime(self) -> float:
        return self.now

    def suspended(self) -> float:
        return self.slept

    def unix(self) -> float:
        return 1_700_000_000 + self.now + self.wall_step


class Counter(EnergyCounter):
    """A counter with the value given by the test; None means unreadable."""

    component, source = "cpu", "powercap:intel-rapl"

    def __init__(
        self,
        range_uj: int | None = None,
        max_watts: float = 400.0,
        key: str = "c",
        interval_s: float = 0.0,
    ) -> None:
        self.key, self.range_uj, self.max_watts = key, range_uj, max_watts
        self.interval_s = interval_s
        self.value: int | None = 0
        self.failure: type[DeviceError] = DeviceError
        self.reads = 0

    def read(self) -> int:
        self.reads += 1
        if self.value is None:
            raise self.failure(self.key, "Input/output error")
        return self.value


def step(sampler: Sampler, clock: HandClock, seconds: float) -> SampleInterval:
    clock.now += seconds
    interval = sampler.sample()
    assert interval is not None
    return interval


def start(*counters: Counter) -> tuple[Sampler, HandClock]:
    clock = HandClock()
    sampler = Sampler(counters, [], clock)
    assert sampler.sample() is None
    return sampler, clock


@given(
    first=st.integers(0, 99_999_999),
    powers=st.lists(st.floats(0, 399, allow_nan=False), min_size=1, max_size=50),
)
def test_no_joule_is_lost_or_made_over_any_number_of_wraps(first: int, powers: list[float]) -> None:
    """The sum of measured energy equals the true energy, whatever number of times the counter wraps.

    The counter has a range of 100 J and is read 10 times a second. At the maximum power of 400 W it wraps
    every 0.25 s, so that every reading is unambiguous.
    """
    counter = Counter(range_uj=100_000_000, max_watts=400)
    counter.value = first
    sampler, clock = start(counter)
    truth = measured = 0
    for watts in powers:
        energy = round(watts * 0.1 * 1e6)
        truth += energy
        counter.value = (counter.value + energy) % 100_000_000
        delta = step(sampler, clock, 0.1).deltas["c"]
        assert delta.certain
        measured += delta.energy_uj
    assert measured == truth


def test_an_interval_in_which_wraps_may_have_been_missed_is_uncertain() -> None:
    counter = Counter(range_uj=100_000_000, max_watts=400)
    sampler, clock = start(counter)
    counter.value = 10_000_000
    assert not step(sampler, clock, 1.0).deltas["c"].certain


@pytest.mark.parametrize(("pause_s", "certain"), [(230.0, True), (240.0, False), (3600.0, False)])
def test_a_wrap_that_the_driver_may_have_missed_is_uncertain(pause_s: float, certain: bool) -> None:
    """The driver of an Intel GPU unwraps its 32-bit register only when the counter is read.

    At 1 kW the register wraps after 262 s. After a pause of the agent, a whole wrap may be missing.
    """
    counter = Counter(max_watts=1000)
    counter.unread_range_uj = 262_144_000_000
    sampler, clock = start(counter)
    assert sampler.max_interval_s == pytest.approx(262.144 / 3)
    for _ in range(3):
        counter.value += 500_000_000
        assert step(sampler, clock, 1.0).deltas["c"].certain
    counter.value += 100_000_000_000
    delta = step(sampler, clock, pause_s).deltas["c"]
    assert delta == CounterDelta(clock.now - pause_s, 100_000_000_000, certain)


class StallingCounter(Counter):
    """A counter whose reader stalls directly after the read."""

    def __init__(self, clock: HandClock, **known: Any) -> None:
        super().__init__(**known)
        self.clock, self.stall_s = clock, 0.0

    def read(self) -> int:
        value = super().read()
        self.clock.now += self.stall_s
        return value


@pytest.mark.parametrize(("stall_s", "certain"), [(0.0, True), (0.2, False)])
def test_a_wrap_that_a_delayed_reading_may_hide_is_uncertain(stall_s: float, certain: bool) -> None:
    """The energy is marked as uncertain if a delayed reading may hide a wrap of the counter.

    The counter wraps every 0.25 s. The first reading is delayed by 0.2 s. The samples then seem to be only
    0.08 s apart, but may be 0.28 s apart.
    """
    clock = HandClock()
    counter = StallingCounter(clock, range_uj=100_000_000, max_watts=400)
    sampler = Sampler([counter], [], clock)
    counter.stall_s = stall_s
    sampler.sample()
    earlier = sampler.readings()
    counter.stall_s, counter.value = 0.0, 10_000_000
    assert step(sampler, clock, 0.08).deltas["c"].certain == certain
    gap = sampler.since(json.loads(json.dumps(earlier)))
    assert gap is not None and gap.deltas["c"].certain == certain


def test_energy_before_a_delayed_reading_is_at_most_what_the_hardware_can_use() -> None:
    clock = HandClock()
    counter = StallingCounter(clock, max_watts=400)
    sampler = Sampler([counter], [], clock)
    counter.stall_s = 3.0
    sampler.sample()
    counter.stall_s, counter.value = 0.0, 1_240_000_000  # 3.1 s at 400 W
    assert step(sampler, clock, 0.1).deltas["c"] == CounterDelta(1001.5, 1_240_000_000, certain=True)


def test_a_driver_reload_counts_what_the_counter_shows_since() -> None:
    counter = Counter()
    counter.value = 5_000_000_000
    sampler, clock = start(counter)
    counter.value = 30_000_000
    assert step(sampler, clock, 1.0).deltas["c"] == CounterDelta(1000.0, 30_000_000, certain=False)


def test_a_jump_that_the_hardware_cannot_have_made_counts_as_nothing() -> None:
    counter = Counter(range_uj=262_143_328_911, max_watts=375)
    counter.value = 200_000_000_000
    sampler, clock = start(counter)
    counter.value = 1_000  # a reset, which modulo arithmetic would read as 62 kJ
    assert step(sampler, clock, 1.0).deltas["c"] == CounterDelta(1000.0, 0, certain=False)


def test_an_unreadable_counter_catches_up_but_is_uncertain() -> None:
    counter = Counter(range_uj=10**12)
    sampler, clock = start(counter)
    counter.value = None
    failed = step(sampler, clock, 1.0)
    assert (failed.deltas, failed.unknown) == ({}, {"c"})
    counter.value = 300_000_000
    back = step(sampler, clock, 1.0)
    assert (back.deltas, back.unknown) == ({"c": CounterDelta(1000.0, 300_000_000, certain=False)}, set())
    assert step(sampler, clock, 1.0).deltas["c"].certain


def test_a_counter_that_went_away_counts_from_its_return_and_is_unknown_meanwhile(caplog) -> None:
    """The energy that a counter counts while it cannot be read is unknown and not charged.

    After its return, the counter counts from its new value. The energy of the gap cannot be distinguished
    from the energy of another device in the same slot.
    """
    counter, other = Counter(range_uj=10**12), Counter(key="other")
    sampler, clock = start(counter, other)
    counter.value, counter.failure = None, DeviceGoneError
    gone = [step(sampler, clock, 1.0) for _ in range(2)]
    counter.value = 300_000_000
    back = step(sampler, clock, 1.0)
    counter.value = 310_000_000
    after = step(sampler, clock, 1.0)
    for interval in (*gone, back):
        assert (interval.unknown, set(interval.deltas)) == ({"c"}, {"other"})
    assert (after.unknown, after.deltas["c"]) == (set(), CounterDelta(1003.0, 10_000_000, certain=True))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "counter c: cannot be read: c: Input/output error"
    ]


def test_readings_of_an_earlier_run_count_on_the_same_boot_only() -> None:
    counter = Counter(range_uj=10**12)
    sampler, clock = start(counter)
    earlier = sampler.readings()
    again = Sampler([counter], [], clock)
    counter.value = 700_000
    clock.now += 60
    again.sample()
    assert again.since(earlier) == SampleInterval(
        1000.0, 1060.0, {"c": CounterDelta(1000.0, 700_000, certain=True)}, {}
    )
    assert again.since({**earlier, "boot_id": "another"}) is None


def test_a_slow_source_is_read_at_its_own_rate_and_its_delta_covers_its_own_time() -> None:
    fast, slow = Counter(), Counter(key="slow", interval_s=5.0)
    sampler, clock = start(fast, slow)
    found = []
    for second in range(1, 11):
        fast.value, slow.value = second * 10**6, second * 2 * 10**6
        clock.now = 1000.0 + second - 0.001 * (second % 2)  # timers are not exact
        interval = sampler.sample(due_only=True)
        assert interval is not None and interval.unknown == set()
        assert interval.deltas["c"].start == interval.start
        found += [(second, interval.deltas["slow"])] if "slow" in interval.deltas else []
    assert found == [
        (5, CounterDelta(1000.0, 10_000_000, certain=True)),
        (10, CounterDelta(pytest.approx(1005.0, abs=0.01), 10_000_000, certain=True)),
    ]
    assert (fast.reads, slow.reads) == (11, 3)


def test_a_sample_at_the_edge_of_a_job_reads_slow_sources_too() -> None:
    slow = Counter(key="slow", interval_s=5.0)
    sampler, clock = start(slow)
    slow.value = 4_000_000
    assert step(sampler, clock, 2.0).deltas["slow"] == CounterDelta(1000.0, 4_000_000, certain=True)


def test_a_slow_source_that_is_lost_stays_unknown_until_it_is_read_again() -> None:
    slow = Counter(key="slow", interval_s=5.0)
    sampler, clock = start(slow)
    slow.value = None
    unknown = []
    for second in range(1, 12):
        clock.now = 1000.0 + second
        interval = sampler.sample(due_only=True)
        assert interval is not None
        unknown.append(bool(interval.unknown))
        slow.value = None if second < 7 else 70
    assert unknown == [False] * 4 + [True] * 5 + [False] * 2


def test_jitter_is_no_reset_and_is_not_counted_twice() -> None:
    counter = Counter()
    counter.value = 5_000_000_000
    sampler, clock = start(counter)
    deltas = []
    for value in (5_010_000_000, 5_009_999_997, 5_010_000_001, 5_020_000_000):
        counter.value = value
        deltas.append(step(sampler, clock, 0.1).deltas["c"])
    assert [delta.energy_uj for delta in deltas] == [10_000_000, 0, 1, 9_999_999]
    assert all(delta.certain for delta in deltas)


def test_a_counter_without_movement_is_uncertain_and_may_catch_up() -> None:
    counter = Counter(max_watts=400)
    counter.value = 5_000_000_000
    sampler, clock = start(counter)
    still = [step(sampler, clock, 1.0).deltas["c"].certain for _ in range(15)]
    assert still == [True] * 10 + [False] * 5
    counter.value += 3_000_000_000  # 15 s at 200 W, more than 400 W in the last second
    assert step(sampler, clock, 1.0).deltas["c"] == CounterDelta(1015.0, 3_000_000_000, certain=False)
    counter.value += 200_000_000
    assert step(sampler, clock, 1.0).deltas["c"].certain


@pytest.mark.parametrize(
    ("after", "range_uj", "energy_uj"),
    [(5_300_000_000, None, 300_000_000), (20_000_000, None, 20_000_000), (20_000_000, 10**10, 20_000_000)],
)
def test_energy_around_a_suspend_is_a_lower_bound(after: int, range_uj: int | None, energy_uj: int) -> None:
    """The energy of a sample interval that contains a suspend of the node is marked as a lower bound.

    During the suspend, the counter may have continued, stopped or restarted. An hour at 400 W could hide
    dozens of counter wraps.
    """
    counter = Counter(range_uj=range_uj)
    counter.value = 5_000_000_000
    sampler, clock = start(counter)
    counter.value = after
    clock.slept = 3600.0
    interval = step(sampler, clock, 3601.0)
    assert interval.deltas["c"] == CounterDelta(1000.0, energy_uj, certain=False)
    assert (interval.suspended_s, interval.length_s) == (3600.0, 3601.0)
    counter.value += 100_000_000
    interval = step(sampler, clock, 1.0)
    assert (interval.suspended_s, interval.deltas["c"].certain) == (0.0, True)


def test_a_suspend_while_the_agent_did_not_run_is_detected() -> None:
    counter = Counter()
    sampler, clock = start(counter)
    earlier = sampler.readings()
    clock.now, clock.slept, counter.value = 1500.0, 400.0, 5_000_000
    again = Sampler([counter], [], clock)
    again.sample()
    interval = again.since(earlier)
    assert interval is not None
    assert interval.suspended_s == 400.0
    assert interval.deltas["c"] == CounterDelta(1000.0, 5_000_000, certain=False)


def test_counters_are_read_thrice_per_wrap_whatever_is_configured() -> None:
    small, large = Counter(range_uj=100_000_000, max_watts=400), Counter(range_uj=262 * 10**9, key="large")
    assert Sampler([large, small], [], HandClock()).max_interval_s == pytest.approx(0.25 / 3)
    assert Sampler([Counter()], [], HandClock()).max_interval_s == math.inf


@given(st.floats(0.01, 10), st.floats(0, 1e6), st.lists(st.floats(0, 25), min_size=1, max_size=50))
def test_a_grid_never_drifts_and_never_catches_up(
    interval_s: float, origin: float, delays: list[float]
) -> None:
    grid, now, last = TimerGrid(origin, interval_s), origin, origin
    for delay in delays:
        moment = grid.next(now)
        steps = (moment - origin) / interval_s
        assert steps == pytest.approx(round(steps), abs=1e-3)
        assert last < moment and now - 1e-6 < moment <= max(now, last) + 1.001 * interval_s
        last, now = moment, moment + delay * interval_s  # the work may take longer than an interval


class Sensor(ThrottleSensor):
    def __init__(self, component: str, part: float | None) -> None:
        self.component, self.part = component, part
        self.asked = 0

    def throttled_s(self, interval_s: float) -> float:
        self.asked += 1
        if self.part is None:
            raise DeviceError(self.component, "gone")
        return self.part * interval_s


def test_throttling_is_per_component_and_unreadable_sensors_are_excluded() -> None:
    clock = HandClock()
    sampler = Sampler([], [Sensor("gpu[0]", 1.0), Sensor("gpu[1]", None), Sensor("cpu", 0.25)], clock)
    sampler.sample()
    assert step(sampler, clock, 2.0).throttled_s == {"gpu[0]": 2.0, "cpu": 0.5}


def test_throttle_sensors_take_turns_and_their_last_value_holds() -> None:
    sensors = [Sensor(f"gpu[{index}]", 0.0) for index in range(8)]
    clock = HandClock()
    sampler = Sampler([], sensors, clock)
    sampler.sample()
    for sensor in sensors:
        sensor.part = 1.0
    throttled = []
    for _ in range(8):
        clock.now += 1.0
        interval = sampler.sample(due_only=True)
        assert interval is not None
        throttled.append(sum(interval.throttled_s.values()))
    assert throttled == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert [sensor.asked for sensor in sensors] == [2] * 8


def test_throttle_sensors_just_read_are_not_read_again_at_the_edge_of_a_job() -> None:
    clock, sensor = HandClock(), Sensor("gpu[0]", 1.0)
    sampler = Sampler([], [sensor], clock)
    sampler.sample()
    for length_s, asked in ((0.1, 1), (0.3, 1), (0.2, 2), (2.0, 3)):
        interval = step(sampler, clock, length_s)
        assert sensor.asked == asked
    assert interval.throttled_s == {"gpu[0]": 2.0}


def test_a_meter_adds_what_counts_and_marks_what_is_missing() -> None:
    meter = JobMeter(10.0)
    meter.add(Charge(10, 11, {"cpu": 5, "gpu[0]": 7}, component_uncertain_s={"dram": 1.0}), ["cpu", "dram"])
    before = meter.copy()
    component_uncertain_s = {"dram": 2.0, "cpu": 0.5, "gpu[0]": 9.0}
    meter.add(
        Charge(11, 13, {"cpu": 6}, component_uncertain_s=component_uncertain_s, assumed=frozenset({"cpu"})),
        ["cpu", "dram"],
    )
    assert meter.energy_uj == {"cpu": 11}
    assert (meter.component_uncertain_s, meter.uncertain_s) == ({"dram": 3.0, "cpu": 0.5}, 3.0)
    assert (meter.elapsed_s, meter.throttled_s) == (3.0, None)
    later = meter.since(before)
    assert (later.start, later.elapsed_s, later.energy_uj) == (11.0, 2.0, {"cpu": 6})
    assert (later.component_uncertain_s, later.assumed_s) == ({"dram": 2.0, "cpu": 0.5}, {"cpu": 2.0})
    assert JobMeter(**json.loads(json.dumps(meter.dump()))) == meter


def test_peaks_are_means_of_whole_windows() -> None:
    watch = PowerMonitor(window_s=1.0)
    for joules in (100.0, 0.0, 300.0, 0.0):
        watch.add(0.5, {"cpu": joules})
    assert watch.peak_watts == 300.0
    watch.add(0.1, {"cpu": 90.0})
    watch.finish()  # 900 W for a tenth of a second is no peak
    assert watch.peak_watts == 300.0


def test_a_window_does_not_end_with_delayed_readings() -> None:
    """A window of a job's mean power does not end with readings that may be late.

    In the test, the last readings were made half a second after their recorded time.
    """
    watch = PowerMonitor(window_s=1.0, cap_watts=110.0)
    watch.add(1.0, {"cpu": 150.0}, timing_uncertainty_s=0.5)
    assert watch.peak_watts is None
    watch.add(0.5, {"cpu": 0.0}, timing_uncertainty_s=0.001)
    assert (watch.peak_watts, watch.above_cap_s) == (100.0, 0.0)
    watch.add(1.0, {"cpu": 150.0}, timing_uncertainty_s=0.5)
    watch.finish()
    assert (watch.peak_watts, watch.above_cap_s) == (100.0, 0.0)


def test_a_job_shorter_than_a_window_has_its_mean_as_peak() -> None:
    watch = PowerMonitor(window_s=1.0)
    watch.add(0.2, {"cpu": 50.0})
    watch.finish()
    assert watch.peak_watts == 250.0


def test_late_energy_makes_no_peak() -> None:
    watch = PowerMonitor(window_s=1.0)
    for _ in range(4):
        watch.add(1.0, {"cpu": 100.0}, waiting=["other"])
    watch.add(1.0, {"cpu": 100.0, "other": 250.0}, {"other": 5.0})
    watch.add(1.0, {"cpu": 100.0}, waiting=["other"])
    assert watch.watts == {"cpu": 100.0, "other": 50.0}
    assert watch.peak_watts == 100.0  # the record adds the mean of `other`


def test_what_cannot_be_limited_is_not_above_a_cap() -> None:
    watch = PowerMonitor(window_s=1.0, cap_watts=100.0)
    watch.add(1.0, {"cpu": 90.0, "other": 80.0})
    assert (watch.above_cap_s, watch.peak_watts) == (0.0, 90.0)


@pytest.mark.parametrize(
    ("caps", "expected"),
    [({}, None), ({"cap_watts": 400.0}, 1.0), ({"cap_watts": 500.0}, 0.0), ({"gpu_cap_watts": 150.0}, 2.0)],
)
def test_seconds_above_a_cap(caps: dict[str, float], expected: float | None) -> None:
    watch = PowerMonitor(window_s=1.0, **caps)
    watch.add(1.0, {"cpu": 300.0, "gpu[0]": 160.0})
    watch.add(1.0, {"cpu": 150.0, "gpu[0]": 160.0})
    assert watch.above_cap_s == expected


def decode(text: str) -> list[float]:
    values = array("f")
    values.frombytes(zlib.decompress(base64.b64decode(text)))
    return list(values)


def test_a_trace_spreads_energy_over_the_intervals_that_it_fell_in() -> None:
    trace = TraceBuilder(100.0, 1.0, ["cpu"])
    trace.add(100.0, 100.5, {"cpu": 50.0})
    trace.add(100.5, 102.5, {"cpu": 400.0})
    encoded = trace.encode(1_700_000_000.0)
    assert (encoded["start"], encoded["interval_s"]) == (1_700_000_000.0, 1.0)
    assert decode(encoded["columns"]["cpu"]) == [150.0, 200.0, 200.0]


def test_unknown_power_is_nan_and_stays_in_its_interval() -> None:
    trace = TraceBuilder(0.0, 1.0, ["cpu", "dram"])
    trace.add(0.0, 1.0, {"cpu": 10.0, "dram": 1.0})
    trace.add(1.0, 2.0, {"dram": 2.0})
    trace.add(3.0, 4.0, {"cpu": 30.0, "dram": 3.0})
    cpu, dram = (list(trace.watts()[name]) for name in ("cpu", "dram"))
    assert (cpu[0], cpu[3]) == (10.0, 30.0)
    assert math.isnan(cpu[1]) and math.isnan(cpu[2])
    assert dram[:2] == [1.0, 2.0] and math.isnan(dram[2])


def test_a_trace_takes_late_energy_of_one_component() -> None:
    trace = TraceBuilder(0.0, 1.0, ["cpu", "other"])
    trace.add(0.0, 1.0, {"cpu": 10.0})
    trace.add(1.0, 2.0, {"cpu": 20.0})
    trace.add(0.0, 2.0, {"other": 60.0})
    assert {name: list(watts) for name, watts in trace.watts().items()} == {
        "cpu": [10.0, 20.0],
        "other": [30.0, 30.0],
    }


def test_a_long_trace_doubles_its_interval_and_keeps_its_energy() -> None:
    trace = TraceBuilder(0.0, 1.0, ["cpu"])
    for second in range(2 * MAX_POINTS + 10):
        trace.add(second, second + 1, {"cpu": 100.0 + second % 2})
    watts = trace.watts()["cpu"]
    assert trace.interval_s == 4.0
    assert len(watts) <= MAX_POINTS
    assert set(watts[:-1]) == {100.5}


@given(st.lists(st.tuples(st.floats(0.01, 3), st.floats(0, 1000)), min_size=1, max_size=40))
def test_a_trace_can_be_stored_and_continued(parts: list[tuple[float, float]]) -> None:
    straight, stored = (TraceBuilder(5.0, 0.5, ["cpu"]) for _ in range(2))
    now = 5.0
    for length, watts in parts:
        for trace in (straight, stored):
            trace.add(now, now + length, {"cpu": watts * length})
        stored = TraceBuilder.load(b"".join(stored.parts()))
        now += length
    assert b"".join(stored.parts()) == b"".join(straight.parts())
    total = math.fsum(watts * length for length, watts in parts)
    kept = math.fsum(straight._joules["cpu"])
    assert kept == pytest.approx(total, rel=1e-9, abs=1e-9)


def test_a_long_time_away_costs_no_more_memory_than_a_long_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder(0.0, 0.1, ["cpu"])
    trace.add(0.0, 1.0, {"cpu": 100.0})
    written: list[int] = []
    put = trace._put

    def counted(index: int, *rest: Any) -> None:
        written.append(index)
        put(index, *rest)

    monkeypatch.setattr(trace, "_put", counted)
    trace.add(1.0, 3 * 86400.0, {"cpu": 100.0 * (3 * 86400 - 1)})
    assert max(written) <= MAX_POINTS
    watts = trace.watts()["cpu"]
    assert len(watts) <= MAX_POINTS
    assert [round(value) for value in (watts[0], watts[-1])] == [100, 100]
