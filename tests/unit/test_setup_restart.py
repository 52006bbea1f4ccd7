"""Tests of the restart of slurmctld by `senergy setup`: changes with which it does not start are undone."""

import pytest
from test_setup_sites import Agreement, Host, Killed, Units, slurm  # noqa: F401

from slurm_energy.errors import UnavailableError
from slurm_energy.setup import slurm_state
from slurm_energy.setup.services import CommandResult, UnitManager

pytestmark = pytest.mark.usefixtures("slurm")
RESTART = "restart slurmctld.service"


class WaitingUnits(Units):
    """systemd with a slurmctld of Type=notify, for which `systemctl restart` waits until it has started.

    Args:
        conf: path of slurm.conf.
        rejects: text in slurm.conf with which slurmctld does not start.
    """

    def __init__(self, conf, rejects):
        super().__init__()
        self.conf, self.rejects = conf, rejects

    def call(self, *arguments):
        super().call(*arguments)
        if arguments == ("restart", "slurmctld.service") and self.rejects in self.conf.read_text():
            self.active.discard("slurmctld.service")
            raise UnavailableError("systemctl restart slurmctld.service", "the control process exited")


@pytest.mark.parametrize(
    ("rejects", "last_words"),
    [("Alloc", "/job_submit.lua"), ("ClusterName", "does not start with the restored files either")],
)
def test_files_are_restored_if_the_restart_itself_fails(tmp_path, monkeypatch, rejects, last_words):
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: None)
    host = Host(tmp_path, "plain")
    before = host.conf.read_bytes()
    host.units = WaitingUnits(host.conf, rejects)
    with pytest.raises(UnavailableError) as raised:
        host.setup()
    assert raised.value.why.endswith(last_words)
    assert host.conf.read_bytes() == before and host.units.calls.count(RESTART) == 2


def test_another_controller_that_answers_does_not_hide_the_failure(tmp_path):
    """The files are restored although scontrol gets an answer from a backup controller."""
    host = Host(tmp_path, "plain")
    host.units = WaitingUnits(host.conf, "Alloc")
    assert slurm_state.running_settings(host.site()) is not None
    with pytest.raises(UnavailableError, match="; restored: "):
        host.setup()


def restart_fails_later(host):
    """Run setup a second time; slurmctld does not start with the files of the first run."""
    host.units = WaitingUnits(host.conf, "Alloc")
    with pytest.raises(UnavailableError) as raised:
        host.setup()
    return raised.value.why


def test_a_restart_that_was_declined_and_fails_later_restores_the_files(tmp_path):
    host = Host(tmp_path, "opt")
    before = host.tree()
    _, outcome = host.setup(dialogue=Agreement("Restart"))
    assert outcome.exit_code == 1 and host.site().runs_prolog_at_allocation
    assert "; restored: " in restart_fails_later(host)
    assert {name: data for name, data in host.tree().items() if name in before} == before
    assert not host.conf.with_name("job_submit.lua").exists() and not host.site().plugstack.exists()


