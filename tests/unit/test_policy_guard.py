"""Tests that a fault in a site's own scheduling policy causes an error message of one line.

The message names the policy, the file and the number of the faulty line. The simulator and the live
queue give the same message.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from slurm_energy.errors import UsageError
from slurm_energy.scheduling import Options, Queue, Ranking, load_file, policy, policy_guard
from slurm_energy.scheduling.queue import Users, alternatives, jobs

HEAD = """\
import itertools
import numpy as np
from slurm_energy.scheduling import Ranking, register
from slurm_energy.scheduling.ranking import least, ranked

numbers = itertools.count()

@register("guarded")
def rank(queue, options):
    n = queue.jobs.count
    good = ranked(queue, options, *least(queue.alternatives.edp, queue.alternatives))
"""
FAULTS = {
    "queue.jobs.submit_s[0] = 0": (12, "assignment destination is read-only: columns of the queue cannot"),
    "queue.alternatives.possible[:] = True": (12, "read-only"),
    "queue.users.share.fill(3)": (12, "read-only"),
    "queue.alternatives.first.sort()": (12, "read-only"),
    "options.age_weight = 3": (12, "FrozenInstanceError"),
    "return Ranking(good.tier, good.score * np.nan, good.choice)": (8, "is not a number (NaN)"),
    "return Ranking(good.tier, good.score - np.inf, good.choice)": (8, "is minus infinity"),
    "return Ranking(good.tier, good.score, good.choice.astype(float))": (8, "choice has the type float64"),
    "return Ranking(good.tier > 1, good.score, good.choice)": (8, "tier has the type bool"),
    "return Ranking(good.tier, good.score.astype(object), good.choice)": (8, "score has the type object"),
    "return Ranking(good.tier, good.score.astype(str), good.choice)": (8, "score has the type <U"),
    "return Ranking(good.tier, good.score + 1j, good.choice)": (8, "score has the type complex128"),
    "return Ranking(good.tier + 7, good.score, good.choice)": (8, "a tier is not from 0 to 2"),
    "return Ranking(good.tier, good.score, good.choice[::-1])": (8, "a shape of another job"),
    "return Ranking(good.tier, good.score, good.choice * 0 + 99)": (8, "a shape of another job, or one that"),
    "return Ranking(good.tier, good.score, queue.alternatives.first[1:] - 1)": (
        8,
        "that is not possible now",
    ),
    "return Ranking(good.tier[1:], good.score, good.choice)": (8, "tier has not one value"),
    "return Ranking(good.tier, [[1]] * n, good.choice)": (8, "score has not one value"),
    "return good.score": (8, "it returned ndarray, not a Ranking"),
    "raise MemoryError('none left')": (12, "MemoryError: none left"),
    "raise SystemExit": (12, "SystemExit"),
    "rank(queue, options)": (11, "RecursionError"),
    "while True: pass": (12, "took longer than 0.3 s: is a loop endless?"),
    "while True:\n        try: list(range(9))\n        except Exception: pass": (13, "took longer than"),
}


def queue() -> Queue:
    table = alternatives(
        np.array([0, 2, 4, 6]),
        np.array([10.0, 20, 30, 40, 50, 60]),
        np.full(6, 100.0),
        possible=np.array([True, False] * 3),
    )
    return Queue(5.0, jobs(np.array([7, 8, 9]), np.array([1.0, 2, 3])), table, Users())


def loaded(tmp_path, body):
    path = tmp_path / "site.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.split("\n    ")) + "    return good\n")
    load_file(path)
    return path


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(policy_guard, "CALL_LIMIT_S", 0.3)
    monkeypatch.setattr(policy_guard, "_POLL_S", 0.05)
    yield
    policy_guard.forget_calls("guarded")
    from slurm_energy.scheduling import registry

    registry._policies.pop("guarded", None)


@pytest.mark.parametrize("body", FAULTS)
def test_a_fault_is_one_line_with_policy_file_and_line(tmp_path, body):
    line, message = FAULTS[body]
    path = loaded(tmp_path, body)
    before = queue()
    with pytest.raises(UsageError) as caught:
        policy("guarded").rank(before, Options())
    assert str(caught.value).startswith(f"policy 'guarded' ({path}:"), caught.value
    if "took longer" not in message:
        assert f"({path}:{line})" in str(caught.value)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert before.alternatives.possible.tolist() == [True, False] * 3 and before.jobs.submit_s[0] == 1.0


def test_a_valid_ranking_gets_the_expected_types(tmp_path):
    loaded(tmp_path, "return Ranking(good.tier.astype('i1'), [3, 2, 1], good.choice.astype('i2'))")
    ranking = policy("guarded").rank(queue(), Options())
    assert isinstance(ranking, Ranking) and ranking.score.dtype == np.float64
    assert ranking.tier.dtype == ranking.choice.dtype == np.int64
    assert list(ranking.order(np.array([7, 8, 9]))) == [2, 1, 0]


def test_varying_results_are_reported(tmp_path):
    loaded(tmp_path, "good.score[:] = next(numbers)")
    policy("guarded").rank(queue(), Options())
    (note,) = policy_guard.observed_calls("guarded").notes("guarded")
    assert note == (
        "policy 'guarded' is not deterministic: "
        "two calls for the same queue differ in the score of job 7: 0.0, 1.0"
    )


def test_slow_calls_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_guard, "SLOW_S", 0.0)
    loaded(tmp_path, "pass")
    policy("guarded").rank(queue(), Options())
    (note,) = policy_guard.observed_calls("guarded").notes("guarded")
    assert note.startswith("policy 'guarded' is slow: up to 0.0 s for 3 jobs")


def test_changed_options_do_not_reach_the_next_call(tmp_path):
    loaded(tmp_path, "options.weights['edp'] = 5.0")
    options = Options(weights={"edp": 1.0})
    policy("guarded").rank(queue(), options)
    assert options.weights == {"edp": 1.0}


@pytest.mark.slow
def test_a_child_process_has_a_watchdog_of_its_own(tmp_path):
    loaded(tmp_path, "while True: pass")
    with pytest.raises(UsageError):
        policy("guarded").rank(queue(), Options())
    child = os.fork()
    if child == 0:
        try:
            policy("guarded").rank(queue(), Options())
        except UsageError:
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
