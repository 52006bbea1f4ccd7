"""Test on a cluster that an energy policy is applied to the node of a job and later undone.

During the job, independent tools see the settings of the policy. After the job, they see the original
settings.
"""

from __future__ import annotations

import time
from pathlib import Path

import judges
import pytest
from lab_driver import LabDriver

pytestmark = [pytest.mark.cluster, pytest.mark.root]


def _expect(before: judges.Seen, **changed) -> judges.Seen:
    ((low, high, governor),) = before.cpus
    cpu = changed.get("cpu", {})
    return judges.Seen(
        frozenset({(cpu.get("min", low), cpu.get("max", high), cpu.get("governor", governor))}),
        changed.get("package_watts", before.package_watts),
        changed.get("gpu_watts", before.gpu_watts),
    )


CASES = [
    ("n1", "monitor", [], {}),
    ("n1", "performance", [], {"cpu": {"governor": "performance"}}),
    ("n1", "powersave", [], {"cpu": {"governor": "powersave", "max": 800_000}}),
    ("n1", "balanced", [], {"cpu": {"governor": "powersave"}}),
    # 38 W of each package's DRAM cannot be capped and are subtracted from the node's cap.
    ("n1", "cap", ["--energy-cap=376"], {"package_watts": (150.0, 150.0)}),
    ("n1", "edp", ["--energy-model=gemm", "--energy-tuning=off"], {"cpu": {"max": 2_100_000}}),
    ("n1", "balanced", ["--energy-cpu-freq=2GHz"], {"cpu": {"governor": "powersave", "max": 2_000_000}}),
    ("n2", "monitor", [], {}),
    ("n2", "performance", [], {"cpu": {"governor": "performance"}}),
    ("n2", "powersave", [], {"cpu": {"governor": "powersave"}}),
    ("n2", "balanced", [], {"cpu": {"governor": "schedutil"}}),
    ("n2", "cap", ["--energy-gpu-cap=250W"], {"gpu_watts": (250,) * 4}),
    ("n2", "edp", ["--energy-model=triad", "--energy-tuning=off"], {"gpu_watts": (200,) * 4}),
    ("n3", "cap", ["--energy-gpu-cap=150"], {"gpu_watts": (150,) * 8}),
    ("n4", "cap", ["--energy-gpu-cap=0.5kW"], {"gpu_watts": (500,) * 8}),
]


@pytest.mark.parametrize(("node", "policy", "flags", "changed"), CASES)
def test_tools_agree_with_the_policy_and_with_the_originals_after_it(
    lab: LabDriver, node: str, policy: str, flags: list[str], changed: dict
):
    before = judges.settings(lab, node)
    gpus = [f"--gpus-per-node={len(before.gpu_watts)}"] if before.gpu_watts else []
    started = lab.layout.root / "started"
    started.unlink(missing_ok=True)
    script = f"touch {started}; sleep 300"
    job = lab.sbatch(script, "--exclusive", "-w", node, f"--energy-policy={policy}", *flags, *gpus)
    _wait_for(started)
    wanted = _expect(before, **changed)
    seen = judges.settings_in_time(lab, node, wanted.__eq__)
    alloc = lab.run("scontrol", "-o", "show", "node", node).stdout
    lab.run("scancel", str(job))
    lab.wait(job)
    assert f"CPUAlloc={lab.job(job)['NumCPUs']}" in alloc
    assert seen == wanted
    assert judges.settings_at_rest(lab, node) == before
    (label,) = judges.acct(lab, job)
    applied = [setting for part in label["nodes"] for setting in part["settings"]]
    assert bool(applied) == (policy != "monitor")
    assert all(setting["restored"] for setting in applied)


def _wait_for(path: Path) -> None:
    """Wait until the job's script has created a file.

    Slurm shows a job as RUNNING before its prolog has ended, so the state alone does not suffice.
    """
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
