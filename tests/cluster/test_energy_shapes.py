"""How time, power and EDP of `senergy acct` change with policies and caps, for both kinds of work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

LAUNCH_SLACK_S = 3.0
"""Time that a loaded machine may take longer to launch one job than another; the work itself is exact."""
CAPS = (150, 200, 250, 300, 350, 400)
NUMPY_LOOP = """\
import sys, numpy
a = numpy.random.default_rng(0).random((240, 240))
for _ in range(int(sys.argv[1])):
    a = (a @ a) % 1.0
"""


_results: dict[Path, dict[str, dict]] = {}


def runs(lab: LabDriver) -> dict[str, dict]:
    """Run all tests' jobs at once, so that the nodes work side by side; what acct says, by name."""
    root = lab.layout.root
    if root not in _results:
        program = root / "numpy_loop.py"
        program.write_text(NUMPY_LOOP)
        jobs = {name: lab.sbatch(command, *options) for name, command, options in _jobs(program)}
        for job in jobs.values():
            assert lab.wait(job, timeout=400) == "COMPLETED"
        found = {job["job_id"]: job for job in judges.acct(lab, *jobs.values())}
        _results[root] = {name: found[job] for name, job in jobs.items()}
    return _results[root]


def _jobs(program: Path) -> Iterator[tuple[str, str, list[str]]]:
    for policy in ("performance", "powersave"):
        for node, kernel in itertools.product(("n1", "n3"), ("gemm", "triad")):
            command = f"senergy lab run {kernel} --cpu --seconds 8"
            yield f"{node} {kernel} {policy}", command, _options(node, policy)
        loop = f"OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python3 {program} 4000"
        yield f"numpy {policy}", loop, _options("n4", policy)
    for kernel, cap in itertools.product(("gemm", "triad"), CAPS):
        command = f"senergy lab run {kernel} --gpu --seconds 5"
        options = [*_options("n2", "cap"), "--gpus-per-node=4", f"--energy-gpu-cap={cap}"]
        yield f"{kernel} {cap}", command, options


def _options(node: str, policy: str) -> list[str]:
    return ["--exclusive", f"-w{node}", f"--energy-policy={policy}"]


def package_watts(job: dict) -> float:
    return job["component_joules"]["cpu"] / job["elapsed_s"]


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_powersave_costs_compute_bound_work_time_and_memory_bound_work_hardly_any(lab: LabDriver, node: str):
    found = {name.removeprefix(f"{node} "): run for name, run in runs(lab).items()}
    slow, fast = found["gemm powersave"], found["gemm performance"]
    assert slow["elapsed_s"] >= 1.5 * fast["elapsed_s"]
    assert (slow["quality"], fast["quality"]) == ("measured", "measured")  # the whole node is one job's
    assert package_watts(slow) <= 0.75 * package_watts(fast)
    slow, fast = found["triad powersave"], found["triad performance"]
    assert slow["elapsed_s"] < 1.07 * fast["elapsed_s"] + LAUNCH_SLACK_S


def test_edp_over_gpu_caps_has_the_shape_of_thesis_figure_6_5(lab: LabDriver):
    gemm = {cap: runs(lab)[f"gemm {cap}"] for cap in CAPS}
    triad = {cap: runs(lab)[f"triad {cap}"] for cap in CAPS}
    assert gemm[200]["elapsed_s"] > 1.4 * gemm[400]["elapsed_s"]
    assert triad[200]["elapsed_s"] < 1.05 * triad[400]["elapsed_s"] + LAUNCH_SLACK_S / 2
    assert min(CAPS, key=lambda cap: gemm[cap]["edp_joule_seconds"]) in (300, 350)
    assert min(CAPS, key=lambda cap: triad[cap]["edp_joule_seconds"]) == 200


def test_a_real_program_shows_the_same_direction(lab: LabDriver):
    slow, fast = runs(lab)["numpy powersave"], runs(lab)["numpy performance"]
    assert slow["elapsed_s"] >= 1.5 * fast["elapsed_s"]
    assert (slow["quality"], fast["quality"]) == ("measured", "measured")  # the whole node is one job's
    assert package_watts(slow) <= 0.75 * package_watts(fast)
