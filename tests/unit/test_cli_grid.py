"""Tests of `senergy grid` and `senergy quota`: requests to senergyctld, and output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import ForbiddenError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import EmbodiedCarbon, GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.grid.yearly_factors import yearly_factor
from slurm_energy.protocol.grid_requests import factors_of
from slurm_energy.reports.grid_table import grid_rows
from slurm_energy.reports.status_text import controller_lines

pytestmark = pytest.mark.slow
START = datetime(2026, 3, 10, 8, tzinfo=UTC).timestamp()
HOUR = 3600.0
WINDOW = ("-S", "2026-03-10T08:00", "-E", "2026-03-10T12:00")
SOURCES = (
    "carbon intensity: entsoe DE (generation mix, IPCC 2014) or, where it is unknown, "
    "yearly DE (2023, Our World in Data)"
)
QUOTA = {
    "account": "physics",
    "user": None,
    "resource": "carbon",
    "period": "month",
    "start": datetime(2026, 3, 1, tzinfo=UTC).timestamp(),
    "end": datetime(2026, 4, 1, tzinfo=UTC).timestamp(),
    "amount": 50_000.0,
    "used": 46_500.0,
    "unit": "g",
    "used_percent": 93.0,
    "warn_percent": 80.0,
    "hold_percent": 100.0,
    "level": "warning",
    "basis": "entsoe DE, hourly; PUE 1.25",
    "set_by": "root",
    "set_unix_s": START,
    "reason": "",
}


def factors() -> GridFactors:
    germany = yearly_factor("DE")
    assert germany is not None
    samples = [(START, START + HOUR, 300.0), (START + HOUR, START + 2 * HOUR, 250.5)]
    carbon = GridSeries(SeriesSource("entsoe", "DE", "generation mix, IPCC 2014"), samples)
    prices = [(start, end, value / 1000.0) for start, end, value in samples]
    price = GridSeries(SeriesSource("entsoe", "DE", "day-ahead"), prices)
    return GridFactors(
        GridFactor(carbon, germany.series), GridFactor(price), 1.25, EmbodiedCarbon(1500.0, 150.0, 5.0)
    )


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """Set the local time zone to UTC during a test."""
    with fake_controller.timezone("UTC"):
        yield


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    series = {"quantity": "carbon", "provider": "entsoe", "zone": "DE", "fetched": START, "failures": 3}
    series |= {"newest_end": START + 2 * HOUR, "error": "carbon: entsoe DE: HTTP status 503"}
    answer = {**json.loads(json.dumps(factors().to_json())), "zones": ["DE"], "series": [series]}
    return fake_controller.install(
        monkeypatch,
        {
            "/v1/grid": answer,
            "/v1/grid/fetch": {"series": [series]},
            "/v1/quota": {"scope": "all", "quotas": [QUOTA], "hold": True, "priority_mode": "plugin"},
            "/v1/quota/set": {"text": "account physics: energy quota of 500 kWh per month"},
            "/v1/quota/remove": {"text": "account physics: energy quota per month removed"},
            "/v1/quota/changes": {
                "scope": "all",
                "changes": [{"time": START, "actor": "root", "why": "x\x1b"}],
            },
        },
    )


def output(capsys: pytest.CaptureFixture[str], *line: str, code: int = 0) -> str:
    assert main(list(line)) == code
    return capsys.readouterr().out


def test_show(controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grid", "show", *WINDOW]) == 0
    printed = capsys.readouterr()
    assert (
        printed.out
        == f"""\
{SOURCES}
price: entsoe DE (day-ahead)
PUE: 1.25
embodied: 1500 kg per node, 150 kg per GPU, over 5 years

