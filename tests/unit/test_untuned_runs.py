"""Tests of the statistics of untuned runs, with which `senergy acct` compares jobs.

The tests cover which runs count, who may see them, and malformed requests.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from sqlalchemy import event
from store_examples import NOW, Accounting, item, job

from slurm_energy.accounting.history import run_history
from slurm_energy.accounting.history.untuned_runs import find_untuned_runs
from slurm_energy.errors import UsageError
from slurm_energy.protocol.untuned_runs import (
    MAX_PROGRAMS,
    ComparableProgram,
    UntunedRuns,
    read_programs,
    read_response,
    request_body,
)
from slurm_energy.reports.acct.rows import program_of
from slurm_energy.reports.usage import AccountedRecord, summarise

SCRIPT = "f" * 16
PROGRAM = ComparableProgram("alice", SCRIPT, "train", 1, 4, 0)


@pytest.fixture
def store(store_location) -> Accounting:
    """A database with runs of several programs. Two runs of one program are untuned and completed."""
    accounting = Accounting(store_location)
    records = [
        (1, 1000.0, {}, {}),
        (2, 3000.0, {"end": 1200.0, "budget_capped_seconds": 4.0}, {"end": 1200.0, "elapsed_s": 200.0}),
        (3, 50.0, {"policy": "powersave"}, {}),
        (4, 50.0, {"policy": "cap", "requested": {"cap_watts": "200"}}, {}),
        (5, 50.0, {}, {"state": "CANCELLED by 0"}),
        (6, None, {}, {}),
        (7, 50.0, {"fingerprint": "e" * 16}, {}),
        (8, 50.0, {}, {"requested": "cpu=8,node=1"}),
        (9, 50.0, {"fingerprint": None}, {}),
        (10, 9.0, {}, {"user": "bob", "account": "chem"}),
        (11, 50.0, {"budget_capped_seconds": 60.0}, {}),
    ]
    for job_id, joules, record, facts in records:
        entry = item(job_id=job_id, **{"fingerprint": SCRIPT, "policy": "monitor"} | record)
        node = {"name": "node", "energy_joules": joules, "source": "ipmi", "quality": "measured"}
        entry["record"]["components"] = [node]
        accounting.deliver(entry)
        known = {"name": "train", "user": "alice", "requested": "cpu=4,node=1"} | facts
        accounting.learn(job(job_id, **known))
    with accounting.connect() as connection:
        run_history.store_finished_runs(connection, NOW)
    return accounting


def test_completed_runs_without_settings_count(store: Accounting) -> None:
    others = [
        ComparableProgram("alice", SCRIPT, "other", 1, 4, 0),
        ComparableProgram("bob", SCRIPT, "train", 1, 4, 0),
    ]

    def find(*programs, **caller):
        with store.connect(read_only=True) as connection:
            return find_untuned_runs(connection, programs, **caller)

    own, bobs = UntunedRuns(2, 2000.0, 150.0), UntunedRuns(1, 9.0, 100.0)
    everything = {"user": "root", "everything": True}
    assert find(PROGRAM, *others, PROGRAM, **everything) == [own, None, bobs, own]
    assert find(PROGRAM, others[1], user="alice", everything=False) == [own, None]
    assert find(PROGRAM, others[1], user=None, everything=False) == [None, None]
    assert find(PROGRAM, others[1], user="carol", accounts={"chem"}, everything=False) == [None, bobs]
    assert find(user="alice", everything=False) == []


def test_runs_of_others_are_not_even_read(store: Accounting) -> None:
    bobs = ComparableProgram("bob", SCRIPT, "train", 1, 4, 0)
    statements = []
    with store.connect(read_only=True) as connection:
        event.listen(connection, "before_cursor_execute", lambda *args: statements.append(args[3]))
        assert find_untuned_runs(connection, [bobs], "alice", everything=False) == [None]
        assert not any("bob" in str(values) for values in statements)
        assert find_untuned_runs(connection, [PROGRAM], "alice", everything=False) != [None]
        assert statements


def test_a_job_has_the_program_of_the_history() -> None:
    data = item(job_id=1, fingerprint=SCRIPT, gpus=(0, 1))  # policy edp
    facts = {"name": "train", "user": "alice", "nodes": 1, "requested": "cpu=4,node=1,gres/gpu:a100=2"}
    (usage,) = summarise([AccountedRecord.from_json(data["record"] | {"job": facts})])
    assert program_of(usage) == ComparableProgram("alice", SCRIPT, "train", 1, 4, 2, "a100")
    without = AccountedRecord.from_json(item(job_id=1)["record"] | {"job": facts})
    assert program_of(summarise([without])[0]) is None and program_of(None) is None
    untuned = item(job_id=1, fingerprint=SCRIPT, policy="monitor")["record"]
    assert program_of(summarise([AccountedRecord.from_json(untuned | {"job": facts})])[0]) is None
    incomplete = AccountedRecord.from_json(data["record"] | {"job": facts | {"nodes": 2}})
    assert program_of(summarise([incomplete])[0]) is None


def test_a_request_is_read_as_it_was_written() -> None:
    assert read_programs(request_body([PROGRAM])) == [PROGRAM]
    assert read_response({"untuned_runs": [None, {"runs": 1, "energy_joules": 2.0, "elapsed_s": 3.0}]}) == [
        None,
        UntunedRuns(1, 2.0, 3.0),
    ]


json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just([])
programs = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("user", "fingerprint", "name", "nodes", "gpu_kind", "extra"), json_values)
)


@given(st.fixed_dictionaries({}, optional={"programs": st.lists(programs) | json_values}))
@examples(60)
def test_any_request_is_programs_or_a_usage_error(body) -> None:
    try:
        found = read_programs(body)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(program.user, str) and program.fingerprint for program in found)
        assert len({*found}) <= len(found)


@pytest.mark.parametrize("value", [None, 1, "text", [{}]])
def test_keys_of_a_newer_release_are_ignored(value) -> None:
    body = request_body([PROGRAM])
    body["programs"][0]["extra"] = value
    assert read_programs(body) == [PROGRAM]


def test_a_request_is_bounded() -> None:
    with pytest.raises(UsageError, match="at most 1000"):
        read_programs({"programs": [{}] * (MAX_PROGRAMS + 1)})
