"""Tests of the command `senergy sweep` as a user runs it.

They check the forms of the output, the exit codes, a second call, a dry run and an interrupt.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from test_sweep_runs import SCRIPT, EmulatedCluster

from slurm_energy.cli import main as cli
from slurm_energy.cli import sweep
from slurm_energy.reports.sweep_table import METRIC_NAMES
from slurm_energy.sweep.runner import SweepCluster

JSON_PAGE = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prepare a working directory with the batch script `train.sh`.

    The fixture returns an empty list. Each sweep of the test appends the emulated cluster that it uses to
    the list.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_bytes(SCRIPT)
    (tmp_path / "energy.toml").write_text("")
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    monkeypatch.setattr("slurm_energy.sweep.runner.POLL_S", 0.0)
    used: list[EmulatedCluster] = []

    def access(submitter, args) -> SweepCluster:
        emulated = EmulatedCluster(submitter.state)
        used.append(emulated)
        return SweepCluster(emulated.submit, emulated.find, emulated.read_states, emulated.records)

    monkeypatch.setattr(sweep, "cluster_access", access)
    return used


COMMAND = ["sweep", "train.sh", "--gpu-cap", "200,250", "--repeat", "2"]


def test_table(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(COMMAND) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[:3] == ["gpu-cap=none", "2", "10.0"]
    assert "dominated" in next(line for line in out.splitlines() if line.startswith("gpu-cap=200"))
    for name in METRIC_NAMES.values():
        assert f"best {name} " in out


def test_json_has_documented_keys_only(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMMAND, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in {*document, *document["points"][0], *document["best"], *document["best"]["edp"]}:
        assert f"`{key}`" in JSON_PAGE, key
    assert document["complete"] is True
    assert document["points"][document["best"]["edp"]["point"]]["settings"] == {"gpu-cap": "250"}


def test_csv(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMMAND, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["gpu-cap"] for row in rows] == ["", "200", "250"]
    assert float(rows[0]["edp_gain_percent"]) == 0.0


def test_a_second_call_prints_the_result_again(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(COMMAND) == 0
    first = capsys.readouterr().out
    assert cli.main(COMMAND) == 0
    assert capsys.readouterr().out == first
    assert [len(used.jobs) for used in cluster] == [5, 0]
    assert cli.main([*COMMAND[:-1], "3"]) == 0
    assert [len(used.jobs) for used in cluster] == [5, 0, 2]


def test_another_design_is_refused(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(COMMAND) == 0
    assert cli.main(["sweep", "train.sh", "--cap", "200"]) == 2
    assert "the factors of this sweep changed" in capsys.readouterr().err
    assert cli.main(["sweep", "train.sh", "--gpu-cap", "250", "--restart"]) == 0


def test_an_interrupt_keeps_the_state(cluster, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    read_states = EmulatedCluster.read_states

    def interrupted(self, job_ids):
        if len(self.jobs) >= 4:
            raise KeyboardInterrupt
        return read_states(self, job_ids)

    monkeypatch.setattr(EmulatedCluster, "read_states", interrupted)
    assert cli.main([*COMMAND, "--in-flight", "2"]) == 130
    assert "the same command continues" in capsys.readouterr().err
    runs = json.loads(Path("senergy-sweep-train.json").read_text())["runs"]
    assert [run["status"] for run in runs].count("measured") == 3


def test_dry_run_submits_nothing(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", "LR=a b,c", "--dry-run", "--", "-p", "gpu", "--", "--epochs", "3"]
    assert cli.main(["sweep", "train.sh", "--gpu-cap", "200", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("LR='a b' sbatch --parsable -p gpu --energy-policy=monitor ")
    assert lines[0].endswith(" train.sh --epochs 3")
    assert not cluster
    assert not list(Path().glob("senergy-sweep-*"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.sh", "--cap", "100"], 2),
        (["train.sh"], 2),
        (["train.sh", "--cap", "100", "--repeat", "0"], 2),
        (["train.sh", "--cap", "100", "--name", "a b"], 2),
        (["train.sh", "--cap", "100", "--factors", "absent.toml"], 2),
        (["train.sh", "--cap", "100", "--", "--array=1-3"], 2),
        (["train.sh", "--cap", "100", "--state", "no/folder/x.json"], 1),
    ],
)
def test_errors_are_one_line(cluster, arguments, code, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *arguments]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_preset_prints_the_best_settings_as_lines(cluster, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "sweep",
        "train.sh",
        "--preset",
        "openmp",
        "--machine",
        "2",
        "--gpu-cap",
        "250",
        "--repeat",
        "2",
    ]
    assert cli.main([*command, "--best", "energy"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    at = lines.index("# best energy of sweep train")
    assert lines[at + 1 : at + 4] == [
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --energy-gpu-cap=250",
        "#SBATCH --energy-policy=cap",
    ]
    assert "export OMP_NUM_THREADS=2" in lines[at:]
    assert "combinations are left out: more threads per core than the node has" in printed.err
    assert cli.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["best"]["energy"]["lines"] == [line for line in lines[at + 1 :] if line]
    assert result["best"]["energy"]["gain_percent_ci95"] == 0.0, "the emulated runs are equal"
    assert result["refused"]


@pytest.mark.slow
def test_plots(cluster, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    assert cli.main([*COMMAND, "--plots", "plots"]) == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"edp-over-time.png", "pareto.png", "gain-over-gpu-cap.png"}


@pytest.mark.slow
def test_data_frame(cluster) -> None:
    pytest.importorskip("pandas", reason="pandas is optional")
    from slurm_energy.sweep.data_frame import read_sweep

    assert cli.main(COMMAND) == 0
    frame = read_sweep("senergy-sweep-train.json")
    assert list(frame["gpu-cap"])[1:] == ["200", "250"]
    assert frame["gpu-cap"].isna()[0]
    assert frame["edp_gain_percent"].idxmax() == 2
