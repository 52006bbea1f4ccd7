"""Tests of the installation packages.

The tests check the lists of contents, the maintainer scripts, and the choice of the plugins for the
installed Slurm.
"""

from __future__ import annotations

import configparser
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slurm_energy import installed_package
from slurm_energy.errors import install_extra
from slurm_energy.slurm import spank_selection
from slurm_energy.slurm.energy_include import ExactPlugin
from slurm_energy.slurm.release import Release

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
PAYLOAD = tomllib.loads((PACKAGING / "payload.toml").read_text())
SCRIPTS = sorted(
    path for kind in ("preinst", "postinst", "prerm", "postrm") for path in PACKAGING.glob(f"debian/*.{kind}")
)
WITHOUT_PACKAGE = {"gym", "trace", "docs", "check", "dev", "judges"}


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=; ]", requirement)[0]).lower()


@pytest.mark.parametrize("lock", sorted(PACKAGING.glob("locks/*.txt")), ids=lambda path: path.stem)
def test_every_pinned_distribution_belongs_to_one_package(lock):
    pinned = re.findall(r"^([a-z0-9-]+)==\S+ \\\n +--hash=sha256:", lock.read_text(), re.MULTILINE)
    assigned = [name for names in PAYLOAD["distributions"].values() for name in names]
    assert len(assigned) == len(set(assigned))
    assert set(pinned) <= set(assigned)
    assert len(pinned) > 30


def test_the_packages_contain_what_setup_cfg_requires():
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"]]
    texts += [text for extra, text in setup["options.extras_require"].items() if extra not in WITHOUT_PACKAGE]
    required = {canonical(line) for text in texts for line in text.split() if not line.startswith("%")}
    contained = {name for names in PAYLOAD["distributions"].values() for name in names}
    assert required - contained == set()


def test_every_package_is_described_and_staged():
    control = (PACKAGING / "debian/control").read_text()
    described = set(re.findall(r"^Package: (\S+)", control, re.MULTILINE))
    assert described == (set(PAYLOAD["requirements"]) - {"build"}) | {"slurm-energy-plugins"}
    page = (ROOT / "docs/packages.md").read_text()
    assert all(f"`{package}`" in page for package in described)


