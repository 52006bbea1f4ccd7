"""Tests of the lease that decides which controller is active.

The lease is the exclusive right to write to the database. The tests cover taking, renewal, release,
and loss of the lease. A former holder of the lease must not write to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.accounting import controller_lease
from slurm_energy.accounting.controller_lease import EXPIRY_S, ControllerState, LeaseState, Presence
from slurm_energy.accounting.engine import connect, transaction
from slurm_energy.accounting.schema import tables
from slurm_energy.accounting.schema.lease_tables import controller_lease as lease_table
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.standby.lease import VALIDITY_S, ControllerLease
from slurm_energy.controller.standby.lease_metrics import lease_families
from slurm_energy.controller.standby.passive_error import PassiveControllerError
from slurm_energy.controller.standby.slurmctld_follower import (
    HYSTERESIS_S,
    PRECEDENCE_S,
    SlurmctldFollower,
    may_take,
)
from slurm_energy.errors import AlreadyRunningError, UnavailableError
from slurm_energy.slurm.command import COMMAND_GATE, CommandRunner, run_command
from slurm_energy.slurm.queue.job_update import JobUpdater

A, B = "http://a:6828", "http://b:6828"


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def lease(location, name, token=0, clock=None):
    return ControllerLease(location, lambda: Presence(name, "0.2.0", 1.0), token, *([clock] if clock else []))


def state(location):
    with connect(location) as connection:
        return controller_lease.read_state(connection)


def expire(location):
    with connect(location) as connection:
        connection.execute(lease_table.update().values(renewed=lease_table.c.renewed - EXPIRY_S - 1.0))


def write(store, cluster):
    def insert(connection):
        with transaction(connection):
            connection.execute(tables.schema_version.insert(), {"version": cluster, "applied": 0.0})

    return asyncio.run(store.write(insert))


def versions(location):
    with connect(location) as connection:
        rows = connection.exec_driver_sql("SELECT version FROM schema_version WHERE version < 0").fetchall()
        connection.exec_driver_sql("DELETE FROM schema_version WHERE version < 0")
    return sorted(-row[0] for row in rows)


@contextlib.contextmanager
def opened(location, held):
    store = Store(location, held)
    try:
        yield store
    finally:
        store.close()


def test_a_lease_is_taken_renewed_and_released(store_location):
    held = lease(store_location, A)
    with opened(store_location, held) as store:
        assert held.token == 1 and held.is_valid
        write(store, -1)
        before = state(store_location)
        assert before.active == A and before.free_s is None
        expire(store_location)
        assert state(store_location).active is None
        held.policy_lines = ("budget a", "budget b")
        held.renew()
        after = state(store_location)
        assert after.active == A and after.policy_lines == ("budget a", "budget b")
        assert [one.presence.name for one in after.controllers if one.is_present] == [A]
    held.release(B)
    free = state(store_location)
    assert free.active is None and free.successor == B and free.token == 1
    assert versions(store_location) == [1]


def test_a_held_lease_is_not_taken(store_location):
    with opened(store_location, lease(store_location, A)) as store:
        other = lease(store_location, B, token=1)
        with pytest.raises((UnavailableError, AlreadyRunningError)):
            Store(store_location, other)
        assert state(store_location).active == A
        write(store, -1)
    assert versions(store_location) == [1]


def test_a_former_holder_writes_nothing(store_location):
    """A controller that has lost its lease cannot write to the database.

    The old database session of the controller has ended, so the controller opens a new session. On SQLite,
    only the fencing token prevents its writes.
    """
    former, successor = lease(store_location, A), lease(store_location, B, token=1)
    losses = []
    former.on_loss = lambda: losses.append(A)
    with opened(store_location, former) as stale:
        write(stale, -1)
        expire(store_location)
        with connect(store_location) as connection:
            controller_lease.end_former_writer(connection, controller_lease.read_state(connection))
            if connection.dialect.name == "sqlite":
                controller_lease.take(connection, B, "b" * 32, 1)
            else:
                taken = Store(store_location, successor)
        for number in (-2, -3):
            with pytest.raises(UnavailableError):
                write(stale, number)
        with pytest.raises(controller_lease.LostLeaseError):
            former.renew()
        if stale.path is None:
            write(taken, -4)
            taken.close()
            # The lock of the writer is free, and the former holder can take it: the token refuses it.
            with pytest.raises(controller_lease.LostLeaseError):
                stale._connect_writer()
    assert former.is_lost and losses == [A]
    with pytest.raises(PassiveControllerError, match="the active controller is"):
        former.require()
    assert versions(store_location) == ([1] if "sqlite" in str(former._database.engine.url) else [1, 4])


def test_the_token_is_checked_inside_of_each_transaction(store_location):
    """A write to the database is undone if the controller loses its lease during the write.

    The write consists of two transactions. The lease is checked inside each of them. In the test, the lease
    is lost after the first transaction. The second transaction is then refused, and the values of the first
    transaction are not kept either.
    """
    held = lease(store_location, A)

    def two_transactions(connection):
        with transaction(connection):
            connection.execute(tables.schema_version.insert(), {"version": -1, "applied": 0.0})
        with connect(store_location) as other:
            other.execute(lease_table.update().values(token=7, instance="b" * 32))
        with transaction(connection):
            connection.execute(tables.schema_version.insert(), {"version": -2, "applied": 0.0})

    with opened(store_location, held) as store:
        with pytest.raises(controller_lease.LostLeaseError):
            asyncio.run(store.write(two_transactions))
        assert held.is_lost
    assert versions(store_location) == [1]


@pytest.mark.slow
def test_another_writer_is_not_ended(database_servers):
    """Failover between controllers does not end another program that writes to the database.

    The other program, for example `senergy db`, holds the writer lock but not the lease of a controller.
    """
    from slurm_energy.accounting.engine import Database
    from slurm_energy.accounting.writer_lock import writer_lock

    location = database_servers.empty_store("postgresql")
    database = Database(location)
    with writer_lock(database), connect(location) as connection:
        with pytest.raises(UnavailableError, match="another program writes to it"):
            controller_lease.end_former_writer(connection, controller_lease.read_state(connection))
        with pytest.raises(AlreadyRunningError):
            Store(location, lease(location, A))
    database.close()


def test_without_renewal_nothing_may_act(tmp_path):
    clock = Clock()
    held = lease(tmp_path / "a.db", A, clock=clock)
    with pytest.raises(PassiveControllerError):
        held.require()
    with opened(tmp_path / "a.db", held):
        held.require()
        clock.now_s += VALIDITY_S - 0.1
        held.require()
        clock.now_s += 0.1  # such as a process that was stopped, before its next renewal
        with pytest.raises(PassiveControllerError, match="not confirmed the lease"):
            held.require()
        held.renew()
        held.require()
        held.release()
        with pytest.raises(PassiveControllerError):
            held.require()


def test_a_hung_event_loop_loses_the_lease(tmp_path):
    clock = Clock()
    held = lease(tmp_path / "a.db", A, clock=clock)
    with opened(tmp_path / "a.db", held):
        held.note_loop(60.0)
        clock.now_s += 79.0
        held._renew_unless_hung()
        assert held.is_valid
        clock.now_s += 5.0
        held._renew_unless_hung()
        clock.now_s += 10.0
        assert not held.is_valid
        held.note_loop()
        held._renew_unless_hung()
        assert held.is_valid
        held.release()


def test_an_unexpected_error_does_not_end_the_renewals(tmp_path, monkeypatch):
    held = lease(tmp_path / "a.db", A)
    renewed, renew = threading.Event(), ControllerLease.renew
    errors = [RuntimeError("unexpected"), UnavailableError("database", "gone")]

    def fails_first(self):
        if errors:
            raise errors.pop()
        renew(self)
        renewed.set()

    monkeypatch.setattr(ControllerLease, "renew", fails_first)
    monkeypatch.setattr("slurm_energy.controller.standby.lease._RENEWAL_S", 0.01)
    with opened(tmp_path / "a.db", held):
        held.start()
        assert renewed.wait(60.0) and not errors
        held.release()
    assert state(tmp_path / "a.db").active is None


def test_no_job_is_changed_after_the_lease_ended_during_a_batch(tmp_path):
    log, scontrol = tmp_path / "log", tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\nwhile read -r line; do case $line in\n"
        f'senergy-*) echo "invalid keyword: $line" >&2;;\n*) echo "$line" >>{log};; esac; done\n'
    )
    scontrol.chmod(0o755)
    updater = JobUpdater(1000.0, command=[str(scontrol)])
    clock = Clock()
    held = lease(tmp_path / "a.db", A, clock=clock)

    def permit():
        held.require()
        if log.exists():  # the first job has been changed
            clock.now_s += VALIDITY_S
            held.require()

    with opened(tmp_path / "a.db", held):
        try:
            COMMAND_GATE.permit = permit
            result = updater.requeue({1: "1", 2: "2", 3: "3"})
            with pytest.raises(PassiveControllerError):
                updater.set_begin([4], {4: "4"}, None)
        finally:
            COMMAND_GATE.open()
    assert result.done == (1,) and list(result.refused) == [2] and result.remaining == (3,)
    assert log.read_text() == "requeue Incomplete 1\n"


def test_no_slurm_command_runs_without_a_valid_lease(tmp_path):
    clock = Clock()
    held = lease(tmp_path / "a.db", A, clock=clock)
    run = CommandRunner()
    with opened(tmp_path / "a.db", held):
        try:
            COMMAND_GATE.permit = held.require
            assert run(["true"]) == ""
            clock.now_s += VALIDITY_S
            with pytest.raises(PassiveControllerError):
                run(["touch", str(tmp_path / "touched")])
            with pytest.raises(PassiveControllerError):
                run_command(["touch", str(tmp_path / "touched")])
        finally:
            COMMAND_GATE.open()
    assert not (tmp_path / "touched").exists()
    assert run(["true"]) == ""


def controller(name, beside=None, ready=True, seen_age_s=0.0):
    return ControllerState(Presence(name, "0.2.0", 1.0, ready, beside), seen_age_s)


@pytest.mark.parametrize(
    ("lease_state", "beside", "expected"),
    [
        (LeaseState(), None, True),
        (LeaseState(1, A, "a", renewed_age_s=EXPIRY_S - 1), None, False),
        (LeaseState(1, A, "a", renewed_age_s=EXPIRY_S + 0.1), None, True),
        (LeaseState(1, held_s=0.1), None, True),
        (LeaseState(1, held_s=0.1, successor="http://c"), None, False),
        (LeaseState(1, held_s=PRECEDENCE_S, successor="http://c"), None, True),
        (LeaseState(1, held_s=0.1, successor=B), False, True),
        (LeaseState(1, held_s=0.1, controllers=[controller(A, beside=True)]), False, False),
        (LeaseState(1, held_s=0.1, controllers=[controller(A, beside=True)]), None, False),
        (LeaseState(1, held_s=0.1, controllers=[controller(A, beside=True)]), True, True),
        (LeaseState(1, held_s=0.1, controllers=[controller(A, beside=True, ready=False)]), False, True),
        (LeaseState(1, held_s=0.1, controllers=[controller(A, beside=True, seen_age_s=60)]), False, True),
        (LeaseState(1, held_s=PRECEDENCE_S, controllers=[controller(A, beside=True)]), False, True),
        (
            LeaseState(1, A, "a", renewed_age_s=EXPIRY_S + 1, controllers=[controller(A, True, True, 13.0)]),
            *(False, True),
        ),
    ],
)
def test_who_may_take_the_lease(lease_state, beside, expected):
    assert may_take(lease_state, B, beside) is expected


def test_the_metrics_tell_who_is_active():
    held = LeaseState(3, A, "a", renewed_age_s=2.0, controllers=[controller(A), controller(B, seen_age_s=60)])
    samples = {family.name: family.samples for family in lease_families(held, is_active=True)}
    assert samples["controller_active"] == {(): 1.0} and samples["controller_lease_token"] == {(): 3.0}
    assert samples["controller_lease_expiry_seconds"] == {(): EXPIRY_S - 2.0}
    assert samples["controller_present"] == {(A,): 1.0, (B,): 0.0}
    samples = {family.name: family.samples for family in lease_families(LeaseState(), is_active=False)}
    assert samples["controller_active"] == {(): 0.0} and not samples["controller_lease_expiry_seconds"]


@given(st.lists(st.sampled_from([True, False, None]), min_size=1), st.integers(1, 30))
def test_the_lease_follows_slurmctld_only_after_a_while(places, step_s):
    """The active role follows slurmctld to the other host only after a waiting time.

    Two controllers run on different hosts. The lease moves from one controller to the other only if
    slurmctld has run on the host of the other controller for the whole waiting time.
    """
    clock = Clock()
    follower = SlurmctldFollower(None, clock)
    since = None
    for beside in places:
        clock.now_s += step_s
        states = [controller(A, beside), controller(B, None if beside is None else not beside)]
        result = follower.successor(LeaseState(1, A, "a", controllers=states), A, beside)
        since = None if beside is not False else clock.now_s if since is None else since
        waited = since is not None and clock.now_s - since >= HYSTERESIS_S
        assert result == (B if waited else None)
