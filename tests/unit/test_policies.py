"""Tests of the settings that each energy policy makes on each kind of hardware.

They also test the validation of the energy flags of jobs.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config import BoundsConfig, Config, DefaultsConfig, EdpEntry, SitePolicy, TuningConfig
from slurm_energy.devices.hardware import CpufreqPolicy, CpuPackage, GpuInfo, NodeHardware
from slurm_energy.devices.settings import Setting
from slurm_energy.errors import EnergyError, ForbiddenError, UsageError
from slurm_energy.policies import (
    UNTUNED,
    WAITING_FOR_CPUS,
    JobScope,
    OperatingPoint,
    PolicyRequest,
    SettingsPlan,
    catalogue,
    default_policy,
    make_plan,
    point_settings,
    starting_point,
    validate_flags,
)
from slurm_energy.policies.caps import LimitRange, split_cap
from slurm_energy.policies.edp_table import PUBLISHED

GENERIC = ("conservative", "ondemand", "userspace", "powersave", "performance", "schedutil")
PREFERENCES = ("default", "performance", "balance_performance", "balance_power", "power")
ACTIVE = ("intel_pstate", "amd-pstate-epp")
PASSIVE = ("acpi-cpufreq", "intel_cpufreq", "amd-pstate", "cppc_cpufreq")


def cpu(driver: str, found: tuple[int, int] = (800_000, 3_400_000)) -> CpufreqPolicy:
    active = driver in ACTIVE
    return CpufreqPolicy(
        name="policy0",
        cpus=(0,),
        driver=driver,
        governors=("performance", "powersave") if active else GENERIC,
        preferences=PREFERENCES if active else (),
        hardware_range_khz=(800_000, 3_400_000),
        bounds_khz=found,
    )


def node(driver: str = "intel_pstate", gpus: int = 0, **changes: object) -> NodeHardware:
    hardware = NodeHardware(
        cpu_model="Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz",
        cpu_count=64,
        policies=(cpu(driver),),
        packages=tuple(CpuPackage(f"package-{i}", (f"package-{i}",), 250.0, 250.0, None) for i in range(2)),
        gpus=tuple(
            GpuInfo(i, i, "NVIDIA A100-SXM4-40GB", 400.0, 100.0, 400.0, (210, 1410)) for i in range(gpus)
        ),
    )
    return dataclasses.replace(hardware, **changes)  # type: ignore[arg-type]


def plan(
    request: PolicyRequest,
    hardware: NodeHardware,
    config: Config | None = None,
    scope: JobScope | None = None,
) -> SettingsPlan:
    everything = JobScope(True, tuple(gpu.index for gpu in hardware.gpus))
    return make_plan(request, hardware, config or Config(), scope or everything)


def values(made: SettingsPlan) -> dict[str, str]:
    return {setting.key: setting.value for setting in made.settings}


def test_monitor_changes_nothing() -> None:
    assert plan(PolicyRequest("monitor"), node(gpus=4)).settings == ()


@pytest.mark.parametrize("driver", ACTIVE + PASSIVE)
def test_performance(driver: str) -> None:
    found = values(
        plan(PolicyRequest("performance"), node(driver, policies=(cpu(driver, (800_000, 2_000_000)),)))
    )
    expected = {
        "cpufreq.governor[policy0]": "performance",
        "cpufreq.frequency[policy0]": "800000-3400000",
    }
    if driver in ACTIVE:
        expected["cpufreq.epp[policy0]"] = "performance"
    assert found == expected


@pytest.mark.parametrize("driver", ACTIVE)
def test_powersave_where_the_hardware_chooses_is_held_by_the_bounds(driver: str) -> None:
    assert values(plan(PolicyRequest("powersave"), node(driver))) == {
        "cpufreq.governor[policy0]": "powersave",
        "cpufreq.epp[policy0]": "power",
        "cpufreq.frequency[policy0]": "800000-800000",
    }


@pytest.mark.parametrize("driver", PASSIVE)
def test_powersave_where_the_governor_pins_the_minimum(driver: str) -> None:
    assert values(plan(PolicyRequest("powersave"), node(driver))) == {
        "cpufreq.governor[policy0]": "powersave"
    }
    raised = node(driver, policies=(cpu(driver, (1_500_000, 3_400_000)),))
    assert values(plan(PolicyRequest("powersave"), raised)) == {
        "cpufreq.governor[policy0]": "powersave",
        "cpufreq.frequency[policy0]": "800000-3400000",
    }


@pytest.mark.parametrize("driver", ACTIVE)
def test_balanced_where_the_hardware_chooses(driver: str) -> None:
    assert values(plan(PolicyRequest("balanced"), node(driver))) == {
        "cpufreq.governor[policy0]": "powersave",
        "cpufreq.epp[policy0]": "balance_performance",
    }


@pytest.mark.parametrize("driver", PASSIVE)
def test_balanced_elsewhere_follows_the_load(driver: str) -> None:
    assert values(plan(PolicyRequest("balanced"), node(driver))) == {"cpufreq.governor[policy0]": "schedutil"}
    old = dataclasses.replace(cpu(driver), governors=("ondemand", "performance"))
    assert values(plan(PolicyRequest("balanced"), node(driver, policies=(old,)))) == {
        "cpufreq.governor[policy0]": "ondemand"
    }


def test_a_site_s_preference_is_set_only_where_the_driver_offers_it() -> None:
    site = Config(policies={"quiet": SitePolicy(epp="balance_power")})
    wide, narrow = cpu("intel_pstate"), dataclasses.replace(cpu("intel_pstate"), preferences=("performance",))
    for policy, preference in ((wide, "balance_power"), (narrow, None)):
        made = values(plan(PolicyRequest("quiet"), node("intel_pstate", policies=(policy,)), site))
        assert made.get("cpufreq.epp[policy0]") == preference


def test_a_node_without_cpufreq_is_not_changed_and_noted() -> None:
    made = plan(PolicyRequest("powersave"), node(policies=()))
    assert made.settings == ()
    assert "no cpufreq" in made.notes[0]


def test_a_node_cap_is_divided_by_the_parts_ranges() -> None:
    found = values(plan(PolicyRequest("cap", cap_watts=400), node(max_dram_watts=80.0)))
    # 400 W less 80 W for memory; both packages alike.
    assert found["powercap.power_limit[package-0]"] == found["powercap.power_limit[package-1]"] == "160000000"
    assert found["powercap.time_window[package-0]"] == "1000000"
    assert found["powercap.enabled[package-0]"] == "1"


def test_a_node_cap_includes_the_gpus() -> None:
    found = values(plan(PolicyRequest("cap", cap_watts=1200), node(gpus=4)))
    packages = [int(found[f"powercap.power_limit[package-{i}]"]) / 1e6 for i in range(2)]
    gpus = [int(found[f"nvml.power_limit[gpu{i}]"]) / 1e3 for i in range(4)]
    assert math.fsum(packages) + math.fsum(gpus) == pytest.approx(1200, abs=0.01)
    # Each part is at the same fraction of its own range: 75..250 W and 100..400 W.
    assert (packages[0] - 75) / 175 == pytest.approx((gpus[0] - 100) / 300, abs=1e-4)
    assert found["nvml.persistence[gpu0]"] == "1"


def test_a_gpu_cap_bounds_the_gpus_share_of_a_node_cap() -> None:
    found = values(plan(PolicyRequest("cap", cap_watts=2000, gpu_cap_watts=150), node(gpus=4)))
    assert {found[f"nvml.power_limit[gpu{i}]"] for i in range(4)} == {"150000"}
    assert "powercap.power_limit[package-0]" not in found  # 1400 W are enough for the packages


def test_an_unreachable_cap_is_noted() -> None:
    made = plan(PolicyRequest("cap", cap_watts=120), node())
    assert values(made)["powercap.power_limit[package-0]"] == "75000000"
    assert "the lowest that the limits reach is 150 W" in made.notes[0]


def test_a_cap_above_the_current_limits_changes_nothing() -> None:
    made = plan(PolicyRequest("cap", cap_watts=5000), node(gpus=2))
    assert made.settings == ()
    assert made.cap_watts == 5000


def test_no_limit_rises_above_the_value_before_the_job() -> None:
    hardware = node(gpus=2)
    lowered = tuple(dataclasses.replace(gpu, limit_watts=250.0) for gpu in hardware.gpus)
    hardware = dataclasses.replace(hardware, gpus=lowered)
    assert plan(PolicyRequest("cap", gpu_cap_watts=350), hardware).settings == ()


@given(
    cap=st.floats(1, 10_000),
    found=st.lists(st.floats(50, 700), min_size=1, max_size=8),
    dram=st.one_of(st.none(), st.floats(1, 200)),
)
def test_limits_stay_within_hardware_and_cap(cap: float, found: list[float], dram: float | None) -> None:
    gpus = tuple(GpuInfo(i, i, "g", watts, 50.0, 700.0, None) for i, watts in enumerate(found))
    hardware = NodeHardware("x", 4, gpus=gpus, max_dram_watts=dram)
    made = plan(PolicyRequest("cap", cap_watts=cap), hardware)
    limits = [int(value) / 1e3 for key, value in values(made).items() if key.startswith("nvml.power_limit")]
    for gpu in gpus:
        value = values(made).get(f"nvml.power_limit[gpu{gpu.index}]")
        assert value is None or 50 <= int(value) / 1e3 <= gpu.limit_watts  # type: ignore[operator]
    if len(limits) == len(found) and not made.notes:
        assert math.fsum(limits) <= cap + 0.01


@given(
    cap=st.floats(0, 10_000),
    ranges=st.lists(st.tuples(st.floats(0, 300), st.floats(0, 500)), min_size=1, max_size=9),
)
def test_shares_add_up_to_the_cap_between_minimum_and_maximum(
    cap: float, ranges: list[tuple[float, float]]
) -> None:
    parts = [LimitRange(str(i), least, least + extra) for i, (least, extra) in enumerate(ranges)]
    given_ = split_cap(cap, parts)
    least, most = sum(p.min_watts for p in parts), sum(p.max_watts for p in parts)
    assert math.fsum(given_.values()) == pytest.approx(min(max(cap, least), most), rel=1e-9, abs=1e-6)
    for part in parts:
        assert part.min_watts <= given_[part.name] <= part.max_watts + 1e-9


def test_both_twins_of_a_package_are_limited() -> None:
    twin = CpuPackage("package-0", ("package-0", "package-0:mmio"), 250.0, 250.0, None)
    found = values(plan(PolicyRequest("cap", cap_watts=150), node(packages=(twin,))))
    assert found["powercap.power_limit[package-0:mmio]"] == "150000000"


def test_packages_without_limits_are_noted() -> None:
    amd = CpuPackage("package-0", (), None, None, None)
    made = plan(PolicyRequest("cap", cap_watts=300), node(packages=(amd,)))
    assert made.settings == ()
    assert [note.partition(":")[0] for note in made.notes] == [
        "package power cannot be limited on this node",
        "no power on this node can be limited",
    ]


def test_a_gpu_cap_without_a_gpu_is_noted() -> None:
    made = plan(PolicyRequest("cap", gpu_cap_watts=200), node())
    assert made.settings == ()
    assert made.notes == ("cap of 200 W per GPU not set: the job has no GPU on this node",)


def test_extra_caps_go_with_any_policy() -> None:
    found = values(plan(PolicyRequest("powersave", gpu_cap_watts=200), node(gpus=1)))
    assert found["nvml.power_limit[gpu0]"] == "200000"
    assert found["cpufreq.governor[policy0]"] == "powersave"


def untuned(objective: str = "edp", **changes: object) -> PolicyRequest:
    return PolicyRequest(objective, tuning_mode="off", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [None, "gemm2", "my-own"])
@pytest.mark.parametrize("mode", ["off", "advise", "on"])
def test_edp_takes_no_published_row_of_another_program(model: str | None, mode: str) -> None:
    """The policy edp does not apply a table entry that was published for another program.

    In the test, no published entry has the value of --energy-model. A GEMM job without
    --energy-model once had 94 % more EDP with the entry of another GEMM.
    """
    made = plan(PolicyRequest("edp", tuning_mode=mode, model=model), node(gpus=1))
    assert made.settings == ()


@pytest.mark.parametrize(("model", "frequency", "gpu"), [("gemm", 2100, 300), ("triad", 800, 200)])
def test_a_published_row_applies_to_its_program(model: str, frequency: int, gpu: int) -> None:
    hardware = node(gpus=1)
    start = starting_point("edp", model, hardware, JobScope(True, (0,)), Config())
    assert start is not None and start.source == "published" and "EDP +" in start.text
    assert start.point == OperatingPoint(gpu_limit_watts=gpu, cpu_max_mhz=frequency)
    found = values(plan(untuned(model=model), hardware))
    assert found["cpufreq.frequency[policy0]"] == f"800000-{frequency}000"
    assert found["nvml.power_limit[gpu0]"] == f"{gpu}000"
    # A tuned job measures first; another objective and a slowdown limit have no use for the row.
    assert plan(PolicyRequest("edp", tuning_mode="on", model=model), hardware).settings == ()
    assert plan(untuned("ed2p", model=model), hardware).settings == ()
    limited = plan(untuned(model=model, slowdown_limit=0.05), hardware)
    assert limited.settings == () and "slowdown limit" in limited.notes[0]


def test_the_cpu_row_does_not_apply_to_a_gpu_job() -> None:
    scope = JobScope(True, (0, 1), gpu_job=True)
    start = starting_point("edp", "triad", node(gpus=2), scope, Config())
    assert start is not None and start.point == OperatingPoint(gpu_limit_watts=200)


def test_the_site_s_entries_precede_published_rows() -> None:
    site = Config(
        edp=(
            EdpEntry(cpu="Platinum 8358", max_frequency_mhz=1900, package_cap_watts=180),
            EdpEntry(gpu="A100", gpu_clock_mhz=1005),
        )
    )
    start = starting_point("edp", None, node(gpus=1), JobScope(True, (0,)), site)
    assert start is not None and (start.source, start.text) == ("site", "an [[edp]] entry of the site")
    found = values(plan(untuned(), node(gpus=1), site))
    assert found["cpufreq.frequency[policy0]"] == "800000-1900000"
    assert found["powercap.power_limit[package-1]"] == "180000000"
    assert found["nvml.locked_clocks[gpu0]"] == "210-1005"
    assert "nvml.power_limit[gpu0]" not in found


def test_a_bound_at_the_base_of_a_table_driver_switches_boost_off() -> None:
    table = (1_500_000, 2_100_000, 2_600_000)
    acpi = dataclasses.replace(
        cpu("acpi-cpufreq"),
        available_khz=table,
        hardware_range_khz=(1_500_000, 2_600_000),
        bounds_khz=(1_500_000, 2_600_000),
    )
    epyc = node(cpu_model="AMD EPYC 7513 32-Core Processor", policies=(acpi,), boost=True)
    assert values(plan(untuned(model="monte_carlo"), epyc)) == {"cpufreq.boost[all]": "0"}  # 2700 MHz
    assert values(plan(untuned(model="gemm"), epyc)) == {}  # 3300 MHz is inside the boost range
    assert values(plan(untuned(model="triad"), epyc)) == {"cpufreq.frequency[policy0]": "1500000-1500000"}


def test_an_untuned_objective_without_an_entry_changes_nothing_and_says_so() -> None:
    made = plan(untuned(), node(cpu_model="Some CPU"))
    assert made.settings == ()
    assert made.notes == (
        "policy edp without tuning changes nothing: no setting is known for this program and hardware",
    )


def gpu_values(settings: tuple[Setting, ...], name: str) -> set[str]:
    return {setting.value for setting in settings if setting.key.startswith(f"nvml.{name}[")}


def test_an_operating_point_becomes_settings_of_all_parts() -> None:
    profiles = tuple(dataclasses.replace(gpu, power_profiles=("MAX_P", "MAX_Q")) for gpu in node(gpus=2).gpus)
    hardware = node(gpus=2)
    hardware = dataclasses.replace(hardware, gpus=profiles, boost=True)
    point = OperatingPoint(250.4, 1200, "MAX_Q", 150, 2000, "power", False)
    found = {s.key: s.value for s in point_settings(point, hardware, JobScope(True, (0, 1)), Config())}
    for index in range(2):
        assert found[f"nvml.power_limit[gpu{index}]"] == "250400"
        assert found[f"nvml.locked_clocks[gpu{index}]"] == "210-1200"
        assert found[f"nvml.power_profile[gpu{index}]"] == "MAX_Q"
        assert found[f"powercap.power_limit[package-{index}]"] == "150000000"
    assert found["cpufreq.frequency[policy0]"] == "800000-2000000"
    assert found["cpufreq.epp[policy0]"] == "power"
    assert found["cpufreq.boost[all]"] == "0"
    assert point_settings(UNTUNED, hardware, JobScope(True, (0, 1)), Config()) == ()


@given(watts=st.floats(0.1, 2000), limit=st.floats(20, 700), low=st.floats(0, 400))
def test_a_point_stays_within_device_and_site_limits(watts: float, limit: float, low: float) -> None:
    gpu = GpuInfo(0, 0, "g", limit, 20.0, 700.0, (210, 1410))
    site = Config(bounds=BoundsConfig(gpu_cap_watts=(low, 1000.0), gpu_clock_mhz=(500.0, 1000.0)))
    point = OperatingPoint(gpu_limit_watts=watts, gpu_clock_mhz=max(1.0, watts))
    made = point_settings(point, NodeHardware("x", 4, gpus=(gpu,)), JobScope(True, (0,)), site)
    for value in gpu_values(made, "power_limit"):
        assert max(20.0, low if low < limit else 0.0, watts) - 0.001 <= int(value) / 1e3 < limit
    (clocks,) = gpu_values(made, "locked_clocks")
    assert clocks.startswith("210-") and 500 <= int(clocks.partition("-")[2]) <= 1410


def test_the_lower_of_a_flag_and_a_point_applies() -> None:
    hardware, scope = node(gpus=1), JobScope(True, (0,))
    request = PolicyRequest("edp", gpu_cap_watts=250, cpu_max_mhz=1500, gpu_clock_mhz=900, tuning_mode="on")
    for point, watts, khz, clock in (
        (UNTUNED, 250, 1500, 900),
        (OperatingPoint(gpu_limit_watts=300, cpu_max_mhz=2500, gpu_clock_mhz=1200), 250, 1500, 900),
        (OperatingPoint(gpu_limit_watts=200, cpu_max_mhz=1200, gpu_clock_mhz=800), 200, 1200, 800),
    ):
        found = {s.key: s.value for s in point_settings(point, hardware, scope, Config(), request)}
        assert found["nvml.power_limit[gpu0]"] == f"{watts}000"
        assert found["cpufreq.frequency[policy0]"] == f"800000-{khz}000"
        assert found["nvml.locked_clocks[gpu0]"] == f"210-{clock}"


def test_a_point_changes_only_the_own_cores_of_a_shared_node() -> None:
    point = OperatingPoint(cpu_max_mhz=1500, boost=False)
    assert point_settings(point, shared_node(), JobScope(False), Config()) == ()
    made = point_settings(point, shared_node(), shares({0, 1}), Config())
    assert [setting.key for setting in made] == ["cpufreq.frequency[policy0]"]


def test_explicit_settings_are_fixed_under_any_policy_but_monitor() -> None:
    flags = {"ENERGY_CPU_FREQ": "2.1GHz", "ENERGY_GPU_CLOCK": "1005MHz", "ENERGY_POWER_PROFILE": "max-q"}
    request = validate_flags(flags, Config())
    assert request.policy == "cap"
    assert (request.cpu_max_mhz, request.gpu_clock_mhz, request.gpu_power_profile) == (2100, 1005, "MAX_Q")
    made = plan(request, node(gpus=1))
    assert values(made)["cpufreq.frequency[policy0]"] == "800000-2100000"
    assert values(made)["nvml.locked_clocks[gpu0]"] == "210-1005"
    assert made.notes == ("GPU 0 has no power profile MAX_Q; its profiles: none",)
    assert plan(request, node()).notes == (
        "--energy-gpu-clock not set: the job has no GPU on this node",
        "--energy-power-profile not set: the job has no GPU on this node",
    )
    assert validate_flags({**flags, "ENERGY_POLICY": "balanced"}, Config()).policy == "balanced"


def test_objectives_with_their_limits_and_modes() -> None:
    def request(config: Config | None = None, partition: str | None = None, **flags: str) -> PolicyRequest:
        raw = {f"ENERGY_{name.upper()}": value for name, value in flags.items()}
        return validate_flags(raw, config or Config(), "alice", partition)

    assert {name for name, info in catalogue(Config()).items() if info.objective} == {"edp", "ed2p", "energy"}
    site = Config(
        policies={"green": SitePolicy(base="energy", max_frequency_mhz=2000)},
        tuning=TuningConfig("advise", {"gpu": "on"}, 3.0),
    )
    assert catalogue(site)["green"].objective == "energy"
    assert (request(policy="edp").slowdown_limit, request(policy="edp").tuning_mode) == (None, "on")
    assert request(policy="edp", slowdown="2.5%").slowdown_limit == pytest.approx(0.025)
    assert (request(policy="energy").slowdown_limit, request(site, policy="green").slowdown_limit) == (
        0.05,
        0.03,
    )
    assert (request(slowdown="7").policy, request(slowdown="7").slowdown_limit) == ("energy", 0.07)
    assert request(slowdown="0", policy="ed2p").slowdown_limit == 0.0
    assert request(Config(defaults=DefaultsConfig("edp")), slowdown="7").policy == "edp"
    assert [request(site, partition, policy="edp").tuning_mode for partition in ("gpu", "cpu", None)] == [
        "on",
        "advise",
        "advise",
    ]
    assert request(site, "cpu", policy="edp", tuning="on").tuning_mode == "advise"
    assert request(site, "gpu", policy="edp", tuning="off").tuning_mode == "off"
    assert request(policy="balanced", tuning="off").tuning_mode is None


def test_a_site_policy_refines_its_base() -> None:
    site = Config(
        policies={
            "night": SitePolicy(base="powersave", gpu_cap_watts=180),
            "office": SitePolicy(max_frequency_mhz=2000, governor="ondemand", cap_watts=300),
        }
    )
    assert values(plan(PolicyRequest("night"), node(gpus=1), site))["nvml.power_limit[gpu0]"] == "180000"
    found = values(plan(PolicyRequest("office"), node("acpi-cpufreq"), site))
    assert found["cpufreq.governor[policy0]"] == "ondemand"
    assert found["cpufreq.frequency[policy0]"] == "800000-2000000"
    assert found["powercap.power_limit[package-0]"] == "150000000"
    own = values(plan(PolicyRequest("office", cap_watts=350), node("acpi-cpufreq"), site))
    assert own["powercap.power_limit[package-0]"] == "175000000"


def test_a_job_with_unknown_cpus_only_sets_its_own_gpus() -> None:
    made = plan(
        PolicyRequest("powersave", cap_watts=900, gpu_cap_watts=150),
        node(gpus=2),
        None,
        JobScope(False, (1,)),
    )
    assert values(made) == {"nvml.persistence[gpu1]": "1", "nvml.power_limit[gpu1]": "150000"}
    assert (made.cap_watts, made.notes) == (900, (WAITING_FOR_CPUS,))
    assert plan(PolicyRequest("edp"), node("acpi-cpufreq"), None, JobScope(False)).notes == ()


def shared_node(gpus: int = 0, **changes: object) -> NodeHardware:
    """Describe a node with 8 CPUs that several jobs can share.

    The node has four cpufreq policies of two CPUs each, and two packages of four CPUs each.
    """
    policies = tuple(
        dataclasses.replace(cpu("acpi-cpufreq"), name=f"policy{n}", cpus=(n, n + 1)) for n in (0, 2, 4, 6)
    )
    packages = tuple(
        CpuPackage(f"package-{i}", (f"package-{i}",), 250.0, 250.0, 50.0, cpus=tuple(range(4 * i, 4 * i + 4)))
        for i in range(2)
    )
    return node("acpi-cpufreq", gpus, cpu_count=8, policies=policies, packages=packages, **changes)


def shares(cpus: set[int], *gpus: int) -> JobScope:
    return JobScope(False, gpus, cpus=frozenset(cpus))


def test_a_job_on_a_part_of_the_node_sets_the_frequency_of_its_own_cores() -> None:
    made = plan(PolicyRequest("powersave"), shared_node(), None, shares({0, 1, 2, 4, 5}))
    assert {key for key in values(made) if "governor" in key} == {
        "cpufreq.governor[policy0]",
        "cpufreq.governor[policy4]",
    }
    assert made.notes == ("frequency of 1 CPUs not changed: CPUs of other jobs share it",)


def test_a_cap_applies_to_the_job_s_part_of_packages_and_its_gpus() -> None:
    # The part: half of package-0 (25 to 125 W) and one GPU (100 to 400 W): 125 W and 400 W of range.
    made = plan(PolicyRequest("cap", cap_watts=325), shared_node(2), None, shares({0, 1}, 1))
    assert values(made)["nvml.power_limit[gpu1]"] == "250000"  # half of its range, as the package's part
    assert values(made)["powercap.power_limit[package-0]"] == "150000000"  # 75 W for half of it
    assert "powercap.power_limit[package-1]" not in values(made)
    assert made.cap_watts == 325


def test_memory_power_is_subtracted_by_the_job_s_share() -> None:
    made = plan(PolicyRequest("cap", cap_watts=110), shared_node(max_dram_watts=80.0), None, shares({4, 5}))
    assert values(made)["powercap.power_limit[package-1]"] == "180000000"  # 110 - 20 for half of it


@given(
    st.frozensets(st.integers(0, 7)),
    st.frozensets(st.integers(0, 1)),
    st.floats(10, 2000),
    st.sampled_from(["cap", "powersave", "performance", "balanced", "edp"]),
)
def test_a_plan_on_a_shared_node_changes_nothing_of_other_jobs(
    cpus: frozenset[int], gpus: frozenset[int], cap: float, policy: str
) -> None:
    hardware = shared_node(2)
    made = plan(
        PolicyRequest(policy, cap_watts=cap), hardware, None, JobScope(False, tuple(gpus), False, cpus)
    )
    of_policy = {policy.name: set(policy.cpus) for policy in hardware.policies}
    of_package = {package.name: set(package.cpus) for package in hardware.packages}
    for key, value in values(made).items():
        kind, place = key.rstrip("]").split("[")
        if kind.startswith("nvml"):
            assert int(place.removeprefix("gpu")) in gpus
        elif kind.startswith("powercap"):
            assert cpus & of_package[place]
            assert kind != "powercap.power_limit" or 50e6 <= int(value) < 250e6
        elif place != "all":
            assert of_policy[place] <= cpus


FLAGS = {"ENERGY_POLICY": "performance", "ENERGY_CAP": "400", "ENERGY_TAG": "a/b"}


def test_good_flags() -> None:
    assert validate_flags(FLAGS, Config()) == PolicyRequest("performance", 400.0, tag="a/b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ENERGY_POLICY": "turbo"}, "--energy-policy: 'turbo' is not known: allowed: monitor, performance"),
        ({"ENERGY_POLICY": "EDP"}, "--energy-policy: 'EDP' is not known: did you mean 'edp'? allowed: moni"),
        ({"ENERGY_CAP": "15Wh"}, "--energy-cap: '15Wh' is not a power"),
        ({"ENERGY_CAP": "-5"}, "--energy-cap: '-5'"),
        ({"ENERGY_CAP": "1e400"}, "--energy-cap: '1e400'"),
        ({"ENERGY_CAP": "50"}, "--energy-cap: '50' is out of bounds: 100 to 10000 W"),
        ({"ENERGY_GPU_CAP": "1001"}, "--energy-gpu-cap: '1001' is out of bounds: 100 to 1000 W"),
        ({"ENERGY_MODEL": "a b"}, "--energy-model: 'a b' cannot be accepted"),
        ({"ENERGY_TAG": "x" * 10_000}, "--energy-tag: 'xxx"),
        ({"ENERGY_ALTERNATIVES": "gpu:4"}, "--energy-alternatives: 'gpu:4' is not a list of shapes: write 1"),
        ({"ENERGY_ALTERNATIVES": "gpu:a:1," * 50}, "--energy-alternatives: 'gpu:a:1,gpu"),
        ({"ENERGY_SLACK": "soon"}, "--energy-slack: 'soon' is not a duration: write it as 30m, 4h or 1d"),
        ({"ENERGY_POLICY": "cap", "ENERGY_CAP": ""}, "--energy-policy: 'cap' needs a cap"),
        ({"ENERGY_SLOWDOWN": "5 %"}, "--energy-slowdown: '5 %' is not a percentage"),
        ({"ENERGY_SLOWDOWN": "200"}, "--energy-slowdown: '200' is out of bounds: 0 to 100 %"),
        ({"ENERGY_SLOWDOWN": "5"}, "--energy-slowdown: policy 'performance' is not tuned"),
        ({"ENERGY_TUNING": "on"}, "--energy-tuning: policy 'performance' is not tuned"),
        ({"ENERGY_TUNING": "On"}, "--energy-tuning: 'On' is not a tuning mode: one of off, advise, on"),
        ({"ENERGY_CPU_FREQ": "2.4ghz"}, "--energy-cpu-freq: '2.4ghz' is not a frequency"),
        ({"ENERGY_CPU_FREQ": "2400GHz"}, "--energy-cpu-freq: '2400GHz' is out of bounds: 100 to 10000 MHz"),
        ({"ENERGY_GPU_CLOCK": "0"}, "--energy-gpu-clock: '0' is not a frequency"),
        (
            {"ENERGY_POWER_PROFILE": "max-w"},
            "--energy-power-profile: 'max-w' is not known: did you mean 'MAX",
        ),
        ({"ENERGY_POLICY": "monitor"}, "--energy-policy: 'monitor' changes nothing, but --energy-cap was "),
    ],
)
def test_bad_flags_are_named_with_value_and_allowed_values(change: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate_flags({**FLAGS, **change}, Config())
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_cap_without_a_policy_means_cap_unless_the_site_says_more() -> None:
    flags = {"ENERGY_GPU_CAP": "200"}
    assert validate_flags(flags, Config()).policy == "cap"
    assert validate_flags(flags, Config(defaults=DefaultsConfig(policy="edp"))).policy == "edp"
    assert validate_flags({}, Config()).policy == "monitor"


def test_bounds_come_from_the_configuration() -> None:
    site = Config(bounds=BoundsConfig(cap_watts=(200.0, 300.0)))
    with pytest.raises(UsageError, match="200 to 300 W"):
        validate_flags({"ENERGY_CAP": "400"}, site)


def test_a_policy_for_some_users_is_refused_to_others() -> None:
    site = Config(policies={"night": SitePolicy(users=["alice"]), "performance": SitePolicy(users=["bob"])})
    assert validate_flags({"ENERGY_POLICY": "night"}, site, "alice").policy == "night"
    for user in ("bob", None):
        with pytest.raises(ForbiddenError, match="night"):
            validate_flags({"ENERGY_POLICY": "night"}, site, user)
    with pytest.raises(ForbiddenError):
        validate_flags({"ENERGY_POLICY": "performance"}, site, "alice")
    assert catalogue(site)["performance"].base == "performance"


def test_default_policy_by_user_then_partition() -> None:
    site = Config(defaults=DefaultsConfig("balanced", {"gpu": "edp"}, {"alice": "performance"}))
    assert default_policy(site, "alice", "gpu") == "performance"
    assert default_policy(site, "bob", "gpu") == "edp"
    assert default_policy(site, None, None) == "balanced"


@given(
    st.dictionaries(
        st.sampled_from(["ENERGY_POLICY", "ENERGY_CAP", "ENERGY_GPU_CAP", "ENERGY_TAG"]),
        st.one_of(st.text(max_size=50), st.sampled_from(["cap", "edp", "400", "1.5kW", "10%"])),
    )
)
def test_any_flags_are_accepted_within_bounds_or_refused_in_one_line(raw: dict[str, str]) -> None:
    try:
        request = validate_flags(raw, Config())
    except EnergyError as error:
        assert "\n" not in str(error)
        return
    assert request.policy in catalogue(Config())
    assert request.cap_watts is None or 100 <= request.cap_watts <= 10_000
    assert request.gpu_cap_watts is None or 100 <= request.gpu_cap_watts <= 1000


def test_the_documented_edp_table_is_the_shipped_one() -> None:
    page = (Path(__file__).parents[2] / "docs/policies.md").read_text()
    for entry in PUBLISHED:
        if entry.max_frequency_mhz:
            value = f"max. {entry.max_frequency_mhz:g} MHz"
        else:
            value = f"{entry.gpu_cap_watts:g} W per GPU"
        row = f"| {entry.cpu or entry.gpu} | {entry.model or 'any other'} | {value} | {entry.source} |"
        assert row in page


def test_the_documented_example_of_a_shared_cap() -> None:
    parts = [LimitRange(f"p{i}", 75, 250) for i in range(2)] + [
        LimitRange(f"g{i}", 100, 400) for i in range(4)
    ]
    limits = split_cap(1200, parts)
    assert (round(limits["p0"], 1), round(limits["g0"], 1)) == (148.4, 225.8)


def test_the_documented_example_of_a_shared_job_s_cap() -> None:
    package = CpuPackage("package-0", ("package-0",), 250.0, 250.0, 75.0, cpus=tuple(range(32)))
    hardware = node(packages=(package,), cpu_count=32, policies=())
    made = plan(PolicyRequest("cap", cap_watts=100), hardware, None, shares(set(range(16))))
    assert values(made)["powercap.power_limit[package-0]"] == "200000000"


def test_a_name_with_a_lone_surrogate_is_refused_in_one_line() -> None:
    """A policy name that contains a lone surrogate raises a usage error with a message of one line.

    A lone surrogate is valid in JSON but has no UTF-8 encoding. The test tries three such names. A fuzzing
    tool found the first of the three names, which formerly caused a traceback.
    """
    for name in ("\udede", "ed\ud800p", "\udc80edp"):
        with pytest.raises(UsageError, match="is not"):
            validate_flags({"ENERGY_POLICY": name}, Config())