def rpm_script(name: str) -> str:
    """Return a script of the rpm packages, such as `post node`, without macros of rpm."""
    spec = (PACKAGING / "slurm-energy.spec").read_text()
    section = re.split(r"^%(?:pre|post)", spec.partition(f"\n%{name}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    return re.sub(r"^%\{\w+\}$", ":", section, flags=re.MULTILINE)


@pytest.mark.parametrize(("package_format", "argument"), [("deb", "configure"), ("rpm", "1"), ("rpm", "2")])
def test_the_node_package_selects_its_plugin_for_the_installed_slurm(package_format, argument, tmp_path):
    log = tmp_path / "calls"
    for name in ("senergy", "systemctl", "deb-systemd-invoke", "py3compile"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\nexit 1\n')
        (tmp_path / name).chmod(0o755)
    is_deb = package_format == "deb"
    script = (
        (PACKAGING / "debian/slurm-energy-node.postinst").read_text() if is_deb else rpm_script("post node")
    )
    command = ["sh", "-c", script, "script", argument]
    subprocess.run(command, check=True, timeout=60, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    calls = [line for line in log.read_text().splitlines() if not line.startswith("py3compile")]
    assert calls[0] == "senergy build-plugins --update"


def test_removal_of_the_rpm_package_keeps_records_that_wait_for_delivery(tmp_path):
    record = tmp_path / "var/lib/senergy/agent/spool/record.json"
    record.parent.mkdir(parents=True)
    record.touch()
    script = re.sub(r"/(?=(?:etc|run|usr|var)/)", f"{tmp_path}/", rpm_script("postun node"))
    command = ["sh", "-c", script, "script", "0"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert record.exists()
    assert f"remain in {tmp_path}/var/lib/senergy;" in done.stdout


def test_templates_of_the_packages_name_no_file_of_an_installation_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGING)
    with_packaged_paths = importlib.import_module("stage_payload").with_packaged_paths
    for template in sorted((ROOT / "slurm_energy/templates/site").glob("*.j2")):
        defaults = re.findall(r'default = "([^"]*)"', with_packaged_paths(template.read_text()))
        assert not [path for path in defaults if path.startswith(("/opt/", "/usr/local/"))], template.name


def test_bash_completion_is_suggested():
    assert re.search(
        r"^Suggests: .*bash-completion", (PACKAGING / "debian/control").read_text(), re.MULTILINE
    )
    assert "\nSuggests: bash-completion\n" in (PACKAGING / "slurm-energy.spec").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_maintainer_scripts_are_valid_and_never_stop_apt(script):
    text = script.read_text()
    subprocess.run(["sh", "-n", script], check=True, timeout=60)
    assert text.startswith("#!/bin/sh\nset -e\n")
    assert text.endswith("exit 0\n")
    assert "#DEBHELPER#" in text
    for line in text.splitlines():
        if re.match(r"\s*(timeout|py3compile|py3clean|/usr/sbin/senergyd)", line):
            assert "||" in text[text.index(line) :].split("\n\n")[0]


@pytest.mark.parametrize("script", ["debian/slurm-energy.prerm", "slurm-energy.spec"])
def test_removal_without_undo_tells_how_to_clean_the_files_of_slurm(script):
    text = (PACKAGING / script).read_text()
    assert (
        "Slurm's files still contain the lines of senergy setup. To remove them: install slurm-energy" in text
    )


@pytest.mark.parametrize("program", ["build-debs", "fetch-wheels", "export-source", "source-date"])
def test_programs_of_the_build_refuse_bad_usage(program):
    subprocess.run(["sh", "-n", PACKAGING / program], check=True, timeout=60)
    if program != "source-date":
        done = subprocess.run([PACKAGING / program], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize("program", ["build-debs", "build-rpms"])
def test_a_path_as_the_name_of_a_system_is_bad_usage(program):
    command = [PACKAGING / program, "/some/path"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_packages_names_the_systems_that_it_builds_for():
    command = ["make", "-s", "-C", ROOT, "packages-dist"]
    for system in PAYLOAD["systems"]:
        subprocess.run([*command, f"DIST={system}"], check=True, timeout=60)
    done = subprocess.run(
        [*command, "DIST=/some/path"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "DIST is bookworm, trixie or el9, not '/some/path'" in done.stderr
    assert "\npackages: packages-dist " in (ROOT / "Makefile").read_text()


@pytest.fixture
def library(tmp_path):
    """A fake installation prefix of slurm-energy, as the distribution's packages create it.

    It contains the SPANK plugins for two release series of Slurm.
    """
    for series in ("22.05", "24.11"):
        for name in spank_selection.SPANK_PLUGINS:
            path = tmp_path / "library" / f"slurm-{series}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for name in spank_selection.SPANK_PLUGINS:
        (tmp_path / "library" / name).symlink_to(f"slurm-22.05/{name}")
    return tmp_path / "library"


def test_the_links_follow_the_series_of_slurm(library, tmp_path):
    selection = spank_selection.select(library, Release(24, 11, 5), tmp_path)
    assert (selection.series, selection.changed) == ("24.11", True)
    for name in spank_selection.SPANK_PLUGINS:
        assert (library / name).readlink() == Path(f"slurm-24.11/{name}")
    assert not spank_selection.select(library, Release(24, 11, 6), tmp_path).changed


def test_without_plugins_for_the_series_the_links_stay(library, tmp_path):
    assert spank_selection.select(library, Release(27, 5, 0), tmp_path).directory is None
    assert (library / "energy.so").readlink() == Path("slurm-22.05/energy.so")
    built = tmp_path / "built/slurm-27.05"
    built.mkdir(parents=True)
    (built / "energy.so").touch()
    assert spank_selection.select(library, Release(27, 5, 0), built.parent).directory is None  # hooks lack
    (built / "energy_hooks.so").touch()
    assert spank_selection.select(library, Release(27, 5, 0), built.parent).directory == built
    assert (library / "energy.so").resolve() == built / "energy.so"


def test_a_login_node_has_no_link_for_the_hooks(library, tmp_path):
    (library / "energy_hooks.so").unlink()
    assert spank_selection.select(library, Release(24, 11, 5), tmp_path).changed
    assert not (library / "energy_hooks.so").exists()


@pytest.mark.parametrize(
    ("extra", "package"),
    [
        ("plots", "slurm-energy-analysis"),
        ("simulation", "slurm-energy-analysis"),
        ("lab", "slurm-energy-lab"),
        ("postgresql", "slurm-energy-controller"),
    ],
)
def test_a_missing_library_is_installed_from_a_package(extra, package, tmp_path, monkeypatch):
    assert install_extra(extra).endswith(f"pip install 'slurm-energy[{extra}]'")  # a checkout
    monkeypatch.setattr(installed_package, "package_prefix", lambda: tmp_path)
    assert install_extra(extra) == f"install the package {package}"  # in no archive of the distribution
    assert "pip" in install_extra("trace")  # PyTorch is in no package


def test_each_plugin_is_recognized_by_its_first_setting():
    for kind in ExactPlugin:
        key, value = next(iter(kind.settings.items()))
        assert kind.is_named({key.lower(): ["other", value]})
        assert not kind.is_named({key.lower(): [value, "other"]})
        assert not kind.is_named({})


@pytest.mark.slow
def test_the_source_distribution_can_build_the_c_parts(tmp_path):
    if not shutil.which("make") or not shutil.which("gcc") or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs make, gcc and Slurm's headers")
    subprocess.run([PACKAGING / "export-source", tmp_path / "copy"], check=True, timeout=60)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path / "copy", check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path / "unpacked"], check=True, timeout=60)
    (source,) = (tmp_path / "unpacked").iterdir()
    for directory, goal in (("spank", "all"), ("prolog_epilog", "all"), ("plugins", "energy")):
        command = ["make", "-C", str(source / directory), goal, "CFLAGS=-O0"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    for name in (
        "packaging/build-debs",
        "packaging/debian/control",
        "packaging/locks/python3.11.txt",
        "slurm_energy/templates/site/senergyd.service.j2",
        "slurm_energy_lab/native/amdsmi_stub.c",
        "mkdocs.yml",
    ):
        assert (source / name).is_file()
