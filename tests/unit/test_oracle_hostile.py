"""Tests of the predictor (oracle) with invalid input.

The input is damaged files, odd scripts and odd measurements. The predictor must refuse each of them
with an error message of one line.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy", reason="predictions need numpy")
pytest.importorskip("scipy", reason="calibration needs scipy")

import measured_steps  # noqa: E402

from slurm_energy.cli import main as cli  # noqa: E402
from slurm_energy.errors import ConfigError  # noqa: E402
from slurm_energy.oracle.calibration.measurements import (  # noqa: E402
    COLUMNS,
    Measurement,
    write_measurements,
)
from slurm_energy.oracle.calibration_files import load_calibration, save_calibration  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware, load_hardware  # noqa: E402
from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun  # noqa: E402
from slurm_energy.oracle.nameplate import NameplateOracle  # noqa: E402
from slurm_energy.oracle.prediction import PredictionRequest  # noqa: E402
from slurm_energy.oracle.training.demand import demand  # noqa: E402
from slurm_energy.oracle.training.parameters import Calibration  # noqa: E402
from slurm_energy.oracle.training.saturation import SATURATIONS  # noqa: E402
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle  # noqa: E402
from slurm_energy.oracle.workload import (  # noqa: E402
    find_optimizer,
    find_profile,
    load_profile,
    profile_names,
)

Senergy = Callable[..., tuple[int, str, str]]
KINDS = [find_hardware(name) for name in ("a100", "a40", "rtx6000", "h100", "mi250x", "xeon-8358")]
HEADER = ",".join(COLUMNS) + "\n"
QUICK = "--method search --population 8 --generations 20 --polish 0 --kicks 0"


def steps(model: str = "resnet50") -> list[Measurement]:
    """Return plausible synthetic measurements of training steps.

    The time of a step is proportional to its batch size.
    """
    rows = measured_steps.grid([model], (16, 32, 64), (np.inf, 150, 200), optimizer="momentum")
    watts = [min(row.cap_watts, 280) for row in rows]
    return measured_steps.measured(rows, [row.batch * 0.003 for row in rows], watts)


@pytest.fixture
def senergy(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Senergy:
    monkeypatch.chdir(tmp_path)
    write_measurements(steps(), tmp_path / "steps.csv")

    def run(words: str) -> tuple[int, str, str]:
        code = cli.main(words.split())
        out = capsys.readouterr()
        assert out.err.count("\n") <= 1, out.err
        return code, out.out, out.err

    return run


@given(
    st.sampled_from(profile_names()),
    st.sampled_from(KINDS),
    st.integers(1, 4096),
    st.sampled_from(sorted(SATURATIONS)),
    st.integers(1, 64),
)
def test_any_network_under_any_saturation_stays_between_idle_and_design_power(
    name: str, kind: Any, batch: int, saturation: str, gpus: int
) -> None:
    caps = np.linspace(kind.min_cap_watts, kind.tdp_watts, 12)
    rows = [(find_profile(name), kind, "fp32", batch, gpus, 1e6, cap) for cap in (*caps, np.inf)]
    own = Calibration(kind.name, saturation=saturation)
    result = TrainingOracle(lambda name: own).predict_many(TrainingAlternatives.of(rows))
    idle_watts = own.theta.static_share * kind.tdp_watts * gpus
    assert np.isfinite(result.step_s).all()
    assert (np.diff(result.step_s) <= 1e-9 * result.step_s[1:]).all()  # a higher limit is never slower
    assert (result.power_watts >= idle_watts * (1 - 1e-9)).all()
    assert (result.power_watts <= kind.tdp_watts * gpus * (1 + 1e-9)).all()


def test_extrapolated_demand_is_never_negative(tmp_path: Path) -> None:
    data = find_profile("resnet50").to_json()
    data |= {"kernels_forward": [500.0, -1.0], "conv_in": [64.0, -1.0], "read_forward": [1e12, -1e10]}
    (tmp_path / "net.json").write_text(json.dumps(data))
    work = demand(load_profile(tmp_path / "net.json"), 4096.0, "fp32", find_optimizer("sgd"))
    assert (work.kernels, work.bytes_moved, work.conv_dims[1]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gemm_flops_forward", [1e300, 1e300]),
        ("read_forward", [10**400, 0]),
        ("parameters", 10**400),
        ("dataset", 3),
        ("shared_weights", "yes"),
        ("samples_per_epoch", 10**30),
    ],
)
def test_an_invalid_profile_is_refused_by_key(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "net.json").write_text(json.dumps(find_profile("ncf").to_json() | {key: value}))
    with pytest.raises(ConfigError, match=key):
        load_profile(tmp_path / "net.json")


@pytest.mark.parametrize(
    ("load", "name"),
    [(load_profile, "a.json"), (load_calibration, "a.toml"), (load_hardware, "b.toml")],
)
def test_a_deeply_nested_file_is_refused_in_one_line(load: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(("" if name == "a.json" else "x = ") + "[" * 100_000)
    with pytest.raises(ConfigError, match=name):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("pattern", "line", "key"),
    [
        ("^saturation = .*", "saturation = []", "saturation"),
        ("^basis = .*", "basis = 3", "basis"),
        ("^rows = .*", "rows = 1.5", "rows"),
        ("^rows = .*", 'rows = 1\nfitted_unix_s = "today"', "fitted_unix_s"),
        ("^rows = .*", "rows = 1\nfitted_unix_s = nan", "fitted_unix_s"),
        ("^rows = .*", "measured_gpus = 1", "measured_gpus"),
        ("^rows = .*", "measured_gpus.ncf.tf32 = 0", "measured_gpus.ncf"),
        ("^rows = .*", "measured_gpus.ncf.tf32 = true", "measured_gpus.ncf"),
        ("^time_low = .*", "time_low = -0.5", "measured_spread.time_low"),
        ("^time_low = .*", "time_low = 1.5", "measured_spread.time_low"),
        ("^power_high = .*", "power_high = 0.5", "measured_spread.power_high"),
        ("^power_high = .*", "power_high = 1e308", "measured_spread.power_high"),
        ("^kernel_s = .*", f"kernel_s = {10**400}", "theta.kernel_s"),
        ("^saturation = .*", 'saturation = "tanh"\nworkloads = 3', "workloads"),
    ],
)
def test_an_invalid_calibration_is_refused_by_key(tmp_path: Path, pattern: str, line: str, key: str) -> None:
    save_calibration(Calibration("a40-48gb"), tmp_path / "own.toml")
    text = (tmp_path / "own.toml").read_text()
    (tmp_path / "own.toml").write_text(re.sub(pattern, line, text, count=1, flags=re.MULTILINE))
    with pytest.raises(ConfigError, match=re.escape(f"own.toml: {key}")):
        load_calibration(tmp_path / "own.toml")


def test_hardware_with_zero_rates_is_refused(tmp_path: Path) -> None:
    text = (Path(load_hardware.__code__.co_filename).parent / "kinds" / "a40-48gb.toml").read_text()
    (tmp_path / "own.toml").write_text(text.replace("value = 696e9", "value = 1e-300"))
    with pytest.raises(ConfigError, match="memory_bytes_per_s"):
        load_hardware(tmp_path / "own.toml")


@pytest.mark.parametrize("damage", ["empty", "half", "bit", "array"])
def test_a_damaged_checkpoint_is_refused_in_one_line(senergy: Senergy, tmp_path: Path, damage: str) -> None:
    calibrate = f"calibrate steps.csv --gpu a40 --output own.toml --checkpoint state.npz {QUICK}"
    assert senergy(calibrate)[0] == 0
    state = tmp_path / "state.npz"
    good = state.read_bytes()
    flipped = bytes([*good[:-400], good[-400] ^ 1, *good[-399:]])
    np.save(tmp_path / "array.npy", np.zeros(3))
    array = (tmp_path / "array.npy").read_bytes()
    state.write_bytes({"empty": b"", "half": good[:-60], "bit": flipped, "array": array}[damage])
    code, _, err = senergy(calibrate)
    assert code in (0, 2) if damage == "bit" else (code, "is not a checkpoint" in err) == (2, True)


@pytest.mark.parametrize(
    "other", ["--gpu rtx6000", "--gpu a40 --saturation tanh", "--gpu a40 --start o.toml"]
)
def test_a_checkpoint_of_another_search_is_refused(senergy: Senergy, tmp_path: Path, other: str) -> None:
    assert senergy(f"calibrate steps.csv --gpu a40 --output own.toml --checkpoint s.npz {QUICK}")[0] == 0
    save_calibration(load_calibration(tmp_path / "own.toml"), tmp_path / "o.toml")
    code, _, err = senergy(f"calibrate steps.csv {other} --output own.toml --checkpoint s.npz {QUICK}")
    assert (code, "checkpoint of other measurements" in err) == (2, True)


def test_steps_without_watts_calibrate_time_only(senergy: Senergy, tmp_path: Path) -> None:
    blind = [dataclasses.replace(row, power_watts=math.nan) for row in steps()]
    write_measurements(blind, tmp_path / "steps.csv")
    code, out, _ = senergy(f"calibrate steps.csv --gpu a40 --output own.toml {QUICK}")
    assert (code, "nan" in out) == (0, False)
    spread = load_calibration(tmp_path / "own.toml").measured_spread
    assert (spread.power_low, spread.power_high) == (0.6, 1.6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("resnet50,32\n", "line 2: optimizer ''"),
        ("resnet99,32,1,fp32,momentum,,0.1,250\n", "line 2: model 'resnet99'"),
        ("resnet50,32,0.5,fp32,momentum,,0.1,250\n", "line 2: gpus"),
        ("resnet50,0.5,1,fp32,momentum,,0.1,250\n", "line 2: batch"),
    ],
)
def test_an_invalid_measurement_is_refused_by_line(
    senergy: Senergy, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "steps.csv").write_text(HEADER + line)
    code, _, err = senergy("calibrate steps.csv --gpu a40 --output own.toml")
    assert (code in (2, 6), message in err) == (True, True), err


def test_a_calibration_applies_to_a_profile_of_a_user(senergy: Senergy, tmp_path: Path) -> None:
    own = find_profile("resnet18").to_json() | {"name": "mine"}
    (tmp_path / "net.json").write_text(json.dumps(own))
    write_measurements(steps("net.json"), tmp_path / "steps.csv")
    assert senergy(f"calibrate steps.csv --gpu a40 --output own.toml {QUICK}")[0] == 0
    ask = "predict --model net.json --gpu a40 --precision fp32 --batch 32 --samples 32 --calibration own.toml"
    code, out, _ = senergy(ask + " --json")
    (prediction,) = json.loads(out)["alternatives"]
    (note,) = prediction["notes"]
    assert (code, note.startswith("9 measurements of mine on a40-48gb, otherwise as on other kinds")) == (
        0,
        True,
    )
    assert prediction["step_s"] == pytest.approx(0.096, rel=0.1)
    (tmp_path / "net.json").write_text(json.dumps(own | {"parameters": 3}))
    code, _, err = senergy(f"calibrate steps.csv --gpu a40 --output own.toml {QUICK}")
    assert (code, "another profile is called mine" in err) == (3, True)


def test_calibration_checks_its_output_before_the_search(
    senergy: Senergy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "slurm_energy.oracle.calibration.fitting.fit", lambda *_, **__: pytest.fail("searched")
    )
    for output in ("nowhere/own.toml", "."):
        code, _, err = senergy(f"calibrate steps.csv --gpu a40 --output {output}")
        assert (code, "name a file that you may write" in err) == (3, True)
    save_calibration(Calibration("a100-sxm4-40gb"), tmp_path / "a100.toml")
    code, _, err = senergy("calibrate steps.csv --gpu a40 --start a100.toml --output own.toml")
    assert (code, "it is for a100-sxm4-40gb" in err) == (2, True)


def test_a_calibration_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_calibration(Calibration("a40-48gb"), tmp_path / "own.toml")
    before = (tmp_path / "own.toml").read_bytes()

    def full(self: Path, *_: Any, **__: Any) -> None:
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left"):
        save_calibration(Calibration("a40-48gb"), tmp_path / "own.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]
    assert (tmp_path / "own.toml").read_bytes() == before


def test_kinds_are_compared_in_a_common_precision(senergy: Senergy) -> None:
    code, out, _ = senergy("predict --model bert-base --gpu a40,rtx6000 --batch 32 --cap none,150,200 --json")
    assert (code, json.loads(out)["precision"]) == (0, "fp32")
    assert json.loads(senergy("predict --model bert-base --gpu a40 --json")[1])["precision"] == "tf32"


def test_a_kind_named_twice_counts_once(senergy: Senergy) -> None:
    code, out, _ = senergy("predict --model ncf --gpu a40,a40-48gb --gpus 1,64 --json")
    few, many = json.loads(out)["alternatives"]
    assert (code, few["notes"], many["notes"]) == (
        0,
        [],
        ["64 GPUs are assumed to be linked within one node"],
    )


@pytest.mark.parametrize("words", ["--seed -1", "--population 1000000000", "--kicks -1"])
def test_impossible_search_settings_are_refused(senergy: Senergy, words: str) -> None:
    assert senergy(f"calibrate steps.csv --gpu a40 --output own.toml {words}")[0] == 2


def test_watts_of_a_socket_are_labelled_as_cpu(senergy: Senergy) -> None:
    assert "watts of the CPUs" in senergy("predict --model resnet50 --gpu xeon-8358")[1]


USERS = {
    "import_fails.py": "import nothing_of_this_name",
    "syntax.py": "def build(:",
    "raises.py": "def build(): raise RuntimeError('boom')",
    "leaves.py": "raise SystemExit(3)",
    "inputs.py": "class M:\n    named_parameters = None\ndef build(): return M(), lambda batch: 1 / 0",
    "no_module.py": "def build(): return 3, lambda batch: (batch,)",
}


@pytest.mark.parametrize("name", USERS)
def test_errors_in_a_traced_file_are_one_line(
    senergy: Senergy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def profile_module(module: Any, inputs: Callable[[int], Any], labels: Any) -> None:
        inputs(2)

    tracing = types.ModuleType("tracing")
    vars(tracing).update(ProfileLabels=lambda name: None, profile_module=profile_module)
    monkeypatch.setitem(sys.modules, "slurm_energy.oracle.workload.tracing", tracing)
    (tmp_path / name).write_text(USERS[name])
    code, _, err = senergy(f"predict --trace {name}:build")
    assert (code, "--trace: " in err) == (2, True)


def test_the_prediction_states_assumptions_and_limitations() -> None:
    ask = TrainingOracle().predict
    little = PredictionRequest(model="resnet50", gpu_kind="a40", gpus=1, nodes=1)
    prediction = ask(little)
    assert prediction is not None
    assert prediction.basis.endswith("assumed: one epoch of ImageNet-1k, 32 samples per GPU and step, tf32")
    assert prediction.notes == ()
    much = PredictionRequest(
        model="resnet50", gpu_kind="h100", gpus=16, nodes=2, time_limit_s=1.0, cap_watts=900,
        gpu_cap_watts=100, batch=64, precision="bf16", samples=1e6,
    )  # fmt: skip
    prediction = ask(much)
    assert prediction is not None
    assert "assumed" not in prediction.basis
    text = " ".join(prediction.notes)
    for part in ("the limit of 00:00:01", "one node only", "per node is ignored", "is 200 W: it is used"):
        assert part in text
    allowed = ask(
        PredictionRequest(
            **{**{name: getattr(much, name) for name in PredictionRequest.__slots__}, "gpu_cap_watts": 200}
        )
    )
    assert allowed is not None
    assert allowed.duration_s == prediction.duration_s  # senergyd sets the lowest limit that the GPU takes


def test_implausible_joules_are_ignored() -> None:
    history = History()
    for joules in (1e5, 1e300, 1e5):
        history.learn(ObservedRun(1.7e9, 1000.0, energy_joules=joules, user="ada", name="sim", nodes=1))
    prediction = HistoryOracle(history, NameplateOracle()).predict(
        PredictionRequest(user="ada", name="sim", nodes=1)
    )
    assert prediction is not None
    assert (
        prediction.observations,
        prediction.power_watts.high < 1e6,
        prediction.energy_joules.high < 1e9,
    ) == (
        3,
        True,
        True,
    )


limits = st.sampled_from([None, 60.0, 3600.0, 1e9])
runs = st.builds(
    ObservedRun,
    end=st.floats(0, 4e9),  # clocks are adjusted in steps
    duration_s=st.sampled_from([1e-9, 0.1, 60.0, 3600.0, 1e7, 3e9]),
    energy_joules=st.sampled_from([None, 0.0, 1.0, 1e6, 1e15, 1e308]),
    user=st.sampled_from(["a", "b"]),
    name=st.sampled_from(["n", None]),
    partition=st.sampled_from(["p", None]),
    nodes=st.sampled_from([None, 1, 2]),
    gpus=st.sampled_from([None, 0, 4]),
    time_limit_s=limits,
)


@given(st.lists(runs, max_size=12), limits, st.sampled_from([None, 0, 8]))
def test_any_history_gives_ordered_ranges_within_the_limit(
    learned: list[ObservedRun], limit: float | None, gpus: int | None
) -> None:
    history = History(max_keys=5)
    for run in learned:
        history.learn(run)
    request = PredictionRequest(user="a", name="n", partition="p", nodes=1, gpus=gpus, time_limit_s=limit)
    prediction = HistoryOracle(history, NameplateOracle()).predict(request)  # `Estimate` validates the order
    assert prediction is None or limit is None or prediction.duration_s.high <= limit
    assert prediction is None or np.isfinite(prediction.energy_joules.high)
