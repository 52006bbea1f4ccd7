"""Tests of the sensors that read signals of jobs.

The sensors read control groups (versions 1 and 2), processes, the network, CPUs and NVIDIA GPUs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.devices.cpu import group_signals
from slurm_energy.devices.cpu.cpu_time import JobProcesses
from slurm_energy.devices.cpu.group_signals import group_sensor
from slurm_energy.devices.cpu.job_groups import JobGroups, find_job_groups
from slurm_energy.devices.cpu.process_signals import MAX_PROCESSES, ProcessSensor
from slurm_energy.devices.cpu.process_tree import NS_PER_TICK
from slurm_energy.devices.cpu.processor_signals import CpuBusySensor, CpuClockSensor
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.gpu.nvml import NvmlLibrary
from slurm_energy.devices.gpu.nvml_signals import NvmlSignalSensor
from slurm_energy.devices.node import network_signals
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor
from slurm_energy.diagnosis.signals import SIGNALS

JOB = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_12"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7"
STAT = "anon 300\ninactive_file 1000\nactive_file 400\nslab_reclaimable 50\npgfault 9999\npgmajfault {}"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    (tmp_path / "proc").mkdir()
    return made


def values(sensor: SignalSensor, now_s: float) -> dict[str, float]:
    return {reading.signal: reading.value for reading in checked(sensor.read(now_s))}


def checked(readings: list[SignalReading]) -> list[SignalReading]:
    """Check that each reading of a signal is complete and valid, and return the readings.

    Every signal must be in the registry, and every reading must have a value and a source. A reading must
    name the GPU, CPU or interface (`part`) if its signal describes one, and must name none otherwise.
    """
    for reading in readings:
        signal = SIGNALS[reading.signal]
        assert reading.value >= 0
        assert bool(reading.part) == (signal.scope in ("gpu", "cpu", "interface"))
        assert reading.source
    return readings


def unified(tree: Tree, step: int) -> None:
    """Write the cgroup files of the job (cgroup version 2) as they are after some steps.

    A step is ten seconds long. `step` is the number of steps.
    """
    tree.put(
        f"{JOB}/cpu.stat", f"usage_usec {25_000_000 * step}\nnr_periods {100 * step}\nnr_throttled {5 * step}"
    )
    for resource, share in (("cpu", 0.1), ("io", 0.4), ("memory", 0.0)):
        tree.put(f"{JOB}/{resource}.pressure", PRESSURE.format(round(1e7 * step * share)))
    tree.put(f"{JOB}/memory.current", 2000)
    tree.put(f"{JOB}/memory.max", 4096)
    tree.put(f"{JOB}/memory.stat", STAT.format(30 * step))
    device = f"rbytes={1000 * step} wbytes={200 * step} rios={40 * step} wios={step} dbytes=0 dios=0"
    tree.put(f"{JOB}/io.stat", f"8:0 {device}\n253:1 {device}")


def test_signals_of_a_control_group_of_version_2(tree: Tree) -> None:
    unified(tree, 1)
    groups = find_job_groups(tree.root, "n1", JobProcesses(12))
    sensor = group_sensor(groups)
    assert sensor is not None
    sizes = {"memory_used_bytes": 550.0, "memory_limit_bytes": 4096.0, "page_cache_bytes": 1400.0}
    assert values(sensor, 100.0) == sizes  # rates need two readings
    unified(tree, 2)
    assert values(sensor, 110.0) == sizes | {
        "cpu_busy_cores": 2.5,
        "cpu_throttled_percent": 5.0,
        "cpu_pressure_percent": 10.0,
        "io_pressure_percent": 40.0,
        "memory_pressure_percent": 0.0,
        "page_faults_per_s": 3.0,
        "block_read_bytes_per_s": 200.0,
        "block_write_bytes_per_s": 40.0,
        "block_reads_per_s": 8.0,
        "block_writes_per_s": 0.2,
    }
    opened = tree.open_files()
    values(sensor, 120.0)
    assert tree.open_files() == opened  # the files stay open
    sensor.close()
    assert tree.open_files() == 0


def test_absent_files_add_no_signal(tree: Tree) -> None:
    """The sensor of a control group omits the signals whose files do not exist.

    Some files are missing on real clusters. Slurm does not enable the controller io, and it sets no memory
    limit without ConstrainRAMSpace.
    """
    tree.put(f"{JOB}/cpu.stat", "usage_usec 5")
    tree.put(f"{JOB}/memory.max", "max")
    sensor = group_sensor(find_job_groups(tree.root, "n1", JobProcesses(12)))
    assert sensor is not None
    assert values(sensor, 1.0) == {}
    assert values(sensor, 2.0) == {"cpu_busy_cores": 0.0}


def test_a_controller_that_is_enabled_later_is_noticed(tree: Tree) -> None:
    tree.put(f"{JOB}/cpu.stat", "usage_usec 5")
    sensor = group_sensor(find_job_groups(tree.root, "n1", JobProcesses(12)))
    assert sensor is not None
    sensor.read(0.0)
    unified(tree, 1)
    for second in range(1, 10):
        sensor.read(float(second))
    assert "block_read_bytes_per_s" in values(sensor, 10.0)
    sensor.close()


def test_a_removed_group_has_no_signals(tree: Tree) -> None:
    unified(tree, 1)
    sensor = group_sensor(find_job_groups(tree.root, "n1", JobProcesses(12)))
    assert sensor is not None
    sensor.read(1.0)
    for path in (tree.root / JOB).iterdir():
        path.write_text("")  # the descriptor of a removed group gives an error; here it gives nothing
    assert [r for r in sensor.read(2.0) if r.signal == "cpu_busy_cores"] == []


V1 = "sys/fs/cgroup/{}/slurm_n1/uid_1000/job_12"


def test_signals_of_control_groups_of_version_1(tree: Tree) -> None:
    def write(step: int) -> None:
        tree.put(f"{V1.format('cpuacct')}/cpuacct.usage", 15 * 10**9 * step)
        tree.put(f"{V1.format('cpu')}/cpu.stat", f"nr_periods {10 * step}\nnr_throttled 0\nthrottled_time 0")
        memory = V1.format("memory")
        tree.put(f"{memory}/memory.usage_in_bytes", 5000)
        tree.put(f"{memory}/memory.limit_in_bytes", 9223372036854771712)
        text = f"cache 9\ntotal_inactive_file 900\ntotal_active_file 100\ntotal_pgmajfault {20 * step}"
        tree.put(f"{memory}/memory.stat", text)
        blkio = V1.format("blkio")
        read = f"8:0 Read {100 * step}\n8:0 Write {50 * step}\n8:0 Total 9\n8:16 Read {100 * step}\nTotal 9"
        tree.put(f"{blkio}/blkio.throttle.io_service_bytes", read)

    write(1)
    sensor = group_sensor(find_job_groups(tree.root, "n1", JobProcesses(12)))
    assert sensor is not None
    assert values(sensor, 0.0) == {"memory_used_bytes": 4000.0, "page_cache_bytes": 1000.0}
    write(2)
    assert values(sensor, 10.0) == {
        "cpu_busy_cores": 1.5,
        "cpu_throttled_percent": 0.0,
        "memory_used_bytes": 4000.0,
        "page_cache_bytes": 1000.0,
        "page_faults_per_s": 2.0,
        "block_read_bytes_per_s": 20.0,
        "block_write_bytes_per_s": 5.0,
    }
    sensor.close()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("0::/system.slice/slurmstepd.scope/job_12/step_0/user", {"unified": JOB}),
        ("4:memory:/slurm/uid_1/job_12/step_0\n0::/", {"memory": "sys/fs/cgroup/memory/slurm/uid_1/job_12"}),
        (
            "4:cpu,cpuacct:/x/job_12",
            dict.fromkeys(("cpu", "cpuacct"), "sys/fs/cgroup/cpu,cpuacct/x/job_12"),
        ),
        ("4:memory:/slurm/uid_1/job_13/step_0", {}),
        ("0::/system.slice/slurmstepd.scope/system", {}),
    ],
)
def test_groups_are_found_through_a_process(tree: Tree, lines: str, expected: dict[str, str]) -> None:
    tree.put("proc/77/cgroup", lines)
    for path in expected.values():
        tree.put(f"{path}/cpu.stat", "usage_usec 1")
    groups = find_job_groups(tree.root, "n1", JobProcesses(12, pids=(77,)))
    found = dict(groups.by_controller) | ({"unified": groups.unified} if groups.unified else {})
    assert found == {name: str(tree.root / path) for name, path in expected.items()}


def test_a_job_without_groups_has_no_sensor(tree: Tree) -> None:
    assert not find_job_groups(tree.root, "n1", JobProcesses(12))
    assert group_sensor(JobGroups()) is None


@pytest.fixture
def real_group() -> Iterator[JobGroups]:
    """Control groups of version 1 on this machine, with the memory and CPU time of a real process."""
    mounts = {name: Path("/sys/fs/cgroup") / name for name in ("cpuacct", "memory")}
    if os.geteuid() != 0 or not all((path / "cgroup.procs").exists() for path in mounts.values()):
        pytest.skip("needs root and control groups of version 1")
    name = f"senergy-test-{os.getpid()}"
    folders = {controller: path / name for controller, path in mounts.items()}
    for folder in folders.values():
        folder.mkdir()
    try:
        yield JobGroups(None, {controller: str(path) for controller, path in folders.items()})
    finally:
        for folder in folders.values():
            folder.rmdir()


@pytest.mark.root
def test_a_real_control_group(real_group: JobGroups) -> None:
    code = "import sys; block = bytearray(30_000_000); print(flush=True); sys.stdin.read()"
    program = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stdin.readline(); {code}"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        for folder in real_group.by_controller.values():
            Path(folder, "cgroup.procs").write_text(str(program.pid))
        sensor = group_sensor(real_group)
        assert sensor is not None
        sensor.read(0.0)
        program.stdin.write(b"\n")
        program.stdin.flush()
        program.stdout.readline()
        found = values(sensor, 1.0)
        assert found["memory_used_bytes"] > 30_000_000
        assert found["cpu_busy_cores"] > 0
        sensor.close()
    finally:
        program.communicate()


@given(st.binary(max_size=400))
def test_any_content_of_the_kernel_s_files_is_tolerated(content: bytes) -> None:
    group_signals._unified_block(content)
    group_signals._split_block(content, {b"Read": "block_read_bytes_per_s"})


def stat_line(pid: int, ticks: int, faults: int, pages: int, started: int = 5) -> str:
    return f"{pid} (a) b) R 1 1 1 0 -1 0 10 0 {faults} 0 {ticks} 0 0 0 20 0 1 0 {started} 99 {pages} 0 0"


def test_signals_of_processes(tree: Tree) -> None:
    sensor = ProcessSensor(tree.root)
    assert sensor.read(0.0) == []
    second = 10**9 // NS_PER_TICK

    def write(pid: int, cpu_s: int, read: int, started: int = 5) -> None:
        tree.put(f"proc/{pid}/stat", stat_line(pid, cpu_s * second, cpu_s, 3, started))
        tree.put(f"proc/{pid}/io", f"rchar: 1\nread_bytes: {read}\nwrite_bytes: 0\ncancelled_write_bytes: 8")

    write(7, 100, 5000)
    sensor.pids = {7, 8}
    page = os.sysconf("SC_PAGE_SIZE")
    assert values(sensor, 10.0) == {"memory_used_bytes": 3.0 * page}
    write(7, 105, 6000)
    write(8, 10, 500)  # new: counts from its start
    assert values(sensor, 20.0) == {
        "cpu_busy_cores": 1.5,
        "page_faults_per_s": 1.5,
        "block_read_bytes_per_s": 150.0,
        "block_write_bytes_per_s": 0.0,
        "memory_used_bytes": 6.0 * page,
    }
    write(7, 1, 0, started=99)  # another process with the same number
    assert values(sensor, 30.0)["cpu_busy_cores"] == pytest.approx(0.1)
    sensor.pids = set(range(1, MAX_PROCESSES + 2))
    assert sensor.read(40.0) == []


def test_network_of_hardware_only(tree: Tree) -> None:
    row = "  {}: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
    head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
    for name in ("eth0", "ib0"):
        tree.put(f"sys/class/net/{name}/device/vendor", "0x1")
    tree.put("sys/class/net/lo/mtu", 65536)

    def write(step: int) -> None:
        rows = [row.format(name, 1000 * step, 10 * step) for name in ("lo", "eth0", "docker0")]
        tree.put("proc/net/dev", head + "".join(rows))

    write(1)
    (sensor,) = network_signals.discover(tree.root)
    assert sensor.read(0.0) == []
    write(3)
    readings = checked(sensor.read(10.0))
    assert [(one.signal, one.part, one.value) for one in readings] == [
        ("network_receive_bytes_per_s", "eth0", 200.0),
        ("network_transmit_bytes_per_s", "eth0", 2.0),
    ]
    write(1)  # the driver was loaded again: the counters begin at 0
    assert sensor.read(20.0) == []


def test_infiniband_counts_in_words_of_four_bytes(tree: Tree) -> None:
    folder = "sys/class/infiniband/mlx5_0/ports/1/counters"
    tree.put(f"{folder}/port_rcv_data", 1000)
    tree.put(f"{folder}/port_xmit_data", 2**32 - 1)  # a saturated counter of 32 bits
    (sensor,) = network_signals.discover(tree.root)
    sensor.read(0.0)
    tree.put(f"{folder}/port_rcv_data", 3000)
    (reading,) = checked(sensor.read(10.0))
    assert (reading.signal, reading.part, reading.value) == (
        "infiniband_receive_bytes_per_s",
        "mlx5_0:1",
        800.0,
    )


def test_busy_time_and_clock_of_cpus(tree: Tree) -> None:
    ticks = 10**9 // NS_PER_TICK
    sensor = CpuBusySensor(tree.root)
    for step, busy in ((0.0, 0), (10.0, 5)):
        lines = [f"cpu{n} {ticks * busy * n} 0 0 {ticks * 99} 7 0 0 0 0 0" for n in range(2)]
        tree.put("proc/stat", "\n".join(["cpu  1 2 3 4 5 6 7", *lines, "intr 5"]))
        readings = checked(sensor.read(step))
    assert {one.part: one.value for one in readings} == {"cpu[0]": 0.0, "cpu[1]": 50.0}
    clock = CpuClockSensor(tree.root, range(40))
    assert clock.read(0.0) == []
    for cpu in range(40):
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", 1_000_000 + cpu * 1000)
    clock.close()
    assert values(clock, 0.0) == {"cpu_mhz": pytest.approx(1019.5, abs=1)}
    assert tree.open_files() <= 17
    clock.close()


@given(st.lists(st.tuples(st.floats(0, 1e15), st.floats(1e-3, 1e5)), min_size=1, max_size=30))
def test_rates_are_never_negative_and_add_up(steps: list[tuple[float, float]]) -> None:
    meter, now_s, total, counted = RateMeter(), 0.0, 0.0, 0.0
    meter.per_second("x", 0.0, 0.0)
    for increase, length_s in steps:
        now_s, total = now_s + length_s, total + increase
        rate = meter.increase("x", total, now_s)
        if rate is not None:
            assert rate[0] >= 0
            counted += rate[0]
    assert counted == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert meter.increase("x", -1.0, now_s + 1) is None  # reset


class Gpu:
    """Stand-in for pynvml with one GPU; the arguments state which NVML interfaces the GPU supports."""

    def __init__(self, *, gpm: bool = False, links: bool = False, counts: bool = True) -> None:
        self.gpm, self.links, self.counts = gpm, links, counts
        self.step = 1
        self.lost = False
        self.waits = 0
        self.freed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetUtilizationRates(self, _: str) -> Any:
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetMemoryInfo(self, _: str) -> Any:
        return SimpleNamespace(total=80 << 30, used=30 << 30, free=50 << 30)

    def nvmlDeviceGetMaxClockInfo(self, _: str, kind: int) -> float:
        return 1980.0

    def nvmlDeviceGetClockInfo(self, _: str, kind: int) -> float:
        return {pynvml.NVML_CLOCK_SM: 1410}[kind]

    def nvmlDeviceGetTemperature(self, _: str, sensor: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: str) -> int:
        return int(pynvml.nvmlClocksThrottleReasonSwPowerCap)

    def nvmlDeviceGetNvLinkState(self, _: str, link: int) -> int:
        if not self.links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(link == 3)

    def nvmlDeviceGetFieldValues(self, _: str, fields: Any) -> Any:
        made = []
        counts = {74: 2 * 10**9 * self.step, 75: 0, 138: 1000 * self.step, 139: 3000 * self.step}
        for field in fields:
            number, scope = field if isinstance(field, tuple) else (field, 0)
            assert (scope == 0xFFFFFFFF) == (number in (138, 139))
            supported = self.counts and (number < 100 or self.links)
            value = SimpleNamespace(ullVal=counts[number])
            made.append(SimpleNamespace(fieldId=number, nvmlReturn=0 if supported else 3, value=value))
        return made

    def nvmlDeviceGetPcieThroughput(self, _: str, counter: int) -> int:
        self.waits += 1
        return 7 + counter

    def nvmlGpmQueryDeviceSupport(self, _: str) -> Any:
        if not self.gpm:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, _: Any) -> None:
        self.freed += 1

    def nvmlGpmSampleGet(self, _: str, sample: Any) -> Any:
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        for slot in range(request.numMetrics):
            metric = request.metrics[slot]
            metric.nvmlReturn = ctypes.c_int(3 if metric.metricId == 5 else 0).value
            metric.value = float(metric.metricId)
        return request


PRESENT = {
    "gpu_busy_percent": 97.0,
    "gpu_memory_used_bytes": float(30 << 30),
    "gpu_memory_total_bytes": float(80 << 30),
    "sm_clock_mhz": 1410.0,
    "max_sm_clock_mhz": 1980.0,
}


def test_signals_of_an_ampere_gpu() -> None:
    gpu = Gpu(links=True)
    sensor = NvmlSignalSensor(NvmlLibrary(gpu), 0)
    throttle = {"throttle_power_percent": 100.0, "throttle_thermal_percent": 0.0}
    pcie = {"pcie_transmit_bytes_per_s": 7000.0, "pcie_receive_bytes_per_s": 8000.0}
    assert values(sensor, 0.0) == PRESENT | throttle | pcie
    gpu.step = 2
    links = {"nvlink_transmit_bytes_per_s": 102_400.0, "nvlink_receive_bytes_per_s": 307_200.0}
    assert values(sensor, 10.0) == PRESENT | pcie | links | {
        "throttle_power_percent": 20.0,  # of the time, as the driver counted it
        "throttle_thermal_percent": 0.0,
    }
    for second in range(11, 16):
        assert not [one for one in sensor.read(float(second)) if one.signal.startswith("pcie")]
    assert gpu.waits == 4  # each waits 20 ms, so it is rare even with an interval of a second
    assert {one.part for one in sensor.read(30.0)} == {"gpu[0]"}


def test_signals_of_a_hopper_gpu_without_nvlink() -> None:
    gpu = Gpu(gpm=True, counts=False)
    sensor = NvmlSignalSensor(NvmlLibrary(gpu), 0)
    assert "sm_active_percent" not in values(sensor, 0.0)
    found = {one.signal: one for one in sensor.read(10.0)}
    assert found["sm_active_percent"].value == 2.0
    assert found["dram_active_percent"].value == 10.0
    assert found["pcie_receive_bytes_per_s"].value == 21 * 2**20
    assert found["pcie_receive_bytes_per_s"].source == "nvml:gpm"
    assert "tensor_active_percent" not in found  # not available now
    assert not [name for name in found if name.startswith("nvlink")]  # no link: unknown, not 0
    gpu.lost = True
    assert "sm_active_percent" not in values(sensor, 20.0)
    gpu.lost = False
    assert "sm_active_percent" not in values(sensor, 30.0)
    assert "sm_active_percent" in values(sensor, 40.0)
    sensor.close()
    assert gpu.freed == 4


def test_a_gpu_with_mig_says_so() -> None:
    sensor = NvmlSignalSensor(NvmlLibrary(Gpu(gpm=True)), 0, partitioned=True)
    sensor.read(0.0)
    readings = sensor.read(10.0)
    assert not [one for one in readings if one.source.startswith("nvml:gpm")]
    assert all(one.source.endswith("(whole GPU with MIG)") for one in readings)


def test_discovery_on_a_node_without_hardware(tree: Tree) -> None:
    tree.cpus(1)
    devices = discover(tree.root)
    assert [type(sensor) for sensor in devices.signal_sensors] == [CpuBusySensor]
    assert devices.signal_sensors[0].read(0.0) == []
    devices.close()
