"""Tests of the predictions of training jobs, and of the command `senergy predict`.

The tests cover predictions of many jobs at once, their 90 % ranges, power limits, objectives such as EDP,
and the printed table.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy", reason="predictions need numpy")

from slurm_energy.cli import main as cli  # noqa: E402
from slurm_energy.errors import ConfigError, UsageError  # noqa: E402
from slurm_energy.oracle.calibration_files import load_calibration, save_calibration  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware  # noqa: E402
from slurm_energy.oracle.memory_footprint import footprint_bytes  # noqa: E402
from slurm_energy.oracle.objectives import eds, first_minimum, pareto_front  # noqa: E402
from slurm_energy.oracle.prediction import PredictionRequest, PredictionSource  # noqa: E402
from slurm_energy.oracle.step_prediction import device_of  # noqa: E402
from slurm_energy.oracle.training.ensemble import device_sample_s, members  # noqa: E402
from slurm_energy.oracle.training.parameters import Calibration, Scalars, Spread, Theta  # noqa: E402
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle  # noqa: E402
from slurm_energy.oracle.workload import find_optimizer, find_profile  # noqa: E402
from slurm_energy.oracle.workload.profile_files import save_profile  # noqa: E402

RESNET, BERT, A100, A40 = (
    find_profile("resnet50"), find_profile("bert-base"), find_hardware("a100"), find_hardware("a40"),
)  # fmt: skip
ROWS = [
    (RESNET, A100, "bf16", 128.0, 1.0, 1e6, np.inf),
    (BERT, A40, "tf32", 16.0, 4.0, 1e5, 150.0),
    (RESNET, A100, "bf16", 128.0, 1.0, 1e6, 200.0),
    (RESNET, A40, "fp32", 64.0, 2.0, 1e6, np.inf),
]
PLAIN = TrainingOracle(Calibration)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def senergy(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(words: str, *more: str) -> tuple[int, str, str]:
        code = cli.main(["predict", *words.split(), *more])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_many_predictions_equal_single_ones() -> None:
    together = PLAIN.predict_many(TrainingAlternatives.of(ROWS))
    for place, row in enumerate(ROWS):
        alone = PLAIN.predict_many(TrainingAlternatives.of([row]))
        for name in (
            "step_s",
            "duration_s",
            "power_watts",
            "energy_joules",
            "clock",
            "footprint_bytes",
            "fits",
        ):
            assert getattr(together, name)[place] == pytest.approx(getattr(alone, name)[0])


def test_no_alternatives_give_no_predictions() -> None:
    assert len(PLAIN.predict_many(TrainingAlternatives.of([])).step_s) == 0


def test_time_power_and_energy_are_consistent() -> None:
    result = PLAIN.predict_many(TrainingAlternatives.of(ROWS))
    assert result.energy_joules == pytest.approx(result.power_watts * result.duration_s)
    updates = np.array([1e6 / 128, 1e5 / 64, 1e6 / 128, 1e6 / 128])
    assert result.duration_s == pytest.approx(updates * result.step_s)
    assert A40.tdp_watts < result.power_watts[1] <= 4 * 150.0
    assert result.power_watts[2] <= 200.0 < result.power_watts[0] <= A100.tdp_watts
    assert result.clock[2] < result.clock[0] == 1.0


@given(st.sampled_from([RESNET, BERT]), st.integers(1, 512), st.integers(1, 64), st.floats(100, 400))
def test_predictions_stay_physical(profile: Any, batch: int, gpus: int, cap: float) -> None:
    result = PLAIN.predict_many(TrainingAlternatives.of([(profile, A100, "bf16", batch, gpus, 1e6, cap)]))
    assert 0 < result.step_s[0] < 1e4
    assert 0 < result.power_watts[0] <= gpus * A100.tdp_watts
    flops = (profile.gemm_flops_forward.at(batch) + profile.conv_flops_forward.at(batch)) * 2.5
    assert result.step_s[0] > flops / A100.matrix_flops_per_s("bf16")


def test_more_gpus_finish_sooner_but_not_in_proportion() -> None:
    rows = [(BERT, A40, "tf32", 16.0, gpus, 1e6, np.inf) for gpus in (1.0, 2.0, 4.0, 8.0)]
    time = PLAIN.predict_many(TrainingAlternatives.of(rows)).duration_s
    assert list(time) == sorted(time, reverse=True)
    assert time[3] > time[0] / 8


def test_a_prediction_has_range_basis_and_notes() -> None:
    request = PredictionRequest(
        model="resnet50", gpu_kind="a100", gpus=4, batch=128, precision="bf16", gpu_cap_watts=250
    )
    prediction = PLAIN.predict(request)
    assert prediction is not None
    assert prediction.source is PredictionSource.MODEL
    assert prediction.duration_s.low < prediction.duration_s.mean < prediction.duration_s.high
    assert prediction.power_watts.high <= 4 * A100.tdp_watts
    assert prediction.notes == ("resnet50 was never measured on a100-sxm4-40gb: wide range",)
    assert prediction.observations is None


@pytest.mark.parametrize(("precision", "gpus"), [("bf16", 1), ("fp32", 1), ("tf32", 8)])
def test_a_measured_workload_has_a_wide_range_in_unmeasured_cases(precision: str, gpus: int) -> None:
    """The A40 was measured with TF32 on one GPU only."""
    job = PredictionRequest(model="resnet50", gpu_kind="a40", batch=128, precision=precision, gpus=gpus)
    measured = TrainingOracle().predict(dataclasses.replace(job, precision="tf32", gpus=1))
    other = TrainingOracle().predict(job)
    assert measured is not None and other is not None
    assert measured.duration_s.high / measured.duration_s.mean == pytest.approx(1.14)
    assert other.duration_s.high / other.duration_s.mean == pytest.approx(2.54, abs=0.01)
    assert other.power_watts.low / other.power_watts.mean == pytest.approx(0.707, abs=0.001)
    case = f"in {precision} with {gpus} GPU{'' if gpus == 1 else 's'}"
    assert "not measured" not in measured.basis
    assert f", not measured {case}: wide range; watts of the GPUs" in other.basis


def test_an_unmeasured_case_names_the_kind_of_the_devices() -> None:
    measured = {"resnet50": {"fp32": 1}}
    calibration = Calibration("epyc-7513", workloads={"resnet50": Scalars()}, measured_gpus=measured)
    job = PredictionRequest(model="resnet50", gpu_kind="epyc-7513", batch=64, gpus=2)
    prediction = TrainingOracle(lambda _name: calibration).predict(job)
    assert prediction is not None
    assert ", not measured in fp32 with 2 CPUs: wide range; watts of the CPUs" in prediction.basis


@pytest.mark.parametrize(
    "job",
    [
        PredictionRequest(gpu_kind="a100"),
        PredictionRequest(model="resnet50"),
        PredictionRequest(model="unheard-of", gpu_kind="a100"),
        PredictionRequest(model="resnet50", gpu_kind="unheard-of"),
        PredictionRequest(model="resnet50", gpu_kind="rtx6000", precision="bf16"),
    ],
)
def test_unknown_models_and_kinds_give_no_prediction(job: PredictionRequest) -> None:
    assert PLAIN.predict(job) is None


def test_a_job_cannot_make_the_oracle_read_a_file(tmp_path: Path) -> None:
    save_profile(RESNET, tmp_path / "own.json")
    assert PLAIN.predict(PredictionRequest(model=str(tmp_path / "own.json"), gpu_kind="a100")) is None
    assert PLAIN.predict(PredictionRequest(model="resnet50", gpu_kind="/etc/a.toml")) is None


def test_a_calibration_of_another_kind_is_refused(senergy: Run, tmp_path: Path) -> None:
    save_calibration(Calibration(A40.name), tmp_path / "own.toml")
    code, _, err = senergy("--model resnet50 --gpu a100 --calibration", str(tmp_path / "own.toml"))
    assert (code, "it is for a40-48gb" in err) == (2, True)


def test_a_calibration_has_effect_and_round_trips_through_a_file(tmp_path: Path) -> None:
    scalars = {"resnet50": Scalars(compute=2.0, memory=2.0)}
    own = Calibration(
        A100.name, Theta(kernel_s=1e-5), scalars, measured_spread=Spread(0.9, 1.1, 0.95, 1.05), rows=12
    )
    own = dataclasses.replace(own, measured_gpus={"resnet50": {"bf16": 8, "tf32": 1}})
    save_calibration(own, tmp_path / "own.toml")
    again = load_calibration(tmp_path / "own.toml")
    assert again == own
    prediction = TrainingOracle(lambda name: again).predict(
        PredictionRequest(model="resnet50", gpu_kind="a100")
    )
    assert prediction is not None
    assert prediction.duration_s.low == pytest.approx(0.9 * prediction.duration_s.mean)
    assert (prediction.observations, prediction.notes) == (12, ())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel_s = 8e-06", "kernel_s = 8.0", "theta.kernel_s: 8.0 is not from"),
        ("kernel_s", "kernels_s", "theta.kernels_s: unknown key"),
        ("beta_conv = 0.6", "beta_conv = nan", "theta.beta_conv: is not a number"),
        ('saturation = "sigmoid"', 'saturation = "step"', "saturation: is not one of"),
        ("time_low = 0.3\n", "", "measured_spread: a key is missing"),
        ("hardware = ", "hard = ", "hard: unknown key"),
    ],
)
def test_a_corrupt_calibration_names_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    save_calibration(Calibration("a40-48gb"), path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"bad.toml: {message}"):
        load_calibration(path)


def test_factors_of_shared_weights_apply_to_such_workloads() -> None:
    albert, bert = find_profile("albert-base-v2"), find_profile("bert-base-128")
    special = Calibration(A100.name, workloads={"shared-weights": Scalars(memory=2.8, compute=3.0)})
    rows = [(profile, A100, "fp32", 32.0, 1.0, 1e5, np.inf) for profile in (albert, bert)]
    plain = PLAIN.predict_many(TrainingAlternatives.of(rows)).step_s
    result = TrainingOracle(lambda name: special).predict_many(TrainingAlternatives.of(rows)).step_s
    assert result[0] > 2 * plain[0]
    assert result[1] == plain[1]


def test_an_unmeasured_workload_is_averaged_over_measured_ones() -> None:
    slow, slower = Scalars(compute=4.0, memory=4.0), Scalars(compute=8.0, memory=8.0)
    known = {"vgg16": slow, "bert-base": slower, "shared-weights": Scalars(memory=9.0)}

    def step(workloads: dict[str, Scalars]) -> float:
        calibration = Calibration(A100.name, workloads=workloads)
        result = TrainingOracle(lambda name: calibration).predict_many(TrainingAlternatives.of(ROWS[:1]))
        return float(result.step_s[0])

    alone = [step({"resnet50": factors}) for factors in (Scalars(), slow, slower)]
    assert step(known) == pytest.approx(float(np.prod(alone)) ** (1 / 3))


def test_clock_and_accumulation_have_effect(senergy: Run) -> None:
    words = "--model resnet50 --gpu a100 --json"
    plain, slow, heaped = (
        json.loads(senergy(words + more)[1])["alternatives"][0]
        for more in ("", " --clock 705", " --accumulate 4")
    )
    assert (plain["clock_mhz"], slow["clock_mhz"]) == (1410.0, 705.0)
    assert slow["step_s"] > plain["step_s"]
    assert slow["power_watts"]["mean"] < plain["power_watts"]["mean"]
    assert 3 * plain["step_s"] < heaped["step_s"] < 4 * plain["step_s"]
    assert heaped["duration_s"]["mean"] < plain["duration_s"]["mean"]
    code, _, err = senergy(words + " --clock 100")
    assert (code, "a100-sxm4-40gb runs at 210 to 1410 MHz" in err) == (2, True)


def test_memory_by_hand() -> None:
    ncf, adam = find_profile("ncf"), find_optimizer("adam")
    weights = 16.0 * ncf.parameters  # weight, gradient, two moments
    assert footprint_bytes(ncf, 10, "fp32", adam) == pytest.approx(
        0.8e9 + 1.05 * (weights + 4 * ncf.saved.at(10))
    )


def test_eds_by_hand() -> None:
    # k = 2: alpha = 1 / (2 E_ref), beta = 1 / (2 t_ref)
    values = eds(np.array([10.0, 12.0]), np.array([100.0, 70.0]), 10.0, 100.0, 2.0)
    assert values == pytest.approx([1.0, 0.95])
    with pytest.raises(UsageError, match="k of EDS"):
        eds(np.array([1.0]), np.array([1.0]), 1.0, 1.0, 1.0)


def test_the_first_of_equal_minima_is_selected() -> None:
    values = np.array([1.019, 1.0, 1.5])
    assert (first_minimum(values), first_minimum(values, 0.02)) == (1, 0)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=30))
def test_the_front_is_not_dominated(points: list[tuple[int, int]]) -> None:
    time, energy = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    for place, (own_time, own_energy) in enumerate(points):
        beaten = any(
            t <= own_time and e <= own_energy and (t < own_time or e < own_energy) for t, e in points
        )
        assert pareto_front(time, energy)[place] == (not beaten)


def test_the_table_matches_the_example(senergy: Run) -> None:
    words = "--model resnet50 --gpu a100 --gpus 1,4,8 --batch 128,256 --precision bf16 --cap 200..400:50"
    code, out, _ = senergy(words)
    rows = [line.split() for line in out.splitlines() if line.startswith("a100")]
    assert code == 0
    assert [row[3] for row in rows[:5]] == ["200", "250", "300", "350", "400"]
    assert len(rows) == 3 * 2 * 5
    bests = [name for row in rows for name in row[-1].split(",") if row[-1][0].isalpha()]
    assert sorted(bests) == ["edp", "eds", "energy", "time"]
    assert any("*" in row for row in rows)
    assert "basis: resnet50 on a100-sxm4-40gb" in out


def test_json_has_ranges_and_marks_the_best(senergy: Run) -> None:
    code, out, _ = senergy(
        "--model bert-base --gpu a40,rtx6000 --precision fp32 --batch 8..16:8 --cap none,150 --json"
    )
    result = json.loads(out)
    assert code == 0
    assert [item["cap_watts"] for item in result["alternatives"][:2]] == [150.0, None]
    assert len(result["alternatives"]) == 8
    assert set(result["best"]) == {"time", "energy", "edp", "eds"}
    first = result["alternatives"][0]
    assert first["duration_s"]["low"] < first["duration_s"]["mean"] < first["duration_s"]["high"]
    assert result["alternatives"][result["best"]["energy"]]["pareto"]


def test_a_batch_that_does_not_fit_is_noted_and_never_best(senergy: Run, tmp_path: Path) -> None:
    """A batch size that does not fit the GPU's memory gets a note and is never the best.

    With the default calibration, this larger batch would be faster than the smaller one.
    """
    save_calibration(Calibration("rtx6000-24gb"), tmp_path / "plain.toml")
    words = "--model resnet50 --gpu rtx6000 --batch 16,2048 --calibration"
    code, out, _ = senergy(words, str(tmp_path / "plain.toml"))
    assert code == 0
    assert "note: about " in out
    assert "rtx6000-24gb has 25.4GB: the batch may not fit" in out
    rows = [line for line in out.splitlines() if line.startswith("rtx6000")]
    assert (rows[0].split()[2], rows[1].split()[2]) == ("16", "2048")
    assert rows[0].endswith("time,energy,edp,eds")


def test_the_plot_is_a_png(senergy: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    path = tmp_path / "caps.png"
    code, _, _ = senergy("--model resnet50 --gpu a40 --cap 100..300:50", "--plot", str(path))
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "give a batch script, or --model and --gpu"),
        ("--model resnet --gpu a100", 6, "near names: resnet"),
        ("--model resnet50 --gpu a1000", 6, "near names: a100"),
        ("--model resnet50 --gpu rtx6000 --precision bf16", 2, "has no unit for it: one of fp32, fp16"),
        ("--model resnet50 --gpu a100 --precision int8", 2, "--precision: 'int8' is not one of"),
        ("--model resnet50 --gpu a100 --gpus 0", 2, "--gpus: '0': is not a whole number above 0"),
        ("--model resnet50 --gpu a100 --batch 8..4", 2, "--batch: 8..4:1: is not an ascending range"),
        ("--model resnet50 --gpu a100 --cap 15Wh", 2, "'15Wh' is not a power"),
        ("--model resnet50 --gpu a100 --cap 50", 2, "--cap: 50 W: a100-sxm4-40gb takes 100 to 400 W"),
        ("--model resnet50 --gpu a100 --cap 200..100:50", 2, "is not an ascending range"),
        ("--model resnet50 --gpu a100 --cap 100..400:1 --batch 1..999 --gpus 1..64", 2, "are too many"),
        ("--model resnet50 --gpu a100 --epochs zero", 2, "--epochs: 'zero': is not a number above 0"),
        ("--model resnet50 --gpu a100 --eds-k 1", 2, "k of EDS: 1.0 is not above 1"),
        ("--model resnet50 --gpu a100 --save x.json", 2, "--save: it requires --trace"),
        ("--trace net.txt --gpu a100", 2, "is not FILE.py:FUNCTION"),
        ("--model resnet50 --gpu nowhere.toml", 3, "nowhere.toml: No such file"),
        ("--model resnet50 --gpu a100 --calibration nowhere.toml", 3, "nowhere.toml: No such file"),
    ],
)
def test_bad_input_ends_in_one_line(senergy: Run, words: str, code: int, message: str) -> None:
    result, _, err = senergy(words)
    assert result == code
    assert message in err
    assert err.count("\n") == 1


def test_models_and_kinds_are_listed(senergy: Run) -> None:
    _, out, _ = senergy("--list")
    assert "resnet50 " in out
    assert "h200-sxm-141gb" in out


def test_a_profile_of_a_user(senergy: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; it only makes profiles")
    source, profile = tmp_path / "net.py", tmp_path / "net.json"
    source.write_text(
        "import torch\n"
        "def build():\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())\n"
        "    return net, lambda batch: (torch.empty(batch, 64),)\n",
        encoding="utf-8",
    )
    code, _, _ = senergy("--trace", f"{source}:build", "--save", str(profile))
    assert code == 0
    code, out, _ = senergy("--model", str(profile), "--gpu", "a100", "--samples", "1e6")
    assert code == 0
    assert out.startswith("net, tf32, 1,000,000 samples")
    code, _, err = senergy("--trace", f"{source}:nothing", "--gpu", "a100")
    assert (code, err.count("\n")) == (2, 1)


def test_the_hosts_time_scales_with_that_of_the_device() -> None:
    known = {"bert-base": Scalars(sample_s=0.01)}
    calibration = Calibration(A100.name, workloads=known, supply_ratios={"bert-base": 0.5})
    device, optimizer = device_of(A100, "bf16"), find_optimizer("momentum")
    neutral, carried = members(calibration, RESNET, device, "bf16", optimizer)
    busy_s = device_sample_s(calibration, RESNET, device, "bf16", optimizer, Scalars())
    assert neutral == Scalars()
    assert carried.sample_s == pytest.approx(0.5 * busy_s)
    assert members(calibration, BERT, device, "bf16", optimizer) == [known["bert-base"]]


def test_the_default_precision_is_common_to_all_kinds(senergy: Run) -> None:
    code, out, err = senergy("--model bert-base --gpu a40,rtx6000 --cap none,150,200 --epochs 3 --json")
    assert (code, err) == (0, "")
    assert json.loads(out)["precision"] == "fp32"
    assert "bert-base, tf32," in senergy("--model bert-base --gpu a40,a100")[1]


def test_the_table_has_units(capsys):
    pytest.importorskip("numpy")
    assert cli.main(["predict", "--model", "resnet50", "--gpu", "a100", "--cap", "200"]) == 0
    header, row = capsys.readouterr().out.splitlines()[2:4]
    at = header.split().index("ENERGY") - 2  # STEP ms and CAP W consist of two words each
    assert re.fullmatch(r"[0-9.]+[kMGTP]?J", row.split()[at])
    assert re.fullmatch(r"[0-9.]+[kMGTP]?J\*s", row.split()[at + 1])
