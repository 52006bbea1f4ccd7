"""Tests of the closed loop: the values in force, and the runs and energies that a trial compares."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from adjustment_examples import ALICE, FINGERPRINT, Site, slow_loader, with_workers

from slurm_energy import config as configuration
from slurm_energy.adjustment import Adjustment, AdjustmentKind
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.observation import JobObservation, ObservedAllocation
from slurm_energy.diagnosis.trials.observed_figures import observed_figures
from slurm_energy.diagnosis.trials.proposal import AdjustmentProposal
from slurm_energy.diagnosis.trials.verification import TrialVerdict, decide
from slurm_energy_lab.diagnosis_corpus.training_loop import step_times


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def contended(values, share=1.0):
    """Return a training job whose data loader gets no faster with more workers.

    With more workers, each sample takes more CPU time.

    Args:
        values: adjusted values by name.
        share: CPU time of a sample, relative to that of `slow_loader`.
    """
    shape = slow_loader(1)
    shape.loop.workers = values.get("workers", 1)
    shape.loop.sample_cpu_s *= shape.loop.workers * share
    shape.elapsed_s = shape.startup_s + 1000 * step_times(shape.loop)[0].step
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


def run_with(nodes, gpus, joules):
    """Return the figures of a completed run of 1000 s that used the given energy on its CPUs and GPUs."""
    parts = ["cpu", *(f"gpu[{index}]" for index in range(gpus))]
    energies = {f"n{node}": dict.fromkeys(parts, joules / len(parts) / nodes) for node in range(nodes)}
    context = ObservedAllocation(1, 0.0, 1000.0, "COMPLETED", energy_joules=energies, missing_nodes=0)
    return observed_figures(JobObservation(context), "1", joules, DiagnosisConfig())


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(AdjustmentKind.GPUS_PER_NODE, (1, 4), (1, 2)), (AdjustmentKind.NODES, (3, 2), (2, 2))],
)
def test_energies_of_runs_with_fewer_gpus_or_nodes_are_compared(kind, before, after):
    proposal = AdjustmentProposal("unused-gpu", (Adjustment(kind, 1, 2),), 1.0, 0.7, "model")
    decision = decide(proposal, [run_with(*before, 1e6)], [run_with(*after, 0.7e6)], 3)
    assert decision.verdict is TrialVerdict.KEPT
    assert decision.energy_ratio == pytest.approx(0.7)


async def adjusted_automatically(site):
    """Let policy `auto` start a trial of more loader workers, and return their number."""
    await site.run(with_workers, "workers", policy="auto")
    assert await site.loop.start_automatic() == 1
    return (await site.request(site.begin(), "workers"))["workers"]


@pytest.mark.parametrize("permit", ["", "workers=0..2", "pin-memory"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_automatic_values_that_their_user_no_longer_permits_are_not_offered(site, permit, is_kept):
    async def play():
        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        workers = await adjusted_automatically(site)
        if is_kept:
            await site.run(with_workers, "workers", policy="auto")
            await site.loop.verify()
            assert await site.trial_states() == ["kept"]
        await site.routes.permit({"permit": permit}, ALICE)
        assert await site.request(site.begin(), "workers") == {}
        assert (await site.routes.show({"job": "101"}, ALICE))["values"] == {}
        await site.routes.permit({"permit": f"workers=0..{workers}"}, ALICE)
        assert await site.request(site.begin(), "workers") == {"workers": workers}

    asyncio.run(play())


def test_automatic_values_that_the_site_no_longer_permits_are_not_offered(site):
    head = '[cluster]\nname = "c1"\n[diagnosis]\n'
    site.config = configuration.parse(f'{head}auto = "workers=0..16"')

    async def play():
        await adjusted_automatically(site)
        site.config = configuration.parse(head)
        assert await site.request(site.begin(), "workers") == {}

    asyncio.run(play())


def test_narrower_permissions_lead_to_a_new_automatic_trial(site):
    async def play():
        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        await adjusted_automatically(site)
        await site.routes.permit({"permit": "workers=0..2"}, ALICE)
        await site.run(with_workers, "workers", policy="auto")
        assert await site.loop.start_automatic() == 1
        assert await site.trial_states() == ["withdrawn", "pending"]
        assert await site.request(site.begin(), "workers") == {"workers": 2}

    asyncio.run(play())


def test_values_that_a_user_applied_need_no_stored_permission(site):
    async def play():
        job_id, _ = await site.run(with_workers, "workers")
        await site.routes.apply({"job": str(job_id), "permit": "workers=0..3"}, ALICE)
        await site.routes.permit({"permit": ""}, ALICE)
        assert await site.request(site.begin(), "workers") == {"workers": 3}

    asyncio.run(play())


def with_workers_and_cpus(values):
    """Return the recorded steps of a training job whose CPUs and loader workers are adjusted."""
    shape = slow_loader(values.get("workers", 1))
    shape.cpus = shape.loop.cpus = values.get("cpus-per-task", 2)
    return shape


@pytest.mark.parametrize("requests_again", [True, False])
def test_requeued_run_has_the_options_with_which_its_job_was_submitted(site, requests_again):
    async def play():
        await site.run(with_workers_and_cpus, "workers")
        await site.routes.apply({"job": "101", "permit": "workers,cpus-per-task"}, ALICE)
        values = (await site.routes.show({"job": "101"}, ALICE))["values"]
        job_id = site.begin()
        await site.routes.submitted({"job_id": job_id, "workload": FINGERPRINT}, ALICE)
        await site.request(job_id, "workers")
        own = {"workers": values["workers"]}
        if requests_again:
            assert await site.request(job_id, "workers", restarts=1) == own
        site.end(job_id, with_workers_and_cpus(values), restarts=1)
        await site.loop.verify()
        (trial,) = (await site.routes.show({}, ALICE))["trials"]
        assert (trial["state"], trial["controls"]) == ("kept" if requests_again else "unused", 0)
        assert [run["job"] for run in trial["before"]] == ["101"]

    asyncio.run(play())


def test_requeued_run_of_a_plain_submission_gets_the_values_of_its_own_time(site):
    async def play():
        await site.run(with_workers, "workers")
        job_id = site.begin()
        assert await site.request(job_id, "workers") == {}
        await site.routes.apply({"job": "101", "permit": "workers=0..3"}, ALICE)
        assert await site.request(job_id, "workers", restarts=1) == {"workers": 3}

    asyncio.run(play())


def test_value_near_an_undone_one_is_not_tried_by_policy_auto(site):
    async def play():
        async def tried_after(share):
            await site.run(partial(contended, share=share), "workers", policy="auto")
            await site.loop.verify()
            await site.loop.start_automatic()
            trials = (await site.routes.show({}, ALICE))["trials"]
            return [(one["state"], one["adjustments"][0]["new"]) for one in trials]

        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        assert await tried_after(1.0) == [("pending", 4)]
        assert await tried_after(1.0) == [("undone", 4)]
        assert await tried_after(1.25) == [("undone", 4)]  # advises 5
        assert await tried_after(2.0) == [("undone", 4), ("pending", 7)]

    asyncio.run(play())
