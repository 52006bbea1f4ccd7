"""Configuration files of all daemons of a lab, rendered from the templates in `etc/`."""

from __future__ import annotations

import pwd
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from slurm_energy import config
from slurm_energy.config.schema_document import toml
from slurm_energy.errors import UsageError
from slurm_energy.slurm import installation
from slurm_energy_lab.cluster.artifacts import Artifacts
from slurm_energy_lab.cluster.layout import LabLayout
from slurm_energy_lab.cluster.namespaces import GRES_DIRECTORY
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.model import NodeProfile

CLUSTER = "lab"
_SETTING = re.compile(r"(?P<key>[A-Za-z]\w*)=[^\n\r]*")
_OWN = re.compile(
    "clustername|slurmctld(host|port)|statesavelocation|slurmdspooldir|slurmd?user|authinfo"
    "|accountingstorage(host|port|pass)"
)
_REPEATED = frozenset({"nodename", "partitionname", "nodeset", "downnodes"})
_GPU_TYPE = re.compile(r"(rtx|gtx)? ?([a-z]{0,3}\d+)")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """The description of a node in slurm.conf.

    Attributes:
        name: Slurm's name of the node.
        port: TCP port of the node's slurmd.
        sockets: number of CPU packages.
        cores: cores per package.
        threads: threads per core.
        memory_mb: memory in MB.
        gpus: number of GPUs.
        gpu_type: Slurm's type of the GPUs; empty without GPUs.
    """

    name: str
    port: int
    sockets: int
    cores: int
    threads: int
    memory_mb: int
    gpus: int
    gpu_type: str


def slurm_node(name: str, port: int, profile: NodeProfile) -> SlurmNode:
    """Return the slurm.conf description of a node with the hardware of a profile.

    Args:
        name: Slurm's name of the node.
        port: TCP port of its slurmd.
        profile: the hardware profile.
    """
    cpu, gpu = profile.cpu, profile.gpu
    return SlurmNode(
        name=name,
        port=port,
        sockets=cpu.packages,
        cores=cpu.cores_per_package,
        threads=cpu.threads_per_core,
        memory_mb=profile.memory.total_mb,
        gpus=profile.gpu_count,
        gpu_type=gpu_type(gpu.name) if gpu else "",
    )


def gpu_type(name: str) -> str:
    """Return the short name of a GPU for Slurm, such as `a100` for `NVIDIA A100-SXM4-40GB`."""
    match = _GPU_TYPE.search(name.lower())
    return "".join(part or "" for part in match.groups()) if match else "gpu"


def with_settings(text: str, settings: Iterable[str]) -> str:
    """Return the text of slurm.conf with replaced `Key=Value` lines. Lines with new keys are appended.

    Args:
        text: the text of slurm.conf.
        settings: new `Key=Value` lines. A line replaces the line of the text with the same key.

    Raises:
        UsageError: a setting does not have the form `Key=Value`, or the lab requires its own value of the
            key.
    """
    lines = text.splitlines()
    for setting in settings:
        match = _SETTING.fullmatch(setting)
        if not match:
            raise UsageError(f"--set {setting!r}", "is not a line of slurm.conf", "write it as Key=Value")
        key = match["key"].lower()
        if _OWN.fullmatch(key):
            raise UsageError(f"--set {setting!r}", "the lab needs its own value of this key")
        if key not in _REPEATED:
            lines = [line for line in lines if line.partition("=")[0].strip().lower() != key]
        lines.append(setting)
    return "\n".join(lines) + "\n"


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` into which `extra` is merged.

    Tables with the same key are merged recursively. All other values of `extra` replace those of `base`.
    """
    result = dict(base)
    for key, value in extra.items():
        old = result.get(key)
        tables = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(result[key], value) if tables else value
    return result


def toml_document(data: Mapping[str, Any]) -> str:
    """Convert data to the text of a TOML document.

    Plain values and lists of tables come first, then tables.
    """
    lines = [f"{name} = {toml(value)}" for name, value in data.items() if not isinstance(value, Mapping)]
    for name, table in data.items():
        if isinstance(table, Mapping):
            lines.append(f"[{name}]")
            lines += [f"{key} = {toml(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def render(
    layout: LabLayout, spec: LabSpec, parts: Artifacts, ports: Mapping[str, int], nodes: Iterable[SlurmNode]
) -> dict[Path, str]:
    """Return the text of every configuration file by path, without writing it.

    Raises:
        UsageError: a setting for slurm.conf is not `Key=Value`.
        ConfigError: energy.toml is not valid.
    """
    nodes = list(nodes)
    values = {
        "cluster": CLUSTER,
        "layout": layout,
        "parts": parts,
        "ports": ports,
        "accounting": spec.accounting,
        "priority": spec.priority,
        "slurm_energy": spec.slurm_energy,
        "slurm_plugins": _slurm_plugins(spec),
        "nodes": nodes,
        "gres_directory": GRES_DIRECTORY,
        "partitions": {
            "cpu": [node for node in nodes if not node.gpus],
            "gpu": [node for node in nodes if node.gpus],
        },
        "users": {user: shares for user, shares in spec.users.items() if _is_user(user)},
        "host_lines": Path("/etc/hosts").read_text() if Path("/etc/hosts").exists() else "",
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slurm_energy_lab", "etc"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    etc = layout.etc
    names = {
        layout.slurm_conf: "slurm.conf",
        layout.daemon_conf: "daemon-slurm.conf",
        etc / "daemon" / "gres.conf": "gres.conf",
        etc / "gres.conf": "gres.conf",  # for `senergy doctor`
        etc / "plugstack.conf": "plugstack.conf",
        layout.hosts: "hosts",
        layout.energy_toml: "energy.toml",
    }
    if parts.submit_module:
        names[etc / "daemon" / "job_submit.lua"] = "job_submit.lua"
    if spec.accounting:
        names |= {etc / "daemon" / "slurmdbd.conf": "slurmdbd.conf", etc / "accounts": "accounts"}
    texts = {path: environment.get_template(f"{name}.j2").render(values) for path, name in names.items()}
    texts[layout.slurm_conf] = with_settings(texts[layout.slurm_conf], spec.slurm)
    energy = merged(tomllib.loads(texts[layout.energy_toml]), spec.energy)
    texts[layout.energy_toml] = toml_document(energy)
    config.parse(texts[layout.energy_toml], layout.energy_toml)
    return texts


def _slurm_plugins(spec: LabSpec) -> Path | None:
    """Return the directory of the plugins that belong to the Slurm installation.

    The lab's configuration needs this directory only if the lab adds plugins of its own. The result is None
    if the lab adds no plugins.
    """
    if spec.priority != "plugin" and not spec.slurm_energy:
        return None
    return installation.find().plugin_directory(run=None)


def write(texts: Mapping[Path, str]) -> None:
    """Write configuration files.

    Files with secrets become readable only for root.

    Args:
        texts: content of each file, by path.
    """
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        private = path.name == "slurmdbd.conf"
        path.touch(0o600)
        path.write_text(text)
        path.chmod(0o600 if private else 0o644)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
