"""Tests of `senergy setup login` and of the timer that copies the policy file to a login node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_energy.setup import unit_files
from slurm_energy.setup.own_files import OwnFiles
from slurm_energy.setup.plan import PlanOptions, Role, SetupPlan, make_plan
from slurm_energy.setup.site import read_site
from slurm_energy.setup.unit_files import POLICY_TIMER

UNITS = Path("etc/systemd/system")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnFiles:
    library = tmp_path / "lib"
    (library / "plugstack.d").mkdir(parents=True)
    (library / "plugstack.d/energy.conf").touch()
    (library / "energy.so").touch()
    monkeypatch.setattr(OwnFiles, "program", lambda _, name: Path("/opt/x/bin") / name)
    monkeypatch.setattr(unit_files, "_TEMPLATES", tmp_path / "none")
    return OwnFiles(library, tmp_path)


def plan_of(own: OwnFiles, role: Role, controller: str = "ctl") -> SetupPlan:
    conf = own.root / "slurm.conf"
    conf.write_text(f"ClusterName=c\nSlurmctldHost={controller}\nNodeName=n1\n")
    options: Any = PlanOptions(config=own.root / "energy.toml")
    return make_plan(role, read_site(None, conf, own.root), own, options)


def test_a_login_node_gets_the_timer_and_its_service(own: OwnFiles) -> None:
    plan = plan_of(own, Role.LOGIN)
    assert plan.services == [POLICY_TIMER]
    files = {change.path: change.data.decode() for change in plan.own_changes}
    service = files[own.root / UNITS / "senergy-policies.service"]
    assert f"ExecStart=/opt/x/bin/senergy policies fetch --config {own.root}/energy.toml\n" in service
    assert "OnUnitActiveSec=2min\n" in files[own.root / UNITS / POLICY_TIMER]


def test_units_of_the_package_or_the_site_stay(own: OwnFiles) -> None:
    for folder, name in (("usr/lib/systemd/system", "senergy-policies.service"), (UNITS, POLICY_TIMER)):
        (own.root / folder).mkdir(parents=True, exist_ok=True)
        (own.root / folder / name).write_text(f"ExecStart=x --config {own.root}/energy.toml\n")
    plan = plan_of(own, Role.LOGIN)
    assert plan.services == [POLICY_TIMER]
    assert [change.path.name for change in plan.own_changes] == ["energy.toml"]


def test_hosts_with_a_daemon_need_no_timer(own: OwnFiles) -> None:
    import socket

    assert POLICY_TIMER not in plan_of(own, Role.NODE).services
    here = socket.gethostname().partition(".")[0]
    assert plan_of(own, Role.LOGIN, here).services == []
