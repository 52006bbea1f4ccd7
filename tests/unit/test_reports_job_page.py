from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st
from report_examples import answer, component, job_info, record, usages

from slurm_energy.errors import EnergyError, NotFoundError
from slurm_energy.reports.labels.comparison import compare
from slurm_energy.reports.labels.job_page import page
from slurm_energy.reports.plots import png
from slurm_energy.reports.plots.svg import Scale, band_path, element, line_path
from slurm_energy.reports.trace import encode_trace

VOID = {"meta", "link", "br", "img"}
NOTES = ["Compute-bound work pays for low frequencies with its time.", "Memory-bound work hardly notices."]


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    with fake_controller.timezone("UTC"):
        yield


class Reader(HTMLParser):
    """HTML parser for tests of the job page.

    It checks that all elements are closed. It collects the visible text, the attributes, and the data in
    scripts.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.lines: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.figures: list[dict[str, Any]] = []
        self.kind = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.kind = dict(attrs).get("type") or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.kind == "application/json":
            self.figures.append(json.loads(data))
        elif data.strip() and not {"script", "style"} & set(self.open):
            self.lines.append(" ".join(data.split()))


@pytest.mark.parametrize(
    ("name", "answers", "title", "remarks"),
    [
        ("page_cpu.txt", examples.cpu_job(), "", []),
        ("page_gpu.txt", examples.gpu_job(), "", []),
        ("page_unknown.txt", examples.unknown_job(), "", []),
        ("page_comparison.txt", examples.demo_jobs(), "Eleven jobs", NOTES),
    ],
)
def test_page_text_matches_golden_files(
    name: str, answers: list[dict[str, Any]], title: str, remarks: list[str]
) -> None:
    reader = Reader(page(usages(answers), title, remarks, datetime(2026, 11, 21, 5, 0)))
    golden_files.compare(name, "\n".join(reader.lines) + "\n")


@pytest.mark.parametrize("answers", [examples.gpu_job(), examples.demo_jobs()])
def test_a_page_loads_nothing_and_serves_both_themes(answers: list[dict[str, Any]]) -> None:
    text = page(usages(answers))
    reader = Reader(text)
    loaded = [a for a in reader.attributes if a[1] in ("src", "href", "action", "data")]
    assert loaded == [("link", "href", "data:,")]
    assert not re.search(r"https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", text))
    light, dark = (
        set(re.findall(r"--([a-z0-9]+):", block)) for block in text.split("prefers-color-scheme")[:2]
    )
    assert used <= light
    assert used <= dark | {"shadow"}


def test_every_chart_has_a_title_and_tooltip_data() -> None:
    reader = Reader(page(usages(examples.demo_jobs())))
    pictures = [value for tag, key, value in reader.attributes if tag == "svg" and key == "aria-label"]
    assert len(pictures) == 3 + 5
    assert all(pictures)
    names = [[one["name"] for one in figures["series"]] for figures in reader.figures]
    assert names == [
        ["performance", "powersave"],
        ["performance", "powersave"],
        ["monitor", "cap 200 W/GPU", "edp"],
        ["monitor", "cap 200 W/GPU"],
        ["monitor", "edp"],
    ]


EVIL = "</script><script>alert(1)</script>\"'<b>&amp;--><!--"


@pytest.mark.parametrize("count", [1, 2])
def test_text_from_users_cannot_change_the_markup(count: int) -> None:
    trace = encode_trace(examples.START, 1.0, {"cpu": [1.0, 2.0]})
    answers = [
        answer(
            record(
                i + 1,
                EVIL,
                policy=EVIL,
                model=EVIL,
                tag=EVIL,
                user=EVIL,
                notes=(EVIL,),
                requested={"cap_watts": EVIL},
            ),
            job_info(i + 1, name=EVIL, account=EVIL, partition=EVIL, state=EVIL, display_id=EVIL),
            trace,
        )
        for i in range(count)
    ]
    text = page(usages(answers), EVIL, [EVIL])
    reader = Reader(text)
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert any("alert(1)" in line for line in reader.lines)
    assert not [key for _, key, _ in reader.attributes if key.startswith("on")]


@given(st.text(), st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))))
def test_svg_text_and_attributes_survive_parsing(text: str, attribute: str) -> None:
    class One(HTMLParser):
        data, value = "", ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.value = dict(attrs)["class"] or ""

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.handle_starttag(tag, attrs)

        def handle_data(self, data: str) -> None:
            self.data += data

    parser = One()
    parser.feed(element("text", text=text, class_=attribute))
    parser.close()
    assert (parser.data, parser.value) == (text, attribute)


def test_paths_break_at_unknown_values() -> None:
    nan = float("nan")
    assert line_path([0, 1, 2, 3], [5, nan, 7, 8]) == "M0 5 M2 7 L3 8"
    assert band_path([0, 1, 2], [0, 0, 0], [4, 5, nan]) == "M0 4 L1 5 L1 0 L0 0 Z"
    assert Scale(0, 10, 100, 0)(5) == 50
    assert Scale(3, 3, 1, 2)(3) == 1


def test_runs_of_the_same_work_compare_to_the_untuned_one() -> None:
    works = compare(usages(examples.demo_jobs()))
    assert [work.name for work in works] == [
        "gemm on n1", "triad on n1", "gemm on n2", "triad on n2", "train on n[3-4]",
    ]  # fmt: skip
    assert [work.baseline.name for work in works] == [
        "performance",
        "performance",
        "monitor",
        "monitor",
        "monitor",
    ]
    colors = {v.name: v.color for work in works for v in work.variants}
    assert len(set(colors.values())) == len(colors)


def test_repetitions_are_averaged() -> None:
    parts = [(component("cpu", joules),) for joules in (100.0, 300.0)]
    answers = [answer(record(i, components=p), job_info(i)) for i, p in enumerate(parts, 1)]
    (work,) = compare(usages(answers))
    assert work.baseline.mean(lambda job: job.energy_joules) == 200.0


def test_more_variants_than_colours_still_compare() -> None:
    answers = [
        answer(record(i, policy="cap", requested={"gpu_cap_watts": str(i)}), job_info(i))
        for i in range(100, 112)
    ]
    (work,) = compare(usages(answers))
    assert len(work.variants) == 12


@pytest.mark.slow
def test_a_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (job,) = usages(examples.gpu_job())
    png.write_png(job, tmp_path / "power.png")
    assert (tmp_path / "power.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_without_matplotlib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    (job,) = usages(examples.gpu_job())
    with pytest.raises(EnergyError) as caught:
        png.write_png(job, tmp_path / "power.png")
    install = f"{sys.executable} -m pip install 'slurm-energy[plots]'"
    assert str(caught.value) == f"--png: matplotlib is not installed: {install}"


def test_a_job_without_a_trace_has_no_plot(tmp_path: Path) -> None:
    (job,) = usages(examples.unknown_job())
    with pytest.raises(NotFoundError, match="no stored power trace: its energy is unknown too"):
        png.write_png(job, tmp_path / "power.png")


def test_a_job_without_known_energy_has_no_bar_of_shares() -> None:
    assert 'class="share"' not in page(usages(examples.unknown_job()))
    assert 'class="share"' in page(usages(examples.gpu_job()))


HOVER = """
    document.querySelectorAll(".chart svg").forEach(function (v) {
      var b = v.getBoundingClientRect();
      v.dispatchEvent(new PointerEvent("pointermove", {clientX: b.left + b.width / 2, clientY: b.top + 9}));
    });
