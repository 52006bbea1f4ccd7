"""Test the fair shares that are read from sacctmgr.

The tests compare a recorded account tree with the output of sshare, and process random trees and malformed
output.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import fixed_width_text

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.fair_share import (
    Association,
    FairShare,
    ShareCache,
    ShareTree,
    normalise_shares,
    read_shares,
)

RECORDED = Path(__file__).parent / "slurm_outputs" / "sacctmgr-assoc-22.05.8.txt"


def as_asked(argv, text):
    """Print a recording of `sacctmgr -P` in the requested format."""
    return fixed_width_text(argv, [line.split("|") for line in text.splitlines()])


def test_recorded_tree():
    """The fair shares that are read from sshare equal the shares that Slurm 22.05 shows.

    The test reads a recorded tree of accounts and users. On each level, an association gets its part of
    the shares of this level: bio 10/42, phys 30/42, daemon 3/4, bin 1/4.
    """
    calls = []
    shares = read_shares(lambda argv: calls.append(argv) or as_asked(argv, RECORDED.read_text()), "lab")
    assert len(calls) == 1 and "cluster=lab" in calls[0]
    assert shares.accounts["bio"] == FairShare(10, pytest.approx(10 / 42))
    assert shares.users["bio", "games"] == FairShare(1, pytest.approx(10 / 42))
    assert shares.users["phys", "daemon"] == FairShare(3, pytest.approx(30 / 42 * 3 / 4))
    assert shares.users["sub", "bin"] == FairShare(
        1, pytest.approx(30 / 42 / 4)
    )  # sibling of daemon, because sub has `parent`
    assert shares.users["sub", "sys"] == FairShare(None, pytest.approx(30 / 42))
    assert shares.accounts["sub"] == FairShare(None, pytest.approx(30 / 42))


def test_associations_of_partitions_count_together():
    rows = [Association("root"), *(Association("root", "a", name, shares=2) for name in ("p", "q"))]
    assert normalise_shares([*rows, Association("root", "b", shares=4)]).users == {
        ("root", "a"): FairShare(4, 0.5),
        ("root", "b"): FairShare(4, 0.5),
    }


def test_nobody_has_a_share_where_all_have_zero():
    shares = normalise_shares([Association("root"), Association("root", "a", shares=0)])
    assert shares.users["root", "a"].norm == 0


SHARES = st.none() | st.integers(0, 1000)


@st.composite
def trees(draw):
    """Hypothesis strategy that draws a tree of Slurm accounts with users and random raw shares.

    The parent of an account is an account drawn earlier. Users belong to random accounts.
    """
    rows = [Association("root")]
    for number in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([row.account for row in rows]))
        rows.append(Association(f"a{number}", parent=parent, shares=draw(SHARES)))
    accounts = [row.account for row in rows]
    for number in range(draw(st.integers(0, 8))):
        rows.append(Association(draw(st.sampled_from(accounts)), f"u{number}", shares=draw(SHARES)))
    return draw(st.permutations(rows))


@given(trees())
def test_parts_of_the_users_never_exceed_the_cluster(rows):
    shares = normalise_shares(rows)
    assert len(shares.accounts) + len(shares.users) == len(rows)
    own = [share.norm for share in shares.users.values() if share.raw is not None]
    assert all(0 <= norm <= 1 for norm in own)
    assert sum(own) <= 1 + 1e-9


@given(
    st.lists(st.builds(Association, st.sampled_from("abcr"), parent=st.sampled_from("abcr"), shares=SHARES))
)
def test_loops_and_doubles_come_to_an_end(rows):
    shares = normalise_shares(rows)
    assert all(len(shares.ancestors(account)) <= 4 for account in "abcr")


@given(st.text())
def test_any_answer_is_read_or_refused(text):
    try:
        read_shares(lambda argv: text)
    except UnavailableError as error:
        assert "\n" not in str(error)


FORGED = ["a|b", "x\nphys|alice||phys|9999\nz", "phys" + " " * 253 + "alice", "é\n\n" * 40]
NAMES = st.sampled_from(FORGED) | st.text(
    st.sampled_from("|\n 9aé") | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=255,
).filter(lambda name: name.strip(" ") and len(name.encode()) <= 255)


@given(name=NAMES)
def test_no_account_name_forges_a_share(name):
    """The fair shares remain correct if an account has a name that imitates other rows.

    The shares are read from rows of text that contain the names of accounts. A coordinator may add accounts
    and choose their names (slurmdbd, as_mysql_add_accts).
    """
    rows = [("root", "", "", "", "1"), ("phys", "", "", "root", "30"), ("phys", "alice", "", "", "1")]
    rows += [(f"x{name}"[:255], "", "", "phys", "1"), ("bio", "", "", "root", "10")]
    shares = read_shares(lambda argv: fixed_width_text(argv, rows))
    assert shares.users == {("phys", "alice"): FairShare(1, pytest.approx(30 / 40 / 2))}
    assert len(shares.accounts) == 4 and shares.accounts["bio"].raw == 10


class TestShareCache:
    """Tests of the cache of fair shares.

    The cache reads the shares at most once per interval. After a failure it keeps the last shares.
    """

    def make(self, answers):
        self.now = 0.0
        self.count = 0

        def read():
            self.count += 1
            answer = answers[min(self.count, len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ShareCache(read, 100.0, lambda: self.now)

    def test_shares_are_read_once_in_their_time(self):
        source = self.make([ShareTree()])
        for self.now in (0.0, 50.0, 99.0):
            source.current()
        assert self.count == 1
        self.now = 100.0
        source.current()
        assert self.count == 2

    def test_a_failure_is_raised_once_and_the_last_shares_stay(self):
        known = ShareTree({"a": FairShare(1, 1.0)})
        source = self.make([known, UnavailableError("slurmdbd"), known])
        assert source.current() is known
        self.now = 100.0
        with pytest.raises(UnavailableError):
            source.current()
        assert source.current() is known
        self.now = 110.0
        assert source.current() is known
        assert self.count == 3

    def test_an_unknown_user_causes_another_read_but_not_in_every_cycle(self):
        known = ShareTree(users={("lab", "alice"): FairShare(1, 1.0)})
        source = self.make([ShareTree(), known])
        alice, bob = ("lab", "alice"), ("lab", "bob")
        counts = []
        for self.now in (0.0, 1.0, 2.0, 3.0, 5.0, 50.0):
            source.current([alice])
            counts.append(self.count)
        assert counts == [1, 1, 2, 2, 2, 2]
        source.current([alice, bob])
        source.current([bob])
        assert self.count == 3

    def test_who_has_no_association_is_asked_about_less_and_less(self):
        source = self.make([ShareTree(users={("lab", "alice"): FairShare(1, 1.0)})])
        for self.now in range(100):
            source.current([("lab", "alice"), ("", "root")])
        assert self.count == 6

    def test_a_slurmdbd_that_is_away_is_not_asked_all_the_time(self):
        source = self.make([UnavailableError("slurmdbd")])
        for self.now in range(0, 100, 2):
            with contextlib.suppress(UnavailableError):
                source.current([("lab", "alice")])
        assert self.count == 10
