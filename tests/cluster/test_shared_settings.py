"""Test of the settings of two real jobs that share a node.

cpupower must show the settings of each job on the cores that Slurm has allocated to this job.
"""

from __future__ import annotations

import re
import time

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]

NODE, CORES, SHARE = "n1", 64, 16  # an emulated node with 64 cores; each job gets 16 of them


def governors(lab: LabDriver) -> dict[int, str]:
    """Return the governor by CPU, as cpupower shows it."""
    lines = lab.exec(NODE, "cpupower", "frequency-info", "-o").stdout.splitlines()
    found = [re.match(r"CPU\s*(\d+).*-\s+(\w+)\s*$", line) for line in lines]
    return {int(match[1]): match[2] for match in found if match}


def cpus_of(lab: LabDriver, job: int) -> set[int]:
    """Return the kernel's numbers of a job's CPUs.

    scontrol numbers CPUs differently: first both threads of core 0, then both of core 1, and so
    on.
    """
    text = lab.run("scontrol", "-d", "-o", "show", "job", str(job)).stdout
    listed = re.search(r"CPU_IDs=([\d,-]+)", text)
    assert listed, text
    ids = set()
    for part in listed[1].split(","):
        first, _, last = part.partition("-")
        ids |= set(range(int(first), int(last or first) + 1))
    cores = {number // 2 for number in ids}
    assert len(cores) == SHARE and len(ids) == 2 * SHARE
    return cores | {core + CORES for core in cores}


def submit(lab: LabDriver, policy: str, *flags: str) -> int:
    return lab.sbatch("sleep 300", f"-w{NODE}", "-n1", f"-c{2 * SHARE}", f"--energy-policy={policy}", *flags)


def wait_for(look, expected) -> None:
    deadline = time.monotonic() + 60
    while (found := look()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def slow_cpus(lab: LabDriver) -> set[int]:
    """Return the CPUs that are limited to the lowest frequency."""
    lines = lab.exec(NODE, "cpupower", "frequency-info", "-o").stdout.splitlines()
    found = [re.match(r"CPU\s*(\d+)\s+\d+ kHz.*?(\d+) kHz", line) for line in lines]
    return {int(match[1]) for match in found if match and int(match[2]) == 800_000}


def test_each_job_sets_only_its_own_cores(lab: LabDriver):
    before, original = judges.settings_at_rest(lab, NODE), governors(lab)
    assert original == dict.fromkeys(range(2 * CORES), "performance")
    even, slow = submit(lab, "balanced"), submit(lab, "powersave")
    wait_for(lambda: lab.job(even)["JobState"] + lab.job(slow)["JobState"], "RUNNING" * 2)
    of_even, of_slow = (dict.fromkeys(cpus_of(lab, job), "powersave") for job in (even, slow))
    wait_for(lambda: governors(lab), original | of_even | of_slow)
    wait_for(lambda: slow_cpus(lab), set(of_slow))
    lab.run("scancel", str(even))
    lab.wait(even)
    wait_for(lambda: governors(lab), original | of_slow)  # an epilog waits a second for it and no longer
    assert slow_cpus(lab) == set(of_slow)
    lab.run("scancel", str(slow))
    lab.wait(slow)
    assert judges.settings_at_rest(lab, NODE) == before
    for job in judges.acct(lab, even, slow):
        (part,) = job["nodes"]
        assert part["settings"] and all(setting["restored"] for setting in part["settings"])
