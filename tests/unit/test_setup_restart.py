"""Tests of the restart of slurmctld by `senergy setup`: files with which it does not start are restored."""

import pytest
from test_setup_sites import Host, Units, slurm  # noqa: F401

from slurm_energy.errors import UnavailableError
from slurm_energy.setup import slurm_state

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
    [("Alloc", "which were restored"), ("ClusterName", "does not start with the original files either")],
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
    with pytest.raises(UnavailableError, match="were restored"):
        host.setup()
