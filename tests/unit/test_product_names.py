"""Tests of the function that compares product names of processors and GPUs.

The names are those that NVML and AMD SMI report.
"""

from __future__ import annotations

import pytest

from slurm_energy.config import Config, EdpEntry
from slurm_energy.devices.product_names import gpu_product_words, matches_cpu, matches_gpu
from slurm_energy.errors import NotFoundError
from slurm_energy.oracle.hardware.hardware_files import find_hardware
from slurm_energy.policies.edp_table import PUBLISHED, cpu_entry, gpu_entry

GPUS = """\
Quadro RTX 6000
Quadro RTX 6000 with Max-Q Design
Quadro RTX 8000
NVIDIA RTX 6000 Ada Generation
NVIDIA RTX 4000 SFF Ada Generation
NVIDIA RTX PRO 6000 Blackwell Server Edition
NVIDIA RTX A6000
NVIDIA RTX A4000
NVIDIA A100-SXM4-40GB
NVIDIA A100-SXM4-80GB
A100-SXM4-40GB
NVIDIA A100-PCIE-40GB
NVIDIA A100 80GB PCIe
NVIDIA A100X
NVIDIA A100-SXM4-40GB MIG 1g.5gb
GRID A100X-40C
NVIDIA A10
NVIDIA A10G
NVIDIA A16
NVIDIA A30
NVIDIA A40
NVIDIA H100 PCIe
NVIDIA H100 80GB HBM3
NVIDIA H100 NVL
NVIDIA H200
NVIDIA H200 NVL
NVIDIA GH200 480GB
NVIDIA B200
NVIDIA GB200
NVIDIA L4
NVIDIA L40
NVIDIA L40S
Tesla V100-SXM2-16GB
Tesla V100-SXM2-32GB
Tesla V100-PCIE-16GB
Tesla V100S-PCIE-32GB
Tesla P100-PCIE-16GB
Tesla P100-SXM2-16GB
Tesla T4
NVIDIA T400 4GB
NVIDIA GeForce RTX 2080
NVIDIA GeForce RTX 2080 Ti
NVIDIA GeForce RTX 2080 SUPER
NVIDIA GeForce RTX 4090
NVIDIA GeForce RTX 4090 D
NVIDIA GeForce RTX 4090 Laptop GPU
NVIDIA TITAN V
AMD Instinct MI100
AMD Instinct MI210
AMD Instinct MI250X
AMD INSTINCT MI250 (MCM) OAM AC MBA
AMD Instinct MI300X
AMD Instinct MI300A
AMD Instinct MI250X / MI250""".splitlines()

SAME = {
    "RTX 6000": {"Quadro RTX 6000"},
    "Quadro RTX 6000": {"Quadro RTX 6000"},
    "RTX 6000 Ada": {"NVIDIA RTX 6000 Ada Generation"},
    "nvidia_rtx_6000_ada_generation": {"NVIDIA RTX 6000 Ada Generation"},
    "RTX PRO 6000 Blackwell Server Edition": {"NVIDIA RTX PRO 6000 Blackwell Server Edition"},
    "A6000": {"NVIDIA RTX A6000"},
    "RTX A4000": {"NVIDIA RTX A4000"},
    "A4000": {"NVIDIA RTX A4000"},
    "A40": {"NVIDIA A40"},
    "A10": {"NVIDIA A10"},
    "A100": {name for name in GPUS if "A100-" in name or "A100 " in name} - {GPUS[14]},
    "A100-SXM4": {"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB"},
    "A100-SXM4-80GB": {"NVIDIA A100-SXM4-80GB"},
    "nvidia a100 80gb": {"NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"},
    "A100 PCIe": {"NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"},
    "A100X": {"NVIDIA A100X"},
    "H100": {"NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"},
    "H100 PCIe": {"NVIDIA H100 PCIe"},
    "H200": {"NVIDIA H200", "NVIDIA H200 NVL"},
    "GH200": {"NVIDIA GH200 480GB"},
    "B200": {"NVIDIA B200"},
    "L4": {"NVIDIA L4"},
    "L40": {"NVIDIA L40"},
    "L40S": {"NVIDIA L40S"},
    "V100": {"Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB"},
    "Tesla V100S": {"Tesla V100S-PCIE-32GB"},
    "P100": {"Tesla P100-PCIE-16GB", "Tesla P100-SXM2-16GB"},
    "T4": {"Tesla T4"},
    "RTX 2080": {"NVIDIA GeForce RTX 2080"},
    "RTX 2080 Ti": {"NVIDIA GeForce RTX 2080 Ti"},
    "GeForce RTX 4090": {"NVIDIA GeForce RTX 4090"},
    "MI250X": {"AMD Instinct MI250X"},
    "MI250": {"AMD INSTINCT MI250 (MCM) OAM AC MBA"},
    "Instinct MI300X": {"AMD Instinct MI300X"},
    "MI300": set(),
    "A": set(),
    "6000": {"Quadro RTX 6000"},
    "Instinct": {name for name in GPUS if "instinct" in name.lower()},
    "": set(GPUS),
}


