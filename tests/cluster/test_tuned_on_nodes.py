"""All GPUs of a tuned job on four nodes have the same power limit and locked clocks at all times.

This also holds when the agent of a node dies.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time

import judges
import pytest
from lab_driver import LabDriver

from slurm_energy_lab import client
from slurm_energy_lab.reading_thread import ReadingThread

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.lab(
        profiles=["epyc-7513-a100"] * 4,
        overrides={"cpu.cores_per_package": 8},
        energy={"agent": {"sampling_hz": 5.0}},
    ),
]
MAX_DIFFERENCE_S = 1.0
READ_S = 0.05


GpuSetting = tuple[float, tuple[int, ...]]
"""Power limit in watts, and the locked range of clocks in MHz (empty if the clocks are not locked)."""


class SettingWatch(ReadingThread[tuple[GpuSetting, ...]]):
    """Reads power limit and locked clocks of every GPU of the lab while a block runs."""

    def __init__(self, lab: LabDriver) -> None:
        sockets = [lab.layout.emulator_socket(node) for node in lab.nodes]

        def settings() -> tuple[GpuSetting, ...]:
            gpus = [client.status(socket)["model"]["gpus"] for socket in sockets]
            return tuple(
                (gpu["limit_watts"], tuple(gpu["locked_clocks_mhz"] or ()))
                for gpu in itertools.chain.from_iterable(gpus)
            )

        super().__init__(settings, READ_S)

    @property
    def changes(self) -> int:
        """Number of times that the setting common to all GPUs has changed."""
        common = [settings[0] for settings in self.values if len(set(settings)) == 1]
        return sum(one != other for one, other in itertools.pairwise(common))

    @property
    def longest_difference_s(self) -> float:
        """Longest time, in seconds, for which the nodes of a job may have had different settings.

        The time is counted from the last reading with equal settings before the difference to the first
        reading with equal settings after it.
        """
        longest, equal_s = 0.0, self.readings[0][0]
        different = False
        for time_s, settings in self.readings:
            if len(set(settings)) > 1:
                different = True
                longest = max(longest, time_s - equal_s)
            else:
                if different:
                    longest = max(longest, time_s - equal_s)
                equal_s, different = time_s, False
        return longest

    def wait_for(self, changes: int, timeout_s: float = 150.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.changes < changes:
            assert time.monotonic() < deadline_s, self.readings[-1]
            time.sleep(0.2)


def test_all_gpus_have_one_setting_while_an_agent_dies(lab: LabDriver) -> None:
    before = {node: judges.settings(lab, node) for node in lab.nodes}
    job = lab.sbatch(
        "srun senergy lab run triad --gpu --seconds 600 --report-progress",
        *("-N4", "--ntasks-per-node=1", "--exclusive", "--gpus-per-node=4", "--energy-policy=edp"),
    )
    with SettingWatch(lab) as watch:
        watch.wait_for(changes=1)
        os.kill(lab.pid("senergyd", "n3"), signal.SIGKILL)
        time.sleep(8)  # longer than the time after which an agent counts as missing
        frozen = watch.changes
        time.sleep(5)
        assert watch.changes == frozen
        lab.lab.start_daemon("senergyd", "n3")
        watch.wait_for(changes=frozen + 1)
        difference_s = watch.longest_difference_s
    lab.run("scancel", str(job))
    lab.wait(job)
    assert difference_s <= MAX_DIFFERENCE_S
    for node in lab.nodes:
        assert judges.settings_at_rest(lab, node) == before[node]
    (label,) = judges.acct(lab, job)
    assert len(label["nodes"]) == 4
    records = json.loads(lab.run("senergy", "job", str(job), "--json").stdout)
    assert json.dumps(records).count('"chosen"') >= 1
