"""Tests of emulated programs with several phases.

The tests check the progress of the programs, and host work that a lower CPU frequency slows down. They also
check that the computed steady state equals a simulated run.
"""

import pytest

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy_lab.model import KernelRequest, NodeModel, default_size, load_profile, program_names
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import SteadyState, apply_point, operating_points

A100 = load_profile("epyc-7513-a100")
SLOW_CPU = OperatingPoint(cpu_max_mhz=1500)


def run(kernel, device, point, seconds=60.0):
    node = NodeModel(A100)
    apply_point(node, point)
    run_id = node.submit(KernelRequest(kernel, device, full_speed_s=seconds), 0.0)
    node.advance(1e5)
    return node.result(run_id)


@pytest.mark.parametrize("program", program_names())
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_program_takes_its_time_at_full_speed(program, device):
    point = OperatingPoint(gpu_limit_watts=400)
    assert run(program, device, point).seconds == pytest.approx(60, rel=0.03)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("point", [UNTUNED, OperatingPoint(gpu_limit_watts=200, cpu_max_mhz=2100)])
def test_the_steady_state_equals_a_run(device, point):
    size = default_size(A100, "pipeline", device, 60)
    static = SteadyState(A100, device).static_run(workload_spec("pipeline"), size, point)
    result = run("pipeline", device, point)
    assert static.seconds == pytest.approx(result.seconds, rel=1e-6)
    assert static.joules == pytest.approx(result.energy_joules["node"], rel=1e-6)


def test_a_cpu_limit_starves_gpus_of_host_bound_work_only():
    truth = SteadyState(A100, "gpu")
    compute, memory, host = dict.fromkeys(workload_spec("pipeline").phases)
    for phase in (compute, memory):
        assert truth.phase(SLOW_CPU, phase).seconds == truth.phase(UNTUNED, phase).seconds
    assert truth.phase(SLOW_CPU, host).seconds > 2 * truth.phase(UNTUNED, host).seconds


def test_host_bound_work_keeps_the_gpu_partly_busy():
    node = NodeModel(A100)
    node.submit(KernelRequest("pipeline", "gpu", full_speed_s=300), 0.0)
    node.advance(50)
    assert node.gpu_state(0).utilisation == 1
    node.advance(290)
    assert 0.05 < node.gpu_state(0).utilisation < 0.5


def test_progress_ends_at_the_number_of_steps():
    node = NodeModel(A100)
    run_id = node.submit(KernelRequest("checkpointed", "gpu", size=2), 0.0)
    last = 0.0
    while node.result(run_id) is None:
        assert node.progress_units(run_id) >= last
        last = node.progress_units(run_id)
        node.advance(node.next_event_s())
    assert node.progress_units(run_id) == 40


def test_the_grid_of_a_gpu_program_is_joint():
    points = operating_points(A100, "gpu")
    assert points[0] == UNTUNED
    assert OperatingPoint(gpu_limit_watts=100, cpu_max_mhz=1500) in points
    assert all(point.gpu_limit_watts is None for point in operating_points(A100, "cpu"))


def test_a_bound_at_the_highest_entry_of_a_table_disables_boost():
    amd = load_profile("random-cpu-9000")
    bound = OperatingPoint(cpu_max_mhz=3000.0)
    assert bound in operating_points(amd, "cpu")
    truth = SteadyState(amd, "cpu")
    phase = workload_spec("gemm").phases[0]
    assert truth.phase(UNTUNED, phase).seconds < truth.phase(bound, phase).seconds
    assert truth.phase(bound, phase).seconds < truth.phase(OperatingPoint(cpu_max_mhz=2100.0), phase).seconds
