"""Slurm's own RAPL plugin, reading the emulated MSRs, against our record and the node's watts."""

from __future__ import annotations

import statistics
import time

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


_ATTEMPTS = 3
"""Slurm's figure goes from its first poll to its last, and a loaded machine polls late; ours must hold."""


def test_sacct_and_the_record_agree_within_five_percent(lab: LabDriver):
    figures = []
    for _ in range(_ATTEMPTS):
        consumed, step, job = _run(lab)
        figures.append((consumed, step, job))
        if all(consumed == pytest.approx(ours, rel=0.05) for ours in (step, job)):
            return
    pytest.fail(f"sacct, step and job in joules: {figures}")


def _run(lab: LabDriver) -> tuple[float, float, float]:
    """Run a capped job; joules of processors and memory by sacct, of our step and of our job."""
    with TruthRecorder(lab, "n1") as recorder:
        job = lab.sbatch(
            "srun senergy lab run gemm --seconds 20",
            "--exclusive",
            "-wn1",
            "--energy-policy=cap",
            "--energy-cap=376",
        )
        watts = _watts_by_slurm(lab, job)
        assert lab.wait(job) == "COMPLETED"
    assert 250 < watts < 376  # what Slurm sees of a node that is capped at 376 W including its DRAM
    (label,) = judges.acct(lab, job, steps=True)
    step = next(step for step in label["steps"] if step["step"] == "0")
    found = []
    for part in (step, label):
        truth = sum(recorder.joules(name, part["start"], part["end"]) for name in ("cpu", "dram"))
        found.append(_rapl_joules(part))
        assert found[-1] == pytest.approx(truth, rel=0.01)
    return _consumed_joules(lab, f"{job}.0"), found[0], found[1]


def _watts_by_slurm(lab: LabDriver, job: int) -> float:
    """Return the median of what scontrol shows while a job is there.

    Slurm counts the time between two polls in whole seconds, so that a single figure may be half or twice.
    """
    watts = []
    while lab.job(job)["JobState"] in ("PENDING", "RUNNING"):
        shown = lab.run("scontrol", "-o", "show", "node", "n1").stdout.split()
        watts += [float(word.split("=")[1]) for word in shown if word.startswith("CurrentWatts=")]
        time.sleep(0.5)
    return statistics.median(watts)


def _rapl_joules(label: dict) -> float:
    """Return what RAPL measures: our total also has the rest of the node, from its own meter."""
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
