"""Tests of the closed loop in senergyctld that adjusts the values of recurring programs.

Advice is applied at the next run of a program. After the run, the effect is verified, and the adjustment is
kept or undone.
"""

from __future__ import annotations

import asyncio

import pytest
from adjustment_examples import (
    ALICE,
    FINGERPRINT,
    MALLORY,
    OPERATOR,
    Site,
    slow_loader,
    with_workers,
)

from slurm_energy import config as configuration
from slurm_energy.accounting import adjustments
from slurm_energy.controller.diagnosis import adjustment_routes, adjustment_trials
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.errors import NotFoundError, UnavailableError, UsageError

BOB = Rights(2003, "bob")


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def played(coroutine):
    """Run a coroutine to its end, and return its result."""
    return asyncio.run(coroutine)


async def applied(site, permit="workers=0..16"):
    """Run a job with too few loader workers, and let its user apply the advice for it.

    The user is alice. The function returns the controller's response to the request.
    """
    job_id, values = await site.run(with_workers, "workers")
    assert values == {}
    return await site.routes.apply({"job": str(job_id), "permit": permit}, ALICE)


def test_adjustment_that_helps_is_kept_and_stays_in_force(site):
    async def play():
        trial = (await applied(site))["trial"]
        (adjustment,) = trial["adjustments"]
        assert adjustment["kind"] == "workers"
        assert adjustment["old"] == 1
        assert adjustment["new"] > 2
        _, values = await site.run(with_workers, "workers")
        assert values == {"workers": adjustment["new"]}
        assert await site.loop.verify() == 1
        answer = await site.routes.show({}, ALICE)
        (kept,) = answer["trials"]
        assert kept["state"] == "kept"
        decision = kept["decision"]
        assert decision["unit"] == "sample"
        assert decision["measured_time_ratio"] == pytest.approx(kept["predicted_time_ratio"], rel=0.1)
        assert await site.request(site.begin(), "workers") == {"workers": adjustment["new"]}

    played(play())


def test_adjustment_that_does_not_help_is_undone_and_not_offered_again(site):
    async def play():
        await applied(site)

        def contended(values):
            shape = slow_loader(1)  # the true cause is elsewhere: nothing gets faster
            shape.loop.workers = values.get("workers", 1)
            shape.loop.sample_cpu_s *= shape.loop.workers
            return shape

        await site.run(contended, "workers")
        await site.loop.verify()
        assert await site.trial_states() == ["undone"]
        assert await site.request(site.begin(), "workers") == {}

    played(play())


@pytest.mark.slow
def test_runs_with_and_without_the_adjustment_alternate_while_noise_hides_the_gain(site):
    async def play():
        def varying(factor):
            def shape_of(values):
                shape = with_workers(values)
                shape.startup_s *= factor
                shape.elapsed_s *= factor
                shape.loop.sample_cpu_s *= factor
                shape.loop.sample_gpu_s *= factor
                return shape

            return shape_of

        await site.run(varying(3.0))
        await site.run(varying(0.4))
        await applied(site)
        offered = []
        for _ in range(4):
            _, values = await site.run(varying(1.0), "workers")
            await site.loop.verify()
            offered.append(bool(values))
        assert offered == [True, False, True, False]
        (trial,) = (await site.routes.show({}, ALICE))["trials"]
        assert trial["state"] == "pending"
        assert (len(trial["after"]), trial["controls"]) == (2, 2)

    played(play())


def test_a_trial_that_cannot_be_verified_is_undone_and_does_not_stop_the_others(site, monkeypatch):
    async def play():
        await applied(site)
        await site.run(with_workers, "workers")

        def fail(*_):
            raise OverflowError("math range error")

        monkeypatch.setattr(adjustment_trials, "decide", fail)
        assert await site.loop.verify() == 0
        assert await site.trial_states() == ["undone"]

    played(play())


def test_failed_run_undoes_the_adjustment_and_a_cancelled_one_says_nothing(site):
    async def play():
        await applied(site)
        await site.run(with_workers, "workers", state="CANCELLED by 0")
        assert await site.loop.verify() == 0
        await site.run(with_workers, "workers", state="FAILED")
        await site.loop.verify()
        assert await site.trial_states() == ["undone"]

    played(play())


def test_program_that_never_requests_the_value_leaves_it_unused(site):
    async def play():
        await applied(site)
        await site.run(lambda values: slow_loader(4))
        await site.loop.verify()
        (trial,) = (await site.routes.show({}, ALICE))["trials"]
        assert trial["state"] == "unused"
        assert "did not request workers" in trial["decision"]["reason"]

    played(play())


