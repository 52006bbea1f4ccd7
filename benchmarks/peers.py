"""Measurements of the energy of an emulated node with other tools, for a comparison.

`run(node, tool, ...)` starts `peers.py TOOL` as a separate process on an emulated node of
`start_node`. The tool measures one time window. The result is a `Window`. It contains the joules that
the tool reports, the joules that the node really used between the same two times, the number of
readings, and the CPU time of the tool. The CPU time includes children and excludes the start of the
tool.

Tools:

- `zeus`, `codecarbon`, `pyjoules`, `pyrapl`: packages of the pip extra `judges` of this
  project.
- `ea2p`: not on PyPI, needs the path of a checkout. An empty module replaces mpi4py, and
  `nvidia_smi.c` replaces nvidia-smi.
- `ours`: sampler and meter of the agent (senergyd).
- `senergyd`: the whole agent, with the record of a job.

Tools that do not sample by themselves are read at every interval. With interval 0 they are read only
at begin and end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import own_agent

ROOT = Path(__file__).resolve().parents[1]
NODE_TESTS = ROOT / "tests/node"
NVIDIA_SMI = Path(__file__).with_name("nvidia_smi.c")
EA2P_PACKAGE = "ea2p"
_RESULT = "RESULT "
_STARTED_CPU_S = 0.01
_MICRO, _MILLI, _KWH = 1e-6, 1e-3, 3.6e6


@dataclass(frozen=True, slots=True)
class Window:
    """Energy measurement by one tool during one time window.

    Attributes:
        tool: name of the tool.
        version: version of the tool's distribution.
        length_s: seconds from the begin to the end of the tool's measurement.
        joules: energy that the tool measured, by component (`cpu`, `dram`, `gpu`).
        truth_joules: energy that the emulated node really used in the same time, by component.
        most_joules: energy that the emulated node used from before the tool began until after the tool had
            ended. An exact result lies between `truth_joules` and `most_joules`.
        samples: number of intervals for which the tool reported the energy of all counters.
        cpu_s: CPU time of the tool and its children between begin and end.
        uncertain_s: seconds that the tool marked as uncertain; None for a tool that marks nothing.
    """

    tool: str
    version: str
    length_s: float
    joules: Mapping[str, float]
    truth_joules: Mapping[str, float]
    samples: int
    cpu_s: float
    uncertain_s: float | None = None
    most_joules: Mapping[str, float] = field(default_factory=dict)


class NotMeasuredError(Exception):
    """Error: a measurement tool is missing or does not run here. The message states the reason."""


@contextlib.contextmanager
def start_node(profile: str, *arguments: str) -> Iterator[Any]:
    """Yield an emulated node, a LabNode of `tests/node`, with NVML library and nvidia-smi.

    The function needs root. Before the node is yielded, one core is kept busy for a moment, so that the
    energy counters of the two sockets differ. On an unused node both counters have equal values, and
    codecarbon would take them for one counter.
    """
    sys.path.insert(0, str(NODE_TESTS))
    lab_node = importlib.import_module("lab_node")
    from slurm_energy_lab import client

    with tempfile.TemporaryDirectory(prefix="senergy-bench-") as folder:
        Path(folder).chmod(0o755)
        node = lab_node.start_nodes(Path(folder), profile, arguments)
        try:
            lab_node.build_nvml(node.libraries)
            compile_nvidia_smi(node.libraries)
            client.run_kernel(node.socket, "gemm", cpus=[0], full_speed_s=1.0)
            yield node
        finally:
            node.stop()


def compile_nvidia_smi(folder: Path) -> None:
    """Build the replacement for nvidia-smi beside the NVML library."""
    command = ["gcc", "-O2", "-o", str(folder / "nvidia-smi"), str(NVIDIA_SMI), "-ldl"]
    subprocess.run(command, check=True, timeout=60)


def command_inside(node: Any, *command: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that run a command inside a node as root."""
    libraries = "/run/senergy-lab/lib"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": libraries,
        "PATH": f"{libraries}:{os.environ.get('PATH', os.defpath)}",
        "LC_ALL": "C",
        "PYTHONWARNINGS": "ignore",
    }
    inside = [sys.executable, str(NODE_TESTS / "inside.py"), str(node.tree), str(node.stage), "0"]
    return [*inside, *command], environment


