"""Tests of `senergy template render --best`, which takes the best values from saved sweeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_energy.cli.main import main
from slurm_energy.sweep import state as states
from slurm_energy.sweep.preset_files import load_preset
from slurm_energy.tuning.sweep.design import build_points
from slurm_energy.tuning.sweep.factors import parse_factor
from slurm_energy.tuning.sweep.preset import configurations
from slurm_energy.tuning.sweep.runs import RunStatus, SweepRun

RENDER = ["template", "render", "pytorch-ddp", "--set", "script=src/train.py", "--set", "gpus="]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "energy.toml").write_text('[cluster]\ncontroller_url = "http://127.0.0.1:9"\n')
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    return tmp_path


def save_sweep(
    path: str, program: str = "train.py", *, best: dict[str, str] | None = None, age_s: float = 0.0
) -> states.SweepState:
    """Save a finished sweep in which the points with the values `best` are the best ones.

    The best points take 8 s and 80 J. All other points take 10 s and 100 J.
    """
    machine = {"machine_cores": 4, "machine_threads_per_core": 1}
    own = configurations(load_preset("pytorch-ddp").with_values("precision", "fp32,bf16"), machine).settings
    points = build_points([parse_factor("gpu-cap", "150")], configurations=own)
    runs = []
    for number, point in enumerate(points):
        is_best = all(point.value(name) == value for name, value in (best or {"none": ""}).items())
        for repetition in (1, 2):
            run = SweepRun(number, repetition, f"j{number}.{repetition}", RunStatus.MEASURED, 1 + number)
            run.time_s, run.energy_joules, run.quality = (
                (8.0, 80.0, "measured") if is_best else (10.0, 100.0, None)
            )
            runs.append(run)
    state = states.SweepState(
        "train", "senergy-sweep/train", "0", (), (), points, runs, "t", "pytorch-ddp", (program,), 2
    )
    states.save(state, Path(path))
    stamp = Path(path).stat().st_mtime - age_s
    os.utime(path, (stamp, stamp))
    return state


BEST = {"env.PROCESSES": "2", "env.BATCH_SIZE": "128", "env.PRECISION": "bf16", "sbatch.cpus-per-task": "4"}


def test_the_best_point_of_the_newest_sweep_fills_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    save_sweep("senergy-sweep-old.json", best={"env.PROCESSES": "4"}, age_s=100)
    save_sweep("senergy-sweep-other.json", "other.py", best={"env.PROCESSES": "4"})
    save_sweep("senergy-sweep-new.json", best=BEST, age_s=50)
    Path("senergy-sweep-broken.json").write_text("{")
    assert main([*RENDER, "--best", "edp", "--set", "precision=fp32"]) == 0
    printed = capsys.readouterr()
    for line in (
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --energy-policy=cap",
        "#SBATCH --energy-gpu-cap=150",
        'PROCESSES="${PROCESSES:-2}"',
        'export OMP_NUM_THREADS="${THREADS_PER_PROCESS:-2}"',
        'export BATCH_SIZE="${BATCH_SIZE:-128}"',
        'export PRECISION="${PRECISION:-fp32}"',  # given by the user
    ):
        assert line in printed.out.splitlines()
    assert "best edp of" in printed.err
    assert "(senergy-sweep-new.json, " in printed.err
    assert "no place for" not in printed.err
    assert "2 runs); time -20 %, energy -20 %" in printed.err
    assert "not used: senergy-sweep-broken.json" in printed.err


def test_a_rendered_script_can_be_swept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RENDER, "-o", "train.sh"]) == 0
    assert main(["sweep", "train.sh", "--preset", "pytorch-ddp", "--machine", "2", "--dry-run"]) == 0
    assert "THREADS_PER_PROCESS=1 " in capsys.readouterr().out


def test_the_slowdown_limit_is_relative_to_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    state = save_sweep("senergy-sweep-train.json", best=BEST)
    for run in state.runs:
        if run.time_s == 8.0:
            run.time_s = 12.0
    states.save(state, Path("senergy-sweep-train.json"))
    assert main([*RENDER, "--best", "energy", "--slowdown", "30"]) == 0
    assert "time +20 %" in capsys.readouterr().err
    assert main([*RENDER, "--best", "energy", "--slowdown", "10"]) == 0
    assert "time +0 %" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([*RENDER, "--best", "edp"], 6, "or measure it with senergy sweep --preset"),
        ([*RENDER, "--best", "edp", "--sweep", "absent.json"], 6, "absent.json"),
        ([*RENDER, "--best", "edp", "--sweep", "energy.toml"], 2, "is not the state of a sweep"),
        ([*RENDER, "--sweep", "energy.toml"], 2, "given without --best"),
        (
            ["template", "render", "gpu", "--set", "command=x", "--best", "edp", "--sweep", "energy.toml"],
            2,
            "has no variable that a sweep determines",
        ),
    ],
)
def test_errors_are_one_line(arguments, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_sweep("senergy-sweep-other.json", "other.py")
    assert main(arguments) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if "note:" not in line]
    assert len(lines) == 1
    assert text in lines[0]


def test_a_named_sweep_of_another_program_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    save_sweep("mine.json", "other.py", best={"env.PROCESSES": "4", "sbatch.cpus-per-task": "4"})
    assert main([*RENDER, "--best", "edp", "--sweep", "mine.json"]) == 0
    assert 'PROCESSES="${PROCESSES:-4}"' in capsys.readouterr().out
