"""`senergy acct` shows the right numbers in all units.

The expected numbers were computed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fake_controller
import pytest
import report_examples as examples

from slurm_energy.cli import acct_query
from slurm_energy.cli.main import main
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import EmbodiedCarbon, GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.records import ComponentEnergy

START = examples.START


@pytest.fixture(autouse=True)
def no_sacct(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(acct_query, "installed_release", lambda: None)
    monkeypatch.delenv("SENERGY_ACCT_FORMAT", raising=False)
    with fake_controller.timezone("UTC"):
        yield


def constant(value: float) -> GridFactor:
    return GridFactor(GridSeries.constant(SeriesSource("constant", "FR"), value))


def job(job_id: int, nodes: int, watts: float, seconds: float) -> list[dict[str, Any]]:
    return [
        examples.answer(
            examples.record(
                job_id,
                f"n{index}",
                end=START + seconds,
                components=(ComponentEnergy("node", watts * seconds, "ipmi"),),
            ),
            examples.job_info(job_id, nodes=nodes),
        )
        for index in range(nodes)
    ]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `senergy acct` for a job with given columns.

    The function returns the printed values as a dict. The keys are the headers of the columns.
    """

    def show(answers: list[dict[str, Any]], factors: GridFactors, *options: str) -> dict[str, str]:
        grid = factors.to_json()
        fake_controller.install(
            monkeypatch, {"/v1/records": {"scope": "all", "records": answers}, "/v1/grid": grid}
        )
        assert main(["acct", "-j", "1", "-P", *options]) == 0
        printed = capsys.readouterr()
        header, row = printed.out.splitlines()
        return dict(zip(header.split("|"), row.split("|"), strict=True))

    return show


FRANCE = GridFactors(constant(174.0), constant(0.25), 1.2)


def test_the_example_of_ears_manual(table: Any) -> None:
    """`senergy acct` computes the figures of the example in EAR's manual correctly.

    The expected figures are computed by hand: 381 W on 2 nodes for 3660 s are 2 * 381 W * 3660 s = 2,788,920
    J = 0.7747 kWh. With a PUE of 1.2 and 174 g/kWh, the emissions are 0.7747 kWh * 1.2 * 174 g/kWh =
    161.75736 g. The manual itself prints 279, which does not follow from these figures.
    """
    columns = ["-o", "consumedenergy,wh,kwh,avepower,co2e,co2eit,cost,costit,facilityenergy,pue"]
    assert table(job(1, 2, 381.0, 3660.0), FRANCE, *columns) == {
        "ConsumedEnergy(J)": "2788920",
        "Wh": "774.7",
        "kWh": "0.7747",
        "AvePower(W)": "762",
        "CO2e(g)": "161.757",
        "CO2eIT(g)": "134.798",  # 0.7747 * 174
        "Cost(EUR)": "0.2324",  # 0.7747 * 1.2 * 0.25 = 0.23241
        "CostIT(EUR)": "0.1937",  # 0.7747 * 0.25 = 0.193675
        "FacilityEnergy(J)": "3346704",  # 2,788,920 * 1.2
        "PUE": "1.2",
    }
    kilo = table(job(1, 2, 381.0, 3660.0), FRANCE, "--units=K", "-o", "consumedenergy,co2e,facilityenergy")
    assert kilo == {"ConsumedEnergy(kJ)": "2788.92", "CO2e(kg)": "0.161757", "FacilityEnergy(kJ)": "3346.704"}
    mega = table(job(1, 2, 381.0, 3660.0), FRANCE, "--units=M", "-o", "consumedenergy,consumedenergyraw")
    assert mega == {"ConsumedEnergy(MJ)": "2.78892", "ConsumedEnergyRaw(J)": "2788920"}


@pytest.mark.parametrize(
    ("watts", "seconds", "joules", "wh", "kwh", "edp", "grams", "euro"),
    [
        # 1 W for 1 h is 3600 J = 1 Wh; 3600 J * 3600 s; 1e-3 kWh * 400 g/kWh; 1e-3 kWh * 0.3 EUR/kWh
        (1.0, 3600.0, "3600", "1", "0.001", "12960000", "0.4", "3.000e-04"),
        # 1 kW for 1 h is 3.6 MJ = 1 kWh
        (1000.0, 3600.0, "3600000", "1000", "1", "12960000000", "400", "0.3000"),
        # 250 W for 1 day: 250 * 86400 = 21,600,000 J = 6 kWh; 2400 g; 1.80 EUR
        (250.0, 86400.0, "21600000", "6000", "6", "1866240000000", "2400", "1.8000"),
        # 10 MW for 100 h are 3.6e12 J = 1 GWh = 400 t = 300,000 EUR
        (
            10e6,
            360000.0,
            "3600000000000",
            "1000000000",
            "1000000",
            "1296000000000000000",
            "400000000",
            "300000",
        ),
    ],
)
def test_powers_and_times_by_hand(
    watts: float, seconds: float, joules: str, wh: str, kwh: str, edp: str, grams: str, euro: str, table: Any
) -> None:
    factors = GridFactors(constant(400.0), constant(0.3))
    columns = "consumedenergyraw,wh,kwh,edpraw,co2eraw,cost,facilityenergy,pue"
    assert table(job(1, 1, watts, seconds), factors, "-o", columns) == {
        "ConsumedEnergyRaw(J)": joules,
        "Wh": wh,
        "kWh": kwh,
        "EDPRaw(J*s)": edp,
        "CO2eRaw(g)": grams,
        "Cost(EUR)": euro,
        "FacilityEnergy(J)": "",  # the PUE is unknown
        "PUE": "",
    }


