"""Tests of the configuration file that `senergy setup` writes.

The file contains values that were detected on the host, and the energy policies that senergyctld publishes.
"""

from pathlib import Path

import pytest

from slurm_energy.config.loader import parse
from slurm_energy.config.schema_document import example_file
from slurm_energy.config.section_digests import section_digests, shared_values
from slurm_energy.controller.policy_file import policies_answer
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.setup import detection, shared_configuration
from slurm_energy.setup.configuration import DetectedValues, configuration_text, controller_url
from slurm_energy.setup.fetched_settings import fetched_settings
from slurm_energy.setup.site import FETCHED_CONF, SlurmSite
from slurm_energy.slurm.installation import Installation
from slurm_energy.validation import check_file

SITE_FILE = """
[cluster]
name = "physics"
[defaults]
policy = "edp"
partition = { gpu = "night" }
[bounds]
cap_watts = [150.0, 900.0]
[controller]
database = "postgresql://energy:secret@db/energy"
[policies.night]
base = "monitor"
description = 'says "hello" \\ ends'
cap_watts = 400.0
[node_types.gpu]
nodes = "gpu[01-16]"
bounds = { gpu_cap_watts = [200.0, 700.0] }
[[edp]]
cpu = "Platinum 8358"
max_frequency_mhz = 2100.0
"""


def site(**settings):
    settings = {"clustername": ["physics"], "slurmctldhost": ["head(10.0.0.1)"]} | settings
    return SlurmSite(None, settings, False, False, None, frozenset({"n1"}))


@pytest.fixture
def answer(monkeypatch):
    """The response of senergyctld to `GET /v1/policies`."""
    response = policies_answer(parse(SITE_FILE))

    class Client:
        def __init__(self, urls, *rest, **options):
            assert urls == ["http://10.0.0.1:6828"]

        def get(self, path):
            assert path == "/v1/policies"
            return response

    monkeypatch.setattr(shared_configuration, "ControllerClient", Client)
    return response


def test_a_node_takes_over_what_all_hosts_share(answer):
    text = configuration_text(detection.detected_values(site(), {}, is_node=True))
    config = parse(text)
    assert section_digests(config) == section_digests(parse(SITE_FILE))
    assert config.policies["night"].description == 'says "hello" \\ ends'
    assert config.cluster.controller_url == ("http://10.0.0.1:6828",)
    assert "secret" not in text and "secret" not in str(answer)


def test_without_the_controller_a_node_has_the_defaults(monkeypatch):
    def silent(*_):
        raise UnavailableError("http://10.0.0.1:6828", "no answer")

    monkeypatch.setattr(detection, "request_shared", silent)
    text = configuration_text(detection.detected_values(site(), {}, is_node=True))
    assert set(section_digests(parse(text))) == {"cluster"}
    assert "# Policies and bounds: defaults, because senergyctld did not answer: http://10.0.0.1:6828" in text


def test_values_of_a_newer_release_are_not_written(answer):
    answer["shared"]["bounds"]["cap_watts"] = "much"
    with pytest.raises(EnergyError):
        shared_configuration.request_shared(["http://10.0.0.1:6828"], ["slurm"], None)
    text = configuration_text(detection.detected_values(site(), {}, is_node=False))
    assert parse(text).policies == {}


def test_a_response_reaches_only_shared_sections(answer):
    """A node's setup takes only the shared sections of the configuration from senergyctld.

    Shared sections are sections that must be equal on all hosts. Daemons that run as root trust all other
    sections. Therefore senergyctld, which runs as another user, must not be able to change these other
    sections through its response.
    """
    answer["shared"]["agent"] = {"state_dir": "/etc"}
    answer["shared"]["policies"] = {'x]\n[agent]\nstate_dir = "/etc"\n[policies.y': {"cap_watts": 300.0}}
    with pytest.raises(EnergyError, match="senergyctld"):
        shared_configuration.request_shared(["http://10.0.0.1:6828"], ["slurm"], None)
    del answer["shared"]["policies"]
    text = configuration_text(detection.detected_values(site(), {}, is_node=False))
    assert parse(text).agent == parse("").agent and "bounds" in section_digests(parse(text))


@pytest.mark.parametrize(
    "shared",
    [[1], {"policies": [1]}, {"policies": {"a": 3}}, {"policies": None}, {"edp": {"a": 1}}, {"edp": [1]}],
)
def test_shared_sections_of_another_form_are_refused(answer, shared):
    answer["shared"] = shared
    with pytest.raises(EnergyError):
        shared_configuration.request_shared(["http://10.0.0.1:6828"], ["slurm"], None)


