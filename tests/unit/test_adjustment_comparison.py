"""Tests of the closed loop: which runs and energies senergyctld compares in a trial of adjustments."""

from __future__ import annotations

import asyncio

import pytest
from adjustment_examples import ALICE, Site, slow_loader


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def contended(values):
    """Return a training job whose loader gets no faster with more workers: its cause is elsewhere."""
    shape = slow_loader(1)
    shape.loop.workers = values.get("workers", 1)
    shape.loop.sample_cpu_s *= shape.loop.workers
    return shape


def change_records(site, change):
    """Let `change` alter the components of all records that the nodes of the site deliver from now on."""
    deliver = site.accounting.deliver

    def altered(entry, now):
        record = entry["record"]
        record["components"] = change(record["components"])
        return deliver(entry, now=now)

    site.accounting.deliver = altered


def unreadable_gpus(components):
    gpus = [one for one in components if one["name"].startswith("gpu")]
    return [one | {"energy_joules": None} if one in gpus else one for one in components]


def absent_gpus(components):
    return [one for one in components if not one["name"].startswith("gpu")]


def unreadable_gpus_on_a_metered_node(components):
    total = sum(one["energy_joules"] for one in components)
    return [*unreadable_gpus(components), components[0] | {"name": "node", "energy_joules": total}]


@pytest.mark.parametrize("change", [unreadable_gpus, absent_gpus])
def test_energy_that_is_no_longer_measured_is_no_saving(site, change):
    async def play():
        job_id, _ = await site.run(contended, "workers")
        await site.routes.apply({"job": str(job_id), "permit": "workers=0..16"}, ALICE)
        change_records(site, change)
        await site.run(contended, "workers")
        await site.loop.verify()
        (trial,) = (await site.routes.show({}, ALICE))["trials"]
        assert trial["state"] == "undone"
        assert trial["decision"]["measured_energy_ratio"] is None

    asyncio.run(play())


def test_energy_of_a_whole_node_needs_no_components(site):
    async def play():
        change_records(site, unreadable_gpus_on_a_metered_node)
        job_id, _ = await site.run(contended, "workers")
        await site.routes.apply({"job": str(job_id), "permit": "workers=0..16"}, ALICE)
        await site.run(contended, "workers")
        await site.loop.verify()
        (trial,) = (await site.routes.show({}, ALICE))["trials"]
        assert trial["decision"]["measured_energy_ratio"] == pytest.approx(1.0, rel=0.2)

    asyncio.run(play())
