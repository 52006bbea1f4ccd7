"""Tests that compare the energy from Slurm's RAPL plugin with the records of slurm-energy.

Slurm's plugin reads the emulated MSRs of a lab node. Both values are also compared with the true energy of
the node's model.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import judges
import pytest
from lab_driver import LabDriver
from test_energy_truth import TruthRecorder

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.lab(
        profiles=["xeon-8358"],
        # Slurm's plugin multiplies the DRAM counter by the package's unit, which on server Xeons is four
        # times too large; here both units are the same, so that its figure can be compared.
        overrides={"rapl.dram_energy_unit_exponent": 14},
        slurm=[
            "AcctGatherEnergyType=acct_gather_energy/rapl",
            "AcctGatherNodeFreq=1",
            "JobAcctGatherFrequency=energy=1",
        ],
    ),
]


def test_sacct_and_the_record_agree_within_five_percent(lab: LabDriver):
    run = _run(lab)
    assert run.step == pytest.approx(run.true_step, rel=0.01)
    assert run.job == pytest.approx(run.true_job, rel=0.01)
    for ours in (run.step, run.job):
        assert run.consumed == pytest.approx(ours, rel=0.05, abs=0.05 * ours + run.late_joules)


CAP_WATTS = 376


@dataclass(frozen=True)
class Run:
    """Energy of one job by three sources: sacct, the energy record, and the node's model.

    The energy is that of processors and memory in joules. The model's energy covers the same time as the
    record.

    Attributes:
        late_joules: tolerance for Slurm's value. Slurm counts from its first poll to its last poll, so it
            misses energy if a poll is late. The tolerance is the energy of the time in which this machine
            did not run Slurm's processes.
    """

    consumed: float
    step: float
    job: float
    true_step: float
    true_job: float
    late_joules: float


def _run(lab: LabDriver) -> Run:
    """Run a job with a power cap, and return its energy as measured by Slurm, by us and by the model."""
    with TruthRecorder(lab, "n1") as recorder:
        job = lab.sbatch(
            "srun senergy lab run gemm --seconds 20",
            "--exclusive",
            "-wn1",
            "--energy-policy=cap",
            f"--energy-cap={CAP_WATTS}",
        )
        watts = _watts_by_slurm(lab, job)
        assert lab.wait(job) == "COMPLETED"
        (label,) = judges.acct(lab, job, steps=True)  # it may end later than the job in Slurm
    # The cap includes DRAM. If Slurm polls late by a fraction of a second, its power is too large by this
    # fraction, because it counts whole seconds. Without a cap, the processors alone draw more than 480 W.
    assert 250 < watts < 1.15 * CAP_WATTS
    step = next(
        step["energy"] for step in label["steps"] if step["step"]["name"] != "batch" and step["energy"]
    )
    truth = [sum(recorder.joules(c, r["start"], r["end"]) for c in ("cpu", "dram")) for r in (step, label)]
    late_joules = CAP_WATTS * recorder.stalled_s(label["start"], label["end"])
    ours = _rapl_joules(step), _rapl_joules(label)
    return Run(_consumed_joules(lab, f"{job}.0"), *ours, *truth, late_joules)


def _watts_by_slurm(lab: LabDriver, job: int) -> float:
    """Return the median of the node's power in watts that scontrol shows while a job runs.

    Slurm counts the time between two polls in whole seconds. Therefore a single value may be half or twice
    the true power.
    """
    watts = []
    while lab.job(job)["JobState"] in ("PENDING", "RUNNING"):
        shown = lab.run("scontrol", "-o", "show", "node", "n1").stdout.split()
        watts += [float(word.split("=")[1]) for word in shown if word.startswith("CurrentWatts=")]
        time.sleep(0.5)
    return statistics.median(watts)


def _rapl_joules(label: dict) -> float:
    """Return the CPU and DRAM energy of a job in joules, which RAPL measures.

    The total energy of the job also contains the rest of the node, which the node's own meter measures.
    """
    return label["component_joules"]["cpu"] + label["component_joules"]["dram"]


def _consumed_joules(lab: LabDriver, step: str) -> float:
    deadline = time.monotonic() + 90
    while True:
        done = lab.run("sacct", "-n", "-P", "-j", step, "-o", "JobID,ConsumedEnergyRaw")
        values = dict(line.split("|") for line in done.stdout.splitlines())
        if values.get(step):
            return float(values[step])
        assert time.monotonic() < deadline, values
        time.sleep(0.5)