def test_a_check_that_was_interrupted_is_repeated(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    before = host.conf.read_bytes()

    def killed(site):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(slurm_state, "running_settings", killed)
        host.setup()
    assert "; restored: " in restart_fails_later(host)
    assert host.conf.read_bytes() == before


def test_a_failed_restart_of_a_running_slurmctld_is_repeated(tmp_path):
    """The old process continues, because systemd could not stop it."""

    def fail(*arguments):
        calls.append(arguments)
        if arguments[0] == "restart":
            raise UnavailableError("systemctl restart slurmctld.service", "job timed out")

    host = Host(tmp_path, "plain")
    calls, call, host.units.call = [], host.units.call, fail
    with pytest.raises(UnavailableError, match="job timed out"):
        host.setup()
    assert host.site().runs_prolog_at_allocation and host.journal.unconfirmed
    host.units.call = call
    assert host.setup()[1].exit_code == 0
    assert host.units.calls.count(RESTART) == 1 and not host.journal.unconfirmed


@pytest.mark.parametrize(
    ("name", "value", "todo"),
    [("running_settings", None, "does not answer"), ("has_started", False, "has not started yet")],
)
def test_a_restart_is_repeated_until_slurmctld_is_known_to_run(tmp_path, monkeypatch, name, value, todo):
    host = Host(tmp_path, "plain")
    with monkeypatch.context() as patch:
        patch.setattr(slurm_state if name == "running_settings" else Units, name, lambda *_: value)
        _, outcome = host.setup()
    assert outcome.exit_code == 4 and todo in outcome.by_hand[-1] and host.journal.unconfirmed
    _, outcome = host.setup()
    assert outcome.exit_code == 0
    assert host.units.calls.count(RESTART) == 2 and not host.journal.unconfirmed


def test_files_that_the_site_changed_before_the_restart_are_not_called_restored(tmp_path):
    host = Host(tmp_path, "opt")
    host.setup(dialogue=Agreement("Restart"))
    text = host.conf.read_text().replace("# slurm-energy setup", "# site").replace("=lua", "=lua,throttle")
    host.conf.write_text(text)
    why = restart_fails_later(host)
    assert f"; not restored, because the site changed or deleted files since: {host.conf}" in why
    assert f"; restored: {host.site().plugstack};" in why and not host.site().plugstack.exists()
    assert host.units.calls.count(RESTART) == 2
    assert host.conf.read_text() == text and host.conf.with_name("job_submit.lua").exists()


def test_a_file_that_the_site_deleted_counts_as_restored_if_setup_had_created_it(tmp_path):
    host = Host(tmp_path, "opt")
    host.setup(dialogue=Agreement("Restart"))
    host.site().plugstack.unlink()
    assert "not restored" not in restart_fails_later(host)


def test_changes_with_which_slurmctld_ran_are_not_restored(tmp_path):
    host = Host(tmp_path, "opt")
    host.setup()
    text = host.conf.read_text().replace("DeferBatch,Alloc", "DeferBatch")
    host.conf.write_text(text)
    assert "; restored: " in restart_fails_later(host)
    assert host.conf.read_text() == text
    assert host.conf.with_name("job_submit.lua").exists() and host.site().plugstack.exists()


def restart_without_proof(host, monkeypatch):
    """Run setup; slurmctld has not completed its start when setup ends."""
    with monkeypatch.context() as patch:
        patch.setattr(Units, "has_started", lambda *_: False)
        assert host.setup()[1].exit_code == 4


def test_files_are_restored_if_slurmctld_stops_after_an_unfinished_check(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    before = host.conf.read_bytes()
    restart_without_proof(host, monkeypatch)
    host.units.active.discard("slurmctld.service")
    with pytest.raises(UnavailableError, match="; restored: "):
        host.setup()
    assert host.conf.read_bytes() == before
    host.units.active.discard("slurmctld.service")
    assert host.setup()[1].exit_code == 0 and not host.journal.pending


def test_a_stopped_slurmctld_is_no_failure_after_a_finished_check_or_an_undo(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    restart_without_proof(host, monkeypatch)
    host.undo()
    assert not host.journal.pending
    for _ in range(2):
        host.setup()
        assert not host.journal.pending
        host.units.active.discard("slurmctld.service")
    assert host.site().runs_prolog_at_allocation


def test_files_that_the_site_changed_after_an_unfinished_check_stay_an_error(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    restart_without_proof(host, monkeypatch)
    for entry in host.journal.unconfirmed:
        path = host.root / entry.path
        path.write_text(path.read_text().replace("slurm-energy", "site").replace("=lua", "=lua,throttle"))
    for _ in range(2):
        host.units.active.discard("slurmctld.service")
        with pytest.raises(UnavailableError, match="; not restored, "):
            host.setup()


def test_a_slurmctld_that_systemd_starts_again_and_again_does_not_run(tmp_path, monkeypatch):
    """With Restart=on-failure, a unit is activating while systemd waits for the next start."""
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: None)
    host = Host(tmp_path, "plain")
    before, commands = host.conf.read_bytes(), []

    def systemctl(argv):
        commands.append(" ".join(argv[1:]))
        fails = RESTART in commands and "Alloc" in host.conf.read_text()
        states = {
            "ActiveState": "activating" if fails else "active",
            "SubState": "auto-restart" if fails else "running",
            "UnitFileState": "enabled",
        }
        return CommandResult(0, states.get(argv[3], "") if argv[1] == "show" else "")

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    host.units = UnitManager(systemctl, tmp_path)
    with pytest.raises(UnavailableError, match="; restored: "):
        host.setup()
    assert host.conf.read_bytes() == before and commands.count(RESTART) == 2
