"""Tests of the settings that are expected to be best for a job, as shown before the job runs.

Users get these settings from `senergy predict --best` and `senergy template render --best`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_controller import FakeController
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.cli import best_settings, predict_job
from slurm_energy.cli import main as cli
from slurm_energy.config import BoundsConfig
from slurm_energy.errors import UnavailableError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.known_curve import best_point, ratios_at_gpu_limit
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

SCRIPT = """#!/bin/bash
#SBATCH --gpus=a40:1 --time=60
#SBATCH --energy-model=resnet50
srun python train.py
"""
HISTORY = {
    "duration_s": {"mean": 1400.0, "low": 1300.0, "high": 1500.0},
    "power_watts": {"mean": 280.0, "low": 270.0, "high": 290.0},
    "energy_joules": {"mean": 392000.0, "low": 351000.0, "high": 435000.0},
    "source": "history",
    "basis": "12 runs",
    "age_s": 10800.0,
    "observations": 12,
    "notes": [],
}
RATIOS = {100.0: (3.0, 0.5), 150.0: (1.4, 0.6), 200.0: (1.06, 0.75), 250.0: (1.01, 0.9)}


def learned(hardware: str = "NVIDIA A40") -> ResponseCurve:
    points = [
        ResponsePoint(OperatingPoint(gpu_limit_watts=cap), time, power, CurveSource.EARLIER_RUNS, count=3)
        for cap, (time, power) in RATIOS.items()
    ]
    return ResponseCurve(hardware, "resnet50", tuple(points))


def test_the_best_point_keeps_to_the_slowdown_limit() -> None:
    def best(name: str, limit: float | None = None) -> float | None:
        point = best_point(learned(), Objective(name, limit), lambda point: True)
        return None if point is None else point.point.gpu_limit_watts

    assert (best("edp"), best("ed2p"), best("energy")) == (200.0, 200.0, 200.0)
    assert (best("energy", 0.05), best("energy", 0.0)) == (250.0, None)
    assert best_point(learned(), Objective("edp"), lambda point: False) is None
    slower = ResponsePoint(OperatingPoint(cpu_max_mhz=1000), 2.0, 0.9, CurveSource.ORACLE)
    assert best_point(ResponseCurve("x", "y", (slower,)), Objective("edp"), lambda point: True) is None


@given(st.floats(50, 400))
def test_ratios_at_a_limit_lie_between_those_of_its_neighbours(watts: float) -> None:
    ratios = ratios_at_gpu_limit(learned(), watts)
    if watts > 250:
        assert ratios is None
        return
    assert ratios is not None
    above = min(cap for cap in RATIOS if cap >= watts)
    below = max((cap for cap in RATIOS if cap <= watts), default=100.0)
    assert RATIOS[above][0] - 1e-9 <= ratios[0] <= RATIOS[below][0] + 1e-9
    assert RATIOS[below][1] - 1e-9 <= ratios[1] <= RATIOS[above][1] + 1e-9


def test_a_harmful_cap_is_told_with_its_figure() -> None:
    advice = "a cap of 100 W per GPU multiplies the EDP by 4.5 and the time by 3 (predicted, earlier runs)"
    assert best_settings.cap_advice(learned(), 100) == advice
    assert best_settings.cap_advice(learned(), 60) == advice.replace("100 W", "60 W")
    assert best_settings.cap_advice(learned(), 200) is None
    assert best_settings.cap_advice(learned(), 300) is None


def test_only_settings_that_a_flag_can_make_are_chosen() -> None:
    points = (
        ResponsePoint(OperatingPoint(package_limit_watts=100), 1.0, 0.4, CurveSource.EARLIER_RUNS),
        ResponsePoint(OperatingPoint(gpu_limit_watts=90), 1.0, 0.5, CurveSource.EARLIER_RUNS),
        ResponsePoint(
            OperatingPoint(gpu_clock_mhz=900, cpu_max_mhz=2000.5, gpu_power_profile="MAX_Q"),
            1.0,
            0.8,
            CurveSource.EARLIER_RUNS,
        ),
    )
    curve = ResponseCurve("x", "y", points)
    best = best_settings.best_settings(curve, Objective("edp"), BoundsConfig(), None)
    assert best.flags == {
        "--energy-gpu-clock": "900",
        "--energy-cpu-freq": "2000.5",
        "--energy-power-profile": "MAX_Q",
    }


class Controller(FakeController):
    history: Any = None

    def post(self, path: str, body: Any) -> Any:
        return {"predictions": [self.history]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(predict_job, "_login_name", lambda: "alice")
    (tmp_path / "energy.toml").write_text("")
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    (tmp_path / "job.sh").write_text(SCRIPT)
    return tmp_path


def controller(monkeypatch: pytest.MonkeyPatch, *curves: ResponseCurve) -> Controller:
    programs = [{"curve": curve.to_json()} for curve in curves]
    fake = Controller({"/v1/tuning": {"scope": "own", "programs": [{"curve": None}, *programs]}})
    monkeypatch.setattr("slurm_energy.cli.connection.connect", lambda args, **options: fake)
    return fake


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["predict", "--json", "job.sh", *arguments]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_learned_runs_of_the_script_precede_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = controller(monkeypatch, learned("NVIDIA H100 PCIe"), learned())
    monkeypatch.setattr(fake, "history", HISTORY)
    answer = predicted(capsys, "--best", "edp")
    best = answer["best"]
    assert (best["objective"], best["hardware"], best["slowdown_limit"]) == ("edp", "NVIDIA A40", None)
    assert best["time_limit_s"] == 60 * math.ceil(1500 * 1.06 / 60) and best["point"]["count"] == 3
    assert best["flags"]["--energy-gpu-cap"] == "200"
    ((path, query),) = fake.asked
    assert path == "/v1/tuning" and query["user"] == "alice" and len(query["workload"]) == 16
    assert predicted(capsys, "--best", "energy")["best"]["flags"]["--energy-gpu-cap"] == "250"
    limited = predicted(capsys, "--best", "edp", "--slowdown", "0.5%")["best"]
    assert (limited["point"], list(limited["flags"])) == (None, ["--time"])


def test_only_runs_of_similar_jobs_yield_a_time_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training model assumes one epoch: a job of 90 epochs would be killed at a limit from the model."""
    fake = controller(monkeypatch, learned())
    answer = predicted(capsys, "--best", "edp")
    assert answer["prediction"]["source"] == "model" and "assumed: one epoch" in answer["prediction"]["basis"]
    assert answer["best"]["time_limit_s"] is None
    assert answer["best"]["flags"] == {"--energy-gpu-cap": "200"}
    render = ["template", "render", "gpu", "--set", "command=train", "--set", "model=resnet50"]
    render += ["--gpu", "a40", "--best", "edp"]
    assert cli.main(render) == 0
    without_history = capsys.readouterr().out
    assert "#SBATCH --energy-gpu-cap=200\n" in without_history and "--time" not in without_history
    monkeypatch.setattr(fake, "history", HISTORY)
    assert predicted(capsys, "--best", "edp")["best"]["flags"]["--time"] == "00:27:00"
    assert cli.main(render) == 0
    assert "#SBATCH --time=00:27:00\n" in capsys.readouterr().out


