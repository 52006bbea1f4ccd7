from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import ConfigError, UsageError
from slurm_energy_lab.cluster import nodes_file
from slurm_energy_lab.cluster.nodes_file import NodeSpec

TWO = """
[[node]]
name = "cpu-1"
profile = "xeon-8358"

[[node]]
name = "gpu1"
profile = "/srv/profiles/new.toml"
overrides = { cpufreq.driver = "acpi-cpufreq", memory.total_mb = 1024 }
"""


def test_nodes_with_profiles_and_overrides():
    first, second = nodes_file.parse(TWO)
    assert first == NodeSpec("cpu-1", "xeon-8358")
    assert second.overrides == {"cpufreq.driver": "acpi-cpufreq", "memory.total_mb": 1024}


def test_quoted_and_nested_overrides_mean_the_same():
    text = '[[node]]\nname="a"\nprofile="p"\n[node.overrides]\n"rapl.psys" = true\n'
    text += "[node.overrides.cpu]\npackages = 1\n"
    assert nodes_file.parse(text)[0].overrides == {"rapl.psys": True, "cpu.packages": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must have \[\[node\]\] tables"),
        ("node = 3", r"must have \[\[node\]\] tables"),
        ("[[nodes]]\nname='n1'", r"must have \[\[node\]\] tables"),
        ("[[node]\n", "nodes file"),
        ("[[node]]\nname = 'n1'", "node 1: has the keys name, profile"),
        ("[[node]]\nname = 'n1'\nprofile = 'p'\ncpus = 3", "node 1: has the keys"),
        ("[[node]]\nname = 'N1'\nprofile = 'p'", "name: must be a host name"),
        ("[[node]]\nname = 'controller'\nprofile = 'p'", "name: must be a host name"),
        ("[[node]]\nname = 'a-b-c-d-e-f-g-h-i'\nprofile = 'p'", "at most 16"),
        ("[[node]]\nname = 'n1'\nprofile = 7", "profile must be a string"),
        (
            "[[node]]\nname = 'n1'\nprofile = 'p'\n[[node]]\nname = 'n1'\nprofile = 'p'",
            "two nodes are named 'n1'",
        ),
        ("\n".join(f"[[node]]\nname = 'n{i}'\nprofile = 'p'" for i in range(65)), "65 nodes are too many"),
    ],
)
def test_errors_are_one_line(text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        nodes_file.parse(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        nodes_file.read(tmp_path / "absent.toml")


@given(st.text(max_size=60))
def test_any_text_gives_nodes_or_one_line(text: str):
    try:
        assert nodes_file.parse(text)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_default_nodes_are_numbered_in_the_order_of_the_profiles():
    names = [(node.name, node.profile) for node in nodes_file.from_profiles(["a", "b"])]
    assert names == [("n1", "a"), ("n2", "b")]


def test_speeds_apply_to_the_nodes_in_order():
    nodes = nodes_file.parse(
        '[[node]]\nname = "a"\nprofile = "x"\nspeed = 2\n[[node]]\nname = "b"\nprofile = "x"'
    )
    assert [node.speed for node in nodes] == [2.0, 1.0]
    assert [node.speed for node in nodes_file.with_speeds(nodes, [1, 0.3])] == [1, 0.3]
    assert [node.name for node in nodes_file.with_speeds(None, [1, 0.6, 0.3])] == ["n1", "n2", "n3"]


@pytest.mark.parametrize("speeds", [[1, 0.6, 0.3], [1, 0], [1, float("nan")]])
def test_wrong_speeds_are_refused(speeds):
    nodes = nodes_file.from_profiles(["x", "x"])
    with pytest.raises(UsageError, match="--speeds"):
        nodes_file.with_speeds(nodes, speeds)


@pytest.mark.parametrize("speed", ["0", "'fast'", "true", "1000"])
def test_a_wrong_speed_in_the_file_is_refused(speed):
    with pytest.raises(ConfigError, match="speed: must be a number"):
        nodes_file.parse(f'[[node]]\nname = "a"\nprofile = "x"\nspeed = {speed}')
