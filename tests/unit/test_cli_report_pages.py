"""Tests of the web pages of `senergy report --html`.

The tests cover the page of an account, the static site, its links, the tables behind the charts, and
malicious names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fake_controller
import pytest
import report_examples
import usage_examples
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.cli.main import main
from slurm_energy.reports import largest_jobs
from slurm_energy.reports.energy_pages import PageSubject, energy_page, subjects
from slurm_energy.reports.largest_jobs import LargestJobs
from slurm_energy.reports.plots.column_chart import ColumnLayer, column_chart
from slurm_energy.reports.utilization.usage import UsageDocument

HOSTILE = "<script>alert(1)</script>/../x"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    with fake_controller.timezone("UTC"):
        yield


class Controller(fake_controller.FakeController):
    """Stand-in for senergyctld that answers queries about usage and records."""

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.asked.append((path, dict(params or {})))
        if path == "/v1/records":
            records = [{**one, "cluster": "c1"} for one in report_examples.everything()]
            return {"records": records + [{**one, "cluster": "c2"} for one in report_examples.cpu_job()]}
        return usage_examples.response(params or {})


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = Controller({})
    monkeypatch.setattr("slurm_energy.cli.connection.connect", lambda *_args, **_more: made)
    return made


class Links(HTMLParser):
    """Parser of an HTML page that collects the links.

    The parser also checks that every opened HTML element is closed.
    """

    VOID = ("meta", "link", "br", "hr", "img")

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def links_of(text: str) -> list[str]:
    parser = Links()
    parser.feed(text)
    assert parser.open == []
    return parser.links


def test_the_site_has_a_page_per_account_and_user_and_all_links_lead_to_pages(
    controller, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01"]) == 0
    names = {path.name for path in site.iterdir()}
    assert {"index.html", "account-physics.html", "user-alice.html"} <= names
    for path in site.iterdir():
        assert set(links_of(path.read_text())) <= names
    (_, asked), *_ = controller.asked
    assert asked["by"] == "account,user,policy,partition"


def test_the_table_behind_the_chart_adds_up_to_the_meter(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01", "interval=hour"]) == 0
    text = (site / "index.html").read_text()
    table = text.partition("The same as a table")[2].partition("</table>")[0]
    kwh = sum(float(number.replace(",", "")) for number in re.findall(r'number">([\d.,]+) kWh', table))
    joules = sum(job[1] for job in usage_examples.JOBS) + sum(value for _, value in usage_examples.METER)
    assert kwh == pytest.approx(joules / 3.6e6, rel=0.01)


def test_jobs_are_those_of_the_cluster_and_read_once_for_each_half_day(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01T06:00"]) == 0
    jobs = (site / "index.html").read_text().partition("<h2>Jobs</h2>")[2]
    assert re.findall(r'<th scope="row" class="nowrap">([^<]*)<', jobs) == ["12_3", "11", "16"]
    start = usage_examples.START
    edges = [(start, start + 43200), (start + 43200, start + 86400), (start + 86400, start + 108000)]
    assert [query for path, query in controller.asked if path == "/v1/records"] == [
        {"start": str(first), "end": str(last)} for first, last in edges
    ]


def test_the_page_of_an_account_reads_its_jobs_only(controller, tmp_path: Path) -> None:
    page = tmp_path / "physics.html"
    window = ["start=2025-11-30", "end=2025-11-30T12:00"]
    assert main(["report", "--html", str(page), "accounts=physics", *window]) == 0
    ((_, query),) = [asked for asked in controller.asked if asked[0] == "/v1/records"]
    assert query["account"] == "physics"


def test_the_largest_jobs_of_each_account_and_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_jobs, "MAX_JOBS", 2)
    largest = LargestJobs()

    def job(job_id: int, joules: float, account: str, user: str, *nodes: str) -> list[dict[str, Any]]:
        energy = (report_examples.component("cpu", joules),)
        info = report_examples.job_info(job_id, account=account, user=user)
        return [
            report_examples.answer(report_examples.record(job_id, node, components=energy, user=user), info)
            for node in nodes or ("n1",)
        ]

    def ids() -> dict[int, float | None]:
        return {one.first.job_id: one.energy_joules for one in largest.jobs}

    largest.add(report_examples.usages([*job(1, 5, "a", "u"), *job(2, 4, "a", "u"), *job(3, 3, "a", "u")]))
    assert ids() == {1: 5, 2: 4}
    largest.add(report_examples.usages([*job(4, 1, "b", "u"), *job(5, 2, "a", "v"), *job(6, 9, "a", "u")]))
    assert ids() == {1: 5, 4: 1, 5: 2, 6: 9}
    largest.add(report_examples.usages(job(7, 8, "a", "u", "n1", "n2")))
    largest.add(report_examples.usages(job(7, 8, "a", "u", "n2")))  # its second node ended later
    assert ids() == {4: 1, 5: 2, 6: 9, 7: 16}


def test_intervals_of_hours_have_labels_of_their_own(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01", "interval=hour"]) == 0
    text = (site / "index.html").read_text()
    table = text.partition("The same as a table")[2].partition("</table>")[0]
    labels = re.findall(r'scope="row"[^>]*>([^<]*)<', table)
    assert labels == [f"30 Nov {hour:02d}:00" for hour in range(24)]


def test_the_site_names_the_cluster_and_each_layer_has_its_colour(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01"]) == 0
    text = (site / "index.html").read_text()
    assert "cluster c1, 2025-11-30T00:00:00 to 2025-12-01T00:00:00" in text
    legend = text.partition('class="legend"')[2].partition("</ul>")[0]
    colors = re.findall(r"var\(--(\w+)\)", legend)
    assert len(colors) >= 5 and len({*colors}) == len(colors)
    assert not {"other", "v0"} <= {*colors}, "two shades of grey cannot be told apart"


def test_energies_of_a_column_have_as_many_decimals(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01"]) == 0
    table = (site / "index.html").read_text().partition("<h2>Accounts</h2>")[2].partition("</table>")[0]
    figures = re.findall(r'</th><td class="number">([^<]*)<', table)
    assert figures == ["12.000", "0.034", "2.8e-04", "1.4e-07"]


def test_energy_that_was_not_measured_is_unknown(
    controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("energy_microjoules", "cpu_microjoules", "gpu_microjoules", "other_microjoules")
    unmeasured = dict.fromkeys((*names, "co2e_grams", "cost"))
    rows = [
        usage_examples.row("job", 0, account="physics", user="alice", cpu_seconds=36_000) | unmeasured,
        usage_examples.row("job", 3_600_000, 1, account="biology", user="bob"),
        usage_examples.row("idle", 3_600_000, 1),
    ]

    def get(_: Any, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        return {"records": []} if path == "/v1/records" else usage_examples.response(query, rows=rows)

    monkeypatch.setattr(Controller, "get", get)
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-29", "end=2025-12-01"]) == 0
    text = (site / "index.html").read_text()
    accounts = text.partition("<h2>Accounts</h2>")[2].partition("</table>")[0]
    cells = re.findall(r'<td class="number">([^<]*)<', accounts)
    assert cells[:5] == ["1.000", "100.0 %", "420 g", "0.25", "0.0"]
    assert cells[5:] == ["unknown", "", "unknown", "unknown", "10.0"]
    chart = text.partition("The same as a table")[2].partition("</table>")[0]
    days = re.findall(r'<td class="number">([^<]*)<', chart)
    assert days == ["0.000 kWh", "unknown", "unknown", "1.000 kWh", "0.000 kWh", "1.000 kWh"]
    tiles = re.findall(r'class="value">([^<]*)<', (site / "user-alice.html").read_text())
    assert tiles == ["unknown", "unknown", "unknown", "10.0"]


def test_the_page_of_an_account_is_one_file_about_its_jobs_only(controller, tmp_path: Path, capsys) -> None:
    path = tmp_path / "physics.html"
    assert (
        main(["report", "--html", str(path), "accounts=physics", "start=2025-11-30", "end=2025-12-01"]) == 0
    )
    text = path.read_text()
    assert (
        "Energy of account physics" in text
        and "biology" not in text
        and "idle" not in text.partition("footer")[0]
    )
    assert links_of(text) == [] and "one page" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["cluster", "Utilization"], 2, "--html: 'cluster' has no meaning here"),
        (["accounts=a,b"], 2, "--html: more than one account or user"),
        (["accounts=nobody", "start=2025-11-30", "end=2025-12-01"], 6, "account nobody: it used no energy"),
    ],
)
def test_bad_requests_are_one_line(controller, tmp_path, capsys, words, code, message) -> None:
    assert main(["report", "--html", str(tmp_path / "x.html"), *words]) == code
    assert message in capsys.readouterr().err


def test_a_file_in_place_of_the_directory_is_one_line(controller, tmp_path, capsys) -> None:
    (tmp_path / "site").write_text("")
    assert main(["report", "--html", str(tmp_path / "site"), "start=2025-11-30", "end=2025-12-01"]) == 4
    assert "File exists" in capsys.readouterr().err


@examples(40)
@given(st.text(max_size=40))
def test_hostile_names_neither_run_nor_leave_the_directory(name: str) -> None:
    query = {"edges": f"{usage_examples.START},{usage_examples.START + 86400}", "by": "account,user"}
    data = usage_examples.response(query)
    for row in data["rows"]:
        if row["kind"] == "job":
            row |= {"account": name, "user": HOSTILE}
    document = UsageDocument.from_json(data)
    pages = subjects(document)
    files = [page.file_name for page in pages]
    assert len(set(files)) == len(files)
    assert all(re.fullmatch(r"[A-Za-z0-9_.~-]{1,100}", file) and ".." not in file for file in files)
    for subject in pages:
        text = energy_page(subject, document, [], pages)
        assert "<script>alert" not in text
        assert set(links_of(text)) <= set(files)


def test_accounts_without_a_name_have_a_page() -> None:
    assert PageSubject("account", "(none)").file_name.startswith("account-~")


def test_columns_are_stacked_to_their_sum() -> None:
    layers = [ColumnLayer("a", "v1", [1.0, None], ["1", ""]), ColumnLayer("b", "v2", [1.0, 2.0], ["1", "2"])]
    svg = column_chart(layers, ["mon", "tue"], "title", "kWh")
    places = [
        (float(match[1]), float(match[2]))
        for match in re.finditer(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg)
    ]
    assert len(places) == 3
    (top_a, height_a), (top_b, height_b), (top_c, height_c) = places
    assert top_b + height_b == pytest.approx(top_a, abs=0.1)
    assert top_b == pytest.approx(top_c, abs=0.1) and height_c == pytest.approx(2 * height_a, abs=0.1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_shows_the_site_from_files_without_errors(controller, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert main(["report", "--html", str(site), "start=2025-11-30", "end=2025-12-01", "interval=hour"]) == 0
    picture = tmp_path / "page.png"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    size = ["--window-size=1200,1600", f"--screenshot={picture}", (site / "index.html").as_uri()]
    done = subprocess.run([*command, *size], capture_output=True, text=True, timeout=120, check=False)
    assert picture.stat().st_size > 20_000 and "CONSOLE" not in done.stderr, done.stderr
