"""Tests of `senergy budget`: its requests to senergyctld and its output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import budget_answers
import fake_controller
import golden_files
import pytest
import report_examples
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.cli.main import main
from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol.budget_responses import BudgetSetResponse
from slurm_energy.reports.budgets.power_history import clock_ticks, regular_history

pytestmark = pytest.mark.slow
NOW = budget_answers.NOW


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """Set the local time zone of the test to UTC."""
    with fake_controller.timezone("UTC"):
        yield


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    """Return a fake controller that reports two power budgets."""
    return fake_controller.install(
        monkeypatch,
        {
            "/v1/budget": dict(budget_answers.status()),
            "/v1/budget/history": dict(budget_answers.history()),
            "/v1/budget/explain": dict(budget_answers.explanation()),
            "/v1/budget/set": {
                "budget": "site",
                "limit_watts": 250e3,
                "previous_watts": 300e3,
                "until_unix_s": NOW + 7200,
                "warning": "the floors of running jobs need 260 kW",
            },
        },
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("budget_show", "show"),
        ("budget_show_all", "show --nodes --jobs"),
        ("budget_show_parsable", "show -P -o all"),
        ("budget_plan", "plan --hours 48"),
        ("budget_explain", "explain 12"),
    ],
)
def test_output(
    name: str, line: str, controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", *line.split()]) == 0
    golden_files.compare(f"{name}.txt", capsys.readouterr().out)


def test_the_query_asks_for_what_is_shown(controller: fake_controller.FakeController) -> None:
    main(["budget", "show", "--nodes"])
    main(["budget", "plan", "--hours", "48"])
    main(["budget", "explain", "12_3"])
    assert controller.asked == [
        ("/v1/budget", {"plan_hours": "24", "nodes": "1", "jobs": "0"}),
        ("/v1/budget", {"plan_hours": "48", "nodes": "0", "jobs": "0"}),
        ("/v1/budget/explain", {"job_id": "12_3"}),
    ]


def test_named_budgets_are_shown_alone(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "show", "row-1", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["budgets"]] == ["row-1"]
    assert main(["budget", "plan", "sitee"]) == 6
    assert "budget sitee: there is no budget of this name: did you mean site?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "why"), [("off", "budget.mode is 'off'"), ("enforce", "none is configured")]
)
def test_no_budget_is_not_found(
    mode: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/budget": {"mode": mode, "budgets": []}})
    assert main(["budget", "show"]) == 6
    assert f"power budgets: {why}" in capsys.readouterr().err


def test_set_sends_watts_end_and_reason(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "set", "site", "0.25MW", "--until", "2099-01-01", "--reason", "storm"]) == 0
    until = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    body = {"budget": "site", "watts": 250e3, "until_unix_s": until, "reason": "storm"}
    assert controller.posted == [("/v1/budget/set", body)]
    printed = capsys.readouterr()
    assert printed.out == "budget site: 250 kW until 2026-11-18T13:06:40, was 300 kW\n"
    assert printed.err == "senergy: note: the floors of running jobs need 260 kW\n"
    assert main(["budget", "set", "site", "--configured", "--json"]) == 0
    assert controller.posted[1][1]["watts"] is None
    assert json.loads(capsys.readouterr().out)["limit_watts"] == 250e3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("set site", "no limit given"),
        ("set site 5 --configured", "given together with WATTS"),
        ("set site --configured --until 2099-01-01", "given together with --configured"),
        ("set site -5kW", "-5kW"),
        ("set site 0", "'0' is not a power"),
        ("set site 3000MW", "watts: must be a number from 1 to 2e+09"),
        ("set site 5 --until 2020-01-01", "is in the past"),
        ("set site 5 --until soon", "'soon' is not a time"),
        ("set site 5 --reason a\nb", "reason: must be one line"),
        ("plan --hours -1", "--hours -1: must be from 0"),
        ("plan --hours nan", "--hours nan: must be from 0"),
        ("explain 12;13", "is not a job id"),
        ("history -S now -E now-1hours", "is not after -S"),
        ("history --points 0", "--points 0: must be from 1"),
        ("show -o watts", "-o"),
    ],
)
def test_a_wrong_argument_is_one_line(
    line: str,
    expected: str,
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["budget", *line.split(" ")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and expected.replace("-o", "watts") in error
    assert controller.posted == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ForbiddenError("budget site", "only operators change limits"), 5),
        (UsageError("budget site", "100 W is below the 40 kW that idle nodes need"), 2),
    ],
)
def test_a_refusal_of_the_controller_is_passed_on(
    error: EnergyError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/budget/set": error})
    assert main(["budget", "set", "site", "100"]) == code
    assert capsys.readouterr().err == f"senergy: error: {error}\n"


def test_history_is_plotted(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    window = ["-S", f"uts{NOW - 86400:.0f}", "-E", f"uts{NOW:.0f}"]
    assert main(["budget", "history", "site", *window, "--ascii"]) == 0
    golden_files.compare("budget_history.txt", capsys.readouterr().out)
    begin, end = f"{NOW - 86400:.3f}", f"{NOW:.3f}"
    query = {"begin_unix_s": begin, "end_unix_s": end, "points": "600", "budget": "site"}
    assert controller.asked == [("/v1/budget/history", query)]
    assert main(["budget", "history", *window, "--changes"]) == 0
    assert capsys.readouterr().out.startswith("Changes\n2026-11-18T11:05:40 alice site: 250000 W until")


def test_history_until_now_includes_the_current_second(
    controller: fake_controller.FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Clock:
            return cls(2026, 11, 18, 12, 0, 0, 500_000, tz)

    monkeypatch.setattr("slurm_energy.cli.budget.datetime", Clock)
    for end in ([], ["-E", "NOW"]):
        assert main(["budget", "history", "site", "--json", *end]) == 0
    assert [query["end_unix_s"] for _, query in controller.asked] == 2 * ["1795003200.500"]


def test_history_is_written_as_page_and_plot(
    controller: fake_controller.FakeController, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    html, png = tmp_path / "a.html", tmp_path / "a.png"
    window = ["-S", f"uts{NOW - 86400:.0f}", "-E", f"uts{NOW:.0f}"]
    assert main(["budget", "history", *window, "--html", str(html), "--png", str(png)]) == 0
    assert capsys.readouterr().out == ""
    assert png.read_bytes().startswith(b"\x89PNG")
    page = html.read_text()
    assert page.count("<svg") == 1 and "Budget site" in page and 'class="limit"' in page
    assert "&lt;b&gt;grid operator" in page and "<b>grid" not in page


def test_a_plot_without_data_or_folder_is_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_controller.install(monkeypatch, {"/v1/budget/history": {"series": [], "changes": []}})
    assert main(["budget", "history", "--png", str(tmp_path / "a.png")]) == 6
    assert "no power has been stored in this time" in capsys.readouterr().err
    assert main(["budget", "history", "--html", str(tmp_path / "none/a.html")]) == 1
    assert main(["budget", "history"]) == 0
    assert capsys.readouterr().out == "no power has been stored in this time\n\n"


spans = st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 1e5)), min_size=1, max_size=30)


@given(spans, st.integers(1, 40))
def test_regular_intervals_keep_energy_and_time_above_the_limit(
    samples: list[tuple[float, float]], intervals: int
) -> None:
    starts = [math.fsum(span for span, _ in samples[:index]) for index in range(len(samples))]
    watts = [value for _, value in samples]
    end = starts[-1] + samples[-1][0]
    series = {
        "budget": "a",
        "unix_s": starts,
        "span_s": [span for span, _ in samples],
        "limit_watts": watts,
        "measured_watts": watts,
        "max_measured_watts": watts,
        "committed_watts": watts,
        "capped_watts": watts,
        "over_s": [span / 2 for span, _ in samples],
    }
    history = regular_history(series, 0.0, end, intervals)
    energy = math.fsum(span * value for span, value in samples)
    assert history.energy_joules == pytest.approx(energy, rel=1e-6, abs=1e-3)
    assert math.fsum(history.over_s) == pytest.approx(end / 2, rel=1e-6)
    assert max(history.max_watts) == max(watts) and min(history.limit_watts) == min(watts)


def test_gaps_stay_unknown() -> None:
    series = budget_answers.history(24)["series"][0]
    history = regular_history(series, NOW - 2 * 86400, NOW, 96)
    assert all(map(math.isnan, history.measured_watts[:48])) and math.isnan(history.limit_watts[47])
    assert not math.isnan(history.limit_watts[48])


@given(st.integers(1_700_000_000, 1_900_000_000), st.integers(1, 40 * 86400), st.integers(2, 12))
def test_ticks_are_ascending_and_within_the_range(begin: int, span_s: int, count: int) -> None:
    ticks = clock_ticks(begin, begin + span_s, count, ZoneInfo("Europe/Berlin"))
    assert ticks == sorted(set(ticks)) and len(ticks) <= count + 2
    assert all(begin <= tick <= begin + span_s for tick in ticks)


def test_the_keys_of_responses_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/protocol.md").read_text()
    responses = (
        budget_answers.status(),
        budget_answers.history(),
        budget_answers.explanation(),
        dict.fromkeys(BudgetSetResponse.__annotations__),
    )
    assert [key for key in sorted(set().union(*map(keys_in, responses))) if f"`{key}`" not in page] == []


def keys_in(value: object) -> set[str]:
    """Return all keys of a JSON value."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(keys_in, children))