Start               Carbon(g/kWh) Fallback   Price(EUR/kWh) PriceFallback
------------------- ------------- -------- ---------------- -------------
2026-03-10T08:00:00         300.0                    0.3000
2026-03-10T09:00:00         250.5                    0.2505
2026-03-10T10:00:00         380.9     100%          unknown
2026-03-10T11:00:00         380.9     100%          unknown
"""
    )
    assert "HTTP status 503 (3 times)" in printed.err
    assert controller.asked == [("/v1/grid", {"start": repr(START), "end": repr(START + 4 * HOUR)})]


def test_show_for_programs(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("grid", "show", *WINDOW, "-P", "-n", "-o", "start,price,pricefallback")
    assert output(capsys, *line).splitlines()[2] == "2026-03-10T10:00:00||"
    answer = json.loads(output(capsys, "grid", "show", *WINDOW, "--json"))
    assert factors_of(answer).footprint([(START, START + HOUR, 3.6e6)]).grams == pytest.approx(375.0)


def test_long_windows_have_longer_steps() -> None:
    rows = grid_rows(factors(), START, START + 30 * 24 * HOUR)
    assert len(rows) <= 48 and rows[-1].end == START + 30 * 24 * HOUR
    assert rows[0].grams_per_kwh == pytest.approx(
        (300.0 + 250.5 + (rows[0].end - START - 2 * HOUR) / HOUR * 380.95) / ((rows[0].end - START) / HOUR)
    )


def test_export_can_be_read_again(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "carbon.csv"
    assert output(capsys, "grid", "export", "carbon", *WINDOW, "-o", str(path)) == ""
    text = output(capsys, "grid", "export", "carbon", *WINDOW)
    assert (
        text
        == path.read_text()
        == ("time,g/kWh\n2026-03-10T08:00:00Z,300.0\n2026-03-10T09:00:00Z,250.5\n2026-03-10T10:00:00Z,\n")
    )
    checked = output(capsys, "grid", "check", str(path))
    assert checked == (
        f"{path}: 2 values from 2026-03-10T08:00:00Z to 2026-03-10T10:00:00Z, 250.5 to 300 g/kWh\n"
    )


@pytest.mark.parametrize("last", ["9999-12-31T23:00Z", "253402300799"])
def test_check_of_a_value_that_applies_beyond_the_year_9999(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, last: str
) -> None:
    path = tmp_path / "carbon.csv"
    path.write_text(f"time,g/kWh\n2026-03-10T08:00Z,300\n{last},250\n")
    assert "10T08:00:00Z to 9999-12-31T23:59:59Z, 250 to" in output(capsys, "grid", "check", str(path))


def test_png(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "grid.png"
    output(capsys, "grid", "show", *WINDOW, "--png", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("unit", "quantity", "todo"),
    [
        ("EUR/MWh", "carbon", "if it contains prices, add --quantity price"),
        ("USD/MWh", "carbon", "if it contains prices, add --quantity price"),
        ("g/kWh", "price", "if it contains carbon intensities, write --quantity carbon"),
    ],
)
def test_check_of_the_other_quantity_names_the_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, unit: str, quantity: str, todo: str
) -> None:
    path = tmp_path / "values.csv"
    path.write_text(f"time,{unit}\n2026-01-01T00:00Z,50\n")
    assert main(["grid", "check", str(path), "--quantity", quantity]) == 2
    error = capsys.readouterr().err
    assert f"{path}:1: '{unit}' is not a unit of " in error
    assert error.endswith(f": {todo}\n") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (("grid", "show", "-S", "now", "-E", "now-1hour"), 2, "-E: is not after -S"),
        (("grid", "show", "--zone", "a b"), 2, "is not a zone"),
        (("grid", "check", "/nowhere"), 2, "/nowhere: No such file"),
        (("grid", "factors", "Atlantis"), 6, "has no yearly factor"),
        (("quota", "set", "physics", "500"), 2, "write it as 500kWh"),
        (("quota", "set", "a b", "500kWh"), 2, "must be one name"),
        (("quota", "set", "physics", "5kWh", "--start", "now"), 2, "only one of them"),
        (("quota", "set", "physics", "5kWh", "--warn", "none"), 2, "the quota has no effect"),
        (("quota", "set", "physics", "5kWh", "--hold", "50"), 2, "below the warning level"),
        (("quota", "show", "chemistry"), 6, "account chemistry: has no quota"),
    ],
)
def test_errors_are_one_line(
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
    line: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    assert main(list(line)) == code
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_nothing_is_configured(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.answers["/v1/grid"] = {**GridFactors().to_json(), "zones": [], "series": []}
    assert main(["grid", "show"]) == 6
    assert "set carbon.country" in capsys.readouterr().err


def test_an_answer_of_another_release_is_an_error(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.answers["/v1/grid"] = {"carbon": 5}
    assert main(["grid", "show"]) == 4
    assert "malformed" in capsys.readouterr().err


def test_fetch(controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    assert "carbon entsoe DE: values up to 2026-03-10T10:00:00" in output(capsys, "grid", "fetch")
    controller.answers["/v1/grid/fetch"] = ForbiddenError("fetching", "only operators may")
    output(capsys, "grid", "fetch", code=5)


def test_quota_show(controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quota", "show", "physics"]) == 0
    printed = capsys.readouterr()
    golden_files.compare("quota_show.txt", printed.out)
    assert "note: carbon: entsoe DE, hourly; PUE 1.25" in printed.err
    assert "over the warning level: jobs go after those of others" in printed.err
    raw = output(capsys, "quota", "show", "-Pn", "-o", "account,usedraw,unitraw,left,reason")
    assert raw == "physics|46500|g|3.50 kg CO2e|\n"


def test_quota_of_unknown_use(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown: dict[str, Any] = {**QUOTA, "used": None, "used_percent": None, "level": "within", "basis": ""}
    controller.answers["/v1/quota"] = {"scope": "own", "quotas": [unknown], "priority_mode": "off"}
    assert output(capsys, "quota", "show", "-n", "-o", "used,usedpct,left").split() == ["unknown"] * 3


def test_quota_set_and_remove(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "quota", "set", "physics", "500kWh").startswith("account physics: energy")
    path, body = controller.posted[0]
    assert path == "/v1/quota/set" and body["amount"] == 1.8e9 and body["period"] == "month"
    assert (body["warn_percent"], body["hold_percent"]) == (80.0, None)
    line = "quota set physics 20kg --user bob --start 2026-07-01 --end 2026-07-15 --warn none --hold 100"
    output(capsys, *line.split())
    body = controller.posted[1][1]
    assert (body["user"], body["period"], body["warn_percent"]) == ("bob", "custom", None)
    assert body["end"] - body["start"] == 14 * 86400.0
    output(capsys, "quota", "remove", "physics", "--resource", "cost", "--period", "quarter")
    assert controller.posted[2][1] == {
        "account": "physics",
        "user": "",
        "resource": "cost",
        "period": "quarter",
    }
    assert output(capsys, "quota", "changes") == "2026-03-10T08:00:00  root        x\\x1b\n"


def test_the_status_page_names_failing_series_and_quotas_over_a_level() -> None:
    series = {"quantity": "carbon", "provider": "uk", "zone": "GB", "fetched": None, "failures": 2}
    series |= {"newest_end": START, "error": "carbon: uk GB: HTTP status 500"}
    answer = {
        "grid": [series],
        "quotas": {"quotas": 3, "over": ["account physics has used 93 %"], "held_jobs": 2},
    }
    lines = controller_lines("http://c", answer, START + HOUR)
    assert (
        "  grid      carbon uk GB: values up to 2026-03-10T08:00:00, 01:00:00 ago; "
        "carbon: uk GB: HTTP status 500 (2 times)"
    ) in lines
    at = lines.index("  quotas    3, 1 over a level, 2 jobs held")
    assert lines[at + 1] == "    account physics has used 93 %"
    assert not any(
        "quotas" in line for line in controller_lines("http://c", {"quotas": {"quotas": 0}}, START)
    )
