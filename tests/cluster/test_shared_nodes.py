"""Tests of the energy that is charged to each of several jobs on a shared node.

The charged energy is compared with the true energy in the emulator.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import judges
import pytest
from lab_driver import LabDriver
from test_energy_truth import TruthRecorder

from slurm_energy_lab import client

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.lab(
        profiles=["xeon-8358"],
        slurm=["SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"],
        energy={"agent": {"sampling_hz": 5.0}},
    ),
]

NODE, CORES, THREADS = "n1", 64, 2
PARTS = ("cpu", "dram", "other")
MAX_WATTS = {"cpu": 500.0, "dram": 60.0}
"""Power of the busy node, which a job is booked at most while the emulator stands still."""
PROGRAM = """\
import pathlib, sys, time
from slurm_energy_lab.job import run_in_job

folder, name, runs, seconds, pause_s = pathlib.Path(sys.argv[1]), *sys.argv[2:]
(folder / f"{name}.ready").touch()
while not (folder / "go").exists():
    time.sleep(0.5)
for _ in range(int(runs)):
    run_in_job("gemm", "cpu", full_speed_s=float(seconds))
    time.sleep(float(pause_s))
"""


@dataclass(frozen=True)
class Load:
    """Load that a job of the test puts on a node which it shares with other jobs.

    The job runs compute kernels one after the other. Without kernels, the job sleeps.

    Attributes:
        cores: number of cores of the job.
        runs: number of kernels.
        seconds: duration of one kernel if it ran on the whole node.
        pause_s: pause in seconds after each kernel.
    """

    cores: int
    runs: int = 0
    seconds: float = 0.0
    pause_s: float = 0.0


@pytest.fixture
def idle_watts(lab: LabDriver) -> dict[str, float]:
    """Wait until senergyd has learned the idle power of the node, and return the true idle power.

    The result is in watts by component of the node.
    """
    deadline = time.monotonic() + 180
    while not set(PARTS) <= set((found := judges.agent_status(lab, NODE))["idle_watts"]):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    truth = client.truth(lab.layout.emulator_socket(NODE), jobs=True)
    time.sleep(2)
    later = client.truth(lab.layout.emulator_socket(NODE), jobs=True)
    length_s = later["time"] - truth["time"]
    return {part: (later["idle_joules"][part] - truth["idle_joules"][part]) / length_s for part in PARTS}


def run_together(lab: LabDriver, loads: dict[str, Load]) -> dict[str, int]:
    """Run jobs side by side; return their ids by name.

    A job starts only when the program of the previous job runs. The compute kernels begin when all programs
    run. The measurement begins with the kernels. It excludes the starts of the jobs for three reasons. The
    duration of a start depends on the machine. A second of CPU time during a start costs a different energy
    than in a kernel. If two jobs started at once, it would be briefly unknown which of them uses the CPUs.
    """
    folder = Path(tempfile.mkdtemp(prefix="together-", dir=lab.layout.root))
    (folder / "program.py").write_text(PROGRAM)
    ids = {}
    for name, load in loads.items():
        words = (folder / "program.py", folder, name, load.runs, load.seconds, load.pause_s)
        command = " ".join(map(str, (judges.PYTHON, *words))) if load.runs else "sleep 15"
        ids[name] = lab.sbatch(command, f"-w{NODE}", "-n1", f"-c{load.cores * THREADS}", f"-J{name}")
        deadline = time.monotonic() + 90
        while load.runs and not (folder / f"{name}.ready").exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.1)
    (folder / "go").touch()
    for job in ids.values():
        assert lab.wait(job) == "COMPLETED"
    return ids


def joules(record: dict[str, Any]) -> dict[str, float]:
    """Return the energy in joules of each component in an energy record."""
    return {name: part["energy_joules"] for name, part in record["components"].items()}


def records(lab: LabDriver, ids: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Return the jobs' records on the node, by name."""
    found = {job["job_id"]: job["nodes"][0] for job in judges.acct(lab, *ids.values())}
    return {name: found[job] for name, job in ids.items()}


