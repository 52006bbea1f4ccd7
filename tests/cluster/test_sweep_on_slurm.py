"""Test of `senergy sweep` with real jobs.

The settings must reach the GPUs. Times and energies must be those of the jobs' records.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]


def test_a_sweep_of_gpu_caps(lab: LabDriver, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --exclusive -w n3\nexec senergy lab run gemm --gpu --seconds 15\n"
    )
    command = ["senergy", "sweep", str(script), "--gpu-cap", "130", "--repeat", "1", "--json", "--"]
    command += ["--gpus-per-node=8", "--output=/dev/null"]
    done = lab.run(*command, timeout=240, cwd=tmp_path)
    result = json.loads(done.stdout)
    reference, capped = result["points"]
    assert result["complete"]
    assert (reference["settings"], capped["settings"]) == ({"gpu-cap": None}, {"gpu-cap": "130"})
    assert reference["time_s"] > 15
    assert capped["performance_loss_percent"] > 20  # GEMM is compute-bound
    assert capped["mean_watts"] < 0.7 * reference["mean_watts"]
    runs = json.loads((tmp_path / "senergy-sweep-train.json").read_text())["runs"]
    jobs = ",".join(str(run["job_id"]) for run in runs)
    printed = json.loads(lab.run("senergy", "acct", "-X", "--json", "-j", jobs).stdout)["jobs"]
    first, second = (job["energy"] for job in printed)
    assert {first["tag"], second["tag"]} == {"senergy-sweep/train"}
    assert second["energy_joules"] == pytest.approx(capped["energy_joules"])
    again = lab.run(*command, timeout=60, cwd=tmp_path)
    assert json.loads(again.stdout) == result
