"""Tests of the changes of energy.toml during a deployment.

A new stage replaces the changes of the previous stage. The undo restores the site's own text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_energy.errors import AlreadyRunningError, ConfigError
from slurm_energy.setup.journal import SetupJournal
from slurm_energy.study.rollout.key_change import KeyChange
from slurm_energy.study.rollout.site_configuration import SiteConfiguration

SITE = '# site\n[tuning]\nmode = "off"  # until the audit\n'
ADVISE = [KeyChange(("tuning", "mode"), "advise")]
TREATED = [KeyChange(("tuning", "mode"), "on"), KeyChange(("defaults", "policy"), "energy")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "energy.toml"
    path.write_text(SITE)
    path.chmod(0o640)
    return path


def test_stages_replace_each_other_and_undo_restores_the_file(file: Path, tmp_path: Path) -> None:
    site = SiteConfiguration(file, tmp_path / "journal")
    site.carry_out(ADVISE)
    assert file.read_text() == SITE.replace('"off"', '"advise"')
    site.carry_out(TREATED)
    assert 'mode = "on"  # until the audit' in file.read_text()
    assert 'policy = "energy"  # set by senergy study' in file.read_text()
    before = file.stat().st_mtime_ns
    assert SiteConfiguration(file, tmp_path / "journal").carry_out(TREATED) == ()
    assert file.stat().st_mtime_ns == before
    assert SiteConfiguration(file, tmp_path / "journal").restore() == ()
    assert file.read_text() == SITE
    assert file.stat().st_mode & 0o777 == 0o640


def test_changes_of_the_site_during_the_deployment_stay(file: Path, tmp_path: Path) -> None:
    site = SiteConfiguration(file, tmp_path / "journal")
    site.carry_out(TREATED)
    file.write_text(
        "# edited\n" + file.read_text().replace("[defaults]", "[agent]\nsampling_hz = 5\n\n[defaults]")
    )
    site.restore()
    text = file.read_text()
    assert text.startswith("# edited\n" + SITE)
    assert "sampling_hz = 5" in text
    assert "defaults" not in text
    assert "study" not in text


def test_a_line_that_the_site_changed_stays_with_a_remark(file: Path, tmp_path: Path) -> None:
    site = SiteConfiguration(file, tmp_path / "journal")
    site.carry_out(ADVISE)
    file.write_text(file.read_text().replace('"advise"', '"on"'))
    assert "the site has changed tuning.mode, which stays" in site.restore()[0]
    assert 'mode = "on"' in file.read_text()


def test_an_invalid_configuration_is_refused_and_nothing_changes(file: Path, tmp_path: Path) -> None:
    site = SiteConfiguration(file, tmp_path / "journal")
    with pytest.raises(ConfigError, match=r"tuning\.mode"):
        site.carry_out([KeyChange(("tuning", "mode"), "fast")])
    assert file.read_text() == SITE
    assert not site.is_changed


@pytest.mark.parametrize("is_written", [False, True])
def test_an_interrupted_change_is_completed(file: Path, tmp_path: Path, is_written: bool) -> None:
    site = SiteConfiguration(file, tmp_path / "journal")
    site.carry_out(ADVISE)
    journal = SetupJournal(tmp_path / "journal")
    entry = journal.entries[0]
    interrupted = entry.__class__(
        **{name: getattr(entry, name) for name in entry.__slots__} | {"done": False}
    )
    journal.record(interrupted)
    if not is_written:
        file.write_text(SITE)
    SiteConfiguration(file, tmp_path / "journal").carry_out(TREATED)
    assert 'mode = "on"' in file.read_text()
    SiteConfiguration(file, tmp_path / "journal").restore()
    assert file.read_text() == SITE


def test_two_runs_at_once_are_refused(file: Path, tmp_path: Path) -> None:
    with SetupJournal(tmp_path / "journal").locked(), pytest.raises(AlreadyRunningError):
        SiteConfiguration(file, tmp_path / "journal").carry_out(ADVISE)
    assert file.read_text() == SITE
