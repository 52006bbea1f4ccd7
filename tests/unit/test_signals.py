"""Tests of the signals over time, such as prices and carbon intensities.

The tests check the columns of signals, the files of data publishers, the power usage effectiveness (PUE),
and that no forecast uses future values.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName, constant_forecast
from slurm_energy.signals.csv_files import read_signal
from slurm_energy.signals.forecast import (
    DEFAULT_MODEL,
    ForecastMode,
    backtest_deviation,
    forecast,
    known_until_s,
)
from slurm_energy.signals.pue import PueModel
from slurm_energy.signals.signal_series import SignalSeries, from_grid

HOUR = 3600.0


def test_columns_give_the_value_of_the_slot_of_a_time():
    price = SignalForecast(np.array([0.1, np.nan, 0.3]), np.array([0.0, np.nan, 0.05]), "test")
    columns = SignalColumns(100.0, 10.0, price_per_kwh=price)
    assert columns.slots == 3
    assert columns.end_s == 130
    assert columns.at("price_per_kwh", 109.9) == 0.1
    assert columns.at("price_per_kwh", 110.0) is None
    assert columns.at(SignalName.PRICE, 130.0) is None
    assert columns.at(SignalName.PRICE, 99.0) is None
    assert columns.at(SignalName.CARBON, 100.0) is None
    assert columns.deviations(SignalName.PRICE, [125.0]).tolist() == [0.05]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match="2 and 3 slots"):
        SignalColumns(0, 1, constant_forecast(1, 2), constant_forecast(1, 3))
    with pytest.raises(UsageError, match="positive"):
        SignalColumns(0, 0, constant_forecast(1, 2))


def test_price_files_are_read_with_their_headers():
    lines = [
        "\ufeffDatetime (UTC),Datetime (Local),Price (USD/MWh)\n",
        "2023-01-01 00:00:00+00:00,2023-01-01 01:00:00+01:00,-3.5\n",
        "2023-01-01 01:00:00+00:00,2023-01-01 02:00:00+01:00,100\n",
        "2023-01-01 03:00:00+00:00,2023-01-01 04:00:00+01:00,50\n",
        "2023-01-01 04:00:00+00:00,2023-01-01 05:00:00+01:00,\n",
    ]
    series = read_signal(lines, "prices.csv", SignalName.PRICE)
    assert series.start_s == 1672531200
    assert series.step_s == HOUR
    assert series.values[:2] == pytest.approx([-0.0035, 0.1])
    assert np.isnan(series.values[2])
    assert series.values[3] == pytest.approx(0.05)


def read_prices(*rows: tuple[float, float | str]) -> SignalSeries:
    lines = ["time_s,EUR/kWh", *(f"{time_s},{value}" for time_s, value in rows)]
    return read_signal(lines, "prices.csv", SignalName.PRICE)


def test_an_hourly_file_with_later_quarter_hours_keeps_every_row():
    hours = [(hour * HOUR, 0.5) for hour in range(10)]
    quarters = [(10 * HOUR + 900 * row, 0.1 * row) for row in range(4)]
    series = read_prices(*hours, *quarters)
    assert (series.step_s, series.end_s) == (900, 11 * HOUR)
    assert series.values.tolist() == pytest.approx([0.5] * 40 + [0.0, 0.1, 0.2, 0.3])


def test_a_tariff_with_two_unequal_periods_changes_at_the_times_of_its_rows():
    day = 24 * HOUR
    rows = [row for n in range(3) for row in ((n * day + 7 * HOUR, 0.3), (n * day + 22 * HOUR, 0.1))]
    series = read_prices(*rows, (3 * day + 7 * HOUR, 0.3))
    times = [7 * HOUR, 21.9 * HOUR, 22 * HOUR, day + 6.9 * HOUR, 2 * day + 22 * HOUR]
    assert series.at(times) == pytest.approx([0.3, 0.3, 0.1, 0.1, 0.1])
    assert np.isnan(series.at(6 * HOUR))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("count", range(3, 8))
def test_a_tariff_of_8_and_16_hours_is_read_alike_for_every_number_of_rows(first, count):
    rows = [row for n in range(5) for row in ((24 * n + 6, 0.3), (24 * n + 22, 0.1))][first : first + count]
    series = read_prices(*((hour * HOUR, price) for hour, price in rows))
    hours = np.arange(22, rows[-1][0])
    expected = [0.3 if 6 <= hour % 24 < 22 else 0.1 for hour in hours]
    assert series.at(hours * HOUR) == pytest.approx(expected)


def test_single_missing_rows_of_an_hourly_file_are_unknown():
    series = read_prices(*((hour * HOUR, 0.5) for hour in range(24) if hour not in (5, 13)))
    assert np.flatnonzero(np.isnan(series.values)).tolist() == [5, 13]


def test_many_gaps_of_different_lengths_in_an_hourly_file_are_unknown():
    hours = [0, 1, 2, 5, 6, 7, 9, 10, 14, 15]
    series = read_prices(*((hour * HOUR, 0.5) for hour in hours))
    assert series.step_s == HOUR
    assert np.flatnonzero(~np.isnan(series.values)).tolist() == hours


def test_a_tariff_of_many_years_with_a_small_common_step_is_averaged():
    series = read_prices(*((8000 * HOUR * row + (2000 * HOUR + 300) * (row == 1), 0.1) for row in range(12)))
    assert series.step_s == 8000 * HOUR
    assert series.values == pytest.approx(np.full(12, 0.1))


def test_a_row_without_value_between_unequally_spaced_rows_is_unknown_until_the_next_row():
    series = read_prices((0, 0.1), (HOUR, ""), (3 * HOUR, 0.2), (3.5 * HOUR, 0.3))
    assert series.at([0, 0.9 * HOUR, 3 * HOUR, 3.6 * HOUR]) == pytest.approx([0.1, 0.1, 0.2, 0.3])
    assert np.all(np.isnan(series.at([HOUR, 2.9 * HOUR, 4 * HOUR])))


def test_rows_at_any_times_keep_the_mean_of_the_signal():
    random = np.random.default_rng(2)
    times = np.cumsum(random.uniform(100, 7000, 50))
    values = random.uniform(0, 1, 50)
    series = read_prices(*zip(times, values, strict=True))
    assert len(series.values) <= 100
    mean = np.sum(values[:-1] * np.diff(times)) / (times[-1] - times[0])
    assert series.means([times[0], times[-1]])[0] == pytest.approx(mean, rel=0.02)


def test_small_deviations_of_times_keep_the_step():
    series = read_prices((0, 0.1), (3620, 0.2), (7190, 0.3), (4 * HOUR + 5, 0.4))
    assert series.step_s == 3620
    assert series.values.tolist()[:3] == [0.1, 0.2, 0.3]
    assert np.isnan(series.values[3])


def test_a_generation_mix_gives_renewable_share_and_intensity():
    lines = [
        "timestamp,WND,SUN,WAT,OIL,NG,COL,NUC,OTH,avg_CI",
        "2022-01-01 00:00:00+00:00,30,10,10,0,40,0,10,0,222.5",
        "2022-01-01 01:00:00+00:00,30,-1,10,0,,0,10,0,",
    ]
    assert read_signal(lines, "mix.csv", SignalName.CARBON).values[0] == 222.5
    share = read_signal(lines, "mix.csv", SignalName.RENEWABLE).values
    assert share[0] == pytest.approx(0.5)
    assert np.isnan(share[1])


@pytest.mark.parametrize(
    ("header", "signal", "factor"),
    [
        ("time,EUR/MWh", SignalName.PRICE, 1e-3),
        ("time,ct/kWh", SignalName.PRICE, 1e-2),
        ("time_s,price", SignalName.PRICE, 1e-3),
        ("time,kg/MWh", SignalName.CARBON, 1.0),
        ("time_s,gco2_per_kwh", SignalName.CARBON, 1.0),
        ("time_s,watts", SignalName.BUDGET, 1.0),
        ("time_s,celsius", SignalName.OUTSIDE, 1.0),
    ],
)
def test_units_are_taken_from_the_header(header, signal, factor):
    series = read_signal([header, "0,20", "3600,30"], "file.csv", signal)
    assert series.values == pytest.approx([20 * factor, 30 * factor])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["time,g/kWh", "0,1"], "f.csv:1: has no column of price_per_kwh"),
        (["when,EUR/MWh", "0,1"], "f.csv:1: has no column of time"),
        (["time,EUR/MWh", "0,1", "0,2"], "f.csv:3: the times must ascend"),
        (["time,EUR/MWh", "yesterday,1"], "f.csv:2: 'yesterday' is not a time"),
        (["time,EUR/MWh", "0,cheap"], "f.csv:2: 'cheap' is not a number"),
        (["time,EUR/MWh", "0,nan"], "f.csv:2: 'nan' is not a plausible value"),
        (["time,EUR/MWh", "0,1e300"], "f.csv:2: '1e300' is not a plausible value"),
        (["time,EUR/MWh", "0"], "f.csv:2: has too few columns"),
        (
            ["time,EUR/MWh", "0,85,5"],
            "f.csv:2: has more fields than the header: write numbers with a decimal",
        ),
        (["time,EUR/MWh"], "f.csv: has no rows"),
        ([], "f.csv: is empty"),
        (["time,EUR/MWh", "0,1", "1,1", "2,1", "1e9,1"], "f.csv: covers more than"),
        (["time,EUR/MWh", "0,1", "300,1", "900,1", "5e10,1"], "f.csv: covers more than"),
    ],
)
def test_faulty_files_are_refused_with_file_and_line(lines, reason):
    with pytest.raises(UsageError) as error:
        read_signal(lines, "f.csv", SignalName.PRICE)
    assert str(error.value).startswith(reason)


def test_a_series_of_the_grid_becomes_steps():
    grid = GridSeries(SeriesSource("csv"), [(0, 900, 1.0), (900, 1800, 2.0), (3600, 4500, 5.0)])
    series = from_grid(grid, 0, 4500, 1800)
    assert series.values.tolist()[:1] == [1.5]
    assert np.isnan(series.values[1])
    assert series.values[2] == 5.0
    assert series.means([0, 900, 2700]) == pytest.approx([1.5, 1.5])
    assert series.at([0, 1800, 3600, -1]).tolist()[::2] == [1.5, 5.0]


def test_the_pue_grows_with_the_temperature_within_its_range():
    model = PueModel()
    assert model.pue([20.0]) == pytest.approx([1.0743 + 0.082 + 0.0286820])
    assert model.pue(99.0) == model.pue(40.0)
    with pytest.raises(UsageError, match="below 1"):
        PueModel(constant=0.5)
    columns = SignalColumns(0, 1, outside_celsius=SignalForecast(np.array([np.nan, 0.0]), np.zeros(2)))
    assert columns.site_factor() == pytest.approx([1.0, 1.0743])


series_values = st.lists(st.one_of(st.floats(-100, 500), st.just(math.nan)), min_size=30, max_size=400)


@examples(40)
@given(
    series_values,
    st.floats(0, 1),
    st.sampled_from([ForecastMode.HISTORY, ForecastMode.DAY_AHEAD]),
    st.integers(1, 72),
)
def test_future_values_change_no_forecast(values, part, mode, slots):
    series = SignalSeries(0.0, HOUR, np.array(values))
    now_s = part * series.end_s * 0.999
    known_s = known_until_s(mode, now_s)
    edges = math.floor(now_s / 900) * 900 + 900.0 * np.arange(slots + 1)
    first_unknown = max(math.floor(now_s / HOUR) + 1, math.floor(min(known_s, series.end_s) / HOUR))
    other = np.array(values)
    other[first_unknown:] = -7777.0
    before = forecast(series, now_s, edges, known_s)
    after = forecast(SignalSeries(0.0, HOUR, other), now_s, edges, known_s)
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.deviation, after.deviation)


def test_a_daily_pattern_is_forecast_and_its_deviation_grows():
    hours = np.arange(24 * 40)
    random = np.random.default_rng(1)
    noise = np.zeros(len(hours))
    for hour in range(1, len(hours)):
        noise[hour] = 0.95 * noise[hour - 1] + random.normal(0, 2)
    values = 100 + 40 * np.sin(2 * np.pi * hours / 24) + noise
    series = SignalSeries(0.0, HOUR, values)
    now_s = 30 * 24 * HOUR + 10
    edges = 30 * 24 * HOUR + HOUR * np.arange(25)
    result = forecast(series, now_s, edges, now_s)
    actual = values[30 * 24 : 31 * 24]
    assert result.mean[0] == pytest.approx(actual[0])
    assert result.deviation[0] == 0
    assert np.sqrt(np.mean((result.mean - actual) ** 2)) < 15
    assert np.all(np.diff(result.deviation) >= 0)
    assert 2 < result.deviation[-1] < 15


def test_day_ahead_values_are_known_from_the_hour_of_publication():
    day = 86400.0
    assert known_until_s(ForecastMode.DAY_AHEAD, 12 * HOUR) == day
    assert known_until_s(ForecastMode.DAY_AHEAD, 13 * HOUR) == 2 * day
    assert known_until_s(ForecastMode.DAY_AHEAD, 12 * HOUR, utc_offset_s=HOUR) == 2 * day - HOUR
    assert known_until_s(ForecastMode.PERFECT, 0.0) == math.inf
    series = SignalSeries(0.0, HOUR, np.arange(96.0))
    result = forecast(series, 13 * HOUR, HOUR * np.arange(13, 73), 2 * day)
    assert result.mean[:35].tolist() == list(range(13, 48))
    assert np.all(result.deviation[:35] == 0)
    assert np.all(result.deviation[35:] > 0)


def test_without_a_model_later_values_are_unknown():
    series = SignalSeries(0.0, HOUR, np.arange(48.0))
    result = forecast(series, 5 * HOUR, HOUR * np.arange(5, 9), 5 * HOUR, model=None)
    assert result.mean[0] == 5
    assert np.isnan(result.mean[1:]).all()


def test_a_backtest_without_past_is_the_spread():
    deviation = backtest_deviation(np.array([1.0, 3.0]), 4, HOUR, DEFAULT_MODEL)
    assert deviation.tolist() == [1.0] * 4