def run(node: Any, tool: str, seconds: float, interval_s: float, ea2p: str | None = None) -> Window:
    """Run a measurement tool in a node for `seconds`, and return the measured time window.

    Raises:
        NotMeasuredError: the tool is missing or failed.
    """
    command = [sys.executable, str(Path(__file__)), tool, "--seconds", str(seconds)]
    command += ["--interval", str(interval_s), *(["--ea2p", ea2p] if ea2p else [])]
    argv, environment = command_inside(node, *command)
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=seconds + 120, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT):
            found = json.loads(line.removeprefix(_RESULT))
            if "error" in found:
                raise NotMeasuredError(f"{tool}: {found['error']}")
            return Window(**found)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    raise NotMeasuredError(f"{tool}: exit code {done.returncode}: {last}")


@dataclass(slots=True)
class Tool(ABC):
    """One measurement tool in a comparison of energy meters.

    `read` is called every interval for tools that do not sample by themselves.
    """

    interval_s: float
    ea2p: str | None = None
    joules: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    uncertain_s: float | None = None
    reads_itself = False

    @abstractmethod
    def prepare(self) -> None:
        """Do the work that a program does only once to use the tool: imports and set-up."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the measured time window."""

    def read(self) -> None:
        """Read all energy counters of the tool while the measurement window lasts."""
        return

    @abstractmethod
    def end(self) -> None:
        """End the measurement, and store the energy that the tool has measured in `joules`."""

    def collect(self) -> None:
        """Fetch those results of the tool that were not available yet when `end` was called."""
        return

    def add(self, component: str, joules: float) -> None:
        """Add joules to the energy that the tool has measured for a component."""
        self.joules[component] = self.joules.get(component, 0.0) + joules


class Zeus(Tool):
    """ZeusMonitor, with one measurement window per reading.

    Each reading ends a window and begins the next one, so all counters are read twice. The
    processes that watch for counter wraps start with the first reading. The first window is
    therefore discarded.
    """

    distribution = "zeus"

    def prepare(self) -> None:
        monitor = importlib.import_module("zeus.monitor")
        self.monitor = monitor.ZeusMonitor()
        self.begin()
        self.monitor.end_window("w", sync_execution=False)
        wait_until_idle()

    def begin(self) -> None:
        self.monitor.begin_window("w", sync_execution=False)

    def read(self) -> None:
        self._take()
        self.monitor.begin_window("w", sync_execution=False)
        self.samples += 1

    def end(self) -> None:
        self._take()

    def _take(self) -> None:
        found = self.monitor.end_window("w", sync_execution=False)
        for component in ("cpu", "dram", "gpu"):
            for joules in (getattr(found, f"{component}_energy") or {}).values():
                self.add(component, joules)


class CodeCarbon(Tool):
    """The tool CodeCarbon, whose OfflineEmissionsTracker reads counters in its own thread.

    It omits those powercap zones of DRAM that lie inside a package.
    """

    distribution = "codecarbon"
    reads_itself = True

    def prepare(self) -> None:
        codecarbon = importlib.import_module("codecarbon")
        self.tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code="FRA",
            measure_power_secs=self.interval_s or 15,
            save_to_file=False,
            log_level="critical",
            allow_multiple_runs=True,
        )

    def begin(self) -> None:
        self.tracker.start()

    def end(self) -> None:
        self.samples = self.tracker._measure_occurrence
        self.tracker.stop()
        self.add("cpu", self.tracker._total_cpu_energy.kWh * _KWH)
        self.add("gpu", self.tracker._total_gpu_energy.kWh * _KWH)


class PyJoules(Tool):
    """Energy measurement with the library pyJoules.

    Its class `EnergyMeter` measures all RAPL and NVML devices.
    """

    distribution = "pyJoules"

    def prepare(self) -> None:
        meter = importlib.import_module("pyJoules.energy_meter")
        factory = importlib.import_module("pyJoules.device.device_factory")
        self.meter = meter.EnergyMeter(factory.DeviceFactory.create_devices())

    def begin(self) -> None:
        self.meter.start()

    def read(self) -> None:
        self.meter.record()
        self.samples += 1

    def end(self) -> None:
        self.meter.stop()
        for sample in self.meter.get_trace():
            for tag, energy in sample.energy.items():
                if tag.startswith("nvidia"):
                    self.add("gpu", energy * _MILLI)
                elif tag.startswith(("package", "dram")):
                    self.add("cpu" if tag.startswith("package") else "dram", energy * _MICRO)


