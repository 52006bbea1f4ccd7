"""Effect of energy policies on the time, power and EDP of jobs on a real Slurm cluster.

The tests in lab/test_energy_on_a_virtual_clock compare further policies and caps.
"""

from __future__ import annotations

import json

import judges
import pytest
from lab_driver import LabDriver

from slurm_energy_lab.emulator.cpu_throttle import DEFAULT_SHARE_CORES

pytestmark = [pytest.mark.cluster, pytest.mark.root]

NUMPY_LOOP = """\
import json, sys, time, numpy
a = numpy.random.default_rng(0).random((240, 240))
begin_s, begin_cpu_s = time.monotonic(), time.process_time()
while time.process_time() < begin_cpu_s + 0.8:
    a = (a @ a) % 1.0
print(json.dumps([time.process_time() - begin_cpu_s, time.monotonic() - begin_s]))
"""


def outputs_by_policy(lab: LabDriver, node: str, command: str) -> tuple[dict, dict]:
    """Run a job under the policies `performance` and `powersave`.

    Return the output of the program and the output of `senergy acct` about the job, by policy.
    """
    printed, labels = {}, {}
    for policy in ("performance", "powersave"):
        output = lab.layout.root / f"shapes-{node}-{policy}"
        options = ["--exclusive", f"-w{node}", f"--energy-policy={policy}", "-o", str(output)]
        # The last line of the output is the program's.
        job = lab.sbatch(command, *options, env={"SENERGY_OUTPUT_LINE": "0"})
        assert lab.wait(job) == "COMPLETED"
        printed[policy] = json.loads(output.read_text().splitlines()[-1])
        (labels[policy],) = judges.acct(lab, job)
    return printed, labels


def test_powersave_costs_compute_bound_work_time_and_saves_power(lab: LabDriver):
    """The governor powersave makes compute-bound work slower and lowers its power.

    The emulator times its kernels exactly, independent of the load on this machine.
    """
    kernels, labels = outputs_by_policy(lab, "n1", "senergy lab run gemm --cpu --seconds 2 --json")
    slow, fast = kernels["powersave"], kernels["performance"]
    assert slow["seconds"] >= 1.5 * fast["seconds"]
    watts = {name: kernel["energy_joules"]["cpu"] / kernel["seconds"] for name, kernel in kernels.items()}
    assert watts["powersave"] <= 0.75 * watts["performance"]
    for name, label in labels.items():
        assert label["quality"] == "measured"  # the job has the whole node
        assert label["elapsed_s"] >= kernels[name]["seconds"]
        assert label["edp_joule_seconds"] == pytest.approx(label["energy_joules"] * label["elapsed_s"])


def test_powersave_slows_a_real_program(lab: LabDriver):
    """The policy `powersave` gives a real program less CPU time than the policy `performance`.

    The emulator limits the CPU time of the program. The test checks upper limits only, because other
    programs on a busy machine can reduce the CPU time further.
    """
    program = lab.layout.root / "numpy_loop.py"
    program.write_text(NUMPY_LOOP)
    command = f"OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python3 {program}"
    times, labels = outputs_by_policy(lab, "n4", command)
    cores = {policy: cpu_s / elapsed_s for policy, (cpu_s, elapsed_s) in times.items()}
    assert cores["performance"] <= 1.1 * DEFAULT_SHARE_CORES
    assert cores["powersave"] <= 1.1 * DEFAULT_SHARE_CORES / 1.5
    assert {label["quality"] for label in labels.values()} == {"measured"}
