"""Tests of the comparison of energy policies on a virtual clock, and of random node profiles.

The comparison and a randomly drawn profile are the output of commands of `senergy lab`.
"""

import json

import pytest

from slurm_energy.cli.main import main
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.policy_comparison import ComparedProgram, compare, table

TRIAD = ComparedProgram("triad", "cpu", "xeon-4210-rtx6000", "2 x Xeon 4210")


@pytest.mark.slow
def test_a_lower_frequency_saves_energy_of_memory_bound_work():
    runs = compare(20, [TRIAD], ["powersave", "cap"])
    base, slow, capped = runs
    assert base.policy == "monitor"
    assert slow.joules < 0.97 * base.joules
    assert slow.seconds < 1.1 * base.seconds
    header, _, row = table(runs).splitlines()
    assert header == "| program | monitor | powersave | cap |"
    assert row.startswith("| triad on 2 x Xeon 4210 | 20 s, ")
    assert row.count(" / ") == 4
    assert capped.joules / capped.seconds < 0.95 * base.joules / base.seconds


def test_an_unknown_policy_is_refused(capsys):
    assert main(["lab", "policies", "--policy", "fast"]) == 2
    assert "'fast' is not a built-in policy: write one of monitor" in capsys.readouterr().err
    assert main(["lab", "policies", "--policy", "powersav"]) == 2
    assert "did you mean powersave?" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "nan", "x", "-3"])
def test_an_invalid_time_is_refused(capsys, seconds):
    assert main(["lab", "policies", f"--seconds={seconds}"]) == 2
    assert "is not a number above 0" in capsys.readouterr().err


def test_a_drawn_profile_is_written_and_valid(tmp_path, capsys):
    path = tmp_path / "node.toml"
    assert main(["lab", "profile", "--seed", "5", "--gpu", "--output", str(path)]) == 0
    assert load_profile(path).name == "random-gpu-5"
    assert "seed 5" in capsys.readouterr().out
    assert main(["lab", "profile", "--seed", "5", "--gpu", "--output", str(tmp_path / "no/node.toml")]) == 2


def test_the_runs_are_printed_as_json(monkeypatch, capsys):
    monkeypatch.setattr("slurm_energy_lab.policy_comparison.compare", lambda *_, **__: [])
    assert main(["lab", "policies", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}
