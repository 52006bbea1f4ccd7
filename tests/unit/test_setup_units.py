"""Tests of the units of `senergy setup`: they read the energy.toml that setup writes."""

from pathlib import Path

import pytest
from test_setup_sites import Host, slurm  # noqa: F401

from slurm_energy.config.loader import DEFAULT_PATH
from slurm_energy.errors import ConfigError
from slurm_energy.setup.plan import PlanOptions, Role, make_plan
from slurm_energy.setup.unit_files import unit_changes
from slurm_energy.templates import find, render

pytestmark = pytest.mark.usefixtures("slurm")
LINES = {"senergyctld": 2, "senergyd": 4}
"""Number of lines of a unit that name energy.toml: condition and start; two further commands of senergyd."""


@pytest.fixture
def packaged(tmp_path):
    """Return a host with the units of the packages, which name the default path."""
    host = Host(tmp_path, "plain")
    for unit in (tmp_path / "usr/lib/systemd/system").iterdir():
        unit.write_text(f"[Service]\nExecStart=/usr/sbin/{unit.stem} --config {DEFAULT_PATH}\n")
    return host


def plan(host, role, config):
    return make_plan(role, host.site(), host.own, PlanOptions(config=config))


@pytest.mark.parametrize(("role", "name"), [(Role.CONTROLLER, "senergyctld"), (Role.NODE, "senergyd")])
def test_all_lines_of_a_new_unit_name_the_file(tmp_path, role, name):
    host = Host(tmp_path, "plain")
    for unit in (tmp_path / "usr/lib/systemd/system").iterdir():
        unit.unlink()
    config = tmp_path / "site/energy.toml"
    files = {change.path.name: change.data.decode() for change in plan(host, role, config).own_changes}
    unit = files[f"{name}.service"]
    assert str(DEFAULT_PATH) not in unit
    assert sum(str(config) in line for line in unit.splitlines()) == LINES[name]


@pytest.mark.parametrize(("role", "name"), [(Role.CONTROLLER, "senergyctld"), (Role.NODE, "senergyd")])
def test_an_installed_unit_that_reads_another_file_is_refused(packaged, monkeypatch, role, name):
    config = packaged.root / "site/energy.toml"
    with pytest.raises(ConfigError, match=f"{name}.service does not read this file"):
        plan(packaged, role, config)
    monkeypatch.setenv("SENERGY_CONFIG", str(config))
    with pytest.raises(ConfigError, match=f"{name}.service does not read this file"):
        plan(packaged, role, None)
    drop_in = packaged.root / f"etc/systemd/system/{name}.service.d/override.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nExecStart=\nExecStart=/usr/sbin/{name} --config {config}\n")
    assert plan(packaged, role, config).services == [f"{name}.service"]


def test_installed_units_read_the_default_path(packaged):
    for name in LINES:
        changes = unit_changes(name, packaged.site(), packaged.own, "slurm", DEFAULT_PATH)
        assert not [change for change in changes if change.path.suffix == ".service"]


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=/usr/sbin/senergyd --config={}",
        "ExecStart=/usr/sbin/senergyd --config '{}'",
        'ExecStart=/usr/sbin/senergyd "--config" "{}" --log-level info',
        "ExecStart=/usr/sbin/senergyd \\\n# all nodes\n  --config {}",
        "ExecStart=/usr/sbin/senergyd\nEnvironment=SENERGY_CONFIG={}",
        'ExecStart=/usr/sbin/senergyd\nEnvironment="A=b" "SENERGY_CONFIG={}"',
    ],
)
def test_the_file_of_an_installed_unit_is_recognized_in_any_form(packaged, line):
    """Setup accepts the file that the unit reads, and refuses to write another one."""
    config = packaged.root / "site/energy.toml"
    drop_in = packaged.root / "etc/systemd/system/senergyd.service.d/override.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\n{line.format(config)}\n")
    assert plan(packaged, Role.NODE, config).services == ["senergyd.service"]
    with pytest.raises(ConfigError, match="does not read this file"):
        plan(packaged, Role.NODE, config.with_suffix(""))
    with pytest.raises(ConfigError, match=f"reads {config}: use --config {config}"):
        unit_changes("senergyd", packaged.site(), packaged.own, "slurm", DEFAULT_PATH)
    drop_in.write_text("".join(f"# {part}\n" for part in line.format(config).splitlines()))
    unit_changes("senergyd", packaged.site(), packaged.own, "slurm", DEFAULT_PATH)
    with pytest.raises(ConfigError, match="does not read this file"):
        plan(packaged, Role.NODE, config)


