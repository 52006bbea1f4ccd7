"""Tests of each energy policy on each driver of an emulated node.

The settings of a policy must be applied, visible to independent programs, and restored after the job.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources

import pytest
from agent_node import GPU_STATE, NodeAgent

pytestmark = [pytest.mark.node, pytest.mark.root]

DRIVERS = {
    "acpi-cpufreq": "xeon-8358",
    "intel_pstate": "xeon-8358",
    "intel_cpufreq": "xeon-8358",
    "amd-pstate": "epyc-7513-a100",
    "amd-pstate:guided": "epyc-7513-a100",
    "amd-pstate-epp": "epyc-7513-a100",
    "cppc_cpufreq": "epyc-7513-a100",
}
ACTIVE = ("intel_pstate", "amd-pstate-epp")
LOWEST = {"xeon-8358": 800_000, "epyc-7513-a100": 1_500_000}


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture(scope="module", params=DRIVERS)
def agent(request, emulate):
    driver, _, mode = request.param.partition(":")
    node = emulate(DRIVERS[request.param], "--set", f"cpufreq.driver={driver}")
    if mode:
        node.write("/sys/devices/system/cpu/amd_pstate/status", mode)
    found = NodeAgent(node).start()
    found.driver, found.profile = driver, DRIVERS[request.param]
    yield found
    found.remove()


@pytest.fixture(scope="module")
def gpu_agent(emulate):
    found = NodeAgent(emulate("epyc-7513-a100", "--no-gpu-persistence")).start()
    yield found
    found.remove()


PROFILES = """
[[gpu.power_profiles]]
number = 1
priority = 2
limit_watts = 250.0
max_graphics_mhz = 1110
[[gpu.power_profiles]]
number = 4
priority = 1
conflicts = [1]
"""
ENFORCED = """
import ctypes, pynvml as n
n.nvmlInit()
g = n.nvmlDeviceGetHandleByIndex(0)
p = n.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(g, ctypes.byref(p))
print(p.requestedProfilesMask.mask[0], p.enforcedProfilesMask.mask[0], n.nvmlDeviceGetEnforcedPowerLimit(g))
"""
REQUEST_BY_HAND = """
import ctypes, pynvml as n
n.nvmlInit()
p = n.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
p.requestedProfilesMask.mask[0] = 1 << 4
for i in range(4):
    g = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(g, ctypes.byref(p))
