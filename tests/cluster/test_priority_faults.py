"""Tests of slurmctld with the plugin site_factor/energy and with faulty files.

The plugin reads the order of the queue from a table. The table is, for example, missing, damaged, hostile,
or has a wrong time. Another test runs slurmctld without slurmdbd.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_driver import LabDriver
from ordering import (
    PASS_S,
    WISH,
    blocker,
    complaints,
    given_anew,
    held,
    priorities,
    put_in_force,
    queue,
    release,
    until,
    write,
)

from slurm_energy.priority import table_file

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.lab(**WISH)]
NOBODY = 65534


def _aside(path: Path) -> Path:
    """Return the path of a temporary file. It is renamed to `path`, so that a table always exists."""
    return path.with_name("aside")


def _replace(path: Path, data: bytes, owner: int = 0) -> None:
    aside = _aside(path)
    aside.write_bytes(data)
    aside.chmod(0o644)
    os.chown(aside, owner, owner)
    aside.replace(path)


def _good(job: int, factor: int, written_unix_s: float | None = None) -> bytes:
    now = time.time() if written_unix_s is None else written_unix_s
    return table_file.encode([job], [factor], sequence=time.time_ns(), written_unix_s=now)


def _missing(path: Path, job: int) -> None:
    path.unlink()


def _garbage(path: Path, job: int) -> None:
    _replace(path, os.urandom(4096))


def _truncated_in_use(path: Path, job: int) -> None:
    os.truncate(path, 70)


def _other_version(path: Path, job: int) -> None:
    data = bytearray(_good(job, 9))
    struct.pack_into("<I", data, 8, 99)
    _replace(path, bytes(data))


def _old(path: Path, job: int) -> None:
    _replace(path, _good(job, 9, time.time() - 3600))


def _from_the_future(path: Path, job: int) -> None:
    """Write a table for the plugin whose time stamp is one hour in the future.

    Such a table results if the clock was set back after the table was written.
    """
    _replace(path, _good(job, 9, time.time() + 3600))


def _of_a_user(path: Path, job: int) -> None:
    _replace(path, _good(job, 9), NOBODY)


def _link(path: Path, job: int) -> None:
    target = path.with_name("target")
    _replace(target, _good(job, 9))
    _aside(path).symlink_to(target)
    _aside(path).replace(path)


def _fifo(path: Path, job: int) -> None:
    os.mkfifo(_aside(path))
    _aside(path).replace(path)


FAULTS = {
    _missing: "No such file",
    _garbage: "is no priority table",
    _truncated_in_use: "torn",
    _other_version: "version 99",
    _old: r"written \d+ s ago",
    _from_the_future: r"written \d+ s ahead",
    _of_a_user: "owner uid 65534",
    _link: "symbolic link",
    _fifo: "not a plain file",
}


def _clear(path: Path) -> None:
    for name in (path.name, "target", "aside"):
        path.with_name(name).unlink(missing_ok=True)


@pytest.fixture
def table_path(lab: LabDriver):
    yield lab.layout.priority_table
    _clear(lab.layout.priority_table)


def _restart(lab: LabDriver, meanwhile: Callable[[], None] = lambda: None) -> None:
    lab.kill("slurmctld", how=signal.SIGTERM)
    meanwhile()
    lab.start("slurmctld")
    until(lambda: lab.run("scontrol", "ping", check=False).returncode == 0, "slurmctld answers")


def test_a_bad_table_changes_nothing(lab: LabDriver, table_path: Path):
    """A faulty table of site factors has no effect: the previous valid table stays in force.

    A site factor is the part of Slurm's job priority that slurm-energy sets. The valid table has the site
    factors 5000 and 4000. In the faulty table, every site factor is 9.
    """
    write(lab, {1: 1})
    _restart(lab)  # what was complained of before is not said again
    before, earlier = lab.pid("slurmctld"), len(complaints(lab))

    def told(text: str) -> int:
        return sum(bool(re.search(text, line)) for line in complaints(lab)[earlier:])

    blocker(lab)
    for spoil, text in FAULTS.items():
        jobs = [held(lab) for _ in range(3)]
        write(lab, dict.fromkeys(jobs[:2], 5000) | {jobs[2]: 4000})
        until(lambda now=jobs: given_anew(lab, now[0]) == 5000, "the good table is read")
        spoil(table_path, jobs[1])
        until(lambda now=jobs, text=text: given_anew(lab, now[1]) and told(text), f"slurmctld says {text!r}")
        release(lab, *jobs)
        shown = priorities(lab)
        assert [shown[job] for job in jobs] == [5000, 5000, 4000], text
        assert lab.pid("slurmctld") == before, text
        assert told(text) == 1, (text, complaints(lab))
        lab.run("scancel", *map(str, jobs))


def test_a_table_replaced_a_thousand_times_a_second(lab: LabDriver, table_path: Path):
    """A job gets its factor from one complete table, even if a table is replaced during the read.

    If the newest table is damaged, the job gets the factor from the last valid table.
    """
    before = lab.pid("slurmctld")
    blocker(lab)
    jobs = [held(lab) for _ in range(10)]
    put_in_force(lab, dict.fromkeys(jobs, 1000))
    stop, written = threading.Event(), [0]

    def replace() -> None:
        while not stop.is_set():
            written[0] += 1
            write(lab, dict.fromkeys(jobs, 1000 + written[0] % 1000))
            if written[0] % 7 == 0:
                os.truncate(table_path, 100)

    writer = threading.Thread(target=replace)
    start = time.monotonic()
    writer.start()
    try:
        for job in jobs:
            release(lab, job)
            lab.update("hold", str(job))
            release(lab, job)
    finally:
        stop.set()
        writer.join()
    rate = written[0] / (time.monotonic() - start)
    print(f"{rate:.0f} tables a second")
    shown = priorities(lab)
    assert set(shown) == set(jobs)
    assert [priority for priority in shown.values() if not 1000 <= priority < 2000] == []
    assert lab.pid("slurmctld") == before


def test_reconfigure_and_restart_keep_the_order(lab: LabDriver, table_path: Path):
    blocker(lab)
    jobs = [held(lab) for _ in range(3)]
    put_in_force(lab, {jobs[0]: 100, jobs[1]: 300, jobs[2]: 200})
    release(lab, jobs[0], jobs[1])
    table_path.unlink()
    lab.run("scontrol", "reconfigure")
    assert priorities(lab) == {jobs[0]: 100, jobs[1]: 300, jobs[2]: 0}
    # A job whose index slurmdbd has not given before slurmctld restarts can stay without one.
    lab.update("update", f"jobid={jobs[2]}", "comment=indexed")
    _restart(lab)
    assert priorities(lab) == {jobs[0]: 100, jobs[1]: 300, jobs[2]: 0}
    put_in_force(lab, {jobs[0]: 110, jobs[1]: 90, jobs[2]: 200})
    release(lab, jobs[2])
    assert priorities(lab)[jobs[2]] == 200


def test_slurmctld_orders_its_queue_without_slurmdbd(lab: LabDriver, table_path: Path):
    blocker(lab)
    jobs = [held(lab) for _ in range(2)]
    lab.kill("slurmdbd")
    try:
        put_in_force(lab, {jobs[0]: 100, jobs[1]: 300})
        release(lab, *jobs)
        assert priorities(lab) == {jobs[0]: 100, jobs[1]: 300}
        write(lab, {jobs[0]: 400, jobs[1]: 300})
        until(lambda: priorities(lab)[jobs[0]] == 400, "the pass", PASS_S)
        assert set(jobs) <= set(queue(lab).job_id)
    finally:
        lab.start("slurmdbd")


def test_an_unwritable_queue_file_delays_nothing(lab: LabDriver, table_path: Path):
    place = lab.layout.queue_table.parent
    aside = place.with_name("queue-aside")
    earlier = []

    def take_away() -> None:  # while no slurmctld runs: the one before would complain as well
        earlier.extend(complaints(lab))
        place.rename(aside)

    try:
        _restart(lab, take_away)
        job, other = held(lab), held(lab)
        blocking = blocker(lab)
        put_in_force(lab, {job: 700, other: 800})
        release(lab, job, other)
        assert priorities(lab) == {job: 700, other: 800}
        said = [line for line in complaints(lab)[len(earlier) :] if "does not see the queue" in line]
        assert len(said) == 1, said
        assert lab.job(blocking)["JobState"] == "RUNNING"
    finally:
        if aside.exists():
            aside.rename(place)
