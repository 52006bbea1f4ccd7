"""Test parameter sweeps of the simulator.

The tests cover the parsing of axes (swept parameters), their combination, limits on the number of
simulations, result tables and maps, and resumption.
"""

from __future__ import annotations

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.cli.main import main
from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns import campaign, sweeps
from slurm_energy.simulator.campaigns.sweep_axes import axes_of_table, axis_of_option

TEXT = """\
[cluster.n]
nodes = 2
units = 4
idle_watts = 100.0
[workload]
file = "w.csv"
watts_per_unit = 50.0
[schedule]
policies = ["fcfs", "sjf"]
"""
JOBS = "submit_s,time_s,units\n" + "".join(f"{40 * i},{60 + 13 * i % 70},{1 + i % 4}\n" for i in range(30))


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "w.csv").write_text(JOBS)
    (tmp_path / "s.toml").write_text(TEXT)
    return tmp_path / "s.toml"


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("a.b=0.5:1.0:0.1", [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        ("a.b=1:7:3", [1, 4, 7]),
        ("a.b=3:1:-1", [3, 2, 1]),
        ("a.b=1e-3:3e-3:1e-3", [0.001, 0.002, 0.003]),
        ("a.b=7,1:3:1", [7, 1, 2, 3]),
        ("a.b=easy,strict", ["easy", "strict"]),
        ('a.b="x,y",[1,2],true', ["x,y", [1, 2], True]),
    ],
)
def test_values_and_ranges(text, points):
    axis = axis_of_option(text)
    assert [value for (value,) in axis.points] == points
    assert [type(value) for (value,) in axis.points] == [type(point) for point in points]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "needs a list"),
        ("a.b=", "needs a list"),
        ("a.b=1:0:1", "the range 1:0:1 has no value"),
        ("a.b=1:2:0", "the range 1:2:0 has no value"),
        ("a.b=0:1e9:1e-9", "at most 1000"),
        ("a.b=1e999999999:1:1", "has no value"),
        ("a.b=[1", "not a value in TOML"),
        ("a.b,=1", "a key is empty"),
        ("a.b,c.d=1,2", "needs a list with 2 values per point"),
    ],
)
def test_a_bad_axis_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        axis_of_option(text)


@given(st.text(max_size=40))
@examples(200)
def test_any_text_is_an_axis_or_one_line(text):
    try:
        sweeps.parse([text])
    except EnergyError as error:
        assert "\n" not in str(error)


def test_axes_are_combined_and_keys_of_one_axis_change_together(scenario):
    scenario.write_text(
        TEXT
        + '[sweep]\n"workload.load" = "0.5:0.7:0.1"\n'
        + '"schedule.discipline, schedule.age_weight" = [["easy", 0.1], ["strict", 0.2]]\n'
    )
    variants = sweeps.variants(scenarios.read(str(scenario)))
    values = [(v.workload.load, v.schedule.discipline, v.schedule.age_weight) for v in variants]
    assert values == [(load, *pair) for load in (0.5, 0.6, 0.7) for pair in (("easy", 0.1), ("strict", 0.2))]
    assert len({v.label for v in variants}) == len({v.variant_folder(scenario.parent) for v in variants}) == 6
    assert variants[1].label.startswith('workload.load = 0.5, schedule.discipline = "strict"')


def test_labels_that_differ_in_a_sign_have_their_own_folders(scenario):
    base = scenarios.read(str(scenario))
    folders = [
        sweeps.with_values(base, {"schedule.checkpoint_s": value}).variant_folder(scenario.parent)
        for value in (-1.0, 1.0)
    ]
    assert folders[0] != folders[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--sweep", "workload.load=0.001:1:0.001", "--sweep", "schedule.age_weight=1:100:1"],
            "runs 200000",
        ),
        (
            ["--sweep", "workload.load=1,2", "--max-runs", "3"],
            "4 simulations (2 of workload.load x 2 pol",
        ),
        (["--sweep", "workload.load=1", "--sweep", "workload.load=2"], "a key occurs twice"),
        (["--sweep", "schedule.discipline=eager"], "schedule.discipline: one of strict"),
        (["--sweep", "schedule.policies=[zeuss]"], "not a value"),
        (["--sweep", "schedule.policies=['zeuss']"], "policy 'zeuss' is not known"),
        (["--sweep", "title.x=1"], "no such key"),
        (["--max-runs", "0"], "--max-runs: 0 is not a positive number"),
    ],
)
def test_an_impossible_sweep_is_one_line(scenario, capsys, options, message):
    assert main(["simulate", str(scenario), *options]) in (2, 3, 6)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_repeated_keys_of_a_table_are_refused():
    with pytest.raises(ValueError, match=r"a\.b occurs twice"):
        axes_of_table({"a.b": [1], "a.b,c.d": [[1, 2]]})


def test_a_grid_has_one_table_one_file_and_maps(scenario, capsys):
    out = scenario.parent / "out"
    command = ["simulate", str(scenario), "--sweep", "workload.load=0.5,1.5", "--jobs", "1"]
    command += [
        "--sweep",
        "cluster.n.nodes=1:2:1",
        "--out",
        str(out),
        "--html",
        str(scenario.parent / "p.html"),
    ]
    assert main([*command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["workload.load", "cluster.n.nodes", "policy"] and len(lines) == 2 + 8
    with (out / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["workload.load"], r["cluster.n.nodes"], r["policy"]) for r in rows] == [
        (load, nodes, policy) for load in ("0.5", "1.5") for nodes in ("1", "2") for policy in ("fcfs", "sjf")
    ]
    page = (scenario.parent / "p.html").read_text()
    assert page.count("color-mix(") >= 4 * 3 and "Maps: workload.load downwards" in page


def test_a_sweep_resumes_unless_an_input_changed(scenario, monkeypatch):
    ran = []
    original = campaign.run
    monkeypatch.setattr(campaign, "run", lambda *a: ran.append(1) or original(*a))
    variants = sweeps.variants(sweeps.with_values(scenarios.read(str(scenario)), {"workload.load": 0.5}))

    def run():
        ran.clear()
        campaign.sweep(variants, jobs=1, folder=scenario.parent / "out")
        return len(ran)

    assert (run(), run()) == (2, 0)
    (scenario.parent / "w.csv").write_text(JOBS + "9000,5,1\n")
    assert run() == 2


def test_more_variants_than_fit_a_page_show_totals_only(scenario, capsys):
    page = scenario.parent / "p.html"
    command = ["simulate", str(scenario), "--policies", "fcfs", "--jobs", "1", "--json", "--html", str(page)]
    assert main([*command, "--sweep", "schedule.age_weight=0.1:1.4:0.1"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 14
    assert "Power of the cluster" not in page.read_text()


def test_the_limit_counts_policies_and_seeds(scenario):
    with pytest.raises(UsageError, match="2 simulations"):
        sweeps.variants(scenarios.read(str(scenario)), max_runs=1)