"""


def test_a_power_profile_is_requested_and_the_original_request_restored(emulate, tmp_path):
    shipped = resources.files("slurm_energy_lab.profiles") / "epyc-7513-a100.toml"
    (tmp_path / "profiles.toml").write_text(shipped.read_text() + PROFILES)
    agent = NodeAgent(emulate(str(tmp_path / "profiles.toml"))).start()
    try:
        agent.node.python(REQUEST_BY_HAND)
        assert agent.node.python(ENFORCED).split() == ["16", "16", "400000"]
        agent.begin(1, power_profile="max-q", gpu_cap="300")
        assert agent.node.python(ENFORCED).split() == ["2", "2", "250000"]
        record = agent.end(1)
        assert agent.node.python(ENFORCED).split() == ["16", "16", "400000"]
        applied = {setting.setting: setting for setting in record.applied}
        profile = applied["nvml.power_profile[gpu0-3]"]
        assert (profile.original, profile.requested, profile.applied) == ("NETWORK", "MAX_Q", "MAX_Q")
        assert profile.restored and record.requested["power_profile"] == "max-q"
        agent.begin(2, power_profile="hpc")
        assert agent.node.python(ENFORCED).split()[0] == "16"
        assert "GPU 0 has no power profile HPC; its profiles: MAX_Q, NETWORK" in agent.end(2).notes
    finally:
        agent.remove()


def governor_and_bounds(agent) -> tuple[str, int, int]:
    """Return the frequency governor and the frequency bounds in kHz of the node's last CPU.

    The values are read with cpupower.
    """
    text = agent.node.output("cpupower", "-c", str(agent.cpus - 1), "frequency-info", "-p")
    match = re.search(r"within ([\d.]+) ([GM]Hz) and ([\d.]+) ([GM]Hz)", text)
    governor = re.search(r'The governor "(\w+)"', text)
    assert match and governor, text
    factor = {"GHz": 1_000_000, "MHz": 1_000}
    low, high = (round(float(match[i]) * factor[match[i + 1]]) for i in (1, 3))
    return governor[1], low, high


@needs("cpupower")
@pytest.mark.parametrize("policy", ["performance", "powersave", "balanced"])
def test_cpu_policies(agent, policy):
    before = agent.settings()
    answer = agent.begin(1, policy=policy)
    assert (answer["policy"], answer["failed"]) == (policy, 0)
    governor, low, high = governor_and_bounds(agent)
    lowest = LOWEST[agent.profile]
    highest = int(agent.policy(0, "cpuinfo_max_freq"))
    active = agent.driver in ACTIVE
    if policy == "performance":
        assert (governor, high) == ("performance", pytest.approx(highest, abs=10_000))
    elif policy == "powersave":
        assert (governor, low) == ("powersave", lowest)
        assert high == (lowest if active else pytest.approx(highest, abs=10_000))
    else:
        assert governor == ("powersave" if active else "schedutil")
    if active:
        expected = {"performance": "performance", "powersave": "power", "balanced": "balance_performance"}
        assert agent.policy(0, "energy_performance_preference") == expected[policy]
    record = agent.end(1)
    assert agent.settings() == before
    assert record.policy == policy
    assert all(setting.restored and not setting.note for setting in record.applied)


def test_monitor_changes_nothing(agent):
    before = agent.settings()
    assert agent.begin(2, policy="monitor") == {"ok": True, "policy": "monitor", "applied": 0, "failed": 0}
    assert agent.settings() == before
    assert agent.end(2).applied == ()


def test_edp_holds_the_frequency_of_the_table(agent):
    before = agent.settings()
    agent.begin(3, policy="edp", model="triad", tuning="off")
    assert int(agent.policy(1, "scaling_max_freq")) == LOWEST[agent.profile]
    record = agent.end(3)
    assert agent.settings() == before
    assert record.model == "triad"


@needs("powercap-info")
def test_a_node_cap_reaches_both_packages(emulate):
    agent = NodeAgent(emulate("xeon-8358")).start()
    try:
        before = agent.settings()
        agent.begin(4, cap="376")  # 76 W of it are for memory
        for zone in ("intel-rapl:0", "intel-rapl:1"):
            text = agent.node.output("powercap-info", "-p", "intel-rapl", "-z", zone.partition(":")[2])
            limit = re.search(r"Constraint 0.*?power_limit_uw: (\d+)", text, re.DOTALL)
            assert limit and int(limit[1]) == 150_000_000, text
        record = agent.end(4)
        assert agent.settings() == before
        applied = {setting.setting: setting for setting in record.applied}
        limit = applied["powercap.power_limit[package-0-1]"]
        assert (limit.original, limit.requested, limit.applied) == ("250 W", "150 W", "150 W")
        assert record.seconds_above_cap is not None
    finally:
        agent.remove()


def test_limits_locked_by_the_firmware_are_noted_and_the_job_runs(emulate):
    agent = NodeAgent(emulate("xeon-8358", "--rapl-locked")).start()
    try:
        before = agent.settings()
        answer = agent.begin(5, cap="300", policy="powersave")
        assert answer["failed"] >= 2
        record = agent.end(5)
        refused = [s for s in record.applied if s.setting.startswith("powercap.power_limit")]
        assert refused and all("firmware" in s.note and s.applied is None for s in refused)
        assert agent.settings() == before
    finally:
        agent.remove()


def test_gpu_caps_as_nvml_shows_them(gpu_agent):
    before = gpu_agent.settings()
    gpu_agent.begin(6, gpu_cap="250")
    assert json.loads(gpu_agent.node.python(GPU_STATE)) == [[250_000, 1]] * 4
    record = gpu_agent.end(6)
    assert gpu_agent.settings() == before
    assert json.loads(before["gpus"]) == [[400_000, 0]] * 4
    applied = {setting.setting: setting for setting in record.applied}
    assert applied["nvml.power_limit[gpu0-3]"].applied == "250 W"
    assert applied["nvml.persistence[gpu0-3]"].original == "0"


def test_a_gpu_cap_below_the_hardware_s_least_is_the_least(gpu_agent):
    gpu_agent.config.write_text(gpu_agent.config.read_text() + "[bounds]\ngpu_cap_watts = [20, 400]\n")
    gpu_agent.stop()
    gpu_agent.start()
    gpu_agent.begin(7, gpu_cap="60")
    assert json.loads(gpu_agent.node.python(GPU_STATE))[0][0] == 100_000
    assert any("the lowest limit is 100 W" in note for note in gpu_agent.end(7).notes)


def test_a_job_on_a_shared_node_caps_its_own_gpus_only(gpu_agent):
    env = {**gpu_agent.env(8, gpu_cap="200"), "SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_JOB_GPUS": "1,3"}
    assert gpu_agent.ask(op="begin", env=env)["ok"]
    limits = [limit for limit, _ in json.loads(gpu_agent.node.python(GPU_STATE))]
    assert limits == [400_000, 200_000, 400_000, 200_000]
    record = gpu_agent.end(8)
    parts = {part.name: part.quality for part in record.components}
    assert parts == {"cpu": "modelled", "other": "modelled", "gpu[1]": "measured", "gpu[3]": "measured"}
    assert record.gpus == (1, 3)


def test_locked_clocks_are_reset(gpu_agent):
    gpu_agent.config.write_text(
        gpu_agent.config.read_text() + '[[edp]]\ngpu = "A100"\nmodel = "clocked"\ngpu_clock_mhz = 1005\n'
    )
    gpu_agent.stop()
    gpu_agent.start()
    clock = "import pynvml as n\nn.nvmlInit()\ng = n.nvmlDeviceGetHandleByIndex(2)\n"
    clock += "print(n.nvmlDeviceGetMaxClockInfo(g, 0), n.nvmlDeviceGetClockInfo(g, 0))"
    gpu_agent.begin(9, policy="edp", model="clocked", tuning="off")
    record = gpu_agent.end(9)
    applied = {setting.setting: setting for setting in record.applied}
    clocks = applied["nvml.locked_clocks[gpu0-3]"]
    assert (clocks.original, clocks.requested, clocks.restored) == ("default", "210-1005 MHz", True)
    assert gpu_agent.node.python(clock).split()[0] == "1410"
