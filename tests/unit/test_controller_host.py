"""Tests of the part of senergyctld that lasts through changes between active and passive role.

In one test, files of Slurm are on a file system that hangs. senergyctld must change its role nevertheless.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from slurm_energy.accounting.controller_lease import LeaseState
from slurm_energy.config import parse
from slurm_energy.controller.standby import controller_host, failover
from slurm_energy.controller.standby.controller_host import ControllerHost
from slurm_energy.errors import UnavailableError


def test_an_observation_that_hangs_blocks_no_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of slurmctld's state directory that hangs does not block senergyctld.

    If it blocked senergyctld, no controller could renew its lease, and no controller would be active.
    """
    monkeypatch.setattr(controller_host, "_OBSERVE_LIMIT_S", 0.01)
    monkeypatch.setattr(controller_host, "_OBSERVE_S", 0.0)
    host = ControllerHost(parse(""), None, None)
    ends, ended, observations = threading.Event(), threading.Event(), list[int]()

    class HangingFollower:
        def is_beside_slurmctld(self) -> bool:
            observations.append(1)
            ends.wait(60)
            ended.set()
            return True

    monkeypatch.setattr(host, "_follower", HangingFollower())
    host.observe_slurmctld()
    host.observe_slurmctld()
    assert not ended.is_set() and len(observations) == 1
    assert host.beside is None
    ends.set()
    while host.beside is None:
        host.observe_slurmctld()
    assert host.presence().beside_slurmctld is True


def test_the_lease_is_renewed_while_an_observation_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is reported as working while an observation of slurmctld waits for a thread."""
    monkeypatch.setattr(failover, "_WATCH_INTERVAL_S", 0.001)
    ends = threading.Event()

    class Lease:
        state, is_lost, is_valid, notes = LeaseState(), True, False, 0

        def note_loop(self) -> None:
            self.notes += 1
            if self.notes == 3:
                ends.set()

    class HangingHost:
        has_ended = False

        def observe_slurmctld(self) -> None:
            self.has_ended = ends.wait(20)

    lease, host = Lease(), HangingHost()
    assert asyncio.run(failover.wait_until_resigned(cast(Any, lease), cast(Any, host))) is None
    assert host.has_ended


def test_keep_alives_are_sent_while_the_schema_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service manager does not kill a controller that migrates a large database before it is active."""
    roles = iter([LeaseState(), None])
    kept_alive, migrations = threading.Event(), list[bool]()

    class Passive:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> LeaseState | None:
            return next(roles)

    class Manager:
        async def keep_alive(self) -> None:
            kept_alive.set()
            await asyncio.sleep(3600.0)

    def store(*_: object) -> None:
        migrations.append(kept_alive.wait(10.0))
        raise UnavailableError("database", "ends the test")

    host = ControllerHost(parse(""), None, None)
    monkeypatch.setattr(host, "forget_written_policies", lambda: None)
    monkeypatch.setattr(failover, "PassiveController", Passive)
    monkeypatch.setattr(failover, "ControllerLease", MagicMock())
    monkeypatch.setattr(failover, "Store", store)
    monkeypatch.setattr(failover, "signal", MagicMock())
    failover.alternate(host, cast(Any, Manager()), MagicMock())
    assert migrations == [True]


def test_an_invalid_configuration_is_not_reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon keeps its configuration when the configuration file has become invalid.

    Both daemons log the same error message, because `systemctl reload` returns 0 in any case.
    """
    path = tmp_path / "energy.toml"
    path.write_text("[cluster]\nnam = 'x'\n")
    host = ControllerHost(before := parse(""), str(path), None)
    host.reload()
    assert host.config is before
    assert "configuration not reloaded: " in caplog.text
