"""Tests of the computation of emissions and cost from carbon intensity and price.

The tests compare examples with calculations by hand, and check general properties. They cover the
series of values over time, the footprints of energy, the units and the CSV files.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.grid.amount_text import cost_text, grams_text
from slurm_energy.grid.csv_series import parse_time, read_csv, write_csv
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import (
    SECONDS_PER_YEAR,
    EmbodiedCarbon,
    GridFactors,
    Reservation,
    kilowatt_hours,
)
from slurm_energy.grid.series import GridSeries, SeriesSource, with_ends
from slurm_energy.grid.units import GridQuantity, carbon_unit_factor, price_unit_factor
from slurm_energy.grid.yearly_factors import known_countries, yearly_factor

SOURCE = SeriesSource("entsoe", "DE")
HOUR = 3600.0
KWH = 3.6e6


def constant(value: float) -> GridFactor:
    return GridFactor(GridSeries.constant(SeriesSource("constant"), value))


def hourly(*values: float | None) -> GridSeries:
    """Return a series with one value per hour from time 0; None: a gap."""
    return GridSeries(
        SOURCE, [(i * HOUR, (i + 1) * HOUR, value) for i, value in enumerate(values) if value is not None]
    )


def test_one_kwh_by_hand() -> None:
    """The emissions and the cost of 1 kWh equal a calculation by hand.

    With 400 g/kWh, 0.25 EUR/kWh and a PUE of 1.5, the results are 600 g and 0.375 EUR.
    """
    factors = GridFactors(constant(400.0), constant(0.25), pue=1.5)
    result = factors.footprint([(0.0, HOUR, KWH)])
    assert result.energy_joules == KWH
    assert result.facility_joules == 5.4e6
    assert result.grams == pytest.approx(600.0, rel=1e-12)
    assert result.cost_amount == pytest.approx(0.375, rel=1e-12)
    assert result.basis == "CO2e: constant; cost: constant; PUE 1.5"


def test_the_wrong_example_of_ears_manual() -> None:
    """Energy and emissions of the example in EAR's manual are computed correctly.

    2 nodes at 381.51 W for 3660 s use 2.79 MJ = 0.776 kWh; EAR's manual wrongly says 279 kWh. At
    56.039 g/kWh the emissions are 43.47 g.
    """
    joules = 381.51 * 2 * 3660
    assert joules == pytest.approx(2_792_653.2)
    assert kilowatt_hours(joules) == pytest.approx(0.775737, abs=1e-6)
    grams = GridFactors(constant(56.039)).footprint([(0.0, 3660.0, joules)]).grams
    assert grams == pytest.approx(43.4715, abs=1e-4)


def test_energy_is_weighted_by_the_time_at_which_it_was_used() -> None:
    """Emissions are computed with the carbon intensity at the time at which the energy was used.

    In the test, half an hour at 100 g/kWh and half an hour at 300 g/kWh give the mean of both.
    """
    factors = GridFactors(GridFactor(hourly(100.0, 300.0)))
    assert factors.footprint([(1800.0, 5400.0, KWH)]).grams == pytest.approx(200.0)
    assert factors.footprint([(1800.0, 3600.0, KWH)]).grams == pytest.approx(100.0)
    two = [(0.0, 3600.0, KWH), (3600.0, 7200.0, 3 * KWH)]
    assert factors.footprint(two).grams == pytest.approx(100.0 + 900.0)


def test_a_gap_is_unknown_and_not_the_last_value() -> None:
    factors = GridFactors(GridFactor(hourly(100.0, None, 300.0)))
    result = factors.footprint([(0.0, 3 * HOUR, 3 * KWH)])
    assert result.grams is None
    assert result.carbon is not None
    assert result.carbon.known_amount == pytest.approx(400.0)
    assert result.carbon.known_share == pytest.approx(2 / 3)
    assert "33.3 % unknown" in result.carbon_basis
    assert factors.footprint([(10 * HOUR, 11 * HOUR, KWH)]).grams is None


def test_a_gap_takes_the_fallback_and_says_so() -> None:
    france = yearly_factor("FR")
    assert france is not None
    factors = GridFactors(GridFactor(hourly(100.0, None), france.series))
    result = factors.footprint([(0.0, 2 * HOUR, 2 * KWH)])
    assert result.grams == pytest.approx(100.0 + france.grams_per_kwh)
    assert result.carbon is not None and result.carbon.fallback_share == pytest.approx(0.5)
    assert result.carbon_basis == "entsoe DE, 50 % by yearly FR (2023, Our World in Data)"
    late = factors.footprint([(90 * HOUR, 91 * HOUR, KWH)])
    assert late.carbon_basis == "yearly FR (2023, Our World in Data)"
    assert late.carbon is not None and late.carbon.fallback_share == 1.0


def test_unknown_energy_has_no_footprint_and_no_energy_has_none_to_pay() -> None:
    factors = GridFactors(constant(400.0), constant(0.25))
    unknown = factors.footprint([(0.0, HOUR, KWH), (HOUR, 2 * HOUR, None)])
    assert (unknown.energy_joules, unknown.grams, unknown.cost_amount) == (None, None, None)
    assert factors.footprint([]).grams == 0.0
    assert GridFactors().footprint([(0.0, HOUR, KWH)]).grams is None
    assert "without PUE" in factors.footprint([(0.0, HOUR, KWH)]).basis


def test_a_part_without_duration_takes_the_factor_at_its_time() -> None:
    factors = GridFactors(GridFactor(hourly(100.0, 300.0)))
    assert factors.footprint([(HOUR, HOUR, KWH)]).grams == pytest.approx(300.0)
    assert factors.footprint([(5 * HOUR, 5 * HOUR, KWH)]).grams is None


def test_negative_prices_reduce_the_cost() -> None:
    factors = GridFactors(price=GridFactor(hourly(0.30, -0.10)))
    assert factors.footprint([(0.0, 2 * HOUR, 2 * KWH)]).cost_amount == pytest.approx(0.20)


def test_the_examples_of_the_page_about_carbon_and_price() -> None:
    page = (Path(__file__).parents[2] / "docs" / "carbon-and-price.md").read_text()
    table = page.partition("```csv\n")[2].partition("```")[0]
    samples = read_csv(table.splitlines(True), "page", GridQuantity.CARBON, "EUR")
    start = parse_time("2026-03-10T08:00Z")
    prices = [(begin, end, value / 1000.0) for begin, end, value in samples]
    factors = GridFactors(
        GridFactor(GridSeries(SOURCE, samples)),
        GridFactor(GridSeries(SOURCE, prices)),
        1.25,
        EmbodiedCarbon(1500.0, 150.0, 5.0, node_cpus=128),
    )
    parts = [(start, start + HOUR, 1.2 * KWH), (start + HOUR, start + 2 * HOUR, 0.8 * KWH)]
    result = factors.footprint(parts, Reservation(2 * HOUR, 2 * HOUR, 32 * 2 * HOUR))
    assert result.facility_joules == pytest.approx(9e6)
    assert result.grams == pytest.approx(700.5) and "| 700.5 g |" in page
    assert cost_text(result.cost_amount, "EUR") == "0.70 EUR" and "| 0.70 EUR |" in page
    assert result.embodied_grams == pytest.approx(23.956, abs=1e-3) and "= 24.0 g" in page
    assert result.total_grams == pytest.approx(724.456, abs=1e-3) and "724.5 g" in page
    sum_only = factors.footprint([(start, start + 2 * HOUR, 2.0 * KWH)])
    assert sum_only.grams == pytest.approx(688.125) and "| 688.1 g |" in page


def test_embodied_share_by_hand() -> None:
    """The computed share of a node's production emissions equals a calculation by hand.

    The production of the node caused 1,500 kg, and the node lives 5 years. A day of half the node is
    1500/(5*365.25)/2 kg = 410.7 g.
    """
    embodied = EmbodiedCarbon(node_kg=1500.0, gpu_kg=150.0, lifetime_years=5.0)
    day = Reservation(node_seconds=43200.0)
    shared = EmbodiedCarbon(1500.0, 150.0, 5.0, node_cpus=64)
    assert shared.grams(Reservation(86400.0, 0.0, 32 * 86400.0)) == pytest.approx(410.678, abs=1e-3)
    assert shared.grams(Reservation(86400.0)) == pytest.approx(821.355, abs=1e-3)  # CPUs unknown: whole nodes
    assert shared.grams(Reservation(86400.0, 0.0, 90 * 86400.0)) == pytest.approx(821.355, abs=1e-3)
    assert embodied.grams(day) == pytest.approx(410.678, abs=1e-3)
    assert embodied.grams(Reservation(0.0, SECONDS_PER_YEAR)) == pytest.approx(30_000.0)
    result = GridFactors(constant(100.0), embodied=embodied).footprint([(0.0, HOUR, KWH)], day)
    assert result.grams == pytest.approx(100.0)
    assert result.total_grams == pytest.approx(510.678, abs=1e-3)
    assert "embodied share separate" in result.basis
    assert GridFactors(constant(100.0), embodied=embodied).footprint([(0.0, 1.0, 1.0)]).total_grams is None


SAMPLES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 90), st.integers(-50, 1000)), min_size=1, max_size=30
)


@given(SAMPLES, st.integers(-20, 600), st.integers(0, 300))
def test_integral_equals_the_sum_over_seconds(
    rows: list[tuple[int, int, int]], start: int, length: int
) -> None:
    series = GridSeries(SOURCE, [(float(a), float(a + n), float(v)) for a, n, v in rows])
    values = [series.at(start + second + 0.5) for second in range(length)]
    known = [value for value in values if value is not None]
    integral = series.integrate(float(start), float(start + length))
    assert integral.known_s == pytest.approx(len(known))
    assert integral.value_seconds == pytest.approx(sum(known), abs=1e-6)


@given(
    SAMPLES, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200), st.integers(0, 10**9)), max_size=8)
)
def test_parts_add_up_and_survive_json(
    rows: list[tuple[int, int, int]], parts: list[tuple[int, int, int]]
) -> None:
    series = GridSeries(SOURCE, [(float(a), float(a + n), float(v)) for a, n, v in rows])
    factors = GridFactors(GridFactor(series, constant(250.0).series), pue=1.25)
    again = GridFactors.from_json(json.loads(json.dumps(factors.to_json())))
    energy = [(float(a), float(a + n), float(joules)) for a, n, joules in parts]
    whole = factors.footprint(energy)
    assert whole.grams == pytest.approx(sum(factors.footprint([p]).grams or 0.0 for p in energy), rel=1e-9)
    assert again.footprint(energy).to_json() == whole.to_json()
    assert whole.carbon is not None and 0 <= whole.carbon.fallback_share <= 1


def test_an_empty_series_knows_nothing() -> None:
    factors = GridFactors(GridFactor(GridSeries(SOURCE, [])))
    assert factors.footprint([(0.0, HOUR, KWH)]).grams is None
    assert with_ends([]) == []


@given(SAMPLES)
def test_thinned_series_keep_their_integral(rows: list[tuple[int, int, int]]) -> None:
    samples = [(a * 600.0, (a + n) * 600.0, float(v)) for a, n, v in rows]
    series = GridSeries(SOURCE, samples)
    thinned = series.thinned(3)
    whole, mean = series.integrate(0.0, 6e5), thinned.integrate(0.0, 6e5)
    assert mean.known_s == pytest.approx(whole.known_s)
    assert mean.value_seconds == pytest.approx(whole.value_seconds, rel=1e-9, abs=1e-3)
    assert series.thinned(10**6) is series


def test_a_fallback_must_be_constant() -> None:
    with pytest.raises(ValueError, match="constant"):
        GridFactor(None, hourly(1.0, 2.0))


def test_values_end_after_twice_the_usual_step() -> None:
    points = [(0.0, 1.0), (60.0, 2.0), (120.0, None), (180.0, 3.0)]
    assert with_ends(points) == [(0.0, 60.0, 1.0), (60.0, 120.0, 2.0), (180.0, 300.0, 3.0)]
    assert with_ends([(0.0, 1.0)], max_age_s=5.0) == [(0.0, 5.0, 1.0)]


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("g/kWh", 1.0),
        ("gCO2eq/kWh", 1.0),
        ("g_per_kwh", 1.0),
        ("kg/MWh", 1.0),
        ("kg/kWh", 1000.0),
        ("lb/MWh", 0.45359237),
    ],
)
def test_units_of_carbon(unit: str, factor: float) -> None:
    assert carbon_unit_factor(unit) == pytest.approx(factor, rel=1e-12)


def test_units_of_price() -> None:
    assert price_unit_factor("EUR/MWh", "EUR") == 0.001
    assert price_unit_factor("ct/kWh", "EUR") == 0.01
    for wrong in ("USD/kWh", "EUR", "EUR/kW", "EUR/MJ", "value", ""):
        with pytest.raises(ValueError, match="not a unit"):
            price_unit_factor(wrong, "EUR")
    for wrong in ("kWh", "g/kW", "g/MJ", "value", ""):
        with pytest.raises(ValueError, match="not a unit"):
            carbon_unit_factor(wrong)


def test_csv_by_hand() -> None:
    text = "time,EUR/MWh\n2026-01-01T00:00Z,100\n2026-01-01T02:00+01:00,-5.5\n1767232800,\n"
    start = 1767225600.0
    assert read_csv(text.splitlines(True), "x", GridQuantity.PRICE, "EUR") == [
        (start, start + HOUR, pytest.approx(0.1)),
        (start + HOUR, start + 2 * HOUR, pytest.approx(-0.0055)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "f: is empty"),
        ("when,g/kWh\n", "f:1: the first column must be 'time'"),
        ("time,EUR/kWh\n", "f:1: 'EUR/kWh' is not a unit of carbon"),
        ("time,g/kWh\nyesterday,3\n", "f:2: 'yesterday' is not a time"),
        ("time,g/kWh\n5,3\n5,4\n", "f:3: the times must ascend"),
        ("time,g/kWh\n5,many\n", "f:2: 'many': not a number"),
        ("time,g/kWh\n5,-1\n", "f:2: '-1': must be a carbon intensity from 0"),
        ("time,g/kWh\n5,nan\n", "f:2: 'nan': must be a finite number"),
        ("time,g/kWh\n5,1e9\n", "f:2: '1e9': must be"),
        ("time,g/kWh\n5\n", "f:2: needs a time and a value"),
        ("time,g/kWh\n5,213,5\n", "f:2: has more fields than the header: write numbers with a decimal point"),
        ("time,g/kWh,note\n5,3,x\n6,213,5,x\n", "f:3: has more fields than the header"),
        ("time,g/kWh\n5,\n", "f: has no values"),
        ("time,g/kWh\n1e300,5\n", "f:2: '1e300' is not a time"),
        ("time,g/kWh\nnan,5\n", "f:2: 'nan' is not a time"),
    ],
)
def test_csv_errors_name_the_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_csv(text.splitlines(True), "f", GridQuantity.CARBON, "EUR")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_csv_rows_may_end_with_empty_fields_and_lack_a_remark() -> None:
    text = "time,g/kWh,note\n0,5,\n3600,6\n7200,7,x,,\n"
    samples = read_csv(text.splitlines(True), "x", GridQuantity.CARBON, "EUR")
    assert [value for _, _, value in samples] == [5.0, 6.0, 7.0]


@given(SAMPLES)
def test_csv_round_trip(rows: list[tuple[int, int, int]]) -> None:
    series = GridSeries(SOURCE, [(float(a), float(a + n), abs(float(v))) for a, n, v in rows])
    lines = list(write_csv(series, GridQuantity.CARBON, "EUR"))
    again = GridSeries(SOURCE, read_csv(lines, "x", GridQuantity.CARBON, "EUR", max_age_s=math.inf))
    assert again.samples == series.samples


def test_times() -> None:
    assert parse_time("1970-01-02") == 86400.0
    assert parse_time("1970-01-01T01:00:00+01:00") == 0.0


def test_yearly_factors_have_plausible_values_and_years() -> None:
    factors = known_countries()
    assert len(factors) > 200
    assert all(0 < factor.grams_per_kwh < 1500 and 2021 <= factor.year <= 2100 for factor in factors)
    assert yearly_factor("deu") == yearly_factor("DE")
    assert yearly_factor("XX") is None


@pytest.mark.parametrize(
    ("grams", "text"),
    [
        (None, ""),
        (0.0, "0 g"),
        (0.0123, "12.3 mg"),
        (9.994, "9.99 g"),
        (420.0, "420 g"),
        (999.6, "1.00 kg"),
        (1_240.0, "1.24 kg"),
        (3_400_000.0, "3.40 t"),
    ],
)
def test_grams_for_people(grams: float | None, text: str) -> None:
    assert grams_text(grams) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, ""),
        (1.17, "1.17 EUR"),
        (0.0042, "0.0042 EUR"),
        (0.0, "0.00 EUR"),
        (-3.0, "-3.00 EUR"),
        (0.0000123, "0.000012 EUR"),
        (0.999, "1.00 EUR"),
    ],
)
def test_money_for_people(amount: float | None, text: str) -> None:
    assert cost_text(amount, "EUR") == text
