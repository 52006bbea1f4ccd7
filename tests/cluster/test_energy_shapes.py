"""How time, power and EDP of `senergy acct` change with policies and caps, for both kinds of work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.timeout(900)]

ATTEMPTS = 4
LAUNCH_SLACK_S = 1.5
"""Time that the launch of one job may take longer than another's."""
CAPS = (150, 200, 250, 300, 350, 400)
NUMPY_LOOP = """\
import sys, numpy
a = numpy.random.default_rng(0).random((240, 240))
for _ in range(int(sys.argv[1])):
    a = (a @ a) % 1.0
"""


Runs = dict[str, dict]
_results: dict[Path, Runs] = {}


def judge(lab: LabDriver, names: Callable[[str], bool], check: Callable[[Runs], None]) -> None:
    """Check what acct says of the jobs with these names.

    The work of a job is exact, but a machine with other things to do takes longer to launch one than another,
    and to run a real program. That can only add time and energy: if a check fails, the jobs run again, and of
    each its shortest run counts.
    """
    best = _results.setdefault(lab.layout.root, {})
    if not best:
        best |= _run(lab, lambda name: True)
    for _ in range(ATTEMPTS - 1):
        try:
            return check(best)
        except AssertionError as error:
            print(f"again, for {error}")
        for name, run in _run(lab, names).items():
            best[name] = min(run, best[name], key=lambda run: run["elapsed_s"])
    return check(best)


def _run(lab: LabDriver, names: Callable[[str], bool]) -> Runs:
    """Run jobs at once, so that the nodes work side by side; what acct says, by name."""
    program = lab.layout.root / "numpy_loop.py"
    program.write_text(NUMPY_LOOP)
    chosen = [job for job in _jobs(program) if names(job[0])]
    jobs = {name: lab.sbatch(command, *options) for name, command, options in chosen}
    for job in jobs.values():
        assert lab.wait(job, timeout=400) == "COMPLETED"
    found = {job["job_id"]: job for job in judges.acct(lab, *jobs.values())}
    return {name: found[job] for name, job in jobs.items()}


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
    def check(runs: Runs) -> None:
        slow, fast = runs[f"{node} gemm powersave"], runs[f"{node} gemm performance"]
        assert slow["elapsed_s"] >= 1.5 * fast["elapsed_s"]
        assert (slow["quality"], fast["quality"]) == ("measured", "measured")  # the whole node is one job's
        assert package_watts(slow) <= 0.75 * package_watts(fast)
        slow, fast = runs[f"{node} triad powersave"], runs[f"{node} triad performance"]
        assert slow["elapsed_s"] < 1.07 * fast["elapsed_s"] + LAUNCH_SLACK_S

    judge(lab, lambda name: name.startswith(node), check)


def test_edp_over_gpu_caps_has_the_shape_of_thesis_figure_6_5(lab: LabDriver):
    def check(runs: Runs) -> None:
        gemm = {cap: runs[f"gemm {cap}"] for cap in CAPS}
        triad = {cap: runs[f"triad {cap}"] for cap in CAPS}
        assert gemm[200]["elapsed_s"] > 1.4 * gemm[400]["elapsed_s"]
        assert triad[200]["elapsed_s"] < 1.05 * triad[400]["elapsed_s"] + LAUNCH_SLACK_S
        assert min(CAPS, key=lambda cap: gemm[cap]["edp_joule_seconds"]) in (300, 350)
        assert min(CAPS, key=lambda cap: triad[cap]["edp_joule_seconds"]) == 200

    judge(lab, lambda name: name.split()[0] in ("gemm", "triad"), check)


def test_a_real_program_shows_the_same_direction(lab: LabDriver):
    def check(runs: Runs) -> None:
        slow, fast = runs["numpy powersave"], runs["numpy performance"]
        assert slow["elapsed_s"] >= 1.5 * fast["elapsed_s"]
        assert (slow["quality"], fast["quality"]) == ("measured", "measured")  # the whole node is one job's
        assert package_watts(slow) <= 0.75 * package_watts(fast)

    judge(lab, lambda name: name.startswith("numpy"), check)
