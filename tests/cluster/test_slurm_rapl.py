"""Slurm's own RAPL plugin, reading the emulated MSRs, against our record and the node's watts."""

from __future__ import annotations

import time

import judges
import pytest
from lab_driver import LabDriver

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
"""Slurm's figure ends with its last poll, which may be seconds old where the machine is loaded."""


def test_sacct_and_the_record_agree_within_five_percent(lab: LabDriver):
    figures = []
    for _ in range(_ATTEMPTS):
        figures.append(_run(lab))
        consumed, step, job = figures[-1]
        assert step == pytest.approx(job, rel=0.05)
        if consumed == pytest.approx(step, rel=0.05) and consumed == pytest.approx(job, rel=0.05):
            return
    pytest.fail(f"sacct, step and job in joules: {figures}")


def _run(lab: LabDriver) -> tuple[float, float, float]:
    """Run a capped job; joules of processors and memory by sacct, of our step and of our job."""
    job = lab.sbatch(
        "srun senergy lab run gemm --seconds 20",
        "--exclusive",
        "-wn1",
        "--energy-policy=cap",
        "--energy-cap=376",
    )
    time.sleep(12)
    watts = next(
        float(word.split("=")[1])
        for word in lab.run("scontrol", "-o", "show", "node", "n1").stdout.split()
        if word.startswith("CurrentWatts=")
    )
    assert lab.wait(job) == "COMPLETED"
    assert 250 < watts < 376  # what Slurm sees of a node that is capped at 376 W including its DRAM
    (label,) = judges.acct(lab, job, steps=True)
    step = next(step for step in label["steps"] if step["step"] == "0")
    return _consumed_joules(lab, f"{job}.0"), _rapl_joules(step), _rapl_joules(label)


def _rapl_joules(label: dict) -> float:
    """Return what RAPL measures: our total also has the rest of the node, from its own meter."""
    return label["component_joules"]["cpu"] + label["component_joules"]["dram"]


def _consumed_joules(lab: LabDriver, step: str) -> float:
    deadline = time.monotonic() + 30
    while True:
        done = lab.run("sacct", "-n", "-P", "-j", step, "-o", "JobID,ConsumedEnergyRaw")
        values = dict(line.split("|") for line in done.stdout.splitlines())
        if values.get(step):
            return float(values[step])
        assert time.monotonic() < deadline, values
        time.sleep(0.5)
