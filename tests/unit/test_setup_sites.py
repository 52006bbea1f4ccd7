"""Tests of `senergy setup` at existing sites.

Setup shows each change as a diff and keeps the settings of the site. An undo restores the files exactly.
"""

import os
import pwd
import shutil
from pathlib import Path

import pytest

from slurm_energy.errors import AlreadyRunningError, ConfigError, UnavailableError
from slurm_energy.setup import detection, execution, plan, slurm_state
from slurm_energy.setup.changes import carry_out, edit, settle
from slurm_energy.setup.daemon_options import DaemonOptions, daemon_options
from slurm_energy.setup.execution import SetupRun
from slurm_energy.setup.hunk import Hunk
from slurm_energy.setup.journal import SetupJournal
from slurm_energy.setup.own_files import OwnFiles
from slurm_energy.setup.plan import PlanOptions, Role, make_plan
from slurm_energy.setup.services import CommandResult
from slurm_energy.setup.site import read_site
from slurm_energy.setup.site_file import read_site_file
from slurm_energy.setup.undo import UndoRun
from slurm_energy.slurm import conf_files

SITES = Path(__file__).parents[1] / "setup_sites"
CONF = {
    "plain": "etc/slurm/slurm.conf",
    "configless": "etc/slurm/slurm.conf",
    "opt": "opt/slurm/etc/slurm.conf",
}
SLURM = {"plain": "usr", "configless": "usr", "opt": "opt/slurm"}


class Units:
    """Stand-in for the client of systemd: it records calls and the states of units (services)."""

    def __init__(self, *, running=True):
        self.is_running = running
        self.calls, self.active, self.enabled = [], {"slurmctld.service", "slurmd.service"}, set()

    def is_active(self, unit):
        return unit in self.active

    def has_started(self, unit):
        return self.is_active(unit)

    def is_down(self, unit):
        return not self.is_active(unit)

    def is_enabled(self, unit):
        return unit in self.enabled

    def main_pid(self, unit):
        return 0

    def active_units(self, pattern):
        return [pattern] if pattern in self.active else []

    def call(self, *arguments):
        if not self.is_running:
            raise UnavailableError("systemctl", "systemd does not run here")
        verb, *units = arguments
        self.calls.append(" ".join(arguments))
        sets = {"start": self.active.update, "restart": self.active.update, "enable": self.enabled.update}
        sets |= {"stop": self.active.difference_update, "disable": self.enabled.difference_update}
        sets.get(verb, lambda names: None)(units)


class Agreement:
    """A fake administrator who agrees to each question, unless the question contains a refused word."""

    def __init__(self, *refused):
        self.refused, self.lines, self.diffs = refused, [], []

    def say(self, line):
        self.lines.append(line)

    def show_change(self, change):
        self.diffs.append("\n".join(change.diff()))

    def show_reversal(self, reversal):
        self.diffs.append("\n".join(reversal.diff()))

    def confirm(self, question):
        return not any(word in question for word in self.refused)


class Host:
    """A fake host of a Slurm cluster, for tests: a file tree in a directory.

    The tree contains the configuration of the cluster and the installed files of slurm-energy.
    """

    def __init__(self, root, name):
        self.root, self.units = root, Units()
        shutil.copytree(SITES / name, root, dirs_exist_ok=True)
        self.conf = root / CONF[name]
        text = self.conf.read_bytes().replace(b"PlugStackConfig=/opt", f"PlugStackConfig={root}/opt".encode())
        self.conf.write_bytes(text)
        library = root / "usr/lib/slurm-energy"
        (library / "plugstack.d").mkdir(parents=True)
        for file in ("plugstack.d/energy.conf", "energy.so", "senergy_submit.lua"):
            (library / file).write_text("x")
        (root / "usr/lib/systemd/system").mkdir(parents=True)
        for daemon in ("senergyd", "senergyctld"):
            (root / f"usr/lib/systemd/system/{daemon}.service").write_text(
                f"[Service]\nExecStart=/usr/sbin/{daemon} --config {root}/etc/slurm/energy.toml\n"
            )
        (root / "etc/slurm").mkdir(parents=True, exist_ok=True)
        self.slurm = root / SLURM[name]
        for file in ("sbin/slurmctld", "lib/slurm/priority_multifactor.so", "lib/slurm/job_submit_lua.so"):
            (self.slurm / file).parent.mkdir(parents=True, exist_ok=True)
            (self.slurm / file).write_text("")
        self.own = OwnFiles(library, root)
        self.commands = []

    @property
    def journal(self):
        return SetupJournal(self.root / "var/lib/senergy-setup")

    def site(self, **options):
        return read_site(self.slurm, options.get("conf", self.conf), self.root, frozenset({"node1"}))

    def run(self, argv):
        self.commands.append(argv)
        return CommandResult(0, "")

    def setup(self, role=Role.CONTROLLER, dialogue=None, **options):
        journal, site = self.journal, self.site(**options)
        config = self.root / "etc/slurm/energy.toml"
        with journal.locked():
            settle(journal)
            chosen = PlanOptions(config=config, slurmctld_has_alloc=options.get("has_alloc"))
            made = make_plan(role, site, self.own, chosen)
            outcome = SetupRun(
                made, site, self.own, journal, dialogue or Agreement(), self.units, self.run
            ).execute()
        return made, outcome

    def undo(self, dialogue=None):
        journal = self.journal
        with journal.locked():
            settle(journal)
            return UndoRun(journal, self.own, dialogue or Agreement(), self.units, self.run).execute()

    def tree(self):
        return {
            str(path.relative_to(self.root)): (path.stat().st_mode, path.read_bytes())
            for folder in ("etc", "opt")
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file()
        }