@pytest.mark.parametrize(
    "lines",
    [
        f"ExecStart=/usr/sbin/senergyd --config {DEFAULT_PATH}\nEnvironment=SENERGY_CONFIG=/site/energy.toml",
        "ExecStart=/usr/sbin/senergyd\nEnvironment=SENERGY_CONFIG=/site/energy.toml\nEnvironment=",
        "ExecStart=/usr/sbin/senergyd\nExecStartPre=/usr/sbin/senergyd --config /site/energy.toml",
    ],
)
def test_only_the_setting_in_force_decides(packaged, lines):
    """The option of the command overrides the variable, and the file of another command does not count."""
    unit = packaged.root / "usr/lib/systemd/system/senergyd.service"
    unit.write_text(f"[Service]\n{lines}\n")
    unit_changes("senergyd", packaged.site(), packaged.own, "slurm", DEFAULT_PATH)
    with pytest.raises(ConfigError, match="does not read this file"):
        unit_changes("senergyd", packaged.site(), packaged.own, "slurm", Path("/site/energy.toml"))


def test_the_last_drop_in_decides(packaged):
    """An earlier drop-in and the unit name other files."""
    directory = packaged.root / "etc/systemd/system/senergyd.service.d"
    directory.mkdir(parents=True)
    for number in (2, 1):
        start = f"ExecStart=/usr/sbin/senergyd --config /site/{number}.toml"
        (directory / f"{number}.conf").write_text(f"[Service]\nExecStart=\n{start}\n")
    unit_changes("senergyd", packaged.site(), packaged.own, "slurm", Path("/site/2.toml"))
    for other in (Path("/site/1.toml"), DEFAULT_PATH):
        with pytest.raises(ConfigError):
            unit_changes("senergyd", packaged.site(), packaged.own, "slurm", other)


def test_a_unit_that_systemd_would_skip_is_refused(packaged):
    """The condition of the unit still names the default path, as in the packages."""
    config = packaged.root / "site/energy.toml"
    unit = packaged.root / "usr/lib/systemd/system/senergyd.service"
    unit.write_text(f"[Unit]\nConditionPathExists={DEFAULT_PATH}\n{unit.read_text()}")
    drop_in = packaged.root / "etc/systemd/system/senergyd.service.d/override.conf"
    drop_in.parent.mkdir(parents=True)
    start = f"[Service]\nExecStart=\nExecStart=/usr/sbin/senergyd --config {config}\n"
    drop_in.write_text(start)
    with pytest.raises(ConfigError, match=f"senergyd.service starts only if {DEFAULT_PATH} exists"):
        plan(packaged, Role.NODE, config)
    drop_in.write_text(f"[Unit]\nConditionPathExists=\nConditionPathExists={config}\n{start}")
    assert plan(packaged, Role.NODE, config).services == ["senergyd.service"]
    drop_in.write_text(start)
    default = packaged.root / DEFAULT_PATH.relative_to("/")
    default.parent.mkdir(parents=True, exist_ok=True)
    default.touch()
    assert plan(packaged, Role.NODE, config).services == ["senergyd.service"]


def test_the_drop_in_of_the_page_replaces_each_setting_that_names_the_file():
    values = {"bin": "/usr/lib/slurm-energy/bin", "config": "/site/energy.toml"}
    lines = render(find("senergyd.service", Path("/nonexistent")), values, lambda raw: None).splitlines()
    named = [line for line in lines if values["config"] in line]
    assert len(named) == LINES["senergyd"]
    page = (Path(__file__).parents[2] / "docs/setup.md").read_text()
    assert [line for line in named if f"\n{line.partition('=')[0]}=\n{line}\n" not in page] == []


@pytest.mark.parametrize(
    "condition",
    ["/dev/nvidiactl", "/scratch/.mounted", "%E/site/energy.toml", "/etc/%H/energy.toml", "|/a.toml"],
)
def test_other_conditions_of_a_unit_are_not_checked(packaged, condition):
    """A condition that does not hold now may hold when senergyd starts."""
    directory = packaged.root / "etc/systemd/system/senergyd.service.d"
    directory.mkdir(parents=True)
    (directory / "override.conf").write_text(f"[Unit]\nConditionPathExists={condition}\n")
    changes = unit_changes("senergyd", packaged.site(), packaged.own, "slurm", DEFAULT_PATH)
    assert not [change for change in changes if change.path.suffix == ".service"]


def test_a_second_setup_without_the_file_of_the_first_is_refused(tmp_path):
    host = Host(tmp_path, "plain")
    for unit in (tmp_path / "usr/lib/systemd/system").iterdir():
        unit.unlink()
    host.setup()
    with pytest.raises(ConfigError, match=f"senergyctld.service reads {tmp_path}/etc/slurm/energy.toml"):
        unit_changes("senergyctld", host.site(), host.own, "slurm", DEFAULT_PATH)