"""


def _with_allowed_script(text: str, script: str) -> str:
    """Return a page with one more script, which the page's content security policy permits."""
    policy = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    return text.replace("script-src ", f"script-src {policy} ").replace(
        "</body>", f"<script>{script}</script></body>"
    )


def _dom(text: str, folder: Path) -> str:
    """Return the document that a browser makes of a page, after its scripts have run."""
    (folder / "page.html").write_text(text, encoding="utf-8")
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1280,2000", "--dump-dom", f"file://{folder / 'page.html'}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


def test_the_policy_of_a_page_allows_its_one_script_by_hash_and_nothing_else() -> None:
    text = page(usages(examples.demo_jobs()))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert directives["script-src"] == f"'sha256-{digest}'"
    assert directives["default-src"] == "'none'"


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_the_tooltip_of_every_chart(tmp_path: Path) -> None:
    dom = _dom(_with_allowed_script(page(usages(examples.demo_jobs())), HOVER), tmp_path)
    tips = re.findall(r'<div class="tip"[^>]*>(.*?)</div><script', dom.replace("\n", ""))
    assert len(tips) == 5
    assert all("visibility: visible" in part for part in re.findall(r'<div class="tip"[^>]*>', dom))
    assert "performance</span><strong>" in tips[0]


@pytest.mark.slow
@needs_browser
def test_a_script_that_got_into_a_page_does_not_run_while_the_page_s_own_does(tmp_path: Path) -> None:
    """In a report page, a script that an attacker has injected does not run.

    The test inserts scripts as the name of a job, as if the escaping of names had failed. The page's own
    script still runs.
    """
    named = [job | {"job": {**job["job"], "name": "NAME-OF-THE-JOB"}} for job in examples.gpu_job()]
    evil = """<script>document.title = "owned"</script><img src="x" onerror="document.title='owned'">
        <a href="javascript:void 0" id="link">x</a>
        <script src="data:text/javascript,document.title='owned'"></script>"""
    text = page(usages(named))
    assert "NAME-OF-THE-JOB" in text
    dom = _dom(_with_allowed_script(text.replace("NAME-OF-THE-JOB", evil), HOVER), tmp_path)
    assert "<title>Energy label of job 12_3</title>" in dom
    assert 'id="link"' in dom
    assert all("visibility: visible" in part for part in re.findall(r'<div class="tip"[^>]*>', dom)[:1])
