"""Virtual node: an agent in this process with a simulated node, without sockets and mounts.

A node model computes the state of the hardware. The agent reads copies of the emulated files.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.sockets.messages import ProgressMessage
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.budget.messages import NodePoll
from slurm_energy.config import AgentConfig, BudgetConfig, Config
from slurm_energy.devices.cpu.resctrl import MonitoringFiles, find_support
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.driver import Knob
from slurm_energy.devices.source_priority import select_sources
from slurm_energy.records import EnergyRecord
from slurm_energy_lab.model import KernelRequest, KernelResult, NodeModel, load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import Tree
from slurm_energy_lab.tree.node_tree import NodeOptions, build_tree
from slurm_energy_lab.tree.process_groups import ProcessGroups
from slurm_energy_lab.virtual_node.clocks import ModelClock, VirtualClock
from slurm_energy_lab.virtual_node.files import NodeFileCopy
from slurm_energy_lab.virtual_node.model_devices import GPU_KNOBS, ModelEnergyCounter, describe_gpu
from slurm_energy_lab.virtual_node.monitoring import ModelMonitoring

_FIRST_PID = 10_000


class VirtualNode:
    """Virtual node with an agent.

    Args:
        folder: folder for the copied files and the agent's state.
        profile: name or path of the emulated node's profile.
        sampling_hz: samples per second.
        agent: values of the section `agent` of the configuration other than `sampling_hz`, by key.
        node_meter: whether the node has a meter for the power of the whole node.
        budget_mode: mode of power budgets: `off`, `observe` or `enforce`. The caller sends the polls that
            `manager.poll_budget` returns to a controller, and applies decisions with `manager.budget.apply`.
        name: Slurm's name of the node.
        clock: clock of the model. Several nodes may share one clock. None creates a new clock.
        overrides: values by dotted key that replace values of the profile.
    """

    def __init__(
        self,
        folder: Path,
        profile: str | Path,
        sampling_hz: float = 10.0,
        agent: dict[str, Any] | None = None,
        *,
        node_meter: bool = False,
        budget_mode: str = "off",
        name: str = "n1",
        clock: ModelClock | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.clock = clock or ModelClock()
        self.model = RealtimeModel(load_profile(profile, overrides), self.clock)
        self._folder, self.root = folder, folder / "node"
        self._processes = ProcessGroups(self.root / "proc", self.clock)
        self._tree = build_tree(self.model, NodeOptions(name), self._processes)
        self._interval_s = 1.0 / sampling_hz
        self._last_job = 0
        self._agents = self._boots = 0
        self._file_copy = NodeFileCopy(self.root, self._tree.tree)
        self._config = Config(
            agent=AgentConfig(sampling_hz=sampling_hz, **(agent or {})),
            budget=BudgetConfig(mode=budget_mode),
        )
        self._node_meter = node_meter
        self._start_agent()

    def _start_agent(self) -> None:
        """Start an agent with an empty state directory."""
        self._agents += 1
        self._start_on_state()

    def _start_on_state(self) -> None:
        self.state = StateDirectory(self._folder / f"state{self._agents}")
        clock = VirtualClock(self.clock)
        clock.boot_id = f"{self.name}-{self._boots}"
        self.manager = JobManager(self._config, self._devices(), self.state, clock)
        self.manager._set_node_name(self.name)  # before the first job; several nodes share this host's name
        self.manager.start()

    def restart_agent(self) -> None:
        """Replace the agent by a new agent that has no state of earlier jobs."""
        self.manager.stop()
        self._start_agent()

    def kill_agent(self) -> None:
        """End the agent as kill -9 does. `start_agent` then starts a new agent on the same files."""
        self.manager._meter.close()
        self.manager._devices.close()
        self.state.close()

    def reboot(self) -> None:
        """Boot the node after `kill_agent`, and start its agent.

        The energy counters continue, while those of a real node would start again from 0.
        """
        self._boots += 1
        self.start_agent()

    def start_agent(self) -> None:
        """Start a new agent on the virtual node after `kill_agent`."""
        self.refresh_files()
        self._start_on_state()

    def _devices(self) -> NodeDevices:
        """Return the devices of the virtual node.

        Most devices read and write the copied files of the node. The GPUs and the power meter access the
        model directly.
        """
        devices = discover(self.root)
        for knob in devices.knobs.values():
            self._file_copy.write_through(knob)
        gpus = tuple(describe_gpu(self.model, index) for index in range(self.model.profile.gpu_count))
        knobs: list[Knob] = [make(self.model, gpu.index) for gpu in gpus for make in GPU_KNOBS]
        counters = [
            *devices.counters,
            *(ModelEnergyCounter(self.model, f"gpu[{gpu.index}]", "nvml:total_energy") for gpu in gpus),
        ]
        # The driver of the node's power meter reads it in a thread of its own, in real time.
        meters = [ModelEnergyCounter(self.model, "node", "power_meter:acpi")] if self._node_meter else []
        return dataclasses.replace(
            devices,
            node_counters=tuple(meters),
            selection=select_sources([*counters, *meters]),
            hardware=dataclasses.replace(devices.hardware, gpus=gpus),
            counters=tuple(counters),
            knobs={**devices.knobs, **{knob.key: knob for knob in knobs}},
            monitoring=self._monitoring(),
        )

    def _monitoring(self) -> MonitoringFiles | None:
        found = find_support(self.root)
        if not found.quantities:
            return None
        return ModelMonitoring(self.root, found.quantities, self._tree.tree)

    def refresh_files(self) -> None:
        """Update the virtual node's copy of the emulated files.

        Files that change with time are written again. Files of new cgroups are added.
        """
        self._file_copy.refresh()

    def close(self) -> None:
        """Stop the agent of the virtual node and close the node's files."""
        self.refresh_files()
        self.manager.stop()
        self._file_copy.close()
        self.model.close()

    def new_job_id(self) -> int:
        """Return a job id that no earlier job of this node has had."""
        self._last_job += 1
        return self._last_job

    def begin_step(self, job_id: int) -> None:
        """Begin the batch step of a job. The step has a process that runs the job's compute kernels."""
        self.refresh_files()
        pid = _FIRST_PID + job_id
        folder = self.root / f"proc/{pid}"
        (folder / f"task/{pid}").mkdir(parents=True)
        started = int(self.clock.now_s * os.sysconf("SC_CLK_TCK"))
        fields = f"S 1 {' 0' * 9} 0 0 0 0 0 0 0 0 {started}"
        (folder / "stat").write_text(f"{pid} (slurmstepd) {fields}\n")
        ids = "\t0" * 4
        (folder / "status").write_text(f"Name:\tslurmstepd\nTgid:\t{pid}\nUid:{ids}\nGid:{ids}\n")
        (folder / "cmdline").write_text(f"slurmstepd: [{job_id}.batch]")
        self.manager.step("start", job_id, "batch", pid=pid)

    def begin(self, job_id: int, cpus: int | None = None, **flags: str) -> None:
        """Begin a job.

        `cpus` is the number of CPUs allocated to the job, by default all CPUs of the node. `flags` are
        the values of the job's energy flags; the name `cap` stands for `--energy-cap`.
        """
        self.refresh_files()
        env = self.env(job_id, cpus)
        env |= {f"SPANK_ENERGY_{name.upper()}": value for name, value in flags.items()}
        self.manager.begin(env)

    def end(self, job_id: int, cpus: int | None = None) -> None:
        """End a job."""
        self.refresh_files()
        self.manager.end(self.env(job_id, cpus))

    def env(self, job_id: int, cpus: int | None) -> dict[str, str]:
        """Return the environment variables that Slurm passes to the prolog of a job."""
        profile = self.model.profile
        return {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "1001",
            "SLURM_NODELIST": self.name,
            "SLURMD_NODENAME": self.name,
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_JOB_GPUS": ",".join(map(str, range(profile.gpu_count))) if cpus is None else "",
            "SLURM_JOB_EXCLUSIVE": "node" if cpus is None else "no",
            "SLURM_JOB_CPUS_PER_NODE": str(profile.cpu.cpus if cpus is None else cpus),
        }

    @property
    def files(self) -> Tree:
        """Return the emulator's file tree."""
        return self._tree.tree

    @property
    def settings(self) -> dict[str, bytes]:
        """Return the contents of all files to which settings can be written, by path."""
        return self._file_copy.settings

    def submit(
        self, kernel: str, device: str, seconds: float | None, job_id: int | None, **where: Any
    ) -> int:
        """Start a compute kernel that takes `seconds` at full speed, and return its run id.

        With `job_id` None, the compute kernel belongs to no job. `where` contains further attributes of the
        `KernelRequest`, such as `cpus` and `gpus`.
        """
        request = KernelRequest(kernel, device, full_speed_s=seconds, job_id=job_id, **where)
        with self.model.modify() as model:
            run_id = model.submit(request, model.now_s)
        if self._tree.resctrl is not None:
            self._tree.resctrl.start_task(run_id, lambda: [] if job_id is None else [_FIRST_PID + job_id])
        if job_id is not None:
            self._tree.groups.create_group(job_id)
        return run_id

    def run(self, kernel: str, device: str, seconds: float, job_id: int, **where: Any) -> KernelResult:
        """Run a compute kernel until it ends. The arguments are those of `submit`."""
        run_id = self.submit(kernel, device, seconds, job_id, **where)
        while (result := self._model().result(run_id)) is None:
            self.wait(self._interval_s)
        return result

    def finished(self, run_id: int) -> bool:
        """Return whether a compute kernel has ended."""
        return self._model().result(run_id) is not None

    def wait(self, seconds: float) -> None:
        """Let time pass. The agent takes its regular samples during this time."""
        end_s = self.clock.now_s + seconds
        while (now_s := self.clock.now_s) < end_s:
            interval_s = min(self._interval_s, self.manager.sampling_interval_s)
            self.clock.now_s = min(now_s + interval_s, end_s)
            self.sample()

    def sample(self) -> None:
        """Let the agent take a sample at the current time of the clock."""
        self.refresh_files()
        self.manager.sample()

    def poll_budget(self) -> NodePoll:
        """Return the report about the node's power that the agent would send to the controller now."""
        self.refresh_files()
        return self.manager.poll_budget()

    def energy_joules(self) -> dict[str, float]:
        """Return the model's exact energy of each component up to now."""
        model = self._model()
        return {name: model.energy_joules(name) for name in model.components()}

    def run_reporting(
        self,
        kernel: str,
        device: str,
        seconds: float | None,
        job_id: int,
        variation: float = 0.0,
        numbers: random.Random | None = None,
        size: float | None = None,
        on_sample: Callable[[float, float], None] = lambda *_: None,
    ) -> KernelResult:
        """Run a compute kernel until it ends. The job reports its progress at every sample.

        Args:
            kernel: name of the compute kernel.
            device: `cpu` or `gpu`.
            seconds: run time in seconds at full speed. This time determines the problem size unless `size` is
                given.
            job_id: id of the job.
            variation: relative standard deviation of the progress per second that the job reports.
            numbers: generator of random numbers, used for the variation of the reported progress.
            size: problem size; None to use `seconds`.
            on_sample: function called at every sample with the time and the exact progress in units.
        """
        run_id = self.submit(kernel, device, seconds, job_id, size=size)
        last_units = reported = 0.0
        last_s = self.clock.now_s
        while (result := self._model().result(run_id)) is None:
            self.wait(self._interval_s)
            on_sample(self.clock.now_s, self._model().progress_units(run_id))
            report = self._model().progress_report(run_id)
            if report is None or report[0] <= last_units:
                continue
            units, time_s = report
            error = numbers.gauss(0.0, variation / math.sqrt(time_s - last_s)) if numbers else 0.0
            reported += (units - last_units) * max(0.0, 1.0 + error)
            last_units, last_s = units, time_s
            message = ProgressMessage(job_id, "program", reported, False, None, time_s)
            self.manager.progress.receive(message)
        return result

    def dynamic_joules(self, job_id: int) -> dict[str, float]:
        """Return the energy above idle that a job has caused up to now, by component."""
        model = self._model()
        return model.usage().dynamic_joules(job_id, model.now_s)

    def records(self) -> dict[int, EnergyRecord]:
        """Return the records of ended jobs by job id, without the records of steps."""
        self.manager.finalize_jobs()
        items = self.manager.spool.items(10**9, 10_000)
        records = [EnergyRecord.from_json(item.record) for item in items]
        return {record.job_id: record for record in records if record.step is None}

    def _model(self) -> NodeModel:
        with self.model.now() as model:
            return model
