"""Tests of the settings that training programs read from their environment variables."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from slurm_energy.errors import UsageError
from slurm_energy.sweep.preset_files import load_preset
from slurm_energy.training import environment
from slurm_energy.tuning.sweep.factors import variable_of
from slurm_energy.tuning.sweep.preset import configurations


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the module PyTorch by a stand-in that records the settings which a program makes."""
    calls: dict[str, object] = {}
    module = SimpleNamespace(
        calls=calls,
        float64="float64",
        bfloat16="bfloat16",
        set_num_interop_threads=lambda count: calls.update(inter_op=count),
        set_default_dtype=lambda kind: calls.update(dtype=kind),
        autocast=lambda device, kind: (device, kind),
        __config__=SimpleNamespace(parallel_info=lambda: "ATen parallel backend: OpenMP\n"),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_settings_are_applied(torch: SimpleNamespace) -> None:
    settings = environment.apply(
        {
            "BATCH_SIZE": "128",
            "WORLD_SIZE": "4",
            "INTEROP_THREADS": "3",
            "PRECISION": "bf16",
            "TORCH_BACKEND": "openmp",
        }
    )
    assert (settings.batch_size, settings.processes) == (32, 4)
    assert torch.calls == {"inter_op": 3}
    assert settings.autocast() == ("cpu", "bfloat16")
    environment.apply({"PRECISION": "fp64"})
    assert torch.calls["dtype"] == "float64"
    assert environment.read_settings({}) == environment.TrainingSettings()
    with environment.read_settings({}).autocast():
        pass


@pytest.mark.parametrize(
    "variables",
    [
        {"BATCH_SIZE": "0"},
        {"BATCH_SIZE": "5", "WORLD_SIZE": "2"},
        {"PRECISION": "fp8"},
        {"INTEROP_THREADS": "many"},
        {"TORCH_BACKEND": "tbb"},
        {"TORCH_BACKEND": "native"},
    ],
)
def test_invalid_settings_are_one_line(torch: SimpleNamespace, variables: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        environment.apply(variables)
    assert "\n" not in str(caught.value)
    assert not torch.calls


def test_a_pool_that_has_started_is_an_error(torch: SimpleNamespace) -> None:
    def started(count: int) -> None:
        raise RuntimeError("pool has started")

    torch.set_num_interop_threads = started
    with pytest.raises(UsageError, match=r"call apply\(\) first"):
        environment.apply({"INTEROP_THREADS": "2"})


@pytest.mark.parametrize("name", ["pytorch", "pytorch-ddp"])
def test_every_variable_of_the_presets_is_read(name: str, torch: SimpleNamespace) -> None:
    machine = {"machine_cores": 4, "machine_threads_per_core": 2}
    preset = load_preset(name).with_values("backend", "openmp").with_values("inter-op", "2")
    variables = {variable_of(key): value for key, value in configurations(preset, machine).settings[0]}
    read: set[str] = set()

    class Recorder(dict):  # type: ignore[type-arg]
        def get(self, key, default=None):
            read.add(key)
            return super().get(key, default)

    environment.apply(Recorder({key: value for key, value in variables.items() if key and value}))
    elsewhere = {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"}  # read by the OpenMP runtime
    elsewhere |= {
        "SRUN_CPUS_PER_TASK",
        "PROCESSES",
        "THREADS_PER_PROCESS",
    }  # read by srun and by the batch script
    elsewhere |= {"MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}  # read by glibc
    assert set(variables) - {None} - elsewhere <= read