class PyRapl(Tool):
    """pyRAPL as a measurement tool: one `Measurement` object per window. GPUs are not measured."""

    distribution = "pyRAPL"

    def prepare(self) -> None:
        self.module = importlib.import_module("pyRAPL")
        self.module.setup()

    def begin(self) -> None:
        self.measurement = self.module.Measurement("w")
        self.measurement.begin()

    def read(self) -> None:
        self.end()
        self.begin()
        self.samples += 1

    def end(self) -> None:
        self.measurement.end()
        result = self.measurement.result
        for component, parts in (("cpu", result.pkg), ("dram", result.dram)):
            for energy_uj in parts or ():
                self.add(component, energy_uj * _MICRO)


class Ea2p(Tool):
    """Benchmark adapter for EA2P, another energy meter: its `PowerMeter` with its sampling thread.

    EA2P measures CPU and DRAM together, and GPUs through nvidia-smi.
    """

    distribution = ""
    reads_itself = True

    def prepare(self) -> None:
        if self.ea2p is None:
            raise NotMeasuredError("not on PyPI: give --ea2p PATH of a checkout")
        folder = Path(tempfile.mkdtemp(prefix="ea2p-"))  # it writes beside its own files
        shutil.copytree(Path(self.ea2p) / EA2P_PACKAGE, folder / EA2P_PACKAGE)
        config = {"devices_list": "cpu, gpu", "sampling_freq": self.interval_s or 1.0, "energy_unit": "J"}
        (folder / "config_energy.json").write_text(json.dumps(config))
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        mpi = types.ModuleType("mpi4py")
        mpi.MPI = types.SimpleNamespace()  # type: ignore[attr-defined]
        sys.modules["mpi4py"] = mpi
        module = importlib.import_module(EA2P_PACKAGE)
        self.folder = folder
        self.meter = module.PowerMeter(output_filepath=str(folder / "report.csv"), print_to_cli=False)

    def begin(self) -> None:
        self.meter.start_measure("w", "w")

    def end(self) -> None:
        power = self.meter.power
        self.samples = len(power.intel_record)
        self.meter.stop_measure()
        names = {"energy_cpu": "cpu", "energy_memory": "dram"}
        for name, value in power.record.iloc[0].items():
            component = "gpu" if str(name).startswith("GPU ") else names.get(str(name))
            if component:
                self.add(component, float(value))
        os.chdir("/")
        shutil.rmtree(self.folder)


class Ours(Tool):
    """Benchmark adapter for the sampler of senergyd. It adds up the energies that the sampler reads."""

    distribution = "slurm-energy"

    def prepare(self) -> None:
        from slurm_energy.agent.metering.clock import Clock
        from slurm_energy.agent.metering.sampler import Sampler
        from slurm_energy.devices.discovery import discover

        self.devices = discover()
        self.sampler = Sampler(self.devices.counters, self.devices.throttle_sensors, Clock())
        self.energy_uj = dict.fromkeys((counter.key for counter in self.devices.counters), 0)
        self.uncertain_s = 0.0

    def begin(self) -> None:
        self.sampler.sample()

    def read(self) -> None:
        self._take(due_only=True)

    def _take(self, *, due_only: bool) -> None:
        interval = self.sampler.sample(due_only)
        assert interval is not None and self.uncertain_s is not None
        for key, delta in interval.deltas.items():
            self.energy_uj[key] += delta.energy_uj
        if interval.unknown or not all(delta.certain for delta in interval.deltas.values()):
            self.uncertain_s += interval.length_s
        self.samples += 1

    def end(self) -> None:
        self._take(due_only=False)
        for counter in self.devices.counters:
            self.add(counter.component.partition("[")[0], self.energy_uj[counter.key] * _MICRO)
        self.devices.close()


class Senergyd(Tool):
    """Benchmark adapter for a complete senergyd.

    senergyd runs a job with a measuring policy. The adapter reads the energy from the record of the job.
    """

    distribution = "slurm-energy"
    reads_itself = True

    def prepare(self) -> None:
        self.agent = own_agent.OwnAgent(
            Path(tempfile.mkdtemp(prefix="senergy-")), 1 / (self.interval_s or 1.0)
        )

    def begin(self) -> None:
        self.agent.begin()

    def end(self) -> None:
        self.agent.end()

    def collect(self) -> None:
        record = self.agent.record()
        self.agent.stop()
        shutil.rmtree(self.agent.folder)
        self.uncertain_s = record["uncertain_seconds"]
        for part in record["components"]:
            if part["name"] != "node" and part["energy_joules"] is not None:
                self.add(part["name"].partition("[")[0], part["energy_joules"])


