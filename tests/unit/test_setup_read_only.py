"""Tests of `senergy setup` while its journal cannot be written: an error of one line, and no change."""

import errno
import os

import pytest
from test_read_only_state import read_only
from test_setup_sites import Host, slurm  # noqa: F401

from slurm_energy.errors import UnavailableError

pytestmark = pytest.mark.usefixtures("slurm")
READ_ONLY = os.strerror(errno.EROFS)


@pytest.mark.parametrize("folder", ["var", "var/lib/senergy-setup/.0"], ids=["journal", "backup"])
def test_setup_changes_nothing_in_slurm_without_its_journal(tmp_path, folder):
    """In the second case only the backups fail, because their temporary files begin with `.0`."""
    host = Host(tmp_path, "plain")
    slurm_files = {name: data for name, data in host.tree().items() if name.startswith("etc/slurm/")}
    with read_only(tmp_path / folder), pytest.raises(UnavailableError, match=READ_ONLY):
        host.setup()
    assert {name: data for name, data in host.tree().items() if name in slurm_files} == slurm_files


def test_undo_without_its_journal_changes_nothing(tmp_path):
    host = Host(tmp_path, "plain")
    host.setup()
    tree = host.tree()
    with read_only(tmp_path / "var"), pytest.raises(UnavailableError, match=READ_ONLY):
        host.undo()
    assert host.tree() == tree
