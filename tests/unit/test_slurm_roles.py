"""Tests of the parser of sacctmgr's output, from which slurm-energy learns the roles of users.

Roles, for example operator, are stored in Slurm's database.
"""

from __future__ import annotations

import pytest
from slurm_answers import fixed_width_text

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm import roles


class Sacctmgr:
    """A stand-in for sacctmgr that answers the queries of users and of accounts."""

    def __init__(self, users, accounts):
        self.users, self.accounts, self.asked = users, accounts, []

    def __call__(self, argv):
        self.asked.append(list(argv))
        return fixed_width_text(argv, self.users if "user" in argv else self.accounts)


def test_roles_by_user():
    asked = Sacctmgr(
        [("alice", "None"), ("bob", "Operator"), ("root", "Administrator"), ("carl", "Not Set")],
        [("root", ""), ("phys", "alice,dora"), ("theory", "alice")],
    )
    read = roles.read_roles(asked)
    assert read.administrators == {"bob", "root"}
    assert read.accounts == {"alice": {"phys", "theory"}, "dora": {"phys"}}
    assert len(asked.asked) == 2


@pytest.mark.parametrize(
    "name", ["phys|mallory", "x\nphys|mallory\ny", "x phys mallory", "phys=", "x,phys", " phys", "a\tb"]
)
def test_no_account_s_name_makes_anybody_a_coordinator_of_another(name):
    asked = Sacctmgr([(name, "None"), ("mallory", "None")], [(name, "mallory"), ("phys", "alice")])
    read = roles.read_roles(asked)
    assert read.accounts["mallory"] == {name} and read.accounts["alice"] == {"phys"}
    assert read.administrators == frozenset()


def test_no_user_s_name_makes_an_administrator():
    asked = Sacctmgr([("x\nmallory Administrator", "None"), ("mallory|Administrator|", "None")], [])
    assert roles.read_roles(asked).administrators == frozenset()


def test_a_list_that_was_cut_loses_its_last_name():
    names = ",".join(f"user{number:04}" for number in range(300))
    cut = names[: roles._LIST_BYTES - 1] + "+"
    read = roles.read_roles(Sacctmgr([], [("phys", cut)]))
    assert "user0000" in read.accounts and not any(name.endswith("+") for name in read.accounts)
    assert all(len(name) == len("user0000") for name in read.accounts)


@pytest.mark.parametrize("level", ["Root", "administrator", "None,Administrator"])
def test_levels_that_are_not_known_are_refused(level):
    with pytest.raises(UnavailableError, match="is not an AdminLevel"):
        roles.read_roles(Sacctmgr([("alice", level)], []))


def test_a_torn_answer_is_refused():
    class Torn(Sacctmgr):
        def __call__(self, argv):
            return super().__call__(argv)[:-3]

    with pytest.raises(UnavailableError, match="not a whole number of rows"):
        roles.read_roles(Torn([("alice", "None")], []))
