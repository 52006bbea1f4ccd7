"""Tests of `senergy label`, which prints the energy label of a job.

The tests check the output as text, JSON and SVG, the energy per unit of work, the emissions, and names that
contain harmful characters.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_controller
import golden_files
import pytest
import report_examples as examples
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples as example_count

from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import EmbodiedCarbon, GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.reports.labels.publication_label import LabelledWork, PublicationLabel
from slurm_energy.reports.usage import AccountedRecord, summarise

SOURCE = SeriesSource("yearly", "DE", "2023")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    with fake_controller.timezone("UTC"):
        yield


def factors(grams_per_kwh: float = 400.0) -> dict[str, Any]:
    """Return an example response of `GET /v1/grid`.

    The carbon intensity is constant and the power usage effectiveness (PUE) is 1.5.
    """
    series = GridSeries.constant(SOURCE, grams_per_kwh)
    return GridFactors(carbon=GridFactor(series), pue=1.5).to_json()


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    answers: dict[str, Any] = {
        "/v1/jobs/11": {"records": examples.cpu_job()},
        "/v1/jobs/12_3": {"records": examples.gpu_job()},
        "/v1/jobs/10": {"records": [*examples.cpu_job(), *examples.gpu_job()]},
        "/v1/jobs/16": {"records": examples.unknown_job()},
        "/v1/grid": factors(),
    }
    return fake_controller.install(monkeypatch, answers)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["label", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("job", "name"), [("11", "cpu"), ("12_3", "gpu"), ("16", "unknown")])
def test_the_text_matches_the_golden_file(controller, capsys, job: str, name: str) -> None:
    golden_files.compare(f"publication_label_{name}.txt", printed(capsys, job))


def test_emissions_include_the_pue_and_are_computed_by_hand(controller, capsys) -> None:
    document = json.loads(printed(capsys, "11", "--json"))
    kwh = document["energy_joules"] / 3.6e6
    assert document["footprint"]["co2e_grams"] == pytest.approx(kwh * 1.5 * 400.0)


def test_the_embodied_share_is_shown_beside_the_emissions(controller, capsys) -> None:
    """The label of a job shows embodied emissions beside the emissions of its energy.

    Embodied emissions are those of the node's production. The job uses its node for 40 s of a lifetime of 5
    years: 1,500,000 g * 40 s / 157,788,000 s = 0.380 g.
    """
    one = GridFactors(
        GridFactor(GridSeries.constant(SOURCE, 400.0)), embodied=EmbodiedCarbon(1500.0, 0.0, 5.0)
    )
    controller.answers["/v1/grid"] = one.to_json()
    footprint = json.loads(printed(capsys, "11", "--json"))["footprint"]
    assert footprint["embodied_co2e_grams"] == pytest.approx(0.38026, abs=1e-5)
    assert footprint["total_co2e_grams"] == pytest.approx(footprint["co2e_grams"] + 0.38026, abs=1e-5)
    assert "embodied 380 mg, together" in printed(capsys, "11")


def test_energy_and_time_per_unit_of_stated_work(controller, capsys) -> None:
    document = json.loads(printed(capsys, "11", "--json", "--work", "1000", "--unit", "image"))
    assert document["joules_per_unit"] == pytest.approx(document["energy_joules"] / 1000)
    assert document["seconds_per_unit"] == pytest.approx(document["elapsed_s"] / 1000)
    text = printed(capsys, "11", "--work", "1000", "--unit", "image")
    assert "1,000 x image (stated by the user): 17.6 J and 40.0 ms each" in text
    assert "1.76 mJ and 4.00 µs each" in printed(capsys, "11", "--work", "1e7")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["11", "--work", "0"], 2, "--work: '0' is not a number above 0"),
        (["11", "--work", "nan"], 2, "--work: 'nan' is not a number above 0"),
        (["11", "--work", "5", "--unit", "a\nb"], 2, "--unit: it must be 1 to 64 printable characters"),
        (["10"], 2, "job 10: it has 2 tasks or components: name one: "),
        (["11", "--svg", "/nonexistent/x.svg"], 1, "/nonexistent/x.svg: No such file or directory"),
    ],
)
def test_bad_requests_are_one_line(controller, capsys, arguments, code, message) -> None:
    assert main(["label", *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_controller_without_carbon_intensity_leaves_emissions_unknown(monkeypatch, capsys) -> None:
    answers = {"/v1/jobs/11": {"records": examples.cpu_job()}, "/v1/grid": UnavailableError("grid", "is off")}
    fake_controller.install(monkeypatch, answers)
    assert main(["label", "11"]) == 0
    captured = capsys.readouterr()
    assert "Emissions  unknown\n" in captured.out and "is off" in captured.err
    assert main(["label", "11", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["footprint"] is None


def test_the_picture_is_well_formed_and_has_all_rows(controller, capsys, tmp_path: Path) -> None:
    path = tmp_path / "label.svg"
    printed(capsys, "12_3", "--svg", str(path), "--work", "10")
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("Energy", "Time", "Power", "Hardware", "Policy", "Work", "Emissions", "Quality"):
        assert name in texts
    height, lowest = float(root.get("height")), max(float(e.get("y")) for e in root.iter() if e.get("y"))
    assert lowest < height


@example_count(60)
@given(st.text(max_size=60), st.text(min_size=1, max_size=60))
def test_names_cannot_break_the_label(name: str, unit: str) -> None:
    records = examples.cpu_job()
    for item in records:
        item["job"] = item["job"] | {"name": name}
    (job,) = summarise(map(AccountedRecord.from_json, records))
    label = PublicationLabel(job, work=LabelledWork(3.0, unit))
    ElementTree.fromstring(label.svg())
    assert json.loads(json.dumps(label.to_json()))["name"] == name
