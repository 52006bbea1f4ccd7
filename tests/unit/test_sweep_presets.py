"""Tests of the presets of `senergy sweep`, which name the configurations of a kind of program.

The tests check expressions, configurations, command-line options and conflicts with the script.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.cli import main as cli
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.slurm.node_topology import NodeTopology, parse_topology, read_topology
from slurm_energy.sweep.preset_files import load_preset, preset_names
from slurm_energy.sweep.state import programs_of
from slurm_energy.tuning.sweep.design import SweepPoint, build_points
from slurm_energy.tuning.sweep.expression import evaluate
from slurm_energy.tuning.sweep.factors import parse_factor
from slurm_energy.tuning.sweep.preset import configurations, parse_preset
from slurm_energy.tuning.sweep.requested_settings import requested_settings

SCRIPT = "#!/bin/bash\n#SBATCH --cpus-per-task=8\nsrun torchrun --nproc-per-node=$PROCESSES src/train.py\n"
PRESET = b"""
summary = "two pools"
needs = "nothing"
[counts]
cores = ["machine_cores", "machine_cores // 2"]
threads = ["cores", "2 * cores"]
[words]
mode = ["a", "b"]
[settings]
"sbatch.cpus-per-task" = "cores"
"env.POOL" = "threads"
"env.MODE" = "mode if cores > 1 else none"
[[rules]]
require = "threads <= machine_cores"
reason = "too many threads"
[knobs]
cpu-freq = "1000..2000:1000"
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * cores // 3 + 1", 3),
        ("max(cores, 7) - min(cores, 2)", 5),
        ("'x' if cores == 4 and not 0 else none", "x"),
        ("cores % 2 != 0 or cores >= 5", False),
        ("none", None),
    ],
)
def test_expressions(text: str, value: object) -> None:
    assert evaluate(text, {"cores": 4}) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "cores +", "coers", "1 // 0", "'a' * 9", "2 ** 9", "cores.real", "[1]", "1 < 2 < 3", "9" * 13,
        "__import__('os')", "min('a')", "-cores", "1+" * 150 + "1", "min()",
    ],
)  # fmt: skip
def test_other_expressions_are_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate(text, {"cores": 4})
    assert "\n" not in str(caught.value)


@examples(20)
@given(st.text("c1 +(<'\n\x00\ud800", max_size=8))
def test_any_text_is_a_value_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        evaluate(text, {"cores": 4})


def test_only_feasible_configurations_without_duplicates() -> None:
    preset = parse_preset(PRESET, "p.toml")
    result = configurations(preset, {"machine_cores": 2})
    assert [tuple(value for _, value in settings) for settings in result.settings] == [
        ("2", "2", "a"),
        ("2", "2", "b"),
        ("1", "1", None),
        ("1", "2", None),
    ]
    assert result.refused == {"too many threads": 2}
    with pytest.raises(UsageError, match=r"no combination is feasible \(8 x too many threads\)"):
        configurations(preset.with_values("threads", "3,cores*9"), {"machine_cores": 2})


@pytest.mark.parametrize("name", preset_names())
@examples(10)
@given(cores=st.integers(1, 256), threads=st.integers(1, 4))
def test_shipped_presets_fit_every_machine(name: str, cores: int, threads: int) -> None:
    preset = load_preset(name)
    result = configurations(preset, {"machine_cores": cores, "machine_threads_per_core": threads})
    for settings in result.settings:
        values = dict(settings)
        cpus = int(values["sbatch.cpus-per-task"] or 0)
        assert 1 <= int(values.get("env.PROCESSES") or 1) * int(values["env.OMP_NUM_THREADS"] or 0) <= cpus
        assert cpus <= cores * threads
        assert (values["sbatch.threads-per-core"] is None) == (threads == 1)
    reference = dict(result.settings[0])
    assert reference["env.OMP_NUM_THREADS"] == str(cores), "the reference uses every core"


def test_configurations_are_combined_with_factors() -> None:
    own = configurations(parse_preset(PRESET, "p"), {"machine_cores": 2}).settings
    points = build_points([parse_factor("cpu-freq", "1000")], configurations=own)
    assert len(points) == 1 + len(own)
    assert str(points[0]) == "sbatch.cpus-per-task=2 env.POOL=2 env.MODE=a cpu-freq=none"
    assert [point.policy for point in points] == ["monitor"] + ["cap"] * len(own)


@pytest.mark.parametrize(
    "text",
    [
        b"x = ", b"\xff", b"other = 1", b'summary = "a"', b"counts = 1", b"[counts]\nA = 1",
        PRESET + b"[more]", PRESET.replace(b'"a", "b"', b'"a b"'), PRESET.replace(b'"env.POOL"', b'"POOL"'),
        PRESET.replace(b"cpu-freq", b"cpu"), PRESET.replace(b'reason = "too many threads"', b""),
        PRESET.replace(b'["cores", "2 * cores"]', b"[]"),
        PRESET.replace(b'["cores", "2 * cores"]', b"[true]"),
    ],
)  # fmt: skip
def test_invalid_presets_are_one_line(text: bytes) -> None:
    with pytest.raises(UsageError, match=r"^p\.toml") as caught:
        parse_preset(text, "p.toml")
    assert "\n" not in str(caught.value)


