"""Tests of which line `senergy setup` edits: a line of slurm.conf or of a file that slurm.conf includes."""

import pytest
from test_setup_sites import Host, slurm  # noqa: F401

from slurm_energy.setup.plan import Role

pytestmark = pytest.mark.usefixtures("slurm")


@pytest.mark.parametrize(
    ("lines", "included", "edited"),
    [
        ("Include site.conf\nPrologFlags=DeferBatch\n", "PrologFlags=Serial\n", "slurm.conf"),
        ("PrologFlags=DeferBatch\nInclude site.conf\n", "PrologFlags=Serial\n", "site.conf"),
        ("Include site.conf\nInclude twice.conf\nInclude site.conf\n", "PrologFlags=Serial\n", "site.conf"),
    ],
)
def test_setup_edits_the_line_that_slurm_reads_last(tmp_path, lines, included, edited):
    host = Host(tmp_path, "plain")
    host.conf.write_text(host.conf.read_text() + "\n" + lines)
    host.conf.with_name("site.conf").write_text(included)
    host.conf.with_name("twice.conf").write_text("PrologFlags=DeferBatch\n")
    before = host.tree()
    host.setup()
    assert host.site().runs_prolog_at_allocation
    assert "Alloc" in host.conf.with_name(edited).read_text()
    made, outcome = host.setup(Role.CONTROLLER)
    assert (made.slurm_changes, outcome.changed) == ([], [])
    host.undo()
    assert host.tree() == before


@pytest.mark.parametrize("edited", ["deep.conf", "conf.d/deep.conf"])  # from Slurm 23.02 on; Slurm 22.05
def test_setup_edits_a_file_that_an_included_file_includes(tmp_path, edited):
    host = Host(tmp_path, "plain")
    host.conf.write_text(host.conf.read_text() + "\nInclude conf.d/site.conf\n")
    (host.conf.parent / "conf.d").mkdir()
    (host.conf.parent / "conf.d/site.conf").write_text("Include deep.conf\n")
    (host.conf.parent / edited).write_text("PrologFlags=Serial\n")
    before = host.tree()
    host.setup()
    assert host.site().runs_prolog_at_allocation
    assert "Alloc" in (host.conf.parent / edited).read_text()
    host.undo()
    assert host.tree() == before


def test_a_key_that_follows_another_key_in_its_line_is_left_to_the_administrator(tmp_path):
    host = Host(tmp_path, "opt")
    line = "SchedulerType=sched/backfill PrologFlags=Serial JobSubmitPlugins=throttle\n"
    host.conf.write_text(host.conf.read_text().replace("PrologFlags=DeferBatch\n", line))
    made, outcome = host.setup()
    assert [one.partition(":")[0] for one in made.by_hand] == [
        "JobSubmitPlugins in slurm.conf",
        "PrologFlags in slurm.conf",
    ]
    assert outcome.exit_code == 1
    assert (host.site().value("JobSubmitPlugins"), host.site().value("PrologFlags")) == ("throttle", "Serial")
