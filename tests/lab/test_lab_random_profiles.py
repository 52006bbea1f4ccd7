"""Tests of random node profiles: each seed gives the same valid profile with plausible power."""

import pytest

from slurm_energy_lab.cluster.configuration import toml_document
from slurm_energy_lab.model import KernelRequest, NodeProfile, draw_profile, load_profile
from slurm_energy_lab.model.comparison import run_kernel


@pytest.fixture
def profile_of(tmp_path):
    def profile(seed: int, gpus: bool) -> NodeProfile:
        path = tmp_path / f"{seed}-{gpus}.toml"
        path.write_text(toml_document(draw_profile(seed, gpus)))
        return load_profile(path)

    return profile


def test_a_seed_determines_the_profile():
    assert draw_profile(3, True) == draw_profile(3, True)
    assert draw_profile(3, True)["gpu"] != draw_profile(4, True)["gpu"]


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_the_packages_reach_about_their_tdp(profile_of, seed):
    profile = profile_of(seed, False)
    result = run_kernel(profile, KernelRequest("gemm", "cpu", full_speed_s=100))
    watts = result.energy_joules["cpu[0]"] / result.seconds
    assert 0.8 * profile.cpu.tdp_watts < watts < 1.2 * profile.cpu.tdp_watts
    assert profile.gpu is None


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_the_gpus_reach_about_their_default_limit(profile_of, seed):
    profile = profile_of(seed, True)
    result = run_kernel(profile, KernelRequest("gemm", "gpu", full_speed_s=100))
    watts = result.energy_joules["gpu[0]"] / result.seconds
    assert 0.7 * profile.gpu.default_limit_watts < watts <= profile.gpu.default_limit_watts * 1.001
    assert profile.gpu.min_limit_watts > profile.gpu.idle_watts
