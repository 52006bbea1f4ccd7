from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy import config
from slurm_energy.cli.main import main
from slurm_energy.errors import EXIT_CONFIG, EXIT_USAGE, ConfigError, ForbiddenError, UsageError
from slurm_energy_lab.cluster import artifacts, configuration, layout, lifecycle
from slurm_energy_lab.cluster.artifacts import Artifacts
from slurm_energy_lab.cluster.configuration import SlurmNode
from slurm_energy_lab.cluster.specification import LabRecord, LabSpec, read_record

PORTS = {"slurmctld": 1, "slurmdbd": 2, "senergyctld": 3}
NODES = [
    SlurmNode("c1", 11, 2, 32, 2, 524288, 0, ""),
    SlurmNode("g1", 12, 1, 32, 2, 524288, 4, "a100"),
    SlurmNode("g2", 13, 1, 16, 1, 1024, 1, "h100"),
]


def rendered(spec: LabSpec | None = None, found: Artifacts | None = None, nodes=None) -> dict[str, str]:
    place = layout.locate_lab("/srv/lab")
    texts = configuration.render(place, spec or LabSpec(), found or Artifacts(), PORTS, nodes or NODES)
    return {str(path.relative_to(place.root)): text for path, text in texts.items()}


def test_nodes_and_partitions_of_slurm_conf():
    text = rendered()["etc/slurm.conf"]
    assert (
        "NodeName=g1 NodeHostname=g1 NodeAddr=127.0.0.1 Port=12 Sockets=1 CoresPerSocket=32 ThreadsPerCore=2 "
        "RealMemory=524288 Gres=gpu:a100:4 State=UNKNOWN\n"
    ) in text
    assert re.findall(r"PartitionName=(\w+) Nodes=(\S+)", text) == [
        ("all", "c1,g1,g2"),
        ("cpu", "c1"),
        ("gpu", "g1,g2"),
    ]


def test_a_partition_without_nodes_is_left_out():
    assert "PartitionName=cpu" not in rendered(nodes=NODES[1:])["etc/slurm.conf"]


def test_gres_files_are_ranges_or_one_file():
    lines = rendered()["etc/daemon/gres.conf"].splitlines()
    assert lines[1:] == [
        "NodeName=g1 Name=gpu Type=a100 File=/dev/gres/nvidia[0-3]",
        "NodeName=g2 Name=gpu Type=h100 File=/dev/gres/nvidia0",
    ]


def test_users_have_accounts_with_their_shares_if_the_machine_knows_them():
    lines = rendered(LabSpec(users={"daemon": 3, "no-such-user": 1}))["etc/accounts"].splitlines()
    assert lines[-2:] == ["Parent - 'lab'", "User - 'daemon':DefaultAccount='lab':Fairshare=3"]


@pytest.mark.parametrize("text", ["", "=2", "daemon=x", "daemon=-1", "a b", "daemon='2'"])
def test_an_invalid_user_option_is_refused(text, capsys):
    assert main(["lab", "up", "--nodes", "/no/such/file", "--user", text]) == EXIT_USAGE
    assert "--user" in capsys.readouterr().err


def test_without_accounting_no_database_is_named():
    texts = rendered(LabSpec(accounting=False))
    assert "AccountingStorage" not in texts["etc/slurm.conf"]
    assert "etc/daemon/slurmdbd.conf" not in texts


def test_missing_parts_are_not_configured(tmp_path):
    plain = rendered()
    assert "Prolog=" not in plain["etc/slurm.conf"] and "JobSubmitPlugins" not in plain["etc/slurm.conf"]
    assert plain["etc/plugstack.conf"].count("optional") == 1
    full = rendered(
        found=Artifacts(tmp_path / "energy.so", tmp_path / "prolog", tmp_path / "epilog", tmp_path)
    )
    assert (
        f"Prolog={tmp_path}/prolog\nEpilog={tmp_path}/epilog\nJobSubmitPlugins=lua" in full["etc/slurm.conf"]
    )
    assert full["etc/plugstack.conf"].startswith(
        f"optional {tmp_path}/energy.so policy_file=/srv/lab/run/policies"
    )
    assert f'package.path = "{tmp_path}/?.lua;' in full["etc/daemon/job_submit.lua"]


def test_energy_toml_is_valid_and_takes_the_users_values():
    energy = {"agent": {"sampling_hz": 10.0}, "policies": {"night": {"base": "cap", "cap_watts": 300.0}}}
    energy["edp"] = [{"cpu": "Platinum 8358", "max_frequency_mhz": 2100.0}]
    text = rendered(LabSpec(energy=energy))["etc/energy.toml"]
    loaded = config.parse(text)
    assert loaded.agent.sampling_hz == 10.0
    assert str(loaded.controller.database) == "/srv/lab/state/senergyctld/senergy.db"
    assert loaded.policies["night"].cap_watts == 300.0
    assert loaded.edp[0].max_frequency_mhz == 2100.0


