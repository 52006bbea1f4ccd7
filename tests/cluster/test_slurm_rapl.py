"""Slurm's own RAPL plugin, reading the emulated MSRs, compared with our record and the node's watts."""

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
    """Energy of processors and memory in joules, from sacct, from our records and from the model.

    The model's energy covers the same time as the record.

    Attributes:
        late_joules: tolerance for Slurm's value: energy of the time in which this machine did not
            run its processes. Slurm counts from its first poll to its last poll, so a late poll
            misses this energy.
    """

    consumed: float
    step: float
    job: float
    true_step: float
    true_job: float
    late_joules: float


def _run(lab: LabDriver) -> Run:
    """Run a capped job."""
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
    assert (
        250 < watts < CAP_WATTS
    )  # the power that Slurm measures on a node that is capped including its DRAM
    (label,) = judges.acct(lab, job, steps=True)
    step = next(
        step["energy"] for step in label["steps"] if step["step"]["name"] != "batch" and step["energy"]
    )
    truth = [sum(recorder.joules(c, r["start"], r["end"]) for c in ("cpu", "dram")) for r in (step, label)]
    late_joules = CAP_WATTS * recorder.stalled_s(label["start"], label["end"])
    ours = _rapl_joules(step), _rapl_joules(label)
    return Run(_consumed_joules(lab, f"{job}.0"), *ours, *truth, late_joules)


def _watts_by_slurm(lab: LabDriver, job: int) -> float:
    """Return the median of the watts in scontrol while a job runs.

    Slurm counts the time between two polls in whole seconds, so a single value may be half or double.
    """
    watts = []
    while lab.job(job)["JobState"] in ("PENDING", "RUNNING"):
        shown = lab.run("scontrol", "-o", "show", "node", "n1").stdout.split()
        watts += [float(word.split("=")[1]) for word in shown if word.startswith("CurrentWatts=")]
        time.sleep(0.5)
    return statistics.median(watts)


def _rapl_joules(label: dict) -> float:
    """Return the part of the measured total that RAPL measures: CPU and DRAM energy in joules.

    The total also contains the rest of the node, which the node's own meter measures.
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
