"""Tests of `senergy where`, which chooses a cluster for a job.

The tests check the choice, the output, and the submission to the chosen cluster. In some tests,
clusters or controllers do not answer.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_controller import FakeController, install

from slurm_energy.cli import main as cli
from slurm_energy.cli import predict_job, where
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.slurm import sbatch
from slurm_energy.slurm.sbatch import RefusedError

CONFIG = """
[cluster]
name = "east"
[clusters.east]
bandwidth_mbit_per_s = 500
[clusters.west]
controller_url = "http://127.0.0.1:1"
[clusters.north]
controller_url = "http://127.0.0.1:1"
"""
SCRIPT = "#!/bin/bash\n#SBATCH -n 4 -t 60\nsrun work\n"
DOWN = "Unable to contact slurm controller (connect failure)"


def prediction(run_s: float, watts: float) -> dict[str, Any]:
    return {
        "duration_s": dict.fromkeys(("mean", "low", "high"), run_s),
        "power_watts": dict.fromkeys(("mean", "low", "high"), watts),
        "energy_joules": dict.fromkeys(("mean", "low", "high"), run_s * watts),
        "source": "history",
        "basis": "12 runs",
        "age_s": None,
        "observations": 12,
        "notes": [],
    }


def row(cluster: str, cost: float | None, **more: Any) -> dict[str, Any]:
    figures = {"wait_s": 60.0, "start": 1.8e9, "end": 1.8e9 + 600, "transfer_s": 0.0, "run_s": 600.0}
    unknown = {"cost_deviation": 0.002, "carbon_kg": None, "carbon_deviation_kg": None, "score": cost}
    return {"cluster": cluster, **figures, "kwh": 0.5, "cost": cost, "currency": "EUR", **unknown, **more}


CHOICE: dict[str, Any] = {
    "cluster": "west",
    "reason": "it saves more than the thresholds",
    "order": ["west", "east"],
    "clusters": [row("east", 0.2), row("west", 0.1)],
    "home": "east",
    "policy": "cheapest",
    "notes": ["the price of cluster south is in USD"],
    "left_out": [{"cluster": "north", "problem": "no answer;\x1b[2J last state 101 s old"}],
}


class Login:
    """A fake login node, with given responses of senergyctld and a fake sbatch.

    The fake sbatch records its command lines.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self.folder = monkeypatch, folder
        self.submitted: list[list[str]] = []
        self.refusals: dict[str, EnergyError] = {}
        self.elsewhere: dict[str, Any] = {}
        self.answer({"/v1/predict": {"predictions": [prediction(600.0, 300.0)]}, "/v1/placement": CHOICE})
        monkeypatch.setattr(sbatch, "run_sbatch", self._sbatch)
        self.prediction_of = where._prediction_of
        monkeypatch.setattr(where, "_prediction_of", lambda config, name, request: self.elsewhere.get(name))

    def answer(self, answers: Mapping[str, Any]) -> FakeController:
        self.controller = install(self._patch, answers)
        return self.controller

    def _sbatch(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        cluster = next((word[11:] for word in command if word.startswith("--clusters=")), "here")
        self.submitted.append(list(command))
        if cluster in self.refusals:
            raise self.refusals[cluster]
        return 7

    @property
    def query(self) -> dict[str, Any]:
        """The request with which `senergy where` has asked the controller to choose a cluster."""
        (query,) = [body for path, body in self.controller.posted if path == "/v1/placement"]
        return query


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Login:
    monkeypatch.chdir(tmp_path)
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(predict_job, "_login_name", lambda: "alice")
    (tmp_path / "energy.toml").write_text(CONFIG)
    (tmp_path / "job.sh").write_text(SCRIPT)
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    return Login(monkeypatch, tmp_path)


def test_the_choice_is_a_table_with_a_reason(login: Login, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["where", "job.sh"]) == 0
    out, err = capsys.readouterr()
    header, east, west, *rest = out.splitlines()
    assert header.split() == ["cluster", "wait", "start", "run", "transfer", "kWh", "cost", "kg", "CO2e"]
    assert east.split()[0] == "east" and west.split()[:2] == ["*", "west"]
    assert "0.1±0.002 EUR" in west and west.endswith("unknown")
    assert rest == [
        r"left out: north: no answer;\x1b[2J last state 101 s old",
        "cheapest: west, because it saves more than the thresholds",
    ]
    assert not login.submitted
    assert err == "senergy: note: the price of cluster south is in USD\n"


def test_each_cluster_gets_its_own_prediction(login: Login) -> None:
    from slurm_energy.oracle.prediction import Prediction

    login.elsewhere["west"] = Prediction.from_json(prediction(300.0, 500.0))
    arguments = ["where", "--data", "50GB", "--policy", "cleanest", "job.sh"]
    assert cli.main(arguments) == 0
    home = {"run_s": 600.0, "watts": 300.0}
    assert login.query == {
        "cpus": 4,
        "gpus": 0,
        "predictions": {"east": home, "west": {"run_s": 300.0, "watts": 500.0}, "north": home},
        "data_bytes": 5e10,
        "policy": "cleanest",
        "reserve": False,
    }


@pytest.mark.parametrize("numbers", [(1e300, 1.0), (1.0, 1e13)])
def test_an_absurd_prediction_of_a_cluster_excludes_only_it(
    login: Login, numbers: tuple[float, float]
) -> None:
    from slurm_energy.oracle.prediction import Prediction

    login.elsewhere["west"] = Prediction.from_json(prediction(*numbers))
    assert cli.main(["where", "job.sh"]) == 0
    assert set(login.query["predictions"]) == {"east", "north"}


def test_a_job_is_submitted_to_the_chosen_cluster(login: Login, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["where", "--submit", "--sbatch=-p gpu", "job.sh", "input dat"]) == 0
    assert login.submitted == [
        ["sbatch", "--parsable", "-p", "gpu", "--clusters=west", "job.sh", "input dat"]
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "Submitted batch job 7 on cluster west"
    assert login.query["reserve"] is True


def test_home_needs_no_slurmdbd(login: Login, capsys: pytest.CaptureFixture[str]) -> None:
    login.answer(
        login.controller.answers | {"/v1/placement": {**CHOICE, "cluster": "east", "order": ["east"]}}
    )
    assert cli.main(["where", "--submit", "--json", "job.sh"]) == 0
    assert login.submitted[-1] == ["sbatch", "--parsable", "job.sh"]
    document = json.loads(capsys.readouterr().out)
    assert document["submitted"] == {"job_id": 7, "cluster": "east"}
    (login.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH -M east,west\n")
    assert cli.main(["where", "--submit", "job.sh"]) == 0
    assert login.submitted[-1] == ["sbatch", "--parsable", "--clusters=east", "job.sh"]


@pytest.mark.parametrize("variable", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
def test_variables_of_sbatch_do_not_move_a_job(
    login: Login, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "west")
    login.answer(
        login.controller.answers | {"/v1/placement": {**CHOICE, "cluster": "east", "order": ["east"]}}
    )
    assert cli.main(["where", "--submit", "job.sh"]) == 0
    assert "--clusters=east" in login.submitted[-1]


@pytest.mark.parametrize(
    "refusal",
    [
        UnavailableError("sbatch", DOWN),
        RefusedError("sbatch", "'west' can't be reached now, or it is an invalid entry for --cluster."),
    ],
)
def test_the_next_cluster_gets_the_job_if_one_is_down(
    login: Login, capsys: pytest.CaptureFixture[str], refusal: EnergyError
) -> None:
    login.refusals["west"] = refusal
    assert cli.main(["where", "--submit", "job.sh"]) == 0
    assert len(login.submitted) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "Submitted batch job 7 on cluster east"
    assert "cluster west cannot be reached, the next best one gets the job" in err


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (UnavailableError("sbatch", "no answer within 60 s"), 4),
        (RefusedError("sbatch", "Batch job submission failed: Invalid account"), 2),
        (UnavailableError("sbatch", "Socket timed out on send/recv operation"), 4),
    ],
)
def test_a_job_that_may_be_in_a_queue_is_not_submitted_again(
    login: Login, refusal: EnergyError, code: int
) -> None:
    login.refusals["west"] = refusal
    assert cli.main(["where", "--submit", "job.sh"]) == code
    assert len(login.submitted) == 1


def test_without_senergyctld_the_job_is_submitted_here(
    login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    down = UnavailableError("controller http://c", "Connection refused")
    login.answer({"/v1/predict": down, "/v1/placement": down})
    assert cli.main(["where", "job.sh"]) == 4
    assert cli.main(["where", "--submit", "job.sh"]) == 0
    assert login.submitted == [["sbatch", "--parsable", "job.sh"]]
    out, err = capsys.readouterr()
    assert out == "Submitted batch job 7 on cluster east\n"
    assert "no choice was possible, this cluster is tried first" in err
    login.refusals["here"] = UnavailableError("sbatch", DOWN)
    assert cli.main(["where", "--submit", "job.sh"]) == 0
    assert login.submitted[-1] == ["sbatch", "--parsable", "--clusters=west", "job.sh"]
    for name in ("west", "north"):
        login.refusals[name] = UnavailableError("sbatch", DOWN)
    capsys.readouterr()
    assert cli.main(["where", "--submit", "job.sh"]) == 4
    err = capsys.readouterr().err
    assert "no choice was possible" in err and "cluster west cannot be reached" in err


def test_a_job_that_no_cluster_can_run(login: Login, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = {**CHOICE, "cluster": None, "order": [], "reason": "no cluster can run it"}
    login.answer(login.controller.answers | {"/v1/placement": nowhere})
    assert cli.main(["where", "job.sh"]) == 6
    assert "no cluster can run it" in capsys.readouterr().err
    assert cli.main(["where", "--submit", "job.sh"]) == 0  # Slurm decides, and knows more
    assert login.submitted == [["sbatch", "--parsable", "job.sh"]]


def test_only_named_clusters_are_considered(login: Login) -> None:
    assert cli.main(["where", "--clusters", "west,north", "job.sh"]) == 0
    assert set(login.query["predictions"]) == {"west", "north"}
    login.answer(login.controller.answers)
    (login.folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --clusters=north\n")
    assert cli.main(["where", "job.sh"]) == 0
    assert set(login.query["predictions"]) == {"north"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clusters", "south", "job.sh"], "cluster 'south': is not configured: known: east, west, north"),
        (["--clusters", ",", "job.sh"], "--clusters"),
        (["none.sh"], "none.sh: No such file"),
        (["--sbatch='", "job.sh"], "--sbatch"),
        (["--data", "5 apples", "job.sh"], "'5 apples' is not a size"),
        (["--data", "-5GB", "job.sh"], "--data"),
        (["--data", "50", "job.sh"], "'50' is not a size: write a number and a unit, as 500MB or 50GiB"),
        (["-M", "lab,foo", "job.sh"], "-M: is not an option here: write --clusters"),
        (["-Mlab,foo", "job.sh"], "-M: is not an option here: write --clusters"),
        (["--policy", "best", "job.sh"], "--policy"),
        (["energy.toml"], "first line does not begin with #!"),
    ],
)
def test_wrong_command_lines(
    login: Login, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    try:
        code = cli.main(["where", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not login.submitted and not login.controller.posted


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("50GB", 5e10),
        ("50G", 5e10),
        ("1.5 TiB", 1.5 * 2**40),
        ("100B", 100.0),
        ("2kB", 2e3),
        ("2KiB", 2048.0),
    ],
)
def test_sizes(text: str, size: float) -> None:
    assert where.data_bytes(text) == size


@pytest.mark.parametrize("text", ["50", "0", "1.5", "50i", "50iB", "B", "", "50 GB GB"])
def test_sizes_need_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"B, kB, MB, GB, TB, PB, KiB"):
        where.data_bytes(text)


def test_the_help_explains_the_column_start() -> None:
    assert "start: time until the predicted start" in where.EPILOG


def test_clusters_that_hang_delay_the_choice_once_and_are_named(
    login: Login, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:  # accepts connections and is silent
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        (login.folder / "energy.toml").write_text(CONFIG.replace("http://127.0.0.1:1", url))
        monkeypatch.setattr(where, "_prediction_of", login.prediction_of)
        monkeypatch.setattr(where, "_OTHERS_TIMEOUT_S", 0.1)
        assert cli.main(["where", "job.sh"]) == 0
    assert set(login.query["predictions"]) == {"east", "west", "north"}
    err = capsys.readouterr().err
    for name in ("west", "north"):
        assert f"cluster {name}: the prediction of this cluster is used: " in err


def test_other_clusters_may_take_a_second_together() -> None:
    assert where._OTHERS_TIMEOUT_S <= 1.0