def test_a_wrong_key_for_energy_toml_is_refused_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "require_machine", lambda: None)
    place = layout.locate_lab("/var/tmp/senergy-test-never")
    with pytest.raises(ConfigError, match="unknown key"):
        lifecycle.up(place, LabSpec(energy={"agent": {"sampling_hertz": 3}}))
    assert not place.root.exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080"),
        ("Accelerator", "gpu"),
    ],
)
def test_gpu_types(name: str, kind: str):
    assert configuration.gpu_type(name) == kind


def test_settings_replace_existing_keys_and_add_others():
    text = "KillWait=5\n# KillWait\nMinJobAge=6\nNodeName=a CPUs=1\n"
    changed = configuration.with_settings(text, ["killwait=9", "Licenses=watts:100", "NodeName=b CPUs=2"])
    assert changed.splitlines() == [
        "# KillWait",
        "MinJobAge=6",
        "NodeName=a CPUs=1",
        "killwait=9",
        "Licenses=watts:100",
        "NodeName=b CPUs=2",
    ]


@pytest.mark.parametrize("setting", ["KillWait", "=5", "Kill Wait=5", "A=1\nB=2", "", "SlurmctldPort=1"])
def test_invalid_settings_are_refused(setting: str):
    with pytest.raises(UsageError, match="--set"):
        configuration.with_settings("", [setting])


TABLES = st.dictionaries(
    st.from_regex(r"[a-z]{1,5}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.integers() | st.text() | st.booleans()),
)


@given(TABLES)
def test_toml_documents_read_back_the_same(tables):
    assert tomllib.loads(configuration.toml_document(tables)) == tables


@given(TABLES, TABLES)
def test_merging_keeps_every_value_and_the_second_wins(first, second):
    both = configuration.merged(first, second)
    for name in first.keys() | second.keys():
        assert both[name] == {**first.get(name, {}), **second.get(name, {})}


@pytest.mark.parametrize(
    "path", ["/run/lab", "/dev/shm/lab", "/", "/srv/a b", "/srv/a%n", "/srv/" + "long" * 20]
)
def test_directories_that_cannot_hold_a_lab_are_refused(path: str):
    with pytest.raises(UsageError, match="lab directory"):
        layout.locate_lab(path)


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory in which other users could exchange files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


def test_a_directory_that_others_can_write_holds_no_lab(shared_directory):
    with pytest.raises(ConfigError, match="mode 0777"):
        layout.locate_lab(shared_directory)
    with pytest.raises(ConfigError, match="mode 0777"):  # it appeared after its path was checked
        lifecycle.down(layout.LabLayout(shared_directory))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory to another user")
def test_a_directory_of_another_user_holds_no_lab(shared_directory, capsys):
    shared_directory.chmod(0o755)
    os.chown(shared_directory, 65534, 65534)
    assert main(["lab", "down", "--dir", str(shared_directory)]) == EXIT_CONFIG
    assert "owner uid 65534" in capsys.readouterr().err


def test_argument_then_environment_then_default(monkeypatch):
    monkeypatch.setenv("SENERGY_LAB_DIR", "/srv/mine")
    assert str(layout.locate_lab("/srv/other").root) == "/srv/other"
    assert str(layout.locate_lab().root) == "/srv/mine"
    monkeypatch.delenv("SENERGY_LAB_DIR")
    assert str(layout.locate_lab().root) == "/var/tmp/senergy-lab"


def test_a_record_reads_back_the_same(tmp_path):
    spec = LabSpec(slurm=("A=1",), energy={"agent": {"sampling_hz": 2.0}}, product=False)
    record = LabRecord(spec, PORTS, 12.5, 77, complete=True)
    record.write(tmp_path / "lab.json")
    assert read_record(tmp_path / "lab.json") == record
    (tmp_path / "lab.json").write_text("{}")
    assert read_record(tmp_path / "lab.json") is None


def test_missing_packages_are_named_for_apt(monkeypatch):
    names = artifacts.missing_packages("/nonexistent")
    assert {"slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server", "fuse3"} <= set(
        names
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(artifacts, "missing_packages", lambda: ["munge", "slurmd"])
    with pytest.raises(Exception, match=r"missing packages munge slurmd: apt-get install .* munge slurmd"):
        artifacts.require_machine()


def test_only_root_can_start_a_lab(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ForbiddenError, match="need root"):
        artifacts.require_machine()