def caused(
    recorder: TruthRecorder, job: int, record: dict[str, Any], static_watts: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return a lower and an upper bound of the true energy of a job, for comparison with its record.

    The energy includes the job's part of the idle power. The true energy is known only at the sampling
    times of the emulated node. The bounds are its values at the last sample before and at the first
    sample after the end of the record. Both bounds are given by component.
    """
    length_s = record["end"] - record["start"]
    bounds = []
    for sample in recorder.around(record["end"]):
        dynamic = sample["jobs"].get(str(job), {}).get("dynamic_joules", {})
        bounds.append({part: static_watts[part] * length_s + dynamic.get(part, 0.0) for part in PARTS})
    return bounds[0], bounds[1]


def sum_of_counters(found: dict[str, float]) -> float:
    """Return the joules of all components that are measured by energy counters."""
    return found["cpu"] + found["dram"]


LOADS = {"big": Load(16, 1, 4), "small": Load(4, 1, 1.2), "asleep": Load(8)}


def test_jobs_that_share_a_node_pay_for_what_they_cause(lab: LabDriver, idle_watts):
    """On a shared node, each job is charged with the energy that it has caused itself.

    lab/test_energy_on_a_virtual_clock tests other sets of jobs on a virtual clock.
    """
    judge(lab, idle_watts, LOADS)


def judge(lab: LabDriver, idle_watts: dict[str, float], loads: dict[str, Load]) -> None:
    """Run jobs side by side and compare their records with the energy that they caused."""
    with TruthRecorder(lab, NODE, jobs=True) as recorder:
        ids = run_together(lab, loads)
        of_jobs = records(lab, ids)  # they may end later than the jobs in Slurm
    for name, record in of_jobs.items():
        share = loads[name].cores / CORES
        static_watts = {part: watts * share for part, watts in idle_watts.items()}
        found, (least, most) = joules(record), caused(recorder, ids[name], record, static_watts)
        length_s = record["end"] - record["start"]
        print(name, length_s, "s:", found, "caused:", least, most)

        # Energy and CPU time of a sample are of one moment, unless the emulator, which serves both, stands
        # still between them: the energy of that time then goes by the CPU time of the next.
        stalled_s = recorder.stalled_s(record["start"], record["end"])

        def off_joules(of, found=found, least=least, most=most):
            return max(of(least) - of(found), of(found) - of(most))

        def allowed(of, share, least=least, stalled_s=stalled_s):
            return share * of(least) + stalled_s * of(MAX_WATTS)

        assert set(found) == set(PARTS)
        # A smaller matrix product moves fewer bytes per second of CPU time, which the rule cannot observe.
        for of, share in ((itemgetter("cpu"), 0.03), (itemgetter("dram"), 0.08), (sum_of_counters, 0.03)):
            assert off_joules(of) <= allowed(of, share), (name, share)
        # The meter shows means of a second, read once a second: a step of the power is charged up to a second
        # late, and later by the time for which the machine stands still. The steps are below 200 W here.
        late_joules = 200 * (1 + stalled_s)
        assert least["other"] - late_joules <= found["other"] <= most["other"] + late_joules, name
        assert {part["quality"] for part in record["components"].values()} == {"modelled"}
    for name, line in judges.agent_status(lab, NODE)["energy_accounts"].items():
        assert line["jobs"] + line["idle"] + line["unattributed"] == line["measured"], name


def test_a_job_with_the_whole_node_pays_for_its_meter(lab: LabDriver):
    with TruthRecorder(lab, NODE) as recorder:
        job = lab.sbatch("senergy lab run gemm --seconds 10", "--exclusive", f"-w{NODE}")
        assert lab.wait(job) == "COMPLETED"
        record = records(lab, {"whole": job})["whole"]
    found = joules(record)
    node = found.pop("node")
    assert node == pytest.approx(math.fsum(found.values()), abs=1e-6)
    # As above, with steps of up to 450 W with all cores.
    late_joules = 450 * (1 + recorder.stalled_s(record["start"], record["end"]))
    assert node == pytest.approx(recorder.joules("node", record["start"], record["end"]), abs=late_joules)
    for part in ("cpu", "dram"):
        assert found[part] == pytest.approx(recorder.joules(part, record["start"], record["end"]), rel=0.01)
    assert record["energy_joules"] == node
    sources = {name: (part["source"], part["quality"]) for name, part in record["components"].items()}
    assert sources["node"] == ("power_meter:acpi", "measured")
