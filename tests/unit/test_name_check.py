"""Test the check of account and partition names in requests.

Names that Slurm does not know are refused. A known name without jobs gives an empty table.
"""

from __future__ import annotations

import open_munge
import pytest
from slurm_answers import fixed_width_text
from store_examples import NOW, item, job
from test_controller import BOB, OPERATOR, Controller, refused

from slurm_energy.accounting.records import job_facts
from slurm_energy.controller.http import name_check
from slurm_energy.controller.http.name_check import NameCheck
from slurm_energy.errors import UnavailableError

NO_ACCOUNTING = "Only 'accounting_storage/slurmdbd' is supported."


class FakeSlurm:
    """Fake of the commands sinfo and sacctmgr. It records each call."""

    def __init__(self, accounts="root physics biology", partitions="cpu gpu night"):
        self.accounts, self.partitions, self.asked = accounts, partitions, []

    def __call__(self, argv):
        self.asked.append(argv[0])
        answer = self.partitions if argv[0] == "sinfo" else self.accounts
        if isinstance(answer, Exception):
            raise answer
        if argv[0] == "sinfo":
            return answer.replace(" ", "\n") + "\n"
        rows = [(name, "", "", "" if name == "root" else "root", "1") for name in answer.split()]
        return fixed_width_text(argv, rows)


@pytest.fixture
def slurm():
    return FakeSlurm()


@pytest.fixture
def controller(tmp_path, monkeypatch, slurm):
    open_munge.install(monkeypatch)
    made = Controller(tmp_path)
    made.now_s = 1000.0
    made.server._names = NameCheck(lambda: made.config, made.store, slurm, lambda: made.now_s)
    return made


async def with_jobs(c):
    await c.post({"items": [item(job_id=1), item(job_id=2, uid=BOB)]})
    gone = (job(1, account="closed", partition="retired"),)
    other = (job(2, account="physics", partition="cpu"),)
    open_jobs = [job_facts.JobLookup("c1", number, True) for number in (1, 2)]
    assert (await c.store.write(job_facts.store, {1: gone, 2: other}, open_jobs, NOW)).linked == 2


def test_unknown_names_are_refused_with_a_suggestion(controller):
    async def story(c):
        await with_jobs(c)
        for query, name, hint in (
            ("account=phsics", "account phsics", "did you mean physics?"),
            ("account=Physics", "account Physics", "did you mean physics?"),
            ("account=physics,xyzzy", "account xyzzy", "is it spelt right?"),
            ("partition=gppu", "partition gppu", "did you mean gpu?"),
            ("account=%1B2J", r"account \x1b2J", "is it spelt right?"),
        ):
            said = f"{name}: neither Slurm nor an energy record knows it: {hint}"
            assert refused(await c.get(f"/v1/records?{query}"), 404, 6, said), query
            assert refused(await c.get(f"/v1/records?{query}", uid=BOB), 404, 6, said), query
        return True

    assert controller.session(story)


def test_known_names_without_records_give_an_empty_table(controller):
    async def story(c):
        await with_jobs(c)
        for query, count in {
            "account=biology": 0,
            "partition=night,gpu": 0,
            "account=closed": 1,
            "partition=retired": 1,
            "account=physics,biology,closed": 2,
            "account=nosuch&job=1": 0,
        }.items():
            status, answer = await c.get(f"/v1/records?{query}")
            assert (status, len(answer.get("records", answer))) == (200, count), (query, answer)
        return True

    assert controller.session(story)


@pytest.mark.parametrize("kind", ["account", "partition"])
def test_the_search_of_users_for_many_names_has_a_time_limit(controller, monkeypatch, kind):
    monkeypatch.setattr(name_check, "_QUERY_TIMEOUT_S", -1.0)
    names = ",".join(f"name{number}" for number in range(5000))

    async def story(c):
        await with_jobs(c)
        answer = await c.post({kind: names}, uid=BOB, target="/v1/records/search")
        assert refused(answer, 503, 4, "query: it takes longer")
        answer = await c.post({kind: names}, uid=OPERATOR, target="/v1/records/search")
        return refused(answer, 404, 6, f"{kind} name0: neither Slurm nor an energy record")

    assert controller.session(story)


def test_without_an_answer_of_slurm_nothing_is_refused(controller, slurm):
    slurm.accounts = slurm.partitions = UnavailableError("sacctmgr", "Connection refused")

    async def story(c):
        for query in ("account=nosuch", "partition=nosuch"):
            assert (await c.get(f"/v1/records?{query}"))[1]["records"] == []
        return True

    assert controller.session(story)


def test_without_slurmdbd_accounts_come_from_records(controller, slurm):
    slurm.accounts = UnavailableError("sacctmgr", NO_ACCOUNTING)

    async def story(c):
        await with_jobs(c)
        assert len((await c.get("/v1/records?account=closed"))[1]["records"]) == 1
        return refused(await c.get("/v1/records?account=nosuch"), 404, 6, "account nosuch: ")

    assert controller.session(story)


def test_slurm_is_queried_at_most_once_a_minute(controller, slurm):
    async def story(c):
        await with_jobs(c)
        for number in range(20):
            await c.get(f"/v1/records?account=a{number}&partition=p{number}", uid=BOB)
            await c.get("/v1/records?account=physics,closed")
        assert slurm.asked == ["sacctmgr"]
        await c.get("/v1/records?partition=cpu")
        assert slurm.asked == ["sacctmgr", "sinfo"]
        c.now_s += 61.0
        await c.get("/v1/records?account=a1")
        return slurm.asked == ["sacctmgr", "sinfo", "sacctmgr"]

    assert controller.session(story)
