"""Tests of the configuration tables `[node_types.NAME]`.

The tests check which nodes a table covers, which table takes precedence, contradictions between tables, and
the effect of each section.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_job_manager import Node, env, make, node  # noqa: F401

from slurm_energy.cli.main import main
from slurm_energy.config import parse
from slurm_energy.config.findings import InvalidConfigError, Severity
from slurm_energy.config.loader import TableReader
from slurm_energy.config.node_types import NodeType
from slurm_energy.config.section_digests import section_digests
from slurm_energy.config.value_checks import key
from slurm_energy.controller.policy_file import policies_answer
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.validation import check_file, host
from slurm_energy.validation.host import Host, SlurmConf

FILE = """
[agent]
sampling_hz = 2
live_report_s = 60
[bounds]
cap_watts = [200, 5000]
gpu_cap_watts = [150, 400]
[node_types.gpu]
nodes = "gpu[01-16],big1"
agent.sampling_hz = 10
bounds.gpu_cap_watts = [200, 700]
[node_types.big]
nodes = "big[1-2]"
agent.idle_watts = { cpu = 120 }
[node_types.big.node_power]
source = "ipmi"
"""
HOST = Host(frozenset({"ctl"}), SlurmConf(Path("/x"), settings={"nodename": ["gpu[01-16]", "big[1-2]"]}))


@pytest.mark.parametrize(
    ("nodes", "inside", "outside"),
    [
        ("gpu[01-16]", ["gpu01", "gpu16", "gpu09"], ["gpu1", "gpu17", "gpu001", "gpu", "xgpu01", "gpu01x"]),
        ("n[1-12]", ["n1", "n12"], ["n01", "n13", "n0"]),
        ("n[08-11,20]", ["n08", "n11", "n20"], ["n8", "n12", "n020"]),
        ("r[1-2]c[1-3],login", ["r1c3", "login"], ["r3c1", "r1c4", "logins"]),
        ("n1.site", ["n1.site"], ["n1xsite"]),
    ],
)
def test_a_node_list_contains_its_nodes_only(nodes, inside, outside):
    node_type = NodeType(nodes)
    assert all(node_type.contains(name) for name in inside)
    assert not any(node_type.contains(name) for name in outside)


@given(low=st.integers(0, 30), size=st.integers(0, 20), width=st.integers(1, 3), probe=st.integers(0, 60))
def test_a_node_list_contains_what_its_expansion_contains(low, size, width, probe):
    nodes = f"n[{low:0{width}}-{low + size:0{width}}]"
    names = set(expand_hostlist(nodes))
    for probe_width in (1, 2, 3):
        name = f"n{probe:0{probe_width}}"
        assert NodeType(nodes).contains(name) == (name in names)


def test_the_keys_of_the_types_of_a_node_take_precedence():
    config = parse(FILE)
    gpu, both, other = (config.for_node(name) for name in ("gpu03", "big1", "c1"))
    assert (gpu.agent.sampling_hz, gpu.agent.live_report_s) == (10.0, 60.0)
    assert gpu.bounds.gpu_cap_watts == (200.0, 700.0)
    assert gpu.bounds.cap_watts == (200.0, 5000.0)
    assert (both.agent.sampling_hz, both.agent.idle_watts, both.node_power.source) == (
        *(10.0, {"cpu": 120.0}),
        "ipmi",
    )
    assert other is config
    assert gpu.for_node("gpu03") == gpu


def test_flags_are_accepted_within_the_widest_bounds():
    config = parse(FILE)
    for one in (config, config.for_node("gpu03")):
        assert one.accepted_bounds.gpu_cap_watts == (150.0, 700.0)
        assert "gpu_cap_watts 150 700" in policy_file_text(one).splitlines()
    answer = policies_answer(config)
    assert answer["bounds"]["gpu_cap_watts"] == (150.0, 700.0)
    assert answer["node_types"][0] == {
        "name": "gpu",
        "nodes": "gpu[01-16],big1",
        "bounds": {"gpu_cap_watts": (200.0, 700.0)},
    }


def test_only_operators_see_the_address_of_a_management_controller():
    config = parse(
        '[node_types.bmc]\nnodes = "gpu01"\n'
        '[node_types.bmc.node_power]\nsource = "redfish"\nbmc = "https://10.9.8.7"\n'
        'bmc_user = "monitor"\nbmc_password_file = "/etc/bmc"\n'
    )
    assert "10.9.8.7" in str(policies_answer(config))
    answer = policies_answer(config, with_node_power=False)
    assert "10.9.8.7" not in str(answer) and "monitor" not in str(answer["shared"])
    assert answer["shared"]["node_types"]["bmc"]["nodes"] == "gpu01"


def test_all_nodes_of_a_cluster_with_one_file_have_the_same_digests():
    config = parse(FILE)
    assert section_digests(config.for_node("gpu03")) == section_digests(config)
    assert section_digests(parse(FILE.replace("700", "600"))) != section_digests(config)


def check(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "energy.toml"
    path.write_text(text)
    checked = check_file(path, host=HOST)
    named = [finding for finding in checked.findings if "node_types" in finding.key]
    return [finding.line_with_severity.removeprefix(f"{path}:") for finding in named]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('[node_types.a]\nagent.sampling_hz = 3\n', "1: error: [node_types.a]: nodes is missing"),
        ('[node_types.a]\nnodes = "gpu01"\n', "1: warning: [node_types.a]: has no effect: it sets no key"),
        ('[node_types.a]\nnodes = "@all"\n', "2: error: node_types.a.nodes: must be a node list"),
        ('[node_types.a]\nnodes = "n[5-1]"\n', "2: error: node_types.a.nodes: must be a node list"),
        ('[node_types.a]\nnodes = "gpu01"\nagent.hz = 3\n', "3: error: node_types.a.agent.hz: unknown key"),
        (
            '[node_types.a]\nnodes = "gpu01"\n[node_types.a.agent]\nsampling_hz = 300\n',
            "4: error: node_types.a.agent.sampling_hz: must be from 0.1 to 50",
        ),
        ('[node_types.a]\nnodes = "gpu01"\nprice.pue = 1\n', "3: error: node_types.a.price: unknown key"),
        (
            '[node_types.a]\nnodes = "gpu01"\nmetrics.controller_listen = "x:1"\n',
            "3: error: node_types.a.metrics.controller_listen: concerns no node",
        ),
        (
            '[node_types.a]\nnodes = "gpu[1-2]"\nagent.sampling_hz = 3\n',
            "2: warning: node_types.a.nodes: slurm.conf has no node gpu1 and 1 more",
        ),
        (
            '[node_types.a]\nnodes = "gpu[01-04]"\nagent.sampling_hz = 3\n'
            '[node_types.b]\nnodes = "gpu[04-05]"\nagent.sampling_hz = 4\n',
            "6: error: node_types.b.agent.sampling_hz: node gpu04 is also in [node_types.a], which sets",
        ),
        (
            '[node_types.a]\nnodes = "gpu01"\nnode_power.bmc = "https://{node}-bmc"\n',
            "3: error: node_types.a.node_power.bmc: needs an account",
        ),
        (
            '[node_types.a]\nnodes = "gpu01"\nmetrics.agent_listen = "0.0.0.0:9628"\n',
            "3: error: node_types.a.metrics.agent_listen: 0.0.0.0:9628 is not on the loopback interface",
        ),
        ('[node_types.A]\nnodes = "gpu01"\nagent.sampling_hz = 3\n', "1: error: [node_types.A]: the name"),
        ("node_types = 3\n", "error: [node_types]: must be tables"),
        ("[node_types]\na = 3\n", "error: [node_types.a]: must be a table"),
    ],
)  # fmt: skip
def test_faults_are_found_with_their_line(tmp_path, text, finding):
    lines = check(tmp_path, text)
    assert any(finding in line for line in lines), lines


def test_types_with_equal_values_and_other_keys_may_share_nodes(tmp_path):
    text = FILE + '[node_types.c]\nnodes = "gpu01"\nagent.sampling_hz = 10\nagent.spool_limit_mb = 64\n'
    assert check(tmp_path, text) == []


@pytest.mark.parametrize(
    ("flags", "caps", "note"),
    [
        ({"cap": "4000"}, 1000.0, "bounds.cap_watts of this node: 1000 W instead of 4000"),
        ({"cap": "300"}, 500.0, "bounds.cap_watts of this node: 500 W instead of 300"),
        ({"cap": "700"}, 700.0, ""),
    ],
)
def test_a_flag_is_limited_to_the_bounds_of_the_node(make, flags, caps, note):  # noqa: F811
    file = FILE + '[node_types.test]\nnodes = "n1"\nbounds.cap_watts = [500, 1000]\nagent.sampling_hz = 1\n'
    started = make(parse(file))
    started.manager.begin(env(1, policy="cap", **flags))  # the hook reports the name of the node, n1
    session = started.manager._sessions.latest_run(1)
    assert started.manager.config.agent.sampling_hz == 1.0
    assert session.power_monitor.cap_watts == caps
    assert [text for text in session.notes if "bounds" in text] == ([note] if note else [])


def test_a_reload_keeps_the_types_of_the_node(node):  # noqa: F811
    node.manager.begin(env(1))
    node.manager.reconfigure(parse('[node_types.a]\nnodes = "n1"\nagent.spool_limit_mb = 7\n'))
    assert node.manager.spool.limit_bytes == 7_000_000


def test_show_prints_the_values_of_a_node_with_their_origin(tmp_path, capsys):
    path = tmp_path / "energy.toml"
    path.write_text(FILE)
    assert main(["config", "show", "--node", "big1", str(path)]) == 0
    text = capsys.readouterr().out
    assert "on node big1 (node types: gpu, big)" in text
    assert "sampling_hz = 10.0  # energy.toml:10 [node_types.gpu.agent]" in text
    assert 'source = "ipmi"  # energy.toml:16 [node_types.big.node_power]' in text
    assert "live_report_s = 60.0  # energy.toml:4" in text
    assert "spool_limit_mb = 512  # default" in text
    shown = parse(text)  # it is a valid configuration with the same effect on this node
    assert shown.for_node("big1").agent == parse(FILE).for_node("big1").agent
    assert main(["config", "show", "--node", "big1", "--json", str(path)]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["agent"]["sampling_hz"] == 10.0
    assert values["types_of_node"] == ["gpu", "big"]
    assert values["origins"]["agent.sampling_hz"] == {"table": "node_types.gpu.agent", "line": 10}


class TestReleaseOfTheFile:
    def test_keys_of_a_newer_release_are_warnings(self, tmp_path):
        path = tmp_path / "energy.toml"
        path.write_text('[cluster]\nrelease = "9.3"\nfuture = 1\n[agent]\nsampling_hz = 5\n[orbit]\nx = 1\n')
        checked = check_file(path, host=HOST)
        assert [f.key for f in checked.errors] == []
        warnings = {f.key: f.text for f in checked.warnings}
        assert "unknown to release 0.2.0 and ignored: the file is for 9.3" in warnings["cluster.future"]
        assert "[orbit]" in warnings
        assert checked.config.agent.sampling_hz == 5.0

    @pytest.mark.parametrize("release", ["", 'release = "0.2"\n', 'release = "0.1.9"\n'])
    def test_without_a_newer_release_they_are_errors(self, release):
        with pytest.raises(InvalidConfigError, match="future: unknown key"):
            parse(f"[cluster]\n{release}future = 1\n")

    def test_a_wrong_release_is_an_error(self):
        with pytest.raises(InvalidConfigError, match="must be a release such as"):
            parse('[cluster]\nrelease = "new"\n')

    def test_an_earlier_name_of_a_key_is_accepted_with_a_warning(self):
        @dataclass(frozen=True)
        class Section:
            new_key: int = key(1, "A key.", replaces="old_key")

        reader = TableReader(None, "[x]\nold_key = 3\n")
        value, (finding,) = reader.collect(Section, "x", {"old_key": 3})
        assert (value.new_key, finding.severity) == (3, Severity.WARNING)
        assert "x.old_key: is deprecated and will be removed in the next minor release" in finding.text
        assert finding.todo == "write new_key"
        value, (finding,) = reader.collect(Section, "x", {"old_key": 3, "new_key": 4})
        assert (value.new_key, finding.severity) == (4, Severity.ERROR)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"nodename": ["big[1-2] CPUs=4"]}, "senergy: note: slurm.conf has no node nodeX\n"),
        ({"nodename": ["node[X,Y] CPUs=4"]}, ""),
        ({}, ""),  # a host without slurm.conf
    ],
)
def test_show_names_a_node_that_slurm_does_not_have(tmp_path, capsys, monkeypatch, settings, note):
    path = tmp_path / "energy.toml"
    path.write_text(FILE)
    slurm = SlurmConf(Path("/etc/slurm/slurm.conf"), settings=settings)
    monkeypatch.setattr(host, "this_host", lambda: Host(frozenset(), slurm))
    assert main(["config", "show", "--node", "nodeX", str(path)]) == 0
    assert capsys.readouterr().err == note
