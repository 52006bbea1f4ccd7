"""Startup steps of all daemons and tasks of a lab.

A startup step defines a command, its namespace, the steps that it depends on, and a check that it is ready.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config.schema_document import toml
from slurm_energy.slurm import installation
from slurm_energy.slurm.plugin_build import PLUGIN, plugin_sources
from slurm_energy_lab import build_cache
from slurm_energy_lab.cluster import processes
from slurm_energy_lab.cluster.artifacts import SYSTEM_PATH, Artifacts
from slurm_energy_lab.cluster.layout import LabLayout
from slurm_energy_lab.cluster.nodes_file import NodeSpec
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.cluster.startup import StartupStep
from slurm_energy_lab.cluster.supervisor import SUPERVISOR_MARK
from slurm_energy_lab.emulator.cpu_throttle import DEFAULT_SHARE_CORES
from slurm_energy_lab.interconnect.links import LinkSpec
from slurm_energy_lab.nvml_library import SOURCES

_DATABASE_OPTIONS = (
    "--user=root",
    "--skip-networking",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--performance-schema=0",
    "--max-connections=40",
)


@dataclass(frozen=True)
class DaemonPlan:
    """Data for the startup steps of the daemons of a lab.

    The data are the paths, the specification of the lab, the TCP ports, and the built plugin, hooks and
    daemons.
    """

    layout: LabLayout
    spec: LabSpec
    parts: Artifacts
    ports: Mapping[str, int]

    def log(self, name: str) -> Path:
        """Return the log file of the startup step with this name."""
        return self.layout.log / f"{name.replace(' ', '-')}.log"


def steps(plan: DaemonPlan) -> list[StartupStep]:
    """Return all startup steps of a lab (cluster of emulated nodes) in an order that is easy to read.

    The order of the list has no effect on the start.
    """
    all_steps = [_munge(plan), _nvml(plan), _linker_cache(plan), _task_plugin(plan)]
    if plan.spec.accounting:
        all_steps += _accounting(plan)
    if plan.spec.priority == "plugin":
        all_steps.append(_priority_plugin(plan))
    if plan.spec.slurm_energy:
        all_steps.append(_energy_plugin(plan))
    all_steps.append(_slurmctld(plan))
    if plan.parts.controller:
        all_steps.append(_senergyctld(plan, plan.parts.controller))
    if plan.spec.links is not None:
        all_steps.append(_interconnect(plan, plan.spec.links))
    for node in plan.spec.nodes:
        all_steps += _node(plan, node)
    return all_steps


def _munge(plan: DaemonPlan) -> StartupStep:
    layout = plan.layout
    argv = ["munged", "--foreground", "--force", "--num-threads=4", f"--socket={layout.munge_socket}"]
    argv += [f"--key-file={layout.etc}/munge.key", f"--seed-file={layout.state}/munge.seed"]
    argv += [f"--pid-file={layout.munge_socket.parent}/munged.pid"]
    return StartupStep(
        "munged", plan.log("munged"), argv, ready=lambda: processes.accepts(layout.munge_socket)
    )


def _nvml(plan: DaemonPlan) -> StartupStep:
    imports = "import pathlib, sys; from slurm_energy_lab.nvml_library import build_nvml"
    code = f"{imports}; build_nvml(pathlib.Path(sys.argv[1]))"
    argv = [sys.executable, "-c", code, str(plan.layout.lib)]
    environment = {**_compiling(plan), "XDG_CACHE_HOME": str(build_cache.cache_folder().parent)}
    return StartupStep("NVML library", plan.log("nvml"), argv, env=environment)


def _task_plugin(plan: DaemonPlan) -> StartupStep:
    source = SOURCES / "lab_tasks.c"
    argv = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra"]
    argv += ["-o", f"{plan.layout.lib}/lab_tasks.so", str(source)]
    return StartupStep("task plugin", plan.log("lab_tasks"), argv, env=_compiling(plan))


def _compiling(plan: DaemonPlan) -> dict[str, str]:
    """Return the environment variables for compilers that run on an emulated cluster (lab).

    The variables place the compiler's temporary files in the lab's directory. A compiler that is killed
    leaves temporary files behind. `senergy lab down` removes these files together with the directory.
    """
    return {"TMPDIR": str(plan.layout.lib)}


def _linker_cache(plan: DaemonPlan) -> StartupStep:
    layout = plan.layout
    argv = ["ldconfig", "-X", "-f", f"{layout.etc}/ld.so.conf", "-C", str(layout.linker_cache)]
    return StartupStep("linker cache", plan.log("ldconfig"), argv, needs=("NVML library",))


def _accounting(plan: DaemonPlan) -> list[StartupStep]:
    layout, socket = plan.layout, plan.layout.database_socket
    database = ["--no-defaults", f"--datadir={layout.state}/mysql", *_DATABASE_OPTIONS]
    # In a shared directory a starting server would delete the temporary tables of all others.
    database.append(f"--tmpdir={socket.parent}")
    install = ["--auth-root-authentication-method=socket", "--skip-test-db"]
    serve = [f"--socket={socket}", f"--pid-file={socket.parent}/mariadbd.pid"]
    return [
        StartupStep(
            "database files",
            plan.log("mariadb-install-db"),
            build_cache.copy_or_make(
                _database_name(install), layout.state / "mysql", ["mariadb-install-db", *database, *install]
            ),
        ),
        StartupStep(
            "mariadbd",
            plan.log("mariadbd"),
            ["mariadbd", *database, *serve],
            needs=("database files",),
            ready=lambda: processes.accepts(socket),
        ),
        StartupStep(
            "slurmdbd",
            plan.log("slurmdbd"),
            ["slurmdbd", "-D"],
            needs=("mariadbd", "munged"),
            env={"MYSQL_UNIX_PORT": str(socket)},
            ready=lambda: processes.listens(plan.ports["slurmdbd"]),
        ),
        StartupStep(
            "accounts",
            plan.log("accounts"),
            ["sacctmgr", "-i", "load", f"file={layout.etc}/accounts"],
            needs=("slurmctld",),
            env={"SLURM_CONF": str(layout.slurm_conf)},
        ),
    ]


def _database_name(install: Sequence[str]) -> str:
    """Return the name under which the lab's cache stores an empty MariaDB database.

    The name depends on the installed version of MariaDB.
    """
    program = Path(shutil.which("mariadbd", path=SYSTEM_PATH) or "mariadbd")
    made_by = [program.stat().st_size, program.stat().st_mtime_ns] if program.exists() else []
    text = repr([made_by, _DATABASE_OPTIONS, *install])
    return f"database-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _priority_plugin(plan: DaemonPlan) -> StartupStep:
    """Return the startup step that installs the priority plugin.

    The directory of the plugin must be readable for all users, because programs of all users read slurm.conf.
    """
    target = plan.layout.slurm_plugins / PLUGIN
    argv = ["install", "-D", "-m", "0755", str(plugin_sources() / PLUGIN), str(target)]
    return StartupStep("priority plugin", plan.log("priority-plugin"), argv)


def _energy_plugin(plan: DaemonPlan) -> StartupStep:
    """Return the startup step of the lab that builds the plugin acct_gather_energy/senergy.

    The plugin is built for the installed Slurm.
    """
    build = 'mkdir -p "$2" && exec make --no-print-directory -C "$1" energy OUTPUT="$2" SLURM_PREFIX="$3"'
    argv = ["sh", "-ec", build, "sh", str(plugin_sources()), str(plan.layout.slurm_plugins)]
    argv.append(str(installation.find().prefix))
    return StartupStep("energy plugin", plan.log("energy-plugin"), argv, env=_compiling(plan))


def _slurmctld(plan: DaemonPlan) -> StartupStep:
    """Return the startup step of slurmctld. To register the cluster, slurmctld needs a running slurmdbd."""
    needs = ["munged", "task plugin"]
    needs += ["slurmdbd"] if plan.spec.accounting else []
    needs += ["priority plugin"] if plan.spec.priority == "plugin" else []
    needs += ["energy plugin"] if plan.spec.slurm_energy else []
    return StartupStep(
        "slurmctld",
        plan.log("slurmctld"),
        ["slurmctld", "-D"],
        needs=tuple(needs),
        ready=lambda: processes.listens(plan.ports["slurmctld"]),
    )


def _senergyctld(plan: DaemonPlan, command: Sequence[str]) -> StartupStep:
    layout = plan.layout
    return StartupStep(
        "senergyctld",
        plan.log("senergyctld"),
        [*command, "--config", str(layout.energy_toml)],
        needs=("munged", "accounts") if plan.spec.accounting else ("munged",),  # it reads shares at start
        env={"SLURM_CONF": str(layout.slurm_conf)},
        ready=lambda: layout.policies.exists() and processes.listens(plan.ports["senergyctld"]),
    )


def _node(plan: DaemonPlan, node: NodeSpec) -> list[StartupStep]:
    all_steps = [_emulator(plan, node), _supervisor(plan, node.name)]
    if plan.parts.agent:
        all_steps.append(_senergyd(plan, node.name, plan.parts.agent))
    all_steps.append(_slurmd(plan, node.name))
    return all_steps


def _emulator(plan: DaemonPlan, node: NodeSpec) -> StartupStep:
    layout, name = plan.layout, node.name
    log = plan.log(f"{name} emulator")
    argv = [
        sys.executable,
        "-m",
        "slurm_energy_lab.emulator.main",
        "--name",
        name,
        "--profile",
        node.profile,
    ]
    argv += ["--mount", str(layout.tree(name)), "--socket", str(layout.emulator_socket(name))]
    argv += ["--cgroup", f"{layout.cgroup}/{name}"]
    share_cores = DEFAULT_SHARE_CORES if plan.spec.cpu_share is None else plan.spec.cpu_share
    argv += ["--cpu-share", f"{share_cores * node.speed:g}"]
    for key, value in node.overrides.items():
        argv += ["--set", f"{key}={toml(value)}"]
    return StartupStep(f"{name} emulator", log, argv, ready=lambda: _is_ready(log))


def _interconnect(plan: DaemonPlan, links: LinkSpec) -> StartupStep:
    log = plan.log("interconnect")
    argv = [sys.executable, "-m", "slurm_energy_lab.interconnect.main", "--latency-s", f"{links.latency_s:g}"]
    if links.bits_per_s is not None:
        argv += ["--bits-per-s", f"{links.bits_per_s:g}"]
    argv += [f"{node.name}={plan.layout.network_socket(node.name)}" for node in plan.spec.nodes]
    return StartupStep("interconnect", log, argv, ready=lambda: _is_ready(log))


def _is_ready(log: Path) -> bool:
    try:
        return b"ready" in log.read_bytes().split()
    except OSError:
        return False


def _supervisor(plan: DaemonPlan, name: str) -> StartupStep:
    layout = plan.layout
    argv = [
        sys.executable,
        "-m",
        "slurm_energy_lab.cluster.supervisor",
        "--socket",
        str(layout.supervisor_socket(name)),
    ]
    argv += ["--host-name", name, "--view", str(layout.view(name))]
    return StartupStep(name, plan.log(f"{name} supervisor"), argv, needs=(f"{name} emulator", "linker cache"))


def _senergyd(plan: DaemonPlan, name: str, command: Sequence[str]) -> StartupStep:
    socket = plan.layout.node_run(name) / "senergy" / "agent.sock"
    return StartupStep(
        f"{name} senergyd",
        plan.log(f"{name} senergyd"),
        [*command, "--config", str(plan.layout.energy_toml)],
        node=name,
        needs=(name,),
        ready=lambda: processes.accepts(socket),
    )


def _slurmd(plan: DaemonPlan, name: str) -> StartupStep:
    """Return the startup step of the slurmd of a node. slurmd writes a log file in addition to its output.

    The step sets HWLOC_COMPONENTS, so that hwloc does not read the CPUID of the real processor.
    """
    return StartupStep(
        f"{name} slurmd",
        plan.log(f"{name} slurmd").with_suffix(".out"),
        ["slurmd", "-D", "-N", name],
        node=name,
        needs=(name, "slurmctld"),
        env={"HWLOC_COMPONENTS": "-x86"},
        ready=lambda: processes.listens(plan.ports[f"slurmd.{name}"]),
    )


def lab_mounts(layout: LabLayout) -> dict[str, object]:
    """Return the mounts for the namespace in which the daemons of an emulated cluster (lab) run.

    The result has the form that a supervisor reads.
    """
    return {
        "tree": None,
        "stage": str(layout.stage),
        "binds": {"/etc/hosts": str(layout.hosts)},
        "hidden": [],
    }


def node_mounts(layout: LabLayout, name: str, spec: LabSpec) -> dict[str, object]:
    """Return the mounts for the namespace of a node, in the form that a supervisor reads."""
    own = layout.node(name)
    binds = {
        "/run/senergy": own / "run" / "senergy",
        "/run/senergy-lab": own / "run" / "senergy-lab",
        "/run/munge": layout.munge_socket.parent,
        "/etc/slurm": layout.etc,
        "/etc/hosts": layout.hosts,
        "/etc/hostname": own / "hostname",
        "/etc/ld.so.cache": layout.linker_cache,
        str(layout.agent_state): own / "state",
    }
    return {
        "tree": str(layout.tree(name)),
        "stage": str(own / "stage"),
        "binds": {target: str(source) for target, source in binds.items()},
        "hidden": [str(layout.tree(other.name)) for other in spec.nodes],
    }


def daemon_environment(layout: LabLayout) -> dict[str, str]:
    """Return the environment variables for all processes that the lab's supervisors start."""
    return {
        SUPERVISOR_MARK: str(layout.root),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(layout.daemon_conf),
        "SENERGY_CONFIG": str(layout.energy_toml),
        **{key: os.environ[key] for key in ("TZ",) if key in os.environ},
    }