class Bare(Tool):
    """Tool that only reads the energy counters and does nothing else.

    Every energy meter must read these counters. The cost of this tool is therefore a lower bound for the
    cost of the other tools.
    """

    distribution = "nvidia-ml-py"

    def prepare(self) -> None:
        self.nvml = importlib.import_module("pynvml")
        self.nvml.nvmlInit()
        zones = sorted(Path("/sys/class/powercap").glob("intel-rapl:*"))
        names = ("package", "dram")
        wanted = [zone for zone in zones if (zone / "name").read_text().startswith(names)]
        self.files = [os.open(zone / "energy_uj", os.O_RDONLY) for zone in wanted]
        self.gpus = [
            self.nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self.nvml.nvmlDeviceGetCount())
        ]

    def begin(self) -> None:
        return

    def read(self) -> None:
        for file in self.files:
            int(os.pread(file, 64, 0))
        for gpu in self.gpus:
            self.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.gpus[self.samples % len(self.gpus)])
        self.samples += 1

    def end(self) -> None:
        return


TOOLS: dict[str, type[Tool]] = {
    "ours": Ours,
    "bare": Bare,
    "senergyd": Senergyd,
    "zeus": Zeus,
    "codecarbon": CodeCarbon,
    "pyjoules": PyJoules,
    "pyrapl": PyRapl,
    "ea2p": Ea2p,
}


def measure(tool: Tool, seconds: float) -> dict[str, Any]:
    """Let a measurement tool measure for some seconds, and compare it with the true energy.

    Return the fields of a `Window` except its name. The tool must be prepared.
    """
    outer = _truth()
    tool.begin()
    before, start = _truth(), time.monotonic()
    children, own = children_seconds(), time.process_time()
    drive(tool, start, seconds)
    own = time.process_time() - own
    after, length_s = _truth(), time.monotonic() - start
    spent, samples = own + children_seconds() - children, tool.samples
    tool.end()
    last = _truth()
    tool.collect()
    return {
        "length_s": length_s,
        "joules": tool.joules,
        "truth_joules": {name: after[name] - before[name] for name in after},
        "samples": tool.samples if tool.reads_itself else samples,
        "cpu_s": spent,
        "uncertain_s": tool.uncertain_s,
        "most_joules": {name: last[name] - outer[name] for name in last},
    }


def drive(tool: Tool, start: float, seconds: float) -> None:
    """Wait until the end of the measurement window while a measurement tool runs.

    If the tool does not sample by itself, read its counters at every interval until the end.
    """
    if tool.interval_s > 0 and not tool.reads_itself:
        for tick in range(1, round(seconds / tool.interval_s)):
            time.sleep(max(0.0, start + tick * tool.interval_s - time.monotonic()))
            tool.read()
    time.sleep(max(0.0, start + seconds - time.monotonic()))


def children_seconds() -> float:
    """Return the CPU seconds that all child processes have used, ended and living ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(thread_seconds(pid) for pid in _descendants(os.getpid()))
    return ended.ru_utime + ended.ru_stime + living


def wait_until_idle(longest_s: float = 20.0) -> None:
    """Wait until the child processes have finished starting.

    They have finished when they have used almost no CPU time for a second.
    """
    deadline, last = time.monotonic() + longest_s, -1.0
    while time.monotonic() < deadline:
        used = children_seconds()
        if used - last < _STARTED_CPU_S:
            return
        last = used
        time.sleep(1.0)


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def thread_seconds(pid: int) -> float:
    """Return the CPU seconds of a living process."""
    total = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _truth() -> dict[str, float]:
    from slurm_energy_lab import client

    found = client.truth()["energy_joules"]
    gpus = sum(value for name, value in found.items() if name.startswith("gpu["))
    return {"cpu": found["cpu"], "dram": found["dram"], "gpu": gpus}


def _version(kind: type[Tool]) -> str:
    name = getattr(kind, "distribution", "")
    return importlib.metadata.version(name) if name else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure one window with one tool, inside a node.")
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between reads; 0: begin and end")
    parser.add_argument("--ea2p", metavar="PATH", help="checkout of EA2P")
    arguments = parser.parse_args(argv)
    kind = TOOLS[arguments.tool]
    tool = kind(arguments.interval, arguments.ea2p)
    try:
        tool.prepare()
        found = {"tool": arguments.tool, "version": _version(kind), **measure(tool, arguments.seconds)}
    except (ImportError, NotMeasuredError, importlib.metadata.PackageNotFoundError) as error:
        found = {"error": str(error)}
    print(f"\n{_RESULT}{json.dumps(found)}", flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # some tools leave threads or processes that would keep this process alive
