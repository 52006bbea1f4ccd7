"""Tests of how senergyctld finds out which of several slurmctld is active.

It reads the heartbeat file or runs `scontrol ping`.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.active_slurmctld import ActiveSlurmctld, first_up, is_this_host

NOW = 1_795_413_642
PING = "Slurmctld(primary) at ctl1 is DOWN\nSlurmctld(backup) at ctl2 is UP\n*** RESTORE ***\n"


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "slurm.conf"
    path.write_text(
        f"ClusterName=c\nSlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2\n"
        f"StateSaveLocation={tmp_path}\nSlurmctldTimeout=60\n"
    )
    return path


def observer(conf, run=None, clock=None):
    return ActiveSlurmctld(run or pytest.fail, lambda: conf, lambda: NOW, clock or Clock())


def test_the_heartbeat_names_the_active_one_without_a_command(conf):
    beat = conf.with_name("heartbeat")
    # Written by slurmctld 22.05: time and index in network order.
    beat.write_bytes(bytes.fromhex("000000006b03d68a0000000000000000"))
    assert observer(conf).host() == "ctl1"
    beat.write_bytes(struct.pack("!QQ", NOW - 10, 1))
    assert observer(conf).host() == "ctl2"


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 15, b"x" * 17, struct.pack("!QQ", NOW, 2), struct.pack("!QQ", NOW - 91, 0), b"\xff" * 16],
)
def test_a_heartbeat_that_says_nothing_changes_nothing(conf, content):
    conf.with_name("heartbeat").write_bytes(content)
    assert observer(conf).host() is None


@given(st.binary(max_size=40))
def test_any_heartbeat_names_a_controller_or_none(tmp_path_factory, content):
    conf = tmp_path_factory.mktemp("h") / "slurm.conf"
    conf.write_text(f"SlurmctldHost=ctl1\nSlurmctldHost=ctl2\nStateSaveLocation={conf.parent}\n")
    conf.with_name("heartbeat").write_bytes(content)
    assert observer(conf).host() in ("ctl1", "ctl2", None)


def test_without_the_file_scontrol_is_run_once_a_minute(conf):
    clock, commands = Clock(), []
    seen = observer(conf, lambda argv: commands.append(argv) or PING, clock)
    for _ in range(125):
        assert seen.host() == "ctl2"
        clock.now_s += 1.0
    assert commands == [["scontrol", "ping"]] * 3


def test_a_slurm_that_does_not_answer_is_unknown(conf):
    def fails(_):
        raise UnavailableError("scontrol", "no answer within 20 s")

    assert observer(conf, fails).host() is None


@pytest.mark.parametrize("text", ["SlurmctldHost=ctl1\n", "ClusterName=c\n"])
def test_one_slurmctld_is_no_choice(tmp_path, text):
    (tmp_path / "slurm.conf").write_text(text)
    assert observer(tmp_path / "slurm.conf").host() is None
    assert observer(tmp_path / "missing.conf").host() is None
    assert ActiveSlurmctld(pytest.fail, lambda: None).host() is None


def test_the_first_that_answers_is_active():
    both = "Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup1) at ctl2 is UP\n"
    assert first_up(both, ("ctl1", "ctl2")) == "ctl1"
    assert first_up(PING, ("ctl1", "ctl2")) == "ctl2"
    assert first_up("slurm_ping: error", ("ctl1", "ctl2")) is None


def test_hosts_are_compared_without_domains(monkeypatch):
    monkeypatch.setattr("os.uname", lambda: type("Names", (), {"nodename": "ctl1.example.org"}))
    assert is_this_host("ctl1") and is_this_host("CTL1.example.org")
    assert not is_this_host("ctl11") and not is_this_host("example")
