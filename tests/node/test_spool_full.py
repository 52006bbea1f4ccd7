"""Tests of the agent's spool of records on a full disk, for which a small file system is mounted."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy.agent.state.spool import Spool
from slurm_energy.records import ComponentEnergy, EnergyRecord


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory with 1 MB of space."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def record(job_id: int, end: float = 20.0) -> EnergyRecord:
    part = ComponentEnergy("cpu", 1.0, "powercap:intel-rapl")
    return EnergyRecord("lab", "n1", job_id, 0, "monitor", 10.0, end, (part,), record_id=f"id{job_id:06d}")


def trace(kilobytes: int) -> dict[str, object]:
    return {"start": 10.0, "interval_s": 1.0, "columns": {"cpu": "A" * 1000 * kilobytes}}


def said(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> list[str]:
    """Return the messages that the agent logged at level `least` or above.

    Messages of other modules are left out, because threads of other tests may log as well.
    """
    ours = [entry for entry in caplog.records if entry.name.startswith("slurm_energy.agent")]
    return [entry.message for entry in ours if entry.levelno >= least]


def test_a_full_disk_costs_traces_before_records_and_is_said_once(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(small_disk / "spool", 10**9)
    for job_id in range(60):
        spool.add(record(job_id, 20.0 + job_id), trace(40))
    items = spool.items(10**9, 1000)
    assert [item.record["job_id"] for item in items] == list(range(60))
    kept = [item.trace is not None for item in items]
    assert any(kept) and not all(kept)
    full = ["spool's disk: No space left on device: power traces are dropped, records are kept"]
    assert said(caplog) == full

    (small_disk / "ballast").write_bytes(b"")
    with (small_disk / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError):
        while True:
            ballast.write(bytes(4096))
    for job_id in range(60, 100):
        spool.add(record(job_id, 20.0 + job_id), None)
    items = spool.items(10**9, 1000)
    assert [item.record["job_id"] for item in items] == list(range(100))
    assert len([item for item in items if item.trace]) < sum(kept)
    assert said(caplog) == full

    for item in items:
        spool.remove(item.name)
    (small_disk / "ballast").unlink()
    caplog.set_level(logging.INFO)
    spool.add(record(1000), trace(40))
    assert said(caplog, logging.INFO)[-1] == "spool's disk: there is room for traces again"
    assert spool.items(10**9, 10)[0].trace == trace(40)
    assert [path.name for path in spool.folder.iterdir() if path.name.startswith(".")] == []


def test_a_record_that_does_not_fit_even_without_traces_is_an_error_not_a_loss(small_disk: Path) -> None:
    spool = Spool(small_disk / "spool", 10**9)
    spool.add(record(1), trace(40))
    with (small_disk / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError):
        while True:
            ballast.write(bytes(4096))
    stored, refused = 1, 0
    for job_id in range(2, 40):
        try:
            spool.add(record(job_id), None)
            stored += 1
        except OSError:
            refused += 1
    assert stored > 1 and refused > 0
    assert spool.count() == len(spool.items(10**9, 1000)) == stored
    (small_disk / "ballast").unlink()
    spool.add(record(99), None)
    assert spool.has("id000099")


def test_rejected_records_make_room_on_a_full_disk(small_disk: Path) -> None:
    spool = Spool(small_disk / "spool", 10**9)
    for job_id in range(20):
        spool.add(record(job_id, 20.0 + job_id), trace(40))
    for item in spool.items(10**9, 100):
        spool.reject(item.name, "refused", "1.0")
    before = spool.rejected.count()
    assert before
    with (small_disk / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError):
        while True:
            ballast.write(bytes(4096))
    for job_id in range(100, 120):
        spool.add(record(job_id), None)
    assert spool.count() == 20
    assert spool.rejected.bytes == sum(
        path.stat().st_size for path in (small_disk / "spool/rejected").iterdir()
    )
    assert Spool(small_disk / "spool", 10**9).rejected.bytes == spool.rejected.bytes
