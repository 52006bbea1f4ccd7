"""Tests of `senergy setup undo` after the site has edited lines that setup added, or if it declines changes.

slurmctld does not start if JobSubmitPlugins names lua and job_submit.lua is missing. Undo never leaves a
host in this state.
"""

import json
from pathlib import Path

import pytest
from test_setup_sites import Agreement, Host, slurm  # noqa: F401

from slurm_energy.cli.main import main
from slurm_energy.setup import hunk, journal, slurm_conf_edit

pytestmark = pytest.mark.usefixtures("slurm")
OWN_LINE = "# slurm-energy setup: checks energy flags in slurmctld\nJobSubmitPlugins=lua\n"
JSON_PAGE = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()


@pytest.mark.parametrize(
    ("site_lines", "refused"),
    [
        ("JobSubmitPlugins=lua,require_timelimit\n", "nothing"),
        (OWN_LINE.replace("=lua", "=require_timelimit,\\\nlua"), "nothing"),
        (OWN_LINE, "slurm.conf"),
    ],
)
def test_undo_keeps_a_script_that_slurm_conf_names(tmp_path, site_lines, refused):
    host = Host(tmp_path, "opt")
    host.setup()
    text = host.conf.read_text()
    assert OWN_LINE in text
    host.conf.write_text(text.replace(OWN_LINE, site_lines))
    outcome = host.undo(Agreement(refused))
    script = host.conf.with_name("job_submit.lua")
    assert script.exists() and host.site().uses_job_submit_lua
    assert site_lines in host.conf.read_text() and outcome.exit_code == 1
    todo = f"{script} stays: remove lua from JobSubmitPlugins in slurm.conf, then run this again"
    assert outcome.by_hand[-1] == todo
    assert any(line.startswith(str(host.conf)) for line in outcome.by_hand)
    host.conf.write_text(host.conf.read_text().replace("lua", "throttle"))
    outcome = host.undo()
    assert not script.exists() and not (tmp_path / "var/lib/senergy-setup").exists()


@pytest.mark.parametrize(
    "line",
    ["PrologFlags=Serial,\\\nAlloc\n", "SchedulerType=sched/backfill PrologFlags=Alloc\n"],
)
def test_items_in_a_line_of_another_form_are_left_to_the_administrator(line):
    change = slurm_conf_edit.add_items("A=1\n", "PrologFlags", ["Alloc"], "why")
    text = hunk.apply("A=1\n", [change]).replace("PrologFlags=Alloc\n", line)
    assert hunk.revert(text, [change]) == (text, [change])


def test_a_dry_run_as_json_is_one_document(tmp_path, monkeypatch, capsys):
    host = Host(tmp_path, "opt")
    host.setup()
    script, config = host.conf.with_name("job_submit.lua"), tmp_path / "etc/slurm/energy.toml"
    config.write_text(f"{config.read_text()}# the site\n")
    before = host.tree()
    monkeypatch.setattr(journal.SetupJournal.__init__, "__defaults__", (host.journal.directory,))
    assert main(["setup", "undo", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [key for key in document if f"`{key}`" not in JSON_PAGE] == []
    diffs = {change["path"]: change["diff"] for change in document["changes"]}
    assert "-JobSubmitPlugins=lua" in diffs[str(host.conf)]
    assert diffs[str(script)][:2] == [f"--- {script}", "+++ /dev/null"]
    assert document["services"] == ["senergyctld.service"] and document["by_hand"] == []
    assert [line.partition(" ")[0] for line in document["kept"]] == [str(config)]
    assert host.tree() == before
    host.undo()
    assert main(["setup", "undo", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