def test_values_stay_the_same_during_a_run(site):
    async def play():
        await applied(site)
        job_id = site.begin()
        values = await site.request(job_id, "workers")
        await site.routes.undo({"job": "101"}, ALICE)
        assert await site.request(job_id, "workers") == values
        assert await site.request(job_id, "workers", "pin-memory") == values
        assert await site.request(site.begin(), "workers") == {}
        assert await site.trial_states() == ["undone"]

    played(play())


def test_other_users_neither_get_nor_see_nor_change_adjustments(site):
    async def play():
        await applied(site)
        assert await site.request(site.begin(MALLORY), "workers") == {}
        assert await site.trial_states(MALLORY) == []
        assert await site.trial_states(OPERATOR) == ["pending"]
        for rights in (MALLORY, OPERATOR):
            with pytest.raises(NotFoundError, match="no energy record of it"):
                await site.routes.apply({"job": "101", "permit": "workers"}, rights)
            with pytest.raises(NotFoundError, match="no energy record of it"):
                await site.routes.undo({"job": "101"}, rights)
        with pytest.raises(NotFoundError):
            await site.routes.show({"job": "101"}, MALLORY)
        # A forged submission by another user neither reaches the job nor counts as its run.
        with pytest.raises(NotFoundError):
            await site.routes.submitted({"job_id": 102, "workload": "0123456789abcdef"}, MALLORY)
        job_id = site.begin()
        assert (await site.request(job_id, "workers"))["workers"] > 1

    played(play())


def test_site_limits_bound_what_users_permit(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch, 'adjustment_limits = "workers=0..2"\n')

    async def play():
        trial = (await applied(site))["trial"]
        assert trial["adjustments"][0]["new"] == 2
        answer = await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        assert answer == {"permissions": "workers=0..16", "within_site_limits": "workers=0..2"}

    played(play())


@pytest.mark.parametrize(
    "body", [{}, {"job": "101", "permit": "worker"}, {"job": 101}, {"job": "1", "x": "y"}]
)
def test_malformed_requests_are_refused(site, body):
    with pytest.raises(UsageError):
        played(site.routes.apply(body, ALICE))


def test_running_job_is_refused_and_only_its_owner_learns_that_it_runs(site):
    async def play():
        job = str(site.begin())
        with pytest.raises(UsageError, match="still running"):
            await site.routes.apply({"job": job, "permit": "workers"}, ALICE)
        with pytest.raises(NotFoundError):
            await site.routes.apply({"job": job, "permit": "workers"}, MALLORY)

    played(play())


def test_nothing_is_applied_without_permission(site):
    async def play():
        await site.run(with_workers, "workers")
        with pytest.raises(UsageError, match="permit"):
            await site.routes.apply({"job": "101"}, ALICE)
        with pytest.raises(NotFoundError, match="no advice is permitted"):
            await site.routes.apply({"job": "101", "permit": "time"}, ALICE)
        shown = await site.routes.show({"job": "101"}, ALICE)
        assert [item["finding"] for item in shown["proposals"]] == ["data-stall-cpu"]
        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        assert (await site.routes.apply({"job": "101"}, ALICE))["trial"]["state"] == "pending"

    played(play())


def test_jobs_with_policy_auto_are_adjusted_within_the_permissions(site):
    async def play():
        await site.run(with_workers, "workers", policy="auto")
        assert await site.loop.start_automatic() == 0  # the user permits nothing
        await site.routes.permit({"permit": "workers=0..3"}, ALICE)
        await site.run(with_workers, "workers", policy="monitor")
        assert await site.loop.start_automatic() == 0  # another policy
        await site.run(with_workers, "workers", policy="auto")
        assert await site.loop.start_automatic() == 1
        _, values = await site.run(with_workers, "workers", policy="auto")
        assert values == {"workers": 3}
        await site.loop.verify()
        await site.loop.start_automatic()
        assert await site.trial_states() == ["kept"]

    played(play())


def test_site_permits_policy_auto_for_users_who_never_said(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch, 'auto = "workers=0..4"\n')

    async def play():
        await site.run(with_workers, "workers", policy="auto")
        assert await site.loop.start_automatic() == 1
        await site.routes.permit({"permit": ""}, MALLORY)
        await site.run(with_workers, "workers", rights=MALLORY, policy="auto")
        assert await site.loop.start_automatic() == 0  # this user permits nothing

    played(play())


@pytest.mark.slow
def test_undone_adjustment_is_not_tried_again_by_policy_auto(site):
    async def play():
        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        for _ in range(3):
            await site.run(lambda values: slow_loader(1), "workers", policy="auto")
            await site.loop.verify()
            await site.loop.start_automatic()
        assert len(await site.trial_states()) == 1

    played(play())