def test_an_error_message_cannot_add_a_line_to_the_configuration(monkeypatch):
    def refuse(*_):
        raise UnavailableError("http://10.0.0.1:6828", 'no\n[agent]\nstate_dir = "/etc"')

    monkeypatch.setattr(detection, "request_shared", refuse)
    text = configuration_text(detection.detected_values(site(), {}, is_node=True))
    assert parse(text).agent == parse("").agent


def test_values_of_slurm_conf():
    settings = {"slurmuser": ["hpc"], "authinfo": ["ttl=60,socket=/run/m.sock"]}
    both = ["head(10.0.0.1)", "spare"]
    values = detection.slurm_values(site(slurmctldhost=both, **settings))
    assert values["cluster", "controller_url"] == ["http://10.0.0.1:6828", "http://spare:6828"]
    assert values["cluster", "controller_users"] == ["root", "slurm", "hpc"]
    config = parse(configuration_text(DetectedValues(values)))
    assert str(config.cluster.munge_socket) == "/run/m.sock"
    assert len(config.cluster.controller_url) == 2


def test_an_ipv6_address_is_in_brackets():
    assert controller_url("fd00::1") == "http://[fd00::1]:6828"
    assert controller_url("10.0.0.1") == "http://10.0.0.1:6828"


def test_the_file_has_no_findings(tmp_path, answer):
    path = tmp_path / "energy.toml"
    path.write_text(configuration_text(detection.detected_values(site(), {}, is_node=True)))
    assert [finding for finding in check_file(path).errors if "nobody" not in str(finding)] == []


def test_only_values_other_than_defaults_are_shared():
    assert shared_values(parse("")) == {}
    assert set(shared_values(parse(SITE_FILE))) == {
        "cluster",
        "defaults",
        "bounds",
        "node_types",
        "policies",
        "edp",
    }


def test_hardware_is_described(tmp_path):
    cpufreq = tmp_path / "sys/devices/system/cpu/cpufreq/policy0"
    cpufreq.mkdir(parents=True)
    (cpufreq / "scaling_driver").write_text("intel_pstate\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").touch()
    lines = detection.hardware_notes(tmp_path)
    assert "Frequencies: intel_pstate" in lines and any(line.startswith("BMC: yes") for line in lines)


def test_settings_of_a_host_that_fetches_slurm_conf():
    output = """Configuration data as of 2026-11-23T06:00:00
ClusterName             = physics
PrologFlags             = Alloc
SlurmctldHost[0]        = head(10.0.0.1)
SlurmctldHost[1]        = spare
SlurmUser               = slurm(64030)
JobSubmitPlugins        = (null)

Slurmctld(primary) at head is UP
"""
    installation = Installation(Path("/usr"), Path("/usr/sbin/slurmd"))
    settings = fetched_settings(installation, lambda argv: output)
    fetched = SlurmSite(FETCHED_CONF, settings, True, True, installation, frozenset({"n1"}))
    assert [one.address for one in fetched.controllers] == ["10.0.0.1", "spare"]
    assert fetched.slurm_user == "slurm" and fetched.runs_prolog_at_allocation
    assert not fetched.is_controller and not fetched.uses_job_submit_lua

    def silent(argv):
        raise UnavailableError("scontrol", "no answer")

    assert fetched_settings(installation, silent) == {}


def test_two_controllers_with_one_address_are_named_once():
    values = detection.slurm_values(site(slurmctldhost=["head(10.0.0.1)", "spare(10.0.0.1)"]))
    assert values["cluster", "controller_url"] == ["http://10.0.0.1:6828"]


def test_a_backup_controller_needs_a_shared_database():
    here = site(slurmctldhost=["n1(10.0.0.1)", "spare(10.0.0.2)"])
    first, second = "http://10.0.0.1:6828", "http://10.0.0.2:6828"
    alone = detection.detected_values(here, {}, is_node=False).values
    assert alone["cluster", "controller_url"] == first
    given = {("controller", "database"): "postgresql://db/energy"}
    both = detection.detected_values(here, given, is_node=False).values
    assert both["cluster", "controller_url"] == [first, second]


def test_the_file_says_what_its_commented_keys_are() -> None:
    lines = configuration_text(DetectedValues({})).splitlines()
    note = "# Commented keys are examples; `senergy config show` prints the values in force."
    assert lines[:3] == ["# slurm-energy: /etc/slurm/energy.toml", "# Written by `senergy setup`.", note]
    assert example_file().splitlines()[1] == note
