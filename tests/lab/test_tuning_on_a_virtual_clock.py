"""Live tuning by the agent's job manager on emulated nodes, on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_energy.records import EnergyRecord
from slurm_energy_lab.virtual_node import VirtualNode

pytestmark = pytest.mark.slow

SAMPLING_HZ = 5.0


class TunedNode(VirtualNode):
    """A virtual node whose kernels report their progress as a program would."""

    def run_job(
        self, kernel: str, device: str, seconds: float, *, reports: bool = True, **flags: str
    ) -> tuple[float, float, EnergyRecord]:
        """Run a kernel in a job; return its seconds, the joules of the node, and the job's record."""
        job_id = self.new_job_id()
        self.begin(job_id, **flags)
        start_s, start_joules = self.clock.now_s, self.energy_joules()["node"]
        run = self.run_reporting if reports else self.run
        run(kernel, device, seconds, job_id)
        seconds_run, joules = self.clock.now_s - start_s, self.energy_joules()["node"] - start_joules
        self.end(job_id)
        return seconds_run, joules, self.records()[job_id]


def tuning(record: EnergyRecord) -> dict[str, Any]:
    assert record.tuning is not None
    return record.tuning


@pytest.mark.parametrize(
    ("profile", "kernel", "device"), [("xeon-h100", "triad", "gpu"), ("xeon-8358", "triad", "cpu")]
)
def test_a_memory_bound_job_saves_energy_within_its_limit_and_leaves_no_setting(
    tmp_path: Path, profile: str, kernel: str, device: str
) -> None:
    node = TunedNode(tmp_path, profile, SAMPLING_HZ)
    before = node.settings
    untuned_s, untuned_joules, _ = node.run_job(kernel, device, 110, policy="monitor")
    tuned_s, tuned_joules, record = node.run_job(kernel, device, 110, policy="energy", slowdown="5")
    assert tuned_s < 1.05 * untuned_s
    assert tuned_joules < 0.92 * untuned_joules
    assert tuning(record)["progress"] == "reported"
    assert tuning(record)["chosen"]
    assert 1 <= tuning(record)["probes"] <= 9
    assert all(setting.restored for setting in record.applied if setting.applied is not None)
    assert node.settings == before
    node.close()
