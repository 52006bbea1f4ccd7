"""Tests of workload profiles, which state the operations and memory of neural networks.

The tests compare the shipped profiles with PyTorch's own counter of operations. They also test the tracing
of networks and the files of profiles.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.errors import ConfigError, EnergyError, NotFoundError
from slurm_energy.oracle.workload import (
    Affine,
    WorkloadProfile,
    find_optimizer,
    find_profile,
    load_profile,
    profile_names,
)
from slurm_energy.oracle.workload.profile_files import save_profile

REFERENCES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "profile_references.json").read_text(encoding="utf-8")
)
WANTED = {
    "albert-base-v2", "bert-base", "bert-large", "deepspeech2", "distilbert", "llama2-7b", "ncf", "resnet50",
    "shufflenetv2", "ssd300", "tinyllama-1.1b", "unet", "vgg16", "vit-b-16",
}  # fmt: skip


def matrix_flops(profile: WorkloadProfile, batch: float) -> float:
    return profile.gemm_flops_forward.at(batch) + profile.conv_flops_forward.at(batch)


def test_the_common_models_are_shipped() -> None:
    assert set(profile_names()) >= WANTED
    families = [reference["family"] for reference in REFERENCES.values()]
    assert families.count("torchvision") + families.count("transformers") >= 10


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_agree_with_pytorchs_counter(name: str) -> None:
    """The shipped workload profiles agree with the operations that PyTorch itself counts.

    packaging/make_profiles.py recorded the reference values with torch.utils.flop_counter.
    """
    profile, reference = find_profile(name), REFERENCES[name]
    assert profile.parameters == reference["parameters"]
    assert matrix_flops(profile, reference["batch"]) == pytest.approx(reference["flops"], rel=0.01)


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_are_plausible(name: str) -> None:
    profile = find_profile(name)
    assert profile.name == name
    assert profile.trainable <= profile.parameters
    forward, backward = (
        matrix_flops(profile, 8),
        (profile.gemm_flops_backward.at(8) + profile.conv_flops_backward.at(8)),
    )
    assert 1.5 * forward < backward < 2.3 * forward
    assert profile.kernels_forward.at(8) == profile.kernels_forward.at(64) > 5
    assert min(profile.saved.at(8), profile.read_forward.at(8), profile.write_backward.at(8)) > 0


def test_spelling_variants_of_names_are_accepted() -> None:
    assert find_profile("ResNet50") is find_profile("resnet50")
    assert find_profile("vit_b_16").name == "vit-b-16"


def test_an_unknown_model_lists_similar_names() -> None:
    with pytest.raises(
        NotFoundError, match="model 'resnet5': no such workload profile: near names: resnet50"
    ):
        find_profile("resnet5")
    with pytest.raises(NotFoundError, match="optimizer 'lion'"):
        find_optimizer("lion")


def test_a_profile_round_trips_through_a_file(tmp_path: Path) -> None:
    profile = find_profile("bert-base")
    save_profile(profile, tmp_path / "copy.json")
    assert load_profile(tmp_path / "copy.json") == profile


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("saved", [1, "2"], r"saved: is not \[fixed, per sample\]"),
        ("parameters", -1, "parameters: is not a count"),
        ("optimizer", "lion", "optimizer: is not one of"),
        ("schema", 2, "schema: is not 1"),
        ("colour", 1, "colour: unknown key"),
        ("name", None, "name: is not a string"),
    ],
)
def test_a_corrupt_profile_names_file_and_key(tmp_path: Path, key: str, value: Any, message: str) -> None:
    plain = find_profile("ncf").to_json() | {key: value}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"bad.json: {message}"):
        load_profile(path)


def test_an_affine_quantity_goes_through_its_points() -> None:
    line = Affine.through((2, 14.0), (4, 24.0))
    assert (line.fixed, line.per_sample, line.at(10)) == (4.0, 5.0, 54.0)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed; it only makes profiles")


def trace(module: Any, *shape: int, dtype: Any = None) -> WorkloadProfile:
    import torch

    from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module

    return profile_module(
        module,
        lambda batch: (torch.empty(batch, *shape, dtype=dtype or torch.float32),),
        ProfileLabels("here"),
    )


def test_a_linear_layer_by_hand(torch: Any) -> None:
    """The traced operations of a linear layer equal a calculation by hand.

    The input needs no gradient, so the backward pass has only one matrix product (thesis, 4.3.4,
    `nn.Linear`).
    """
    profile = trace(torch.nn.Linear(8, 5), 8)
    assert (profile.parameters, profile.parameter_tensors) == (45, 2)
    assert profile.gemm_flops_forward == Affine(0.0, 2 * 8 * 5)
    assert profile.gemm_flops_backward == Affine(0.0, 2 * 8 * 5)
    assert profile.alu_flops_forward == Affine(0.0, 5)
    assert profile.read_forward == Affine(8 * 5 + 5, 8)
    assert profile.write_forward == Affine(0.0, 5)
    assert [profile.gemm_m.at(16), profile.gemm_n.at(16), profile.gemm_k.at(16)] == [16.0, 5.0, 8.0]
    assert profile.saved == Affine(0.0, 8)


def test_a_convolution_by_hand(torch: Any) -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.Conv2d(4, 8, 1, groups=2))
    profile = trace(layers, 3, 6, 6)
    first, second = 2 * 16 * 4 * 3 * 9, 2 * 16 * 8 * 2
    assert profile.conv_flops_forward == Affine(0.0, first + second)
    assert profile.conv_flops_backward == Affine(0.0, first + 2 * second)
    assert profile.alu_flops_forward == Affine(0.0, 8 * 16)
    assert profile.conv_pixels.at(2) == 32.0
    assert profile.conv_out.at(2) == pytest.approx((4 * first + 8 * second) / (first + second))


def test_profiles_are_linear_in_the_batch(torch: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 16),
        torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        torch.nn.GRU(16, 8, batch_first=True),
    )
    profile = trace(model, 12, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(7, 12, dtype=torch.long))
    assert matrix_flops(profile, 7) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_tracing_does_not_change_the_module(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.LSTM(4, 4), torch.nn.Identity()).eval()
    model[0].weight_hh_l0.data.fill_(0.5)
    trace(model[0], 3, 4)
    assert not model.training
    assert "forward" not in model[0].__dict__
    assert not model[0]._forward_hooks
    assert float(model[0].weight_hh_l0.detach()[0, 0]) == 0.5
    assert model[0].weight_hh_l0.device.type == "cpu"


def test_an_operator_without_handler_names_layer_and_remedy(torch: Any) -> None:
    from slurm_energy.oracle.workload import registry
    from slurm_energy.oracle.workload.operation_cost import OperationCost

    class Odd(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return torch.linalg.matrix_exp(data)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Odd())
    with pytest.raises(registry.UnknownOperationError) as caught:
        trace(model, 4, 4)
    assert caught.value.layer == "1 (Odd)"
    assert caught.value.operator.startswith("aten.linalg_matrix_exp")
    assert "handles_operator('aten.linalg_matrix_exp')" in str(caught.value)
    registry.handles_layer("Odd")(
        registry.LayerHandler(lambda layer, inputs, output: [OperationCost(forward_flops=7.0)])
    )
    try:
        assert trace(model, 4, 4).alu_flops_forward.fixed == 7.0
    finally:
        registry._layers.pop("Odd")


def test_a_model_that_depends_on_its_data_cannot_be_traced(torch: Any) -> None:
    class Curious(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return data * 2 if data.sum().item() > 0 else data

    with pytest.raises(EnergyError, match=r"layer 0 \(Curious\): cannot be traced on the meta device"):
        trace(torch.nn.Sequential(Curious()), 4)


@pytest.fixture(scope="module")
def zoo() -> Any:
    """Return the loaded script packaging/make_profiles.py, which makes the shipped workload profiles.

    The test is skipped if the packages that the script needs are not installed.
    """
    for package in ("torch", "torchvision", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; it only makes profiles")
    return runpy.run_path(str(Path(__file__).parents[2] / "packaging/make_profiles.py"), run_name="zoo")


@pytest.mark.parametrize(
    "name",
    ["resnet18", "resnet50", "vgg16", "mobilenet-v2", "vit-b-16", "swin-t", "bert-base", "distilbert", "gpt2",
     "albert-base-v2", "ncf", "deepspeech2"],
)  # fmt: skip
def test_the_counters_agree_on_newly_built_models(zoo: Any, name: str) -> None:
    import torch

    from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module

    entry = zoo["ZOO"][name]
    with torch.device("meta"):
        module = entry.build()
    profile, reference = (
        profile_module(module, entry.inputs, ProfileLabels(name)),
        zoo["reference"](module, entry),
    )
    assert profile.parameters == reference["parameters"]
    assert matrix_flops(profile, reference["batch"]) == pytest.approx(reference["flops"], rel=0.01)