@pytest.mark.parametrize("product", SAME)
def test_a_product_is_matched_by_words(product: str) -> None:
    assert {name for name in GPUS if matches_gpu(product, name)} == SAME[product]


def test_every_product_is_itself() -> None:
    for name in GPUS:
        assert matches_gpu(name, name) and matches_gpu(name.lower().replace(" ", "_"), name)


def test_the_shipped_table_gives_its_figures_to_the_measured_products_alone() -> None:
    a100 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB")
    for model, expected in (
        (None, {}),
        ("gemm", dict.fromkeys(a100, 300.0)),
        ("xception", {"Quadro RTX 6000": 170.0}),
    ):
        found = {name: gpu_entry(Config(), "", name, model) for name in GPUS}
        assert {name: entry.gpu_cap_watts for name, entry in found.items() if entry} == expected


CPUS = (
    "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz",
    "Intel(R) Xeon(R) Platinum 8358P CPU @ 2.60GHz",
    "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz",
    "Intel(R) Xeon(R) CPU E5-2690 0 @ 2.90GHz",
    "AMD EPYC 7513 32-Core Processor",
    "AMD EPYC 7513P 32-Core Processor",
    "AMD EPYC 75131 32-Core Processor",
)


@pytest.mark.parametrize(
    ("product", "names"),
    [
        ("Platinum 8358", {CPUS[0]}),
        ("Xeon(R) Platinum 8358P", {CPUS[1]}),
        ("E5-2690", {CPUS[3]}),
        ("Xeon E5-2690 v4", {CPUS[2]}),
        ("EPYC 7513", {CPUS[4]}),
        ("EPYC", set(CPUS[4:])),
        ("8358", {CPUS[0]}),
        ("835", set()),
        ("", set(CPUS) - {CPUS[2]}),
    ],
)
def test_a_processor_is_matched_by_words(product: str, names: set[str]) -> None:
    assert {name for name in CPUS if matches_cpu(product, name)} == names


def test_the_table_of_another_processor_is_not_used() -> None:
    for name in CPUS:
        entry = cpu_entry(Config(), name, (), "gemm")
        assert (entry is not None) == (name in (CPUS[0], CPUS[4])), name


def test_an_entry_for_any_gpu_and_one_for_a_product() -> None:
    any_gpu, a100 = EdpEntry(gpu_cap_watts=90), EdpEntry(gpu="A100", gpu_cap_watts=250)
    config = Config(edp=(any_gpu, a100))
    assert gpu_entry(config, "", "NVIDIA L4", None) == any_gpu
    assert gpu_entry(config, "", "NVIDIA A100X", None) == any_gpu
    assert gpu_entry(config, "", "NVIDIA A100 80GB PCIe", None) == a100
    assert all(entry.cpu or entry.gpu for entry in PUBLISHED)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a40", "a40-48gb"),
        ("nvidia_a40", "a40-48gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("nvidia_a100-sxm4-40gb", "a100-sxm4-40gb"),
        ("nvidia_h100_80gb_hbm3", "h100-sxm5-80gb"),
        ("tesla_v100-sxm2-32gb", "v100-sxm2-32gb"),
        ("quadro_rtx_6000", "rtx6000-24gb"),
        ("nvidia_l40s", "l40s-48gb"),
        ("AMD Instinct MI250X", "mi250x-128gb"),
        ("a4000", None),
        ("nvidia_rtx_a4000", None),
        ("nvidia_rtx_6000_ada_generation", None),
        ("nvidia_a100x", None),
        ("nvidia_h100_pcie", None),
        ("nvidia_gh200_480gb", None),
        ("nvidia_l4", None),
        ("tesla", None),
        ("nvidia", None),
    ],
)
def test_kinds_of_the_oracle_by_the_names_of_drivers_and_slurm(written: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(NotFoundError):
            find_hardware(written)
    else:
        assert find_hardware(written).name == name


def test_words_of_a_product() -> None:
    assert gpu_product_words("NVIDIA RTX 6000 Ada Generation") == {"6000", "ada"}
    assert gpu_product_words("Tesla") == frozenset()