@pytest.fixture(autouse=True)
def slurm(monkeypatch):
    """Replace the calls of Slurm in the tests: slurmctld always runs with the settings in the files."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    for module in (plan, execution):
        monkeypatch.setattr(module, "service_user", lambda site: user)
    monkeypatch.setattr(slurm_state, "conf_fault", lambda site: "")
    running = slurm_state.RunningSettings("PrologFlags = Alloc\nJobSubmitPlugins = lua")
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: running)
    monkeypatch.setattr(slurm_state, "lua_fault", lambda text, run: "")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(detection, "request_shared", no_controller)
    monkeypatch.setattr(OwnFiles, "program", lambda self, name: Path(f"/usr/sbin/{name}"))


def no_controller(urls, users, munge_socket):
    raise UnavailableError("senergyctld", "no answer")


@pytest.fixture(params=CONF)
def host(request, tmp_path):
    return Host(tmp_path, request.param)


def test_setup_and_undo_at_existing_sites(host):
    before = host.tree()
    values = conf_files.read_settings(host.conf)
    dialogue = Agreement()
    made, outcome = host.setup(dialogue=dialogue)
    assert outcome.exit_code == 0 and outcome.by_hand == [] and made.by_hand == []
    assert len(dialogue.diffs) == len(made.slurm_changes) >= 2
    after = conf_files.read_settings(host.conf)
    changed = {key for key in after if after[key] != values.get(key)}
    assert changed <= {"prologflags", "jobsubmitplugins"} and set(values) <= set(after)
    assert host.site().runs_prolog_at_allocation and host.site().uses_job_submit_lua
    assert f"include {host.own.library}/plugstack.d/*.conf" in host.site().plugstack.read_text()
    for name, (mode, data) in before.items():
        now = host.tree()[name]
        assert now[0] == mode
        shown = "\n".join(dialogue.diffs)
        lost = [line for line in data.splitlines() if line and line not in now[1]]
        assert not lost or all(f"-{line.decode()}" in shown for line in lost)
        assert all(line in now[1] for line in lost), "a replaced line stays as a comment"
    host.units.calls.clear()
    host.undo()
    assert host.tree() == before
    assert not (host.root / "var/lib/senergy-setup").exists()
    assert "senergyctld.service" not in host.units.active | host.units.enabled


def test_a_second_run_changes_nothing(host):
    host.setup()
    host.setup(Role.NODE)
    tree, calls = host.tree(), list(host.units.calls)
    for role in (Role.CONTROLLER, Role.NODE, Role.LOGIN):
        made, outcome = host.setup(role)
        assert (made.own_changes, made.slurm_changes, outcome.changed) == ([], [], [])
    assert (host.tree(), host.units.calls) == (tree, calls)


@pytest.mark.parametrize("first", [Role.CONTROLLER, Role.NODE, Role.LOGIN])
def test_the_order_of_roles_does_not_matter(host, first):
    before = host.tree()
    for role in (first, Role.NODE, Role.CONTROLLER):
        host.setup(role)
    assert {"senergyctld.service", "senergyd.service"} <= host.units.active
    assert host.site().runs_prolog_at_allocation
    host.undo()
    assert host.tree() == before


def test_lines_that_the_site_adds_after_setup_survive_undo(host):
    before = host.tree()
    made, _ = host.setup()
    paths = [change.path for change in made.slurm_changes if change.kind != "script"]
    for path in paths:
        path.write_bytes(b"# first\n" + path.read_bytes() + b"# last\n")
    host.undo()
    for path in paths:
        original = before.get(str(path.relative_to(host.root)), (0, b""))[1]
        end = b"" if original.endswith(b"\n") or not original else b"\n"
        assert path.read_bytes() == b"# first\n" + original + end + b"# last\n"


class Killed(BaseException):
    """Exception that simulates the death of the process by SIGKILL (kill -9)."""


def kill_at(monkeypatch, number):
    """Let the process die at its n-th request to force data to disk."""
    calls = []

    def dying(descriptor):
        calls.append(descriptor)
        if len(calls) == number:
            raise Killed

    monkeypatch.setattr(os, "fsync", dying)


KILLED = [
    ("undo", -4),
    pytest.param("undo", -2, marks=pytest.mark.slow),
    pytest.param("setup", -3, marks=pytest.mark.slow),
    ("setup", -1),
]


@pytest.mark.parametrize(("action", "number"), KILLED)
def test_a_killed_setup_is_undone_or_completed(tmp_path, monkeypatch, action, number):
    """A setup that was killed can be undone, or completed by a second setup.

    The test repeats the setup and kills it at ever later moments, each time five writes to disk later
    than before. The test ends when a setup completes without being killed.
    """
    complete = Host(tmp_path / "complete", "opt")
    complete.setup()
    wanted, died = complete.tree(), True
    while died:
        number += 5
        host = Host(tmp_path / str(number), "opt")
        before = host.tree()
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            try:
                host.setup()
            except Killed:
                died = True
            else:
                died = False
        if action == "undo":
            host.undo()
            assert host.tree() == before, number
        else:
            host.setup()
            same = {name: data for name, (_, data) in host.tree().items() if "energy.toml" not in name}
            text = {
                name: data.replace(str(complete.root).encode(), str(host.root).encode())
                for name, (_, data) in wanted.items()
                if "energy.toml" not in name
            }
            assert same == text, number
            host.undo()
            assert host.tree() == before, number
    assert number > 10


@pytest.mark.slow
def test_a_killed_undo_is_completed(tmp_path, monkeypatch):
    number, died = -2, True
    while died:
        number += 3
        host = Host(tmp_path / str(number), "plain")
        before = host.tree()
        host.setup()
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            try:
                host.undo()
            except Killed:
                pass
            else:
                died = False
        host.undo()
        assert host.tree() == before, number
    assert number > 5


def test_declined_changes_are_not_made(tmp_path):
    host = Host(tmp_path, "opt")
    before = host.tree()
    _, outcome = host.setup(dialogue=Agreement("Write"))
    assert outcome.exit_code == 1 and len(outcome.by_hand) == 3 and outcome.declined
    assert all(host.tree()[name] == data for name, data in before.items())
    assert not host.site().runs_prolog_at_allocation and not host.site().plugstack.exists()


def test_slurm_conf_does_not_name_a_script_that_was_declined(tmp_path):
    host = Host(tmp_path, "opt")
    host.setup(dialogue=Agreement("job_submit.lua"))
    assert not host.site().uses_job_submit_lua and host.site().runs_prolog_at_allocation


def test_a_change_that_slurm_rejects_is_taken_back(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    before = host.conf.read_bytes()
    monkeypatch.setattr(
        slurm_state, "conf_fault", lambda site: "bad" if b"Alloc" in site.conf.read_bytes() else ""
    )
    with pytest.raises(UnavailableError, match="taken back: bad"):
        host.setup()
    assert host.conf.read_bytes() == before


def test_files_are_restored_if_slurmctld_does_not_start(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    before = host.conf.read_bytes()
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: None)
    restart = "restart slurmctld.service"
    monkeypatch.setattr(Units, "is_active", lambda self, unit: restart not in self.calls)
    with pytest.raises(UnavailableError, match="; restored: "):
        host.setup()
    assert host.conf.read_bytes() == before
    assert host.units.calls.count(restart) == 2


def test_files_stay_changed_if_slurmctld_is_not_running(tmp_path, monkeypatch):
    host = Host(tmp_path, "plain")
    host.units.active.clear()
    monkeypatch.setattr(slurm_state, "running_settings", lambda site: None)
    dialogue = Agreement()
    _, outcome = host.setup(dialogue=dialogue)
    assert outcome.exit_code == 0 and host.site().runs_prolog_at_allocation
    assert "slurmctld is not running; it reads the files when it starts" in dialogue.lines
    assert host.setup()[1].changed == []


def test_a_slurmctld_without_unit_is_restarted_by_the_administrator(tmp_path):
    host = Host(tmp_path, "plain")
    host.units.active.clear()
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "comm").write_text("slurmctld\n")
    (process / "status").write_text("Name:\tslurmctld\nUid:\t0\t0\t0\t0\n")
    (process / "exe").symlink_to("/opt/slurm/sbin/slurmctld")
    (process / "cmdline").write_bytes(f"slurmctld\0-D\0-f\0{host.conf}\0".encode())
    assert daemon_options("slurmctld", tmp_path) == DaemonOptions(
        Path("/opt/slurm/sbin/slurmctld"), host.conf
    )
    _, outcome = host.setup()
    assert outcome.exit_code == 4 and "restart slurmctld, which runs without a unit" in outcome.by_hand[0]


def test_a_set_uid_program_with_the_name_of_a_daemon_names_no_file(tmp_path):
    """The search for Slurm's daemons ignores a process named `slurmd` that a user has started.

    The process runs a set-uid program, so its effective user is root. However, the user who starts such a
    program chooses its name, arguments and environment. The search therefore uses only a process whose real
    user is also root.
    """
    for number, ids in ((7, "0\t0\t0\t0"), (9, "12345\t0\t0\t0")):
        process = tmp_path / f"proc/{number}"
        process.mkdir(parents=True)
        (process / "comm").write_text("slurmd\n")
        (process / "status").write_text(f"Name:\tslurmd\nUid:\t{ids}\n")
        (process / "cmdline").write_bytes(f"slurmd\0-f\0/conf/{number}\0".encode())
        (process / "environ").write_bytes(f"SLURM_CONF=/conf/{number}\0".encode())
    assert daemon_options("slurmd", tmp_path).conf == Path("/conf/7")
    (tmp_path / "proc/7/status").unlink()
    assert daemon_options("slurmd", tmp_path) == DaemonOptions()


def test_a_service_account_names_no_file_for_root(tmp_path):
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "comm").write_text("slurmctld\n")
    (process / "cmdline").write_bytes(b"slurmctld\0-f\0/conf/7\0")
    for user, conf in (("www-data", None), ("root", Path("/conf/7"))):
        uid = pwd.getpwnam(user).pw_uid
        ids = "\t".join([str(uid)] * 4)
        (process / "status").write_text(f"Name:\tslurmctld\nUid:\t{ids}\n")
        assert daemon_options("slurmctld", tmp_path).conf == conf


def test_nothing_is_edited_on_a_configless_node(tmp_path):
    host = Host(tmp_path, "plain")
    cache = host.root / "var/lib/slurm/slurmd/conf-cache"
    cache.mkdir(parents=True)
    shutil.copy(host.conf, cache)
    text = (cache / "slurm.conf").read_text().replace("SlurmctldHost=node1", "SlurmctldHost=head")
    (cache / "slurm.conf").write_text(text)
    made, outcome = host.setup(Role.NODE, conf=cache / "slurm.conf")
    assert made.slurm_changes == [] and outcome.exit_code == 0
    assert any("configless" in line for line in made.notes)
    assert "senergyd.service" in host.units.active


def test_senergyd_learns_the_name_of_its_node(tmp_path):
    host = Host(tmp_path, "plain")
    host.conf.write_text(
        host.conf.read_text().replace("NodeName=node1", "NodeName=c[1-2] NodeHostname=node[1-2]")
    )
    host.setup(Role.NODE)
    drop_in = tmp_path / "etc/systemd/system/senergyd.service.d/senergy-setup.conf"
    assert "Environment=SLURMD_NODENAME=c1\n" in drop_in.read_text()


def test_several_nodes_on_one_host(tmp_path):
    host = Host(tmp_path, "configless")
    assert host.site().node_names == ["c1", "c2"]
    host.units.active = {"slurmctld.service", "slurmd@*.service"}
    host.setup(Role.NODE)
    assert "restart slurmd@*.service" in host.units.calls
    assert not (tmp_path / "etc/systemd/system/senergyd.service.d").exists()


def test_a_node_gets_alloc_only_after_slurmctld(tmp_path):
    """Setup of a node sets the flag Alloc in PrologFlags only after slurmctld's host has set it.

    With Alloc, slurmd waits for a message of slurmctld. slurmctld sends this message only if Alloc is
    also set on its own host. Without this order, slurmd would wait in vain.
    """
    host = Host(tmp_path, "plain")
    host.conf.write_text(host.conf.read_text().replace("SlurmctldHost=node1", "SlurmctldHost=head"))
    host.setup(Role.NODE)
    assert not host.site().runs_prolog_at_allocation
    host.setup(Role.NODE, has_alloc=True)
    assert host.site().runs_prolog_at_allocation


def test_without_systemd_the_rest_is_done(tmp_path):
    host = Host(tmp_path, "plain")
    host.units = Units(running=False)
    _, outcome = host.setup()
    assert outcome.exit_code == 4
    assert any("start /usr/sbin/senergyctld" in line for line in outcome.by_hand)
    assert host.site().runs_prolog_at_allocation


def test_a_script_that_cannot_be_edited_is_left_to_the_administrator(tmp_path):
    host = Host(tmp_path, "plain")
    script = host.conf.with_name("job_submit.lua")
    script.write_text("local function slurm_job_submit() end\nreturn 0\n")
    before = script.read_bytes()
    _, outcome = host.setup()
    assert outcome.exit_code == 1 and "keep_licenses" in outcome.by_hand[0]
    assert script.read_bytes() == before and host.site().runs_prolog_at_allocation


def test_an_unused_script_does_not_begin_to_run(tmp_path):
    host = Host(tmp_path, "opt")
    host.conf.with_name("job_submit.lua").write_text("return slurm.ERROR\n")
    _, outcome = host.setup()
    assert outcome.exit_code == 1 and not host.site().uses_job_submit_lua


def test_a_script_of_setup_that_the_site_extends_stays(tmp_path):
    host = Host(tmp_path, "opt")
    host.setup()
    script = host.conf.with_name("job_submit.lua")
    script.write_text("-- ours\n" + script.read_text())
    host.undo()
    assert script.exists() and host.site().uses_job_submit_lua and not host.site().runs_prolog_at_allocation


def test_a_changed_configuration_stays(tmp_path):
    host = Host(tmp_path, "plain")
    host.setup()
    config = host.root / "etc/slurm/energy.toml"
    config.write_text(config.read_text() + '[defaults]\npolicy = "monitor"\n')
    outcome = host.undo()
    stays = f"{config} was changed by the site and stays; delete it if you no longer need it"
    assert config.exists() and stays in outcome.kept
    assert (outcome.by_hand, outcome.exit_code) == ([], 0)


def test_a_preview_takes_all_changes_of_a_file_back_at_once(tmp_path):
    host = Host(tmp_path, "plain")
    before = host.tree()
    host.setup()
    journal = host.journal
    with journal.locked():
        text = host.conf.read_bytes()
        edited = edit(
            read_site_file(host.conf), (Hunk(0, "", "# slurm-energy setup: later\n"),), "x", "slurm.conf"
        )
        carry_out(edited, journal)
        conf = [
            one
            for one in UndoRun(journal, host.own, Agreement(), host.units, host.run).preview()
            if one.file.path == host.conf
        ]
    assert len(conf) == 1 and conf[0].file.data != text
    assert conf[0].data == before[str(host.conf.relative_to(tmp_path))][1]


def test_links_are_followed_only_in_safe_directories(tmp_path):
    host = Host(tmp_path, "opt")
    real = host.conf.with_name("slurm-hpc.conf")
    host.conf.rename(real)
    host.conf.symlink_to(real.name)
    host.setup()
    assert host.conf.is_symlink() and b"Alloc" in real.read_bytes()
    host.undo()
    host.conf.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="symbolic link"):
        host.setup()


def test_backups_are_private_and_modes_stay(tmp_path):
    host = Host(tmp_path, "plain")
    host.conf.chmod(0o640)
    host.setup()
    backups = [path for path in (tmp_path / "var/lib/senergy-setup").iterdir() if path.name[0] == "0"]
    assert backups and all(path.stat().st_mode & 0o777 == 0o600 for path in backups)
    assert host.conf.stat().st_mode & 0o777 == 0o640


def test_one_run_at_a_time(tmp_path):
    host = Host(tmp_path, "plain")
    with host.journal.locked(), pytest.raises(AlreadyRunningError):
        host.setup()


def test_a_damaged_journal_is_one_line(tmp_path):
    host = Host(tmp_path, "plain")
    host.setup()
    (tmp_path / "var/lib/senergy-setup/journal.json").write_text('{"version": 1}')
    with pytest.raises(ConfigError, match="is damaged"):
        host.undo()
