"""Tests of the record store on a full disk. They need root.

senergyctld refuses deliveries while the disk is full. No record is lost after senergyctld has acknowledged
it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

import pytest
from store_examples import item

from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.records import record_store
from slurm_energy.accounting.records.record_queries import find_records, records_json
from slurm_energy.accounting.records.record_selection import RecordSelection
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import UnavailableError

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]
SIZE_MIB = {"sqlite": 120, "mariadb": 260, "postgresql": 300}
SPARE_MIB = 6


@pytest.fixture
def disk(request):
    """Mount a small tmpfs for a database that can be filled up.

    Yield the kind of database and the mount point. Database servers that run as other users may read the
    directory.
    """
    with tempfile.TemporaryDirectory(prefix="sefull-") as folder:
        Path(folder).chmod(0o755)
        size = f"size={SIZE_MIB[request.param]}m,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
        try:
            yield request.param, Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("disk", SIZE_MIB, indirect=True)
def test_a_full_disk(disk, monkeypatch):
    kind, folder = disk
    if kind == "sqlite":
        fill(folder, str(folder / "a.db"), lambda: None)
        return
    servers = pytest.importorskip("slurm_energy_lab.database_servers")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with servers.SERVERS[kind](durable=True) as server:
        fill(folder, server.create_database("senergy"), lambda: server.running or server.start())


def fill(folder, location, revive):
    store = Store(location)
    free = os.statvfs(folder)
    filler = folder / "filler"
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - (SPARE_MIB << 20))))
    batches = [
        [item(job_id=100 * n + k, notes=[secrets.token_hex(4500) for _ in range(3)]) for k in range(20)]
        for n in range(60)
    ]
    acknowledged, refused = [], 0

    async def deliver(batch):
        items, _ = record_store.read_items(batch)
        return (await store.write(record_store.store, items, 1.0))[0]

    async def stored():
        def read(connection):
            ids = find_records(connection, RecordSelection())
            return [
                text for n in range(0, len(ids), 50) for text in records_json(connection, ids[n : n + 50])
            ]

        return await store.read(read)

    async def story():
        nonlocal refused
        for batch in batches:
            try:
                acknowledged.extend(await deliver(batch))
            except UnavailableError:
                refused += 1
                if refused >= 3:
                    break
        assert 0 < len(acknowledged) < sum(map(len, batches)) and refused
        filler.unlink()
        revive()
        await asyncio.sleep(3)
        texts = await stored()
        assert all(any(one in text for text in texts) for one in acknowledged)
        for batch in batches:
            assert len(await deliver(batch)) == len(batch)
        return await stored()

    try:
        assert len(asyncio.run(story())) == sum(map(len, batches))
    finally:
        store.close()
    integrity.verify(location)


def large_item(job_id):
    return item(job_id=job_id, notes=[secrets.token_hex(4500) for _ in range(3)])
