"""Tests of the AdminComment that the controller writes for ended jobs.

The tests check which comments are written or replaced, and what the comments contain.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from store_examples import NOW, Accounting, item, job

from slurm_energy.accounting.history.ended_jobs import EndedJob, ended_jobs
from slurm_energy.controller.records.admin_comments import KEY, comment_text, is_free
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.slurm import admin_comment
from slurm_energy.slurm.admin_comment import AdminComment, read_admin_comments, write_admin_comment
from slurm_energy.slurm.command import CommandFailedError, CommandRunner

JOB = EndedJob(5.0, "c1", 12, 1.0, "12", 3600.0, 100.0, 136.0, "edp", 1, "r1")


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("", True),
        ("energy-flags: ENERGY_POLICY=edp", True),
        ("JS1:H4sIAAAA", False),
        ("site; energy-flags: ENERGY_POLICY=edp", False),
        ("energy-flags: ENERGY_POLICY=edp ENERGY_CAP=200", True),
        ("energy-flags: ENERGY_POLICY=edp; site: bill 12", False),
        ("energy-flags: ENERGY_POLICY=edp bill", False),
        ('{"slurm-energy":{"v":1}}', False),
    ],
)
def test_only_empty_comments_and_own_flags_are_replaced(text, free):
    assert is_free(AdminComment(12, 1.0, text)) is free


@examples(50)
@given(st.from_regex(r"[a-z][a-z0-9`_-]{0,30}", fullmatch=True), st.none() | st.floats(0, 1e15))
def test_the_comment_is_ascii_json_also_with_backticks_for_quotation_marks(policy, joules):
    flags = {"ENERGY_CAP": "200"}
    job = JOB._replace(policy=policy, energy_joules=joules)
    text = comment_text(job, [(100.0, 136.0, joules)], GridFactors(), flags)
    assert text.isascii() and text.isprintable()
    assert json.loads(text.replace('"', "`").replace("`", '"')) == json.loads(text)
    figures = json.loads(text)[KEY]
    assert figures["policy"] == policy.replace("`", "'") and figures["flags"] == flags
    assert figures["co2e_grams"] is None and (joules is None) == (figures["energy_joules"] is None)


def test_the_command_names_job_and_cluster():
    asked = []

    def run(argv):
        asked.append(list(argv))
        return ""

    assert write_admin_comment(12, "c1", "{}", run) is True
    assert asked[0][3:] == ["modify", "job", "where", "jobid=12", "cluster=c1", "set", "AdminComment={}"]


def _sacctmgr(folder, monkeypatch, script):
    (folder / "sacctmgr").write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    (folder / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "output",
    [" Nothing modified", " Modified jobs...\n  Nothing modified"],  # Slurm 22.05, Slurm 26.05
)
def test_a_job_that_accounting_does_not_know_is_no_error(tmp_path, monkeypatch, output):
    _sacctmgr(tmp_path, monkeypatch, f"echo '{output}'; echo 'sacctmgr: did not affect anything' >&2")
    assert write_admin_comment(12, "c1", "{}", CommandRunner(60.0)) is False


def test_a_refusal_of_accounting_is_an_error(tmp_path, monkeypatch):
    _sacctmgr(tmp_path, monkeypatch, "echo ' Error with request: Access/permission denied' >&2")
    with pytest.raises(CommandFailedError, match="permission denied"):
        write_admin_comment(12, "c1", "{}", CommandRunner(60.0))


def test_comments_with_any_text_are_read_by_width():
    width = admin_comment.MAX_LENGTH

    def run(argv):
        rows = [("12", "5", "a|b\n c"), ("13", "Unknown", "")]
        return "".join(f"{job:<20} {submit:<24} {text:<{width}} \n" for job, submit, text in rows)

    assert read_admin_comments({13, 12}, run) == [AdminComment(12, 5.0, "a|b\n c")]


def test_jobs_without_records_or_with_equal_times_hide_no_others(tmp_path):
    store = Accounting(tmp_path)
    for job_id in range(1, 8):
        store.deliver(item(job_id=job_id))
    store.learn(*(job(job_id, **({"nodes": 2} if job_id < 4 else {})) for job_id in range(1, 8)))
    after, seen, more = (0.0, 0), [], True
    with store.connect(read_only=True) as connection:
        while more:
            found, after, more = ended_jobs(connection, after, limit=2)
            seen += [one.job_id for one in found]
    assert seen == [4, 5, 6, 7]


def test_a_job_is_complete_when_its_last_node_delivers_however_late(tmp_path):
    store = Accounting(tmp_path)
    facts = {one.job_id: one for one in (job(1, nodes=2), job(2))}
    after, seen = (0.0, 0), []
    for passed_s, job_id, node in ((0.0, 1, "n1"), (15.0, 2, "n1"), (30.0, 1, "n2")):
        store.deliver(item(job_id=job_id, node=node), now=NOW + passed_s)
        store.learn(facts[job_id], now=NOW + passed_s)
        with store.connect(read_only=True) as connection:
            found, after, _ = ended_jobs(connection, after)
        seen.append([(one.job_id, one.nodes) for one in found])
    assert seen == [[], [(2, 1)], [(1, 2)]]
