"""Tests of the search for the installed Slurm.

Slurm is found by a given prefix or through PATH. The tests also check its release, plugins and headers.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.slurm import installation
from slurm_energy.slurm.installation import Installation

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "packaging" / "slurm-headers"


@pytest.fixture(autouse=True)
def no_conf(monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)


@pytest.fixture
def slurm(tmp_path):
    """Return a function that creates an installation of Slurm 24.11.5 in a test directory.

    The installation consists of stand-ins for the programs and plugins. The arguments of the function are
    the release of the header files, the release of the programs, and the folder of the plugins.
    """

    def make(headers="24.11.5", running="24.11.5", plugins="lib/slurm"):
        prefix = tmp_path / "opt/slurm"
        for folder in ("bin", "sbin", "include/slurm", "etc", plugins):
            (prefix / folder).mkdir(parents=True)
        for program in ("bin/scontrol", "bin/srun", "sbin/slurmctld"):
            (prefix / program).write_text(f"#!/bin/sh\necho slurm {running}\n")
            (prefix / program).chmod(0o755)
        (prefix / plugins / "priority_multifactor.so").touch()
        major, minor, micro = (int(part) for part in headers.split("."))
        number = f"#define SLURM_VERSION_NUMBER {major << 16 | minor << 8 | micro:#08x}\n"
        (prefix / "include/slurm/slurm_version.h").write_text(number)
        (prefix / "include/slurm/spank.h").write_text("#error headers of the prefix\n")
        return prefix

    return make


def test_the_slurm_of_a_prefix_and_of_path(slurm):
    prefix = slurm()
    wanted = Installation(prefix, prefix / "sbin/slurmctld")
    assert installation.find(prefix) == wanted
    assert installation.find(environment={"PATH": f"{prefix}/bin:/usr/bin:/bin"}) == wanted
    assert wanted.release() == (24, 11, 5)
    assert not wanted.is_packaged


def test_a_prefix_without_slurm_is_one_line(tmp_path, capsys):
    with pytest.raises(UsageError, match="no sbin/slurmctld or sbin/slurmd there"):
        installation.find(tmp_path)
    assert main(["build-plugins", "--slurm-prefix", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("folder", ["lib/slurm", "lib64/slurm", "lib/x86_64-linux-gnu/slurm-wlm"])
def test_plugins_are_looked_for_below_the_prefix(slurm, folder):
    prefix = slurm(plugins=folder)
    assert installation.find(prefix).plugin_directory(run=None) == prefix / folder


def test_plugindir_of_slurm_conf_and_of_slurmctld(slurm, tmp_path):
    prefix = slurm(plugins="elsewhere")
    found = installation.find(prefix)
    with pytest.raises(UnavailableError, match=r"priority_multifactor\.so: not found in PluginDir"):
        found.plugin_directory(run=None)
    (prefix / "etc/slurm.conf").write_text(f"Include more.conf\nPluginDir={tmp_path}/x\n")
    (prefix / "etc/more.conf").write_text("PluginDir=/nowhere\n")
    asked = []
    told = f"PluginDir               = {tmp_path}/y:{prefix}/elsewhere\n"
    assert found.plugin_directory(lambda argv: asked.append(argv) or told) == prefix / "elsewhere"
    assert asked == [[f"{prefix}/bin/scontrol", "show", "config"]]
    (prefix / "etc/slurm.conf").write_text(f"PluginDir={tmp_path}/x:{prefix}/elsewhere\n")
    assert found.plugin_directory(run=None) == prefix / "elsewhere"


def headers(*arguments, path="/usr/bin:/bin"):
    return subprocess.run(
        [HEADERS, *arguments], env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )


def test_headers_of_a_prefix_are_named_with_their_release(slurm):
    prefix = slurm()
    for done in (headers(prefix), headers(path=f"{prefix}/bin:/usr/bin:/bin")):
        assert done.stdout == f"-I{prefix}/include -DSENERGY_HEADERS_RELEASE=24.11.5\n"
        assert done.stderr == (
            f"Headers of Slurm 24.11.5 in {prefix}/include/slurm, {prefix}/sbin/slurmctld is 24.11.5\n"
        )
        assert done.returncode == 0
    assert headers("--prefix", path=f"{prefix}/bin:/usr/bin:/bin").stdout == f"{prefix}\n"


def test_another_micro_release_will_do(slurm):
    assert headers(slurm(headers="24.11.1")).returncode == 0


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (
            {"headers": "22.05.8"},
            2,
            "is Slurm 22.05.8, PREFIX/sbin/slurmctld is 24.11.5: Slurm loads no plugin",
        ),
        (
            {"running": "24.05.5"},
            2,
            "is Slurm 24.11.5, PREFIX/sbin/slurmctld is 24.05.5: Slurm loads no plugin",
        ),
        ("spank.h", 4, "PREFIX/include/slurm/spank.h: not found: install Slurm's headers there"),
        ("slurm_version.h", 4, "names no release of Slurm"),
    ],
)
def test_headers_that_would_not_do_are_one_line(slurm, change, code, words):
    prefix = slurm(**(change if isinstance(change, dict) else {}))
    if isinstance(change, str):
        (prefix / "include/slurm" / change).unlink()
    done = headers(prefix)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words.replace("PREFIX", str(prefix)) in done.stderr


def test_a_prefix_that_is_none(tmp_path):
    assert headers(tmp_path / "none").returncode == 2
    assert "cannot pass on" in headers(f"{tmp_path}/a b").stderr


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("make") and shutil.which("gcc")), reason="needs make and gcc")
def test_make_uses_the_headers_of_the_prefix_and_builds_again(slurm, tmp_path):
    """make builds energy.so with the headers in the prefix of Slurm, never with other headers.

    It builds energy.so again when these headers change, even if an existing file is newer.
    """
    prefix = slurm()
    for name in ("spank", "prolog_epilog", "packaging"):
        ignore = shutil.ignore_patterns("*.so", "senergy-hook", ".headers")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignore)

    def make(*arguments):
        command = ["make", "-C", tmp_path / "spank", "energy.so", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    done = make(f"SLURM_PREFIX={prefix}")
    assert done.returncode != 0 and "headers of the prefix" in done.stderr
    (prefix / "include/slurm/spank.h").write_text("enum { ESPANK_SUCCESS };\n#error built again\n")
    (tmp_path / "spank/energy.so").touch()  # newer than all sources
    done = make(f"SLURM_PREFIX={prefix}")
    assert done.returncode == 0 and "error" not in done.stderr  # same headers: no build
    number = prefix / "include/slurm/slurm_version.h"
    number.write_text(number.read_text().replace("0x180b05", "0x180b06"))
    assert "built again" in make(f"SLURM_PREFIX={prefix}").stderr