def test_adjustments_with_options_are_delivered_by_a_submission_with_them(site):
    async def play():
        def few_cpus(values):
            shape = slow_loader(values.get("workers", 1))
            shape.cpus = shape.loop.cpus = values.get("cpus-per-task", 2)
            return shape

        await site.run(few_cpus, "workers")
        body = {"job": "101", "permit": "workers,cpus-per-task"}
        trial = (await site.routes.apply(body, ALICE))["trial"]
        assert {item["kind"] for item in trial["adjustments"]} == {"workers", "cpus-per-task"}
        assert await site.request(site.begin(), "workers") == {}  # a plain submission lacks the CPUs
        shown = await site.routes.show({"job": "101"}, ALICE)
        cpus = shown["values"]["cpus-per-task"]
        assert shown["options"] == [f"--cpus-per-task={cpus}"]
        job_id = site.begin()
        await site.routes.submitted({"job_id": job_id, "workload": shown["workload"]}, ALICE)
        values = await site.request(job_id, "workers")
        assert values == {"workers": shown["values"]["workers"]}
        site.end(job_id, few_cpus(shown["values"]))
        await site.loop.verify()
        assert await site.trial_states() == ["kept"]

    played(play())


def test_job_that_requested_values_before_it_was_reported_is_not_compared(site):
    async def play():
        await applied(site)
        job_id = site.begin()
        await site.request(job_id, "workers")
        with pytest.raises(UsageError, match="requested values before"):
            await site.routes.submitted({"job_id": job_id, "workload": "0123456789abcdef"}, ALICE)

    played(play())


@pytest.mark.slow
def test_advice_about_an_old_run_is_refused_once_other_values_are_in_force(site):
    async def play():
        await applied(site)
        await site.run(with_workers, "workers")
        await site.loop.verify()
        with pytest.raises(UsageError, match="diagnose its last run"):
            await site.routes.apply({"job": "101", "permit": "workers"}, ALICE)
        await site.run(with_workers, "workers", state="FAILED")
        with pytest.raises((UsageError, NotFoundError)):
            await site.routes.apply({"job": "103", "permit": "workers"}, ALICE)

    played(play())


@pytest.mark.slow
@pytest.mark.parametrize("damage", ['"kind": "workers"', '"finding":'])
def test_trial_that_cannot_be_read_does_not_prevent_others(site, damage):
    async def play():
        await applied(site)
        (stored,) = await site.store.read(adjustments.pending_trials, "c1")
        assert damage in stored.body
        body = stored.body.replace(damage, '"kind": "of-a-newer-release"')
        await site.store.write(adjustments.decide_trial, stored.key, "pending", 0.0, body)
        await site.store.write(adjustments.add_trial, stored._replace(uid=BOB.uid))
        await site.run(with_workers, "workers", rights=BOB)
        assert await site.loop.verify() == 1
        assert await site.trial_states(BOB) == ["kept"]
        await site.routes.permit({"permit": "workers=0..16"}, ALICE)
        await site.routes.permit({"permit": "workers=0..3"}, MALLORY)
        await site.run(with_workers, "workers", policy="auto", rights=MALLORY)
        await site.run(with_workers, policy="auto")
        assert await site.loop.start_automatic() == 1
        assert await site.trial_states(MALLORY) == ["pending"]

    played(play())


def test_reported_submissions_of_a_user_are_limited(site, monkeypatch):
    monkeypatch.setattr(adjustment_routes, "MAX_SUBMISSIONS_PER_HOUR", 2)

    async def play():
        await applied(site)
        for job_id in (501, 502):
            await site.routes.submitted({"job_id": job_id, "workload": FINGERPRINT}, ALICE)
        with pytest.raises(UnavailableError, match="more than 2 submissions"):
            await site.routes.submitted({"job_id": 503, "workload": FINGERPRINT}, ALICE)
        site.now += 3600.0
        await site.routes.submitted({"job_id": 503, "workload": FINGERPRINT}, ALICE)

    played(play())


def test_kept_adjustment_beyond_new_limits_of_the_site_is_not_offered(site):
    async def play():
        await applied(site)
        _, values = await site.run(with_workers, "workers")
        await site.loop.verify()
        assert await site.trial_states() == ["kept"]
        head = '[cluster]\nname = "c1"\n[diagnosis]\n'
        site.config = configuration.parse(f'{head}adjustment_limits = "workers=0..2"')
        assert await site.request(site.begin(), "workers") == {}
        assert (await site.routes.show({"job": "102"}, ALICE))["values"] == {}
        limit = values["workers"]
        site.config = configuration.parse(f'{head}adjustment_limits = "workers=0..{limit}"')
        assert await site.request(site.begin(), "workers") == values

    played(play())