def test_the_currency_is_that_of_the_site(table: Any) -> None:
    factors = GridFactors(None, constant(2.0), 1.5, currency="CZK")
    assert table(job(1, 1, 1000.0, 3600.0), factors, "-o", "cost,co2e") == {
        "Cost(CZK)": "3.0000",  # 1 kWh * 1.5 * 2 CZK/kWh
        "CO2e(g)": "",
    }


@pytest.mark.parametrize(
    ("columns", "noted"),
    [
        ("jobid,quality,consumedenergy,co2e,cost", "CO2e (2 of 3 jobs), Cost (1 of 3 jobs)"),
        ("jobid,consumedenergy,cost", "ConsumedEnergy (1 of 3 jobs), Cost (1 of 3 jobs)"),
        ("jobid,quality,consumedenergy", ""),
        ("jobid,quality,cpuenergy,embodiedco2e,facilityenergy", ""),
    ],
)
def test_a_sum_that_leaves_out_unknown_values_is_noted(
    columns: str, noted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The price is known for jobs 1 and 2, the carbon intensity for job 1 only; job 3 has no known energy."""
    hour = GridFactor(GridSeries(SeriesSource("csv"), [(START, START + 3600.0, 300.0)]))
    later = examples.record(
        2, start=START + 7200, end=START + 7240, components=(ComponentEnergy("node", 3.6e6, "ipmi"),)
    )
    unknown = examples.record(3, components=(ComponentEnergy("node", None, None),))
    answers = [*job(1, 1, 1000.0, 3600.0), *(examples.answer(one, None) for one in (later, unknown))]
    grid = GridFactors(hour, GridFactor(GridSeries(SeriesSource("csv"), [(START, START + 7300.0, 0.25)])))
    fake_controller.install(
        monkeypatch, {"/v1/records": {"scope": "all", "records": answers}, "/v1/grid": grid.to_json()}
    )
    assert main(["acct", "-a", "--total", "-o", columns]) == 0
    printed = capsys.readouterr()
    notes = [line for line in printed.err.splitlines() if "leave out" in line]
    expected = "senergy: note: the sums leave out jobs whose value is unknown: "
    assert [line.removeprefix(expected) for line in notes] == ([noted] if noted else [])


def test_unknown_emissions_are_not_empty_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    series = GridSeries(SeriesSource("csv"), [(START - 7200.0, START - 3600.0, 300.0)])
    grid = GridFactors(GridFactor(series)).to_json()
    records = {"scope": "all", "records": job(1, 1, 1000.0, 3600.0)}
    fake_controller.install(monkeypatch, {"/v1/records": records, "/v1/grid": grid})
    assert main(["acct", "-n", "-a", "-o", "jobid,co2e,co2eitraw,cost", "--total"]) == 0
    row, _, total = capsys.readouterr().out.splitlines()
    assert row.split() == ["1", "unknown", "unknown"]  # no price is configured
    assert total.split() == ["1", "job", "unknown", "unknown"]


def test_every_gram_names_its_source(table: Any) -> None:
    basis = table(job(1, 1, 1000.0, 3600.0), FRANCE, "-o", "gridbasis")["GridBasis"]
    assert basis.startswith("CO2e: ") and "FR" in basis and basis.endswith("PUE 1.2")


def test_the_document_has_the_footprint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {"scope": "all", "records": job(1, 2, 381.0, 3660.0)}
    fake_controller.install(monkeypatch, {"/v1/records": records, "/v1/grid": FRANCE.to_json()})
    assert main(["acct", "-j", "1", "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["jobs"]
    footprint = printed["energy"]["footprint"]
    assert footprint["co2e_grams"] == pytest.approx(161.75736)
    assert footprint["cost"] == pytest.approx(0.23241)
    assert (footprint["pue"], footprint["currency"]) == (1.2, "EUR")
    assert footprint["facility_joules"] == pytest.approx(3346704.0)


def test_the_embodied_share_counts_the_reserved_nodes(table: Any) -> None:
    """The embodied emissions of a job count the nodes that were reserved for the job.

    The expected value is that of 2 nodes of 1,500 kg for 1 h over 5 years: 2 * 1,500,000 g * 3600 s /
    157,788,000 s = 68.446 g.
    """
    embodied = GridFactors(constant(400.0), embodied=EmbodiedCarbon(1500.0, 150.0, 5.0))
    shown = table(job(1, 2, 500.0, 3600.0), embodied, "-o", "co2e,embodiedco2e")
    assert shown == {"CO2e(g)": "400", "EmbodiedCO2e(g)": "68.446"}
