"""slurm.conf never names an energy plugin that the installed Slurm cannot load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.cli.main import main
from slurm_energy.doctor.slurm_energy_settings import energy_checks
from slurm_energy.doctor.slurm_files import inspect_slurm_files
from slurm_energy.doctor.verdict import CheckState
from slurm_energy.errors import UnavailableError
from slurm_energy.slurm import conf_files, energy_include, installation
from slurm_energy.slurm.energy_plugin import ENERGY_PLUGIN

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
SETTINGS = "Include slurm-energy.conf\nPrologFlags=Alloc,Contain\nJobAcctGatherType=jobacct_gather/linux\n"
HEADERS = (
    "#define SLURM_VERSION_NUMBER {:#08x}\n"
    "#define SLURM_VERSION_NUM(a,b,c) (((a) << 16) + ((b) << 8) + (c))\n"
)
needs_headers = pytest.mark.skipif(
    not Path("/usr/include/slurm/slurm.h").exists(), reason="Slurm's headers are not installed"
)


class Host:
    """Fake installation of Slurm for tests, in its own directory.

    The installation has a file slurm.conf. It can contain an energy plugin for any release of Slurm.
    """

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "slurm"
        self.plugins = self.prefix / "lib/slurm"
        for directory in ("bin", "sbin", "include/slurm", "etc", "lib/slurm"):
            (self.prefix / directory).mkdir(parents=True)
        (self.plugins / "priority_multifactor.so").touch()
        self.conf = self.prefix / "etc/slurm.conf"
        self.conf.write_text(SETTINGS + f"PluginDir={self.plugins}\nAcctGatherNodeFreq=60\n")
        self.install_slurm("22.05.8")

    def install_slurm(self, release: str) -> None:
        """Install or upgrade Slurm: its daemons and its headers."""
        for program in ("sbin/slurmctld", "sbin/slurmd", "bin/scontrol"):
            (self.prefix / program).write_text(f"#!/bin/sh\necho slurm {release}\n")
            (self.prefix / program).chmod(0o755)
        major, minor, micro = (int(part) for part in release.split("."))
        source = Path("/usr/include/slurm")
        for header in source.glob("*.h"):
            shutil.copy(header, self.prefix / "include/slurm")
        version = self.prefix / "include/slurm/slurm_version.h"
        version.write_text(HEADERS.format(major << 16 | minor << 8 | micro))
        self.plugin_for(f"{major << 16 | minor << 8 | micro:#x}", "auth_none.so")

    def plugin_for(self, version: str, name: str = ENERGY_PLUGIN) -> None:
        source = self.prefix / "plugin.c"
        source.write_text(f"const unsigned int plugin_version = {version};\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self.plugins / name, source], check=True, timeout=60)

    def run(self, *options: str) -> int:
        return main(["build-plugins", "--slurm-prefix", str(self.prefix), "--conf", str(self.conf), *options])

    @property
    def state(self) -> energy_include.PluginState:
        return energy_include.plugin_state(installation.find(self.prefix), self.conf)

    @property
    def named(self) -> list[str]:
        """Return the values of AcctGatherEnergyType in slurm.conf, read as strictly as Slurm reads it.

        Slurm fails on a missing include file; so does this method.
        """
        return conf_files.read_settings(self.conf, strict=True).get("acctgatherenergytype", [])


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_check_removes_a_stale_plugin_and_enable_returns_it(host, capsys):
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert host.named == ["acct_gather_energy/senergy"]
    assert host.run("--check") == 0
    host.install_slurm("22.05.9")
    assert host.run("--check") == 1
    assert host.named == []
    assert "was built for Slurm 22.05.8, installed is 22.05.9" in capsys.readouterr().out
    assert host.run("--check") == 0  # already out of use
    host.plugin_for("0x160509")
    energy_include.enable(host.state)
    assert host.named == ["acct_gather_energy/senergy"]


@pytest.mark.parametrize("fault", ["missing", "other release", "no plugin"])
def test_a_plugin_that_does_not_fit_is_never_named(host, fault):
    if fault == "other release":
        host.plugin_for("0x180b05")
    elif fault == "no plugin":
        (host.plugins / ENERGY_PLUGIN).write_text("text")
    with pytest.raises(UnavailableError, match=r"not installed|was built for Slurm 24\.11\.5|not a plugin"):
        energy_include.enable(host.state)
    assert not host.state.include.exists()
    host.state.include.write_text("AcctGatherEnergyType=acct_gather_energy/senergy\n")  # by hand
    assert host.run("--check") == 1
    assert host.named == []


def test_disable_leaves_an_empty_file_that_slurm_conf_can_include(host, capsys):
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert host.run("--disable", "--json") == 0
    assert host.named == []
    answer = json.loads(capsys.readouterr().out)
    assert (answer["enabled"], answer["included"], answer["fault"]) == (False, True, None)


def test_a_missing_include_line_is_reported(host, capsys):
    host.conf.write_text(f"PluginDir={host.plugins}\n")
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert host.run("--check") == 0
    assert "add the line: Include slurm-energy.conf" in capsys.readouterr().out


@needs_headers
def test_enable_builds_installs_and_names_the_plugin(host, capsys):
    assert host.run("--enable", "--output", str(host.prefix / "build")) == 0
    assert host.named == ["acct_gather_energy/senergy"]
    assert (host.plugins / ENERGY_PLUGIN).stat().st_mode & 0o777 == 0o755
    host.install_slurm("22.05.9")
    assert host.run("--check") == 1
    assert host.run("--enable", "--output", str(host.prefix / "build")) == 0
    assert host.run("--check") == 0
    assert host.named == ["acct_gather_energy/senergy"]


def test_check_is_silent_where_no_plugin_was_ever_enabled(host, capsys):
    host.conf.write_text(f"PluginDir={host.plugins}\n")
    assert host.run("--check") == 0
    assert capsys.readouterr() == ("", "")
    assert host.run("--check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["plugins"][0]["enabled"] is False


@pytest.mark.parametrize("suspended", [False, True])
def test_remove_says_what_it_removed(host, suspended, capsys):
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    if suspended:
        host.install_slurm("22.05.9")
        host.run("--check")
    capsys.readouterr()
    assert host.run("--remove") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{host.state.plugin}: removed",
        "Restart slurmctld and slurmd at your convenience; until then they keep the loaded plugin.",
    ]
    assert host.run("--remove") == 0
    assert capsys.readouterr().out == ""
    assert host.run("--remove", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"plugins": []}


@pytest.mark.parametrize("options", [("--enable",), ("--only", "energy"), ("--only", "site-factor"), ()])
def test_a_caller_who_may_not_write_learns_it_before_the_build(host, options, monkeypatch, capsys):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    for module in ("energy_plugin", "plugin_build"):
        monkeypatch.setattr(f"slurm_energy.slurm.{module}.run_tool", lambda *args: pytest.fail("built"))
    output = host.prefix / "new" / "build"
    assert host.run(*options, "--output", str(output)) == 5
    places = [host.plugins, host.conf.parent] if "--enable" in options else [output]
    faults = [line for line in capsys.readouterr().err.splitlines() if "cannot be written" in line]
    assert faults
    assert all(any(f"{place}: cannot be written: run it as root" in f for place in places) for f in faults)
    assert not output.parent.exists()


@pytest.mark.slow
@needs_headers
def test_headers_of_another_micro_release_are_refused(host, capsys):
    (host.prefix / "include/slurm/slurm_version.h").write_text(HEADERS.format(0x160507))
    assert host.run("--enable", "--output", str(host.prefix / "build")) == 1
    assert "is Slurm 22.05.7, not 22.05.8" in capsys.readouterr().err
    assert not (host.plugins / ENERGY_PLUGIN).exists()
    assert host.run("--only", "energy", "--output", str(host.prefix / "build")) == 1


@pytest.mark.slow
@needs_headers
def test_a_missing_source_does_not_fail_the_other_plugin(host, capsys):
    code = host.run("--output", str(host.prefix / "build"), "--json")
    out, err = capsys.readouterr()
    assert code == 4
    assert "give --slurm-source DIR" in err
    assert list(json.loads(out)["plugins"]) == ["energy"]
    assert (host.prefix / "build" / ENERGY_PLUGIN).exists()


def checks(host: Host) -> dict[str, CheckState]:
    return {check.name: check.state for check in energy_checks(inspect_slurm_files(host.conf).energy)}


def test_doctor_tells_what_is_missing_for_energy_in_slurm(host):
    host.state.include.write_text("")
    assert checks(host) == {"Slurm energy": CheckState.ABSENT}
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert checks(host) == {"Slurm energy": CheckState.OK}
    host.conf.write_text(f"Include slurm-energy.conf\nPluginDir={host.plugins}\nPrologFlags=Alloc\n")
    degraded = dict.fromkeys(("energy of jobs", "energy of steps", "watts of nodes"), CheckState.DEGRADED)
    assert checks(host) == {"Slurm energy": CheckState.OK, **degraded}


@pytest.mark.skipif(os.geteuid() != 0, reason="files of other users than root are a fault of their own")
def test_doctor_finds_a_stale_suspended_doubled_or_unprotected_plugin(host):
    host.plugin_for("0x160507")
    host.state.include.write_text("AcctGatherEnergyType=acct_gather_energy/senergy\n")
    (fault,) = inspect_slurm_files(host.conf).faults
    assert fault.why == "was built for Slurm 22.05.7, installed is 22.05.8"
    assert "--enable" in fault.todo
    host.run("--check")
    side = inspect_slurm_files(host.conf)
    assert side.faults == ()
    (check,) = energy_checks(side.energy)
    assert check.state is CheckState.DEGRADED and "22.05.7" in check.finding
    host.conf.write_text(host.conf.read_text() + "AcctGatherEnergyType=acct_gather_energy/senergy\n")
    assert checks(host)["Slurm energy"] is CheckState.DEGRADED
    host.conf.write_text(
        f"{SETTINGS}PluginDir={host.plugins}\nAcctGatherNodeFreq=1\n"
        "AcctGatherEnergyType=acct_gather_energy/rapl,acct_gather_energy/senergy\n"
    )
    assert checks(host)["Slurm energy"] is CheckState.DEGRADED


def test_each_plugin_keeps_its_lines_when_the_other_one_changes(host, capsys, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "head.site")
    host.conf.write_text(host.conf.read_text() + "SlurmctldHost=head(10.0.0.1)\n")
    kind = energy_include.ExactPlugin.SITE_FACTOR

    def site_factor():
        return energy_include.plugin_state(installation.find(host.prefix), host.conf, kind)

    host.plugin_for("0x160508")
    host.plugin_for("0x160508", "site_factor_energy.so")
    energy_include.enable(host.state)
    energy_include.enable(site_factor())
    settings = conf_files.read_settings(host.conf, strict=True)
    assert settings["prioritysitefactorplugin"] == ["site_factor/energy"]
    assert host.named == ["acct_gather_energy/senergy"]
    host.install_slurm("22.05.9")
    host.plugin_for("0x160509")  # only the energy plugin was built again
    assert host.run("--check") == 1
    assert host.named == ["acct_gather_energy/senergy"]
    assert "was built for Slurm 22.05.8" in site_factor().suspended
    assert "prioritysitefactorplugin" not in conf_files.read_settings(host.conf, strict=True)
    faults = inspect_slurm_files(host.conf, ["head"]).faults
    assert [fault.todo for fault in faults if "site_factor" in fault.why] != []
    assert host.run("--remove") == 0
    assert not host.state.plugin.exists()
    assert (host.named, site_factor().suspended) == ([], "")


def test_a_link_to_the_file_is_kept(host):
    target = host.prefix / "shared/slurm-energy.conf"
    target.parent.mkdir()
    link = host.state.include
    link.symlink_to(target)
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert link.readlink() == target
    assert host.named == ["acct_gather_energy/senergy"]
    host.install_slurm("22.05.9")
    assert host.run("--check") == 1
    assert (link.readlink(), host.named) == (target, [])


def test_no_file_is_written_through_a_link_that_others_could_exchange(host):
    target = host.prefix / "open/file"
    target.parent.mkdir()
    target.write_text("AcctGatherEnergyType=acct_gather_energy/senergy\n")
    target.parent.chmod(0o777)
    host.state.include.symlink_to(target)
    assert host.run("--check") == 1
    assert host.named == []
    assert "acct_gather_energy/senergy" in target.read_text()


def test_doctor_names_the_host_that_suspended_a_shared_plugin(host, monkeypatch):
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    host.state.plugin.rename(host.prefix / "away")  # node7 shares slurm.conf, but has no plugin
    assert host.run("--check") == 1
    assert host.named == []  # slurmd of node7 would not start otherwise
    monkeypatch.setattr("socket.gethostname", lambda: "node8")
    (host.prefix / "away").rename(host.state.plugin)
    (check,) = energy_checks(inspect_slurm_files(host.conf).energy)
    assert check.finding == f"{ENERGY_PLUGIN} is not installed (on node7)"
    assert check.fix.endswith("on this host if none is: senergy build-plugins --enable")


def test_only_the_host_of_slurmctld_checks_the_site_factor(host, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    host.conf.write_text(host.conf.read_text() + "SlurmctldHost=head\n")
    kind = energy_include.ExactPlugin.SITE_FACTOR
    include = host.conf.with_name(energy_include.INCLUDE_NAME)
    include.write_text("PrioritySiteFactorPlugin=site_factor/energy\n")  # a shared /etc/slurm
    assert host.run("--check") == 0
    assert energy_include.plugin_state(installation.find(host.prefix), host.conf, kind).enabled


def test_update_prints_json_also_if_no_plugin_is_in_use(host, capsys):
    assert host.run("--update", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"plugins": []}
    host.plugin_for("0x160508")
    energy_include.enable(host.state)
    assert host.run("--update", "--json") == 0
    (state,) = json.loads(capsys.readouterr().out)["plugins"]
    assert state["plugin"] == str(host.plugins / ENERGY_PLUGIN) and state["enabled"]
    host.conf.unlink()
    assert host.run("--update", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"plugins": []}
    assert host.run("--update") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@needs_headers
def test_update_builds_a_plugin_in_use_again_and_suspends_one_that_cannot_be_built(host, monkeypatch, capsys):
    monkeypatch.setattr("socket.gethostname", lambda: "head")
    host.conf.write_text(host.conf.read_text() + "SlurmctldHost=head\n")
    host.plugin_for("0x160508")
    host.plugin_for("0x160508", "site_factor_energy.so")
    for kind in energy_include.ExactPlugin:
        energy_include.enable(energy_include.plugin_state(installation.find(host.prefix), host.conf, kind))
    host.install_slurm("22.05.9")
    monkeypatch.setattr("slurm_energy.slurm.plugin_update.SOURCE_DIRECTORIES", (host.prefix / "src",))
    monkeypatch.setattr(
        "slurm_energy.slurm.plugin_update.default_output", lambda release: host.prefix / "built"
    )
    assert host.run("--update", "--json") == 4
    printed = capsys.readouterr()
    assert "site_factor_energy.so for Slurm 22.05.9: no source of Slurm 22.05.9" in printed.err
    energy, site_factor = json.loads(printed.out)["plugins"]
    assert energy["enabled"] and energy["fault"] is None
    assert not site_factor["enabled"] and "22.05.9" in site_factor["fault"]
    assert host.named == ["acct_gather_energy/senergy"]
    assert "prioritysitefactorplugin" not in conf_files.read_settings(host.conf, strict=True)
    assert host.state.fault == ""


def test_help_fits_80_columns_and_lists_the_exit_codes_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["build-plugins", "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("exit codes: ") == 1


@pytest.mark.timeout(20)
def test_a_fifo_instead_of_slurm_conf_is_not_waited_for(host, monkeypatch):
    host.conf.unlink()
    os.mkfifo(host.conf)
    with pytest.raises(UnavailableError, match="regular file"):
        host.state()
