"""Tests of the build of slurmctld's plugin.

The build selects the source of the matching Slurm release, or fails with one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.slurm import debian_source, plugin_build
from slurm_energy.slurm.installation import Installation
from slurm_energy.slurm.release import Release

META = "##\n  Meta:\t\t1\n  Name:\t\tslurm\n  Major:\t24\n  Minor:\t11\n  Micro:\t5\n  Version:\t24.11.5\n"
MODERN = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://download.example/linux/debian
Suites: bookworm
Components: stable

Types: deb
URIs: http://security.example/debian
Suites: bookworm-security
Components: main contrib
Architectures: amd64

Types: deb
Enabled: no
URIs: http://old.example/debian
Suites: bullseye
Components: main
"""
CLASSIC = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://ftp.example/debian bookworm main contrib # here
deb https://packages.example/apt stable main
deb-src http://ftp.example/ubuntu/ noble universe
"""


class Slurm(Installation):
    """A fake installation of Slurm 24.11.5. Its slurmctld is not executed to read the release."""

    def release(self, run=None):
        return Release(24, 11, 5)


def slurm(prefix="/usr"):
    return Slurm(Path(prefix), Path(prefix, "sbin/slurmctld"))


def test_a_source_of_another_release_is_refused_before_anything_is_built(tmp_path):
    (tmp_path / "META").write_text(META.replace("24", "22"))
    with pytest.raises(UsageError, match=r"is Slurm 22\.11\.5: /opt/slurm/sbin/slurmctld is 24\.11\.5"):
        plugin_build.build(output=tmp_path, source=tmp_path, slurm=slurm("/opt/slurm"))
    assert [path.name for path in tmp_path.iterdir()] == ["META"]


@pytest.mark.parametrize("meta", [None, "", "Major: 24\nMinor: eleven\n"])
def test_a_directory_without_slurm_is_refused(tmp_path, meta):
    if meta is not None:
        (tmp_path / "META").write_text(meta)
    with pytest.raises(UsageError, match="name a source tree of Slurm"):
        plugin_build.source_release(tmp_path)


def test_no_archive_has_the_source_of_a_slurm_outside_usr(tmp_path):
    with pytest.raises(UnavailableError, match=r"a package of the distribution: give --slurm-source DIR"):
        plugin_build.build(output=tmp_path, cache=tmp_path, slurm=slurm("/opt/slurm"))


def test_a_source_that_does_not_compile_is_a_failure(tmp_path):
    (tmp_path / "META").write_text(META)
    (tmp_path / "config.h").write_text("#error no Slurm\n")
    (tmp_path / "out").mkdir()
    in_use = tmp_path / "out" / plugin_build.PLUGIN
    in_use.write_text("what slurmctld needs at its next start")
    with pytest.raises(EnergyError, match=r"site_factor_energy\.so: make: .*error") as caught:
        plugin_build.build(output=tmp_path / "out", source=tmp_path, slurm=slurm())
    assert caught.value.exit_code == 1
    assert list((tmp_path / "out").iterdir()) == [in_use]


def test_a_plugin_tells_what_it_was_built_for(tmp_path):
    plugin = tmp_path / "plugin.so"
    assert plugin_build.built_release(plugin) is None
    plugin.write_bytes(b"\x7fELF\0Order of the queue by slurm-energy for Slurm 24.11.5\0")
    assert plugin_build.built_release(plugin) == (24, 11, 5)
    plugin.write_bytes(b"\x7fELF another")
    assert plugin_build.built_release(plugin) is None


def test_only_the_archive_of_the_distribution_is_asked_for_sources(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(MODERN)
    (tmp_path / "sources.list.d" / "note.txt").write_text("deb http://ftp.example/debian sid main")
    (tmp_path / "sources.list").write_text(CLASSIC)
    stanzas = debian_source.source_lists(tmp_path).strip().split("\n\n")
    assert stanzas == [
        "Types: deb-src\nURIs: http://ftp.example/debian\nSuites: bookworm\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/x.gpg",
        "Types: deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        "Types: deb-src\nURIs: http://security.example/debian\nSuites: bookworm-security\n"
        "Components: main contrib",
    ]


def test_where_no_archive_is_configured_the_source_has_to_be_named(tmp_path):
    with pytest.raises(UnavailableError, match=r"give --slurm-source DIR|dpkg-source: not found"):
        debian_source.download(tmp_path / "cache", "slurm-wlm", "22.05.8-4", etc=tmp_path)
    assert not (Path(tmp_path) / "cache").exists()


def test_slurmctld_from_elsewhere_needs_its_source_named():
    def fails(argv):
        raise UnavailableError("dpkg-query", "no packages found matching slurmctld")

    with pytest.raises(UnavailableError, match="not installed from a Debian package"):
        debian_source.source_package(fails)
    assert debian_source.source_package(lambda argv: "slurm-wlm 22.05.8-4") == ("slurm-wlm", "22.05.8-4")
