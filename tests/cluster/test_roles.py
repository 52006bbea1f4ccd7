"""Tests on a real Slurm: which users may see the energy of which jobs.

The users are coordinators, operators, members of a group and others. Their roles come from slurmdbd.
"""

from __future__ import annotations

import json
import os
import signal

import pytest
from small_cluster import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.other_user,
    pytest.mark.lab(
        profiles=["xeon-8358"],
        users={"nobody": 1, "games": 1, "mail": 1, "news": 1},
        energy={"controller": {"operators": ["root", "%backup"]}},
    ),
]


@pytest.fixture
def jobs(lab):
    """Create accounts and roles, and return the ids of two jobs by user.

    The job of user mail runs in account theory, and the job of user games runs in account lab.
    """
    for command in (
        ("add", "account", "phys"),
        ("add", "account", "theory", "parent=phys"),
        ("add", "user", "mail", "account=theory"),
        ("add", "coordinator", "account=phys", "name=nobody"),
        ("modify", "user", "news", "set", "adminlevel=operator"),
    ):
        lab.run("sacctmgr", "-i", *command)
    os.kill(lab.pid("senergyctld"), signal.SIGHUP)
    asked = {"mail": "theory", "games": "lab"}
    made = {user: lab.sbatch("#!/bin/sh\ntrue\n", f"--account={asked[user]}", user=user) for user in asked}
    for job_id in made.values():
        assert lab.wait(job_id) == "COMPLETED"
    wait_until(lambda: accounts(lab) >= set(asked.values()), "records with accounts")
    yield made
    lab.run("sacctmgr", "-i", "modify", "user", "news", "set", "adminlevel=none")
    lab.run("sacctmgr", "-i", "delete", "account", "theory", "phys", check=False)


def accounts(lab):
    jobs = json.loads(lab.run("senergy", "acct", "-a", "-X", "-S", "now-1hour", "--json").stdout)["jobs"]
    return {job["account"] for job in jobs if job["energy"] and job["energy"]["missing_nodes"] == 0}


def seen(lab, user, *options):
    """Return what `senergy acct` shows to a user.

    The result is a tuple: the scope, the ids of the jobs whose energy the user can see, and the notes on
    standard error.
    """
    done = lab.run("senergy", "acct", "-X", "-S", "now-1hour", "--json", *options, user=user)
    answer = json.loads(done.stdout)
    visible = {job["job_id"] for job in answer["jobs"] if job["energy"]}
    return answer["meta"]["senergy"]["scope"], visible, done.stderr


def test_roles_in_slurm_count(lab, jobs):
    theirs, others = jobs["mail"], jobs["games"]
    wait_until(lambda: seen(lab, "nobody", "-a")[0] == "accounts", "the coordinator's role")
    scope, ids, noted = seen(lab, "nobody", "-A", "theory")
    assert (scope, ids, noted) == ("accounts", {theirs}, "")  # theory is below phys
    scope, ids, noted = seen(lab, "nobody", "-a")
    assert (scope, ids) == ("accounts", {theirs}) and "of users outside your accounts is not shown" in noted
    assert "Energy" in lab.run("senergy", "job", str(theirs), user="nobody").stdout
    refused = lab.run("senergy", "job", str(others), user="nobody", check=False)
    assert refused.returncode == 5 and "another user" in refused.stderr
    assert seen(lab, "news", "-a") == ("all", {theirs, others}, "")
    scope, ids, noted = seen(lab, "mail", "-a")
    assert (scope, ids) == ("own", {theirs}) and noted.count("of other users is not shown") == 1
    for command, options in (("experiment", ["-a", "-S", "now-1hour"]), ("prio", []), ("share", ["-a"])):
        assert (
            "jobs of other users are not shown" in lab.run("senergy", command, *options, user="mail").stderr
        )
        assert "left out" not in lab.run("senergy", command, *options, user="news").stderr
    assert seen(lab, "backup", "-a")[0] == "all"  # by its group


def test_a_revoked_role_ends(lab, jobs):
    wait_until(lambda: seen(lab, "nobody", "-a")[0] == "accounts", "the coordinator's role")
    lab.run("sacctmgr", "-i", "delete", "coordinator", "account=phys", "name=nobody")
    os.kill(lab.pid("senergyctld"), signal.SIGHUP)
    wait_until(lambda: seen(lab, "nobody", "-a")[0] == "own", "the end of the role")
