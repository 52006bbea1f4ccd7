"""Tests of the conversion of power readings to energy.

The tests cover the integration by trapezoids, the time for which the last reading is held, and gaps. They
also check that a slow power source is read in a thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.polled_sensor import PolledPowerSensor
from slurm_energy.devices.power_sensor import (
    IntegratedPowerCounter,
    PowerIntegrator,
    PowerReading,
    PowerSensor,
)

STEPS = st.lists(st.tuples(st.floats(0.01, 20), st.floats(0, 2000)), min_size=1, max_size=30)


class Fixed(PowerSensor):
    key, component, source, max_watts = "fixed", "node", "test", 3000.0

    def __init__(self, interval_s: float = 0.0) -> None:
        self.interval_s = interval_s
        self.reading: PowerReading | None = None
        self.closed = False

    def read(self) -> PowerReading:
        if self.reading is None:
            raise DeviceError(self.key, "nothing yet")
        return self.reading

    def close(self) -> None:
        self.closed = True


class Hands:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_power_that_rises_evenly_is_integrated_exactly(hands: Hands) -> None:
    sensor = Fixed()
    counter = IntegratedPowerCounter(sensor, hands)
    reported = []
    for watts in (100, 200, 300):
        sensor.reading = PowerReading(hands.now, watts)
        reported.append(counter.read())
        hands.now += 1
    assert reported == [0, 150_000_000, 400_000_000]


def test_the_last_power_is_held_until_the_next_reading(hands: Hands) -> None:
    sensor = Fixed(interval_s=5.0)
    counter = IntegratedPowerCounter(sensor, hands)
    sensor.reading = PowerReading(100, 200)
    hands.now = 103
    assert counter.read() == 600_000_000
    sensor.reading = PowerReading(105, 300)
    hands.now = 106
    assert counter.read() == (1250 + 300) * 10**6


def test_a_count_never_decreases_and_subtracts_the_excess_later(hands: Hands) -> None:
    sensor = Fixed(interval_s=5.0)
    counter = IntegratedPowerCounter(sensor, hands)
    sensor.reading = PowerReading(100, 1000)
    hands.now = 105
    assert counter.read() == 5000 * 10**6
    sensor.reading = PowerReading(105, 0)
    assert counter.read() == 5000 * 10**6  # the trapezoid says 2500 J
    sensor.reading = PowerReading(110, 1000)
    hands.now = 110
    assert counter.read() == 5000 * 10**6
    sensor.reading = PowerReading(115, 1000)
    hands.now = 115
    assert counter.read() == 10_000 * 10**6


@given(STEPS)
def test_the_integral_is_the_sum_of_trapezoids(steps: list[tuple[float, float]]) -> None:
    integral, now, expected = PowerIntegrator(60.0), 0.0, 0.0
    last: PowerReading | None = None
    reported = []
    for length, watts in steps:
        now += length
        reading = PowerReading(now, watts)
        assert integral.add(reading) is None
        if last is not None:
            expected += (last.watts + watts) / 2 * (now - last.time_s) * 1e6
        last = reading
        reported.append(integral.energy_uj(now))
    assert reported == sorted(reported)
    assert reported[-1] == pytest.approx(expected, abs=len(steps))


def test_a_gap_is_not_filled_and_reported(hands: Hands) -> None:
    sensor = Fixed()
    counter = IntegratedPowerCounter(sensor, hands)
    sensor.reading = PowerReading(100, 500)
    assert counter.read() == 0
    hands.now = 3700  # suspended for an hour
    sensor.reading = PowerReading(3700, 500)
    with pytest.raises(DeviceError, match="no reading for 3600 s"):
        counter.read()
    hands.now = 3701
    sensor.reading = PowerReading(3701, 500)
    assert counter.read() == 500_000_000


def test_an_old_reading_is_not_held_for_ever(hands: Hands) -> None:
    sensor = Fixed(interval_s=5.0)
    counter = IntegratedPowerCounter(sensor, hands)
    sensor.reading = PowerReading(100, 500)
    counter.read()
    hands.now = 131
    with pytest.raises(DeviceError, match="31 s old"):
        counter.read()


def test_closing_the_counter_closes_the_sensor() -> None:
    sensor = Fixed()
    IntegratedPowerCounter(sensor).close()
    assert sensor.closed


class Measuring:
    """Stand-in for a slow power meter: a reading ends only when the test permits it.

    A reading returns the next value in `answers`, or raises it if it is an exception.
    """

    def __init__(self, *answers: float | Exception) -> None:
        self.answers = list(answers)
        self.go = threading.Semaphore(0)
        self.requested = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self) -> float:
        self.requested.release()
        assert self.go.acquire(timeout=60)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def polled(measure: Measuring, interval_s: float = 0.001) -> PolledPowerSensor:
    return PolledPowerSensor("bmc", "node", "test", 3000, interval_s, measure, measure.released.set)


def until(read: Callable[[], object], condition: Callable[[object], bool]) -> object:
    for _ in range(20_000):
        try:
            value: object = read()
        except DeviceError as error:
            value = error
        if condition(value):
            return value
        threading.Event().wait(0.005)
    raise AssertionError(f"still {value!r}")


def stop(sensor: PolledPowerSensor, measure: Measuring) -> None:
    sensor.close()
    measure.answers += [0.0] * 5
    for _ in range(5):
        measure.go.release()
    assert measure.released.wait(60)


def test_a_read_never_waits_for_a_source_that_hangs() -> None:
    measure = Measuring(250.0)
    sensor = polled(measure)
    with pytest.raises(DeviceError, match="no reading yet"):
        sensor.read()
    assert measure.requested.acquire(timeout=60)  # the source was queried and does not respond
    with pytest.raises(DeviceError, match="no reading yet"):
        sensor.read()
    measure.go.release()
    reading = until(sensor.read, lambda value: isinstance(value, PowerReading))
    assert isinstance(reading, PowerReading) and reading.watts == 250.0
    stop(sensor, measure)


def test_a_failing_source_gives_its_reason_and_is_polled_again() -> None:
    measure = Measuring(DeviceError("bmc", "login refused"), ValueError("bug"), 99.0)
    sensor = polled(measure)
    measure.go.release()
    until(sensor.read, lambda value: isinstance(value, DeviceError) and "login refused" in str(value))
    measure.go.release()
    until(sensor.read, lambda value: isinstance(value, DeviceError) and "unexpected failure" in str(value))
    measure.go.release()
    until(sensor.read, lambda value: isinstance(value, PowerReading))
    stop(sensor, measure)


def test_a_closed_sensor_starts_no_thread() -> None:
    measure = Measuring()
    sensor = polled(measure)
    sensor.close()
    with pytest.raises(DeviceError):
        sensor.read()
    assert not any(thread.name == "poll bmc" for thread in threading.enumerate() if thread.is_alive())


def test_an_integral_continues_in_another_process_and_a_long_gap_is_reported() -> None:
    first, second, third = (PowerIntegrator(max_gap_s=30.0) for _ in range(3))
    first.add(PowerReading(0.0, 100.0))
    first.add(PowerReading(10.0, 100.0))
    reported = first.energy_uj(12.0)
    data = first.dump()
    assert data is not None
    second.load(json.loads(json.dumps(data)))
    assert second.add(PowerReading(20.0, 200.0)) is None
    assert second.energy_uj(20.0) == reported - 200_000_000 + 1_500_000_000
    third.load(data)
    assert third.add(PowerReading(60.0, 200.0)) == 50.0
    assert third.energy_uj(60.0) == reported
    assert PowerIntegrator(30.0).dump() is None


def test_a_caller_that_reads_seldom_gets_all_readings_in_between() -> None:
    measure = Measuring(100.0, 200.0, 300.0)
    sensor = polled(measure)
    with pytest.raises(DeviceError, match="no reading yet"):
        sensor.readings()
    for _ in range(3):
        measure.go.release()
    until(sensor.read, lambda value: isinstance(value, PowerReading) and value.watts == 300.0)
    assert [reading.watts for reading in sensor.readings()] == [100.0, 200.0, 300.0]
    assert [reading.watts for reading in sensor.readings()] == [300.0]
    stop(sensor, measure)
