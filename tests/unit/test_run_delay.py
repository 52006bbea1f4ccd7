"""Tests of the sensor that measures how long the tasks of a job wait for CPUs.

The sensor reads the kernel's scheduler statistics of all threads.
"""

from __future__ import annotations

import os
from pathlib import Path

from test_signal_sensors import Tree, checked, tree, values

from slurm_energy.devices.cpu.run_delay import MAX_TASKS, RunDelaySensor

__all__ = ["tree"]


def test_waiting_tasks_are_those_of_all_threads(tree: Tree) -> None:
    sensor = RunDelaySensor(tree.root)
    assert sensor.read(0.0) == []

    def write(pid: int, tid: int, waited_s: float) -> None:
        tree.put(f"proc/{pid}/task/{tid}/schedstat", f"12345 {round(waited_s * 1e9)} 7")

    write(7, 7, 1.0)
    write(7, 8, 2.0)
    sensor.pids = {7, 9}
    assert sensor.read(10.0) == []
    write(7, 7, 6.0)
    write(7, 8, 12.0)
    write(7, 99, 50.0)  # a new thread: when it waited is unknown
    assert values(sensor, 20.0) == {"cpu_waiting_tasks": 1.5}
    sensor.forget()
    assert sensor.read(30.0) == []
    for tid in range(MAX_TASKS + 1):
        write(9, 1000 + tid, 0.0)
    assert sensor.read(40.0) == [] and sensor.read(50.0) == []


def test_waiting_tasks_of_a_real_program() -> None:
    sensor = RunDelaySensor(Path("/"))
    sensor.pids = {os.getpid()}
    sensor.read(0.0)
    (reading,) = checked(sensor.read(1.0))
    assert reading.signal == "cpu_waiting_tasks" and reading.value >= 0