@pytest.mark.parametrize(
    ("state", "begin"), [("PENDING", "it has not started"), ("RUNNING", "it has not ended")]
)
def test_senergy_job_states_the_decision_about_a_job_that_has_not_ended(
    state: str, begin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm_energy.slurm.job_state.read_job_state", lambda job_id: state)
    monkeypatch.setattr("slurm_energy.cli.job.agent_socket.ask_agent", no_agent)
    answers: dict[str, Any] = {
        "/v1/jobs/12": NotFoundError("job 12", "no record"),
        "/v1/budget/explain": dict(budget_answers.explanation()),
    }
    fake_controller.install(monkeypatch, answers)
    assert main(["job", "12"]) == 6
    sentence = budget_answers.explanation()["explanation"].removesuffix(".")
    assert f"job 12: {begin} ({state}); {sentence}: " in capsys.readouterr().err
    for without in ({"budget": None, "explanation": "x"}, NotFoundError("job 12", "unknown")):
        fake_controller.install(monkeypatch, {**answers, "/v1/budget/explain": without})
        assert main(["job", "12"]) == 6
        assert f"job 12: {begin} ({state}): " in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [["11"], ["11", "13"]])
def test_the_page_of_jobs_shows_the_power_under_a_budget(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = [{**record, "job_id": 13} for record in report_examples.cpu_job()]
    history = budget_answers.history(2)
    fake = fake_controller.install(
        monkeypatch,
        {
            "/v1/jobs/11": {"records": report_examples.cpu_job()},
            "/v1/jobs/13": {"records": other},
            "/v1/budget/history": dict(history),
        },
    )
    path = tmp_path / "a.html"
    assert main(["job", *jobs, "--html", str(path), "--budget", "site"]) == 0
    assert path.read_text().count("<h2>Budget site</h2>") == 1
    query = next(query for asked, query in fake.asked if asked == "/v1/budget/history")
    record = report_examples.cpu_job()[0]
    assert query["budget"] == "site"
    assert float(query["begin_unix_s"]) < record["start"] < record["end"] < float(query["end_unix_s"])
    assert main(["job", *jobs, "--budget", "site"]) == 2


def no_agent(path: Path, message: dict[str, Any]) -> dict[str, Any]:
    raise UnavailableError(f"agent {path}", "none")
