"""Counter arithmetic, sampling, meters and traces."""

from __future__ import annotations

import base64
import math
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.clock import Clock
from slurm_energy.agent.meter import Meter, PowerWatch
from slurm_energy.agent.sampler import Delta, Interval, Sampler
from slurm_energy.agent.trace import MOST_POINTS, TraceBuilder
from slurm_energy.devices.interface import DeviceError, EnergyCounter, ThrottleSensor


class HandClock(Clock):
    """A clock that stands still unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now

    def unix(self) -> float:
        return 1_700_000_000 + self.now


class Counter(EnergyCounter):
    """A counter that holds what the test says; None means unreadable."""

    component, source = "cpu", "powercap:intel-rapl"

    def __init__(self, range_uj: int | None = None, most_watts: float = 400.0, key: str = "c") -> None:
        self.key, self.range_uj, self.most_watts = key, range_uj, most_watts
        self.value: int | None = 0

    def read(self) -> int:
        if self.value is None:
            raise DeviceError(self.key, "Input/output error")
        return self.value


def step(sampler: Sampler, clock: HandClock, seconds: float) -> Interval:
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
    """A 100 J counter read 10 times a second: wraps every 0.25 s at 400 W, so every read is safe."""
    counter = Counter(range_uj=100_000_000, most_watts=400)
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
    counter = Counter(range_uj=100_000_000, most_watts=400)
    sampler, clock = start(counter)
    counter.value = 10_000_000
    assert not step(sampler, clock, 1.0).deltas["c"].certain


def test_a_driver_reload_counts_what_the_counter_shows_since() -> None:
    counter = Counter()
    counter.value = 5_000_000_000
    sampler, clock = start(counter)
    counter.value = 30_000_000
    assert step(sampler, clock, 1.0).deltas["c"] == Delta(1000.0, 30_000_000, certain=False)


def test_a_jump_that_the_hardware_cannot_have_made_counts_as_nothing() -> None:
    counter = Counter(range_uj=262_143_328_911, most_watts=375)
    counter.value = 200_000_000_000
    sampler, clock = start(counter)
    counter.value = 1_000  # reset, which modulo arithmetic takes for 62 kJ
    assert step(sampler, clock, 1.0).deltas["c"] == Delta(1000.0, 0, certain=False)


def test_a_counter_that_was_unreadable_catches_up() -> None:
    counter = Counter(range_uj=10**12)
    sampler, clock = start(counter)
    counter.value = None
    assert step(sampler, clock, 1.0).deltas == {}
    counter.value = 300_000_000
    delta = step(sampler, clock, 1.0).deltas["c"]
    assert delta == Delta(1000.0, 300_000_000, certain=True)


def test_readings_of_an_earlier_run_count_on_the_same_boot_only() -> None:
    counter = Counter(range_uj=10**12)
    sampler, clock = start(counter)
    earlier = sampler.readings()
    again = Sampler([counter], [], clock)
    counter.value = 700_000
    clock.now += 60
    again.sample()
    assert again.since(earlier) == Interval(1000.0, 1060.0, {"c": Delta(1000.0, 700_000, certain=True)}, {})
    assert again.since({**earlier, "boot_id": "another"}) is None


class Sensor(ThrottleSensor):
    def __init__(self, component: str, part: float | None) -> None:
        self.component, self.part = component, part

    def seconds(self, interval_s: float) -> float:
        if self.part is None:
            raise DeviceError(self.component, "gone")
        return self.part * interval_s


def test_throttling_is_told_per_component_and_silent_sensors_are_left_out() -> None:
    clock = HandClock()
    sampler = Sampler([], [Sensor("gpu[0]", 1.0), Sensor("gpu[1]", None), Sensor("cpu", 0.25)], clock)
    sampler.sample()
    assert step(sampler, clock, 2.0).throttled_s == {"gpu[0]": 2.0, "cpu": 0.5}


def interval(start: float, end: float, **energy_uj: int) -> Interval:
    return Interval(start, end, {key: Delta(start, uj, True) for key, uj in energy_uj.items()}, {})


def test_a_meter_adds_its_own_counters_and_marks_what_is_missing() -> None:
    meter = Meter(10.0)
    meter.add(interval(10, 11, a=5, b=7), ["a", "missing"], [])
    meter.add(interval(11, 13, a=6, b=7), ["a", "missing"], [])
    assert meter.energy_uj == {"a": 11}
    assert (meter.uncertain, meter.uncertain_s, meter.elapsed_s) == (["missing"], 3.0, 3.0)
    assert meter.throttled_s is None


def test_a_meter_takes_no_energy_from_before_its_begin() -> None:
    meter = Meter(10.0)
    late = Interval(10.0, 11.0, {"a": Delta(4.0, 999, True)}, {})
    assert meter.add(late, ["a"], []) == {}
    assert (meter.energy_uj, meter.uncertain_s) == ({}, 1.0)


def test_peaks_are_means_of_whole_windows() -> None:
    watch = PowerWatch(window_s=1.0)
    for joules in (100.0, 0.0, 300.0, 0.0):
        watch.add(0.5, {"cpu": joules})
    assert watch.peak_watts == 300.0
    watch.add(0.1, {"cpu": 90.0})
    watch.finish()  # 900 W for a tenth of a second is no peak
    assert watch.peak_watts == 300.0


def test_a_job_shorter_than_a_window_has_its_mean_as_peak() -> None:
    watch = PowerWatch(window_s=1.0)
    watch.add(0.2, {"cpu": 50.0})
    watch.finish()
    assert watch.peak_watts == 250.0


@pytest.mark.parametrize(
    ("caps", "expected"),
    [({}, None), ({"cap_watts": 400.0}, 1.0), ({"cap_watts": 500.0}, 0.0), ({"gpu_cap_watts": 150.0}, 2.0)],
)
def test_seconds_above_a_cap(caps: dict[str, float], expected: float | None) -> None:
    watch = PowerWatch(window_s=1.0, **caps)
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


def test_a_long_trace_doubles_its_interval_and_keeps_its_energy() -> None:
    trace = TraceBuilder(0.0, 1.0, ["cpu"])
    for second in range(2 * MOST_POINTS + 10):
        trace.add(second, second + 1, {"cpu": 100.0 + second % 2})
    watts = trace.watts()["cpu"]
    assert trace.interval_s == 4.0
    assert len(watts) <= MOST_POINTS
    assert set(watts[:-1]) == {100.5}


@given(st.lists(st.tuples(st.floats(0.01, 3), st.floats(0, 1000)), min_size=1, max_size=40))
def test_a_trace_can_be_stored_and_goes_on(parts: list[tuple[float, float]]) -> None:
    straight, stored = (TraceBuilder(5.0, 0.5, ["cpu"]) for _ in range(2))
    now = 5.0
    for length, watts in parts:
        for trace in (straight, stored):
            trace.add(now, now + length, {"cpu": watts * length})
        stored = TraceBuilder.load(stored.dump())
        now += length
    assert stored.dump() == straight.dump()
    total = math.fsum(watts * length for length, watts in parts)
    kept = math.fsum(straight._joules["cpu"])
    assert kept == pytest.approx(total, rel=1e-9, abs=1e-9)
