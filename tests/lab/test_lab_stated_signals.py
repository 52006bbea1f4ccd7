"""Test that the agent's sensor reads the signals that programs set in the emulated control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.devices.cpu.cpu_time import JobProcesses
from slurm_energy.devices.cpu.group_signals import group_sensor
from slurm_energy.devices.cpu.job_groups import find_job_groups
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree
from slurm_energy_lab.tree.job_cgroups import JobCgroups

STATED = {
    "io_pressure_percent": 60.0,
    "block_read_bytes_per_s": 5e6,
    "memory_used_bytes": 3e9,
    "page_cache_bytes": 1e9,
    "memory_limit_bytes": 4e9,
}


def test_stated_signals_are_those_that_the_agent_reads(tmp_path: Path) -> None:
    now = [100.0]
    tree = Tree()
    groups = JobCgroups(tree, RealtimeModel(load_profile("xeon-8358"), lambda: now[0]), "n1", lambda: now[0])
    groups.create_group(7)
    groups.state_signals(7, 1, STATED)

    def copied() -> None:
        for path in list(tree._entries):
            if isinstance(entry := tree.get(path), File):
                file = tmp_path / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(entry.render())

    copied()
    sensor = group_sensor(find_job_groups(tmp_path, "n1", JobProcesses(7)))
    assert sensor is not None
    sensor.read(now[0])
    now[0] += 10
    copied()
    found = {reading.signal: reading.value for reading in sensor.read(now[0])}
    assert {name: found[name] for name in STATED} == pytest.approx(STATED)
    assert "cpu_pressure_percent" not in found
    groups.end_signals(1)
    now[0] += 10
    copied()
    found = {reading.signal: reading.value for reading in sensor.read(now[0])}
    assert (found["io_pressure_percent"], found["block_read_bytes_per_s"]) == (0.0, 0.0)
    assert "memory_limit_bytes" not in found
    sensor.close()