def test_the_model_answers_without_a_controller(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(args: Any, **options: Any) -> Any:
        raise UnavailableError("controller", "refused")

    monkeypatch.setattr("slurm_energy.cli.connection.connect", refuse)
    (folder / "job.sh").write_text(SCRIPT.replace("--time=60", "--time=60 --energy-gpu-cap=100"))
    assert cli.main(["predict", "job.sh", "--best", "edp"]) == 0
    out = capsys.readouterr().out
    assert "note    a cap of 100 W per GPU multiplies the EDP by " in out
    assert "best    edp: GPU limit " in out and "(predicted, oracle)\nuse     --energy-gpu-cap=" in out
    assert "--time" not in out.split("\nuse ")[1]
    (folder / "job.sh").write_text("#!/bin/sh\ntrue\n")
    assert cli.main(["predict", "job.sh", "--best", "edp"]) == 0
    assert "note    --best: no run of this program at other settings is known" in capsys.readouterr().out


def test_a_template_is_filled_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller(monkeypatch, learned()), "history", HISTORY)
    render = ["template", "render", "gpu", "--set", "command=python train.py", "--set", "model=resnet50"]
    assert cli.main([*render, "--gpu", "a40", "--best", "edp"]) == 0
    captured = capsys.readouterr()
    assert "#SBATCH --energy-gpu-cap=200\n" in captured.out and "#SBATCH --time=" in captured.out
    assert "senergy: note: edp: GPU limit 200 W: time +6 %, energy -20 %, EDP -16 %" in captured.err
    assert cli.main([*render, "--set", "gpu_cap=180", "--set", "time=5", "--best", "edp"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --energy-gpu-cap=180\n" in out and "#SBATCH --time=5\n" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["predict", "job.sh", "--best", "edpp"], 2, "--best: 'edpp' is not an objective: did you mean edp?"),
        (["predict", "job.sh", "--slowdown", "5"], 2, "--slowdown: given without --best"),
        (["predict", "job.sh", "--best", "edp", "--slowdown", "5x"], 2, "'5x' is not a percentage"),
        (["predict", "--model", "resnet50", "--gpu", "a40", "--best", "edp"], 2, "needs a batch script"),
        (["template", "render", "senergyd.service", "--best", "edp"], 2, "is no batch script"),
        (["template", "render", "gpu", "--set", "command=x", "--best", "edp"], 6, "no run of this program"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    controller(monkeypatch)
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err