def test_topology_of_the_nodes() -> None:
    calls = []

    def run(command):
        calls.append(command)
        return "2 14 2\n2 14 2\n"

    assert read_topology({"partition": "cpu", "nodelist": "n[1-2]"}, run) == NodeTopology(28, 2, 2)
    assert calls[0][-2:] == ["--partition=cpu", "--nodes=n[1-2]"]
    with pytest.raises(UsageError, match="different numbers of cores"):
        read_topology({}, lambda command: "1 4 1\n1 8 1\n")
    with pytest.raises(NotFoundError):
        read_topology({}, lambda command: "")
    assert parse_topology("28x2", "--machine") == NodeTopology(28, 2)
    for text in ("0", "4x", "x2", "4x9", "a"):
        with pytest.raises(UsageError):
            parse_topology(text, "--machine")


def test_requested_settings() -> None:
    point = SweepPoint(
        (
            ("sbatch.cpus-per-task", "2"),
            ("env.A", "x y"),
            ("gpu-cap", "200"),
            ("threads", "2"),
            ("env.B", None),
        )
    )
    assert requested_settings(point).lines() == [
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --energy-gpu-cap=200",
        "#SBATCH --energy-policy=cap",
        "export A='x y'",
        "export OMP_NUM_THREADS=2",
    ]


def test_programs_of_a_script() -> None:
    assert programs_of(SCRIPT.encode() + b"python3 x.pyc a/train.py b-2.py") == ("train.py", "b-2.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "mine.toml").write_bytes(PRESET)
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert cli.main(["sweep", "train.sh", "--dry-run", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_dry_run_shows_the_configurations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = dry_run(capsys, "--preset", "pytorch-ddp", "--machine", "2", "--vary", "inter-op=3")
    assert shown["preset"] == "pytorch-ddp"
    assert shown["refused"]["more threads per core than the node has"] > 0
    first = shown["commands"][0]
    assert first.startswith("SRUN_CPUS_PER_TASK=2 PROCESSES=1 OMP_NUM_THREADS=2 THREADS_PER_PROCESS=2 ")
    assert " INTEROP_THREADS=3 " in first
    assert " --cpus-per-task=2 " in first, "the preset replaces the option of the script"
    assert {point["env.PROCESSES"] for point in shown["points"]} == {"1", "2"}


def test_options_replace_choices_of_the_preset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--batch-size", "8", "--threads", "1", "--precision", "bf16", "--vary", "threads-per-core=1"]
    points = dry_run(capsys, "--preset", "pytorch", "--machine", "1", *arguments)["points"]
    assert {point["env.BATCH_SIZE"] for point in points} == {"8"}
    assert {point["env.PRECISION"] for point in points} == {"bf16"}
    own = dry_run(capsys, "--preset", "./mine.toml", "--machine", "1", "--threads", "1")["points"]
    assert [point["cpu-freq"] for point in own] == [None, "1000", "2000"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--preset", "pytroch", "--machine", "2"], "pytorch"),
        (["--preset", "absent.toml", "--machine", "2"], "absent.toml"),
        (["--vary", "cores=2", "--cap", "100"], "without --preset"),
        (["--machine", "2", "--cap", "100"], "without --preset"),
        (["--preset", "openmp", "--machine", "2", "--vary", "colour=1"], "no such choice"),
        (["--preset", "openmp", "--machine", "2", "--vary", "cores"], "CHOICE=VALUE"),
        (["--preset", "openmp", "--machine", "2", "--best", "speed"], "is no metric"),
        (["--preset", "openmp", "--machine", "2", "--", "--cpus-per-task=4"], "set a factor of the sweep"),
        (["--preset", "openmp", "--machine", "2", "--env", "OMP_NUM_THREADS=1"], "given twice"),
    ],
)
def test_errors_of_presets_are_one_line(folder: Path, arguments, text, capsys) -> None:
    command = ["sweep", "train.sh", "--dry-run", *arguments]
    assert cli.main(command) in (2, 6)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error


def test_a_script_that_overwrites_a_factor_is_refused(folder: Path, capsys) -> None:
    path = folder / "train.sh"
    path.write_text(SCRIPT + "export OMP_NUM_THREADS=4\n")
    assert cli.main(["sweep", "train.sh", "--dry-run", "--threads", "1,2"]) == 2
    assert "line 4 sets OMP_NUM_THREADS" in capsys.readouterr().err
    path.write_text(SCRIPT + 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"\n')
    assert cli.main(["sweep", "train.sh", "--dry-run", "--threads", "1,2"]) == 0
