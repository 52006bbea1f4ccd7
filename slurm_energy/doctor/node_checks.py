"""Checks of one node in `senergy doctor --cluster`.

All functions are pure. Their arguments are the findings on the cluster and on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.doctor.cluster_findings import ClusterFindings, NodeFindings
from slurm_energy.doctor.diagnosis import CLOCK_TOLERANCE_S
from slurm_energy.doctor.verdict import CheckState
from slurm_energy.quantities import is_number

WAITING_TOLERANCE_S: Final = 900.0
"""Age in seconds up to which waiting records are normal. Usually records are delivered within seconds."""
ANNOUNCEMENT_TOLERANCE_S: Final = 600.0
"""Minimum uptime in seconds of an agent that has seen the start of all jobs on its node."""
_AGENT_RETRY_S: Final = 240.0
"""Maximum pause in seconds before an agent that could not reach senergyctld tries again."""
_REPORT_INTERVAL_S: Final = 30.0
_LATE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class NodeResult:
    """Result of a check of one node. Nodes with equal results share a line of the report.

    Attributes:
        state: state of the check.
        finding: text of the finding; `{}` in it stands for the range of `value` over the nodes that share the
            line.
        cost: effect of the fault; empty if there is no fault.
        fix: remedy; empty if there is nothing to do.
        value: number for this node in place of `{}`; None means that the finding has no `{}`.
    """

    state: CheckState
    finding: str
    cost: str = ""
    fix: str = ""
    value: float | None = None


NodeCheckFunction = Callable[[ClusterFindings, NodeFindings], NodeResult | None]
"""Function that returns the result of a check of one node; None if the check does not apply."""


def _agent(cluster: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if node.refusal:
        cost = "its records are rejected too; the controller sees neither its power nor its jobs"
        fix = "correct NodeAddr in slurm.conf, or set controller.record_hosts"
        return NodeResult(CheckState.FAILED, f"reports are refused: {node.refusal}", cost, fix)
    if node.age_s is None:
        if not node.is_expected:
            return NodeResult(CheckState.ABSENT, f"no report; {node.slurm_state or 'unknown'} in Slurm")
        if cluster.uptime_s is not None and cluster.uptime_s < _AGENT_RETRY_S:
            what = f"no report since senergyctld started {cluster.uptime_s:.0f} s ago"
            cost = "agents retry at most every 4 minutes; until then their state is unknown"
            fix = "senergy doctor --cluster --wait=240"
            return NodeResult(CheckState.DEGRADED, what, cost, fix)
        cost = "no policy is applied and no job is measured on these nodes"
        fix = "on the node: systemctl status senergyd; senergy doctor"
        return NodeResult(CheckState.FAILED, f"no report; {node.slurm_state} in Slurm", cost, fix)
    if node.cluster:
        cost = "records are stored for another cluster"
        fix = "set cluster.name to ClusterName of slurm.conf on the node"
        return NodeResult(CheckState.FAILED, f"reports for the cluster '{node.cluster}'", cost, fix)
    own: Any = node.facts.get("live_report_s")
    own_s = float(own) if is_number(own) and own > 0 else _REPORT_INTERVAL_S
    interval_s = max(cluster.report_interval_s, own_s)
    if node.age_s > 2 * interval_s + _LATE_S:
        cost = "the agent, the node or the network may be down; records wait on the node"
        fix = "on the node: systemctl status senergyd; senergy doctor"
        what = f"the last report is {{}} s old; they come every {interval_s:.3g} s"
        return NodeResult(CheckState.DEGRADED, what, cost, fix, value=node.age_s)
    return NodeResult(CheckState.OK, "reports, the last one {} s ago", value=node.age_s)


def _controller_response(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not node.counts:
        return None
    failed = node.counts.get("failed_reports", 0)
    if failed:
        cost = "records wait on the node: without a valid response of the controller it removes none"
        fix = "on the node: senergy doctor (munge key, cluster.controller_users, network)"
        return NodeResult(CheckState.DEGRADED, "{} reports without a valid response", cost, fix, value=failed)
    return NodeResult(CheckState.OK, "credentials are accepted in both directions")


def _clock(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    offset_s = node.clock_offset_s
    if offset_s is None:
        return None
    if abs(offset_s) <= CLOCK_TOLERANCE_S:
        return NodeResult(CheckState.OK, "{} s from the controller's", value=offset_s)
    direction = "ahead of" if offset_s > 0 else "behind"
    cost = "times of records and power traces are off by that; energy itself is not"
    fix = "on the node: chronyc makestep   (or: timedatectl set-ntp true)"
    return NodeResult(
        CheckState.DEGRADED, f"{{}} s {direction} the controller's", cost, fix, value=abs(offset_s)
    )


def _version(cluster: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    version = node.facts.get("version")
    if not version:
        return None
    schema = node.facts.get("schema")
    if isinstance(schema, int) and schema > cluster.schema > 0:
        what = f"{version}, whose records are newer than the controller's {cluster.version} can read"
        cost = "records wait on the node until the controller is upgraded"
        return NodeResult(CheckState.DEGRADED, what, cost, "upgrade senergyctld")
    if version == cluster.version:
        return NodeResult(CheckState.OK, str(version))
    what = f"{version}, the controller has {cluster.version}"
    cost = "the older of the two does not know all keys of the newer"
    return NodeResult(CheckState.DEGRADED, what, cost, "install the same version on all hosts")


def _slurm(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    installed = node.facts.get("slurm")
    if not node.slurmd:
        return NodeResult(CheckState.OK, f"{installed} installed") if installed else None
    if installed and not _same_release(str(installed), node.slurmd):
        what = f"slurmd runs {node.slurmd}, installed is {installed}"
        cost = "new job steps load plugins and libraries of the other release"
        return NodeResult(CheckState.DEGRADED, what, cost, "systemctl restart slurmd")
    return NodeResult(CheckState.OK, node.slurmd)


def _hooks(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not node.facts.get("slurm_conf"):
        return None
    plugin, prolog = _plugin(node, "hooks_plugin"), node.facts.get("prolog")
    cost = "jobs are not announced: no policy is applied and no job is measured"
    if plugin is None and not prolog:
        what = "neither energy_hooks.so in plugstack.conf nor a Prolog of slurm-energy"
        return NodeResult(CheckState.DEGRADED, what, cost, "on the node: senergy setup node")
    if plugin is not None and (fault := _plugin_fault(node, plugin)):
        return NodeResult(CheckState.FAILED, f"energy_hooks.so {fault}", cost, _BUILD)
    name = "energy_hooks.so" if plugin is not None else f"Prolog {prolog}"
    unannounced = not node.counts.get("announced_jobs") and not node.counts.get("running_jobs")
    if node.is_busy and unannounced and node.counts.get("uptime_s", 0) > ANNOUNCEMENT_TOLERANCE_S:
        what = f"{name}, but no job was announced since senergyd started, and Slurm runs jobs"
        fix = "systemctl restart slurmd   (it looks for plugins with a prolog when it starts)"
        return NodeResult(CheckState.DEGRADED, what, cost, fix)
    return NodeResult(CheckState.OK, name)


def _announced(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not node.counts:
        return None
    if jobs := node.counts.get("announced_jobs"):
        return NodeResult(CheckState.OK, "{} since senergyd started", value=jobs)
    return NodeResult(CheckState.OK, "none since senergyd started")


def _flags(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not node.facts.get("slurm_conf"):
        return None
    plugin = _plugin(node, "flags_plugin")
    cost = "srun on these nodes has no --energy-* flags; records have no steps"
    if plugin is None:
        what = "no energy.so in plugstack.conf"
        return NodeResult(CheckState.DEGRADED, what, cost, "on the node: senergy setup node")
    if fault := _plugin_fault(node, plugin):
        return NodeResult(CheckState.FAILED, f"energy.so {fault}", cost, _BUILD)
    return NodeResult(CheckState.OK, f"energy.so, for Slurm {_series(str(plugin.get('release')))}")


def _sources(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    sources = node.facts.get("sources")
    if not isinstance(sources, Mapping):
        return None
    listed = ", ".join(f"{kind} {source}" for kind, source in sorted(sources.items()))
    missing = [kind for kind in ("cpu", *["gpu"] * bool(node.facts.get("gpus"))) if kind not in sources]
    if missing and "node" not in sources:
        what = f"no energy counter for {' and '.join(missing)}" + (f"; {listed}" if listed else "")
        cost = "this energy is unknown (null) in every record"
        return NodeResult(CheckState.DEGRADED, what, cost, "on the node: senergy doctor")
    return NodeResult(CheckState.OK, listed)


def _settings(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    settings = node.facts.get("settings")
    if not isinstance(settings, Mapping):
        return None
    if not settings:
        cost = "every policy acts as `monitor`: jobs are measured, nothing can be set"
        return NodeResult(CheckState.ABSENT, "nothing can be set", cost)
    names: dict[str, list[str]] = {}
    for name in sorted(settings):
        interface, _, setting = name.partition(".")
        names.setdefault(interface, []).append(setting)
    listed = (f"{interface} ({', '.join(own)})" for interface, own in names.items())
    return NodeResult(CheckState.OK, ", ".join(listed))


def _restored(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not (left := node.counts.get("unrestored")):
        return None
    cost = "jobs start with settings left by an earlier job"
    return NodeResult(
        CheckState.DEGRADED, "{} not restored", cost, "on the node: senergyd --restore", value=left
    )


def _configuration(cluster: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    config = node.facts.get("config")
    if not isinstance(config, Mapping) or node.facts.get("version") != cluster.version:
        return None  # another release may have other keys and defaults
    names = config.keys() | cluster.config.keys()
    different = sorted(name for name in names if config.get(name) != cluster.config.get(name))
    if not different:
        return NodeResult(CheckState.OK, "as on the controller")
    what = f"differs from the controller's: {', '.join(different)}"
    cost = "flags are checked by other rules than senergyd applies"
    return NodeResult(CheckState.DEGRADED, what, cost, "distribute energy.toml; systemctl reload senergyd")


def _undelivered(_: ClusterFindings, node: NodeFindings) -> NodeResult | None:
    if not node.counts:
        return None
    if rejected := node.counts.get("rejected"):
        fix = "on the node: senergy spool   (lists the reasons); then: senergy spool resend"
        cost = "these are in no report"
        return NodeResult(
            CheckState.DEGRADED, "{} records rejected by the controller", cost, fix, value=rejected
        )
    if deferred := node.counts.get("deferred"):
        cost = "they stay on the node until the controller accepts them"
        what = "{} records of a newer release, or ahead of the controller's clock"
        return NodeResult(CheckState.DEGRADED, what, cost, "upgrade senergyctld", value=deferred)
    if node.counts.get("oldest_waiting_s", 0) > WAITING_TOLERANCE_S:
        cost = "records of ended jobs are missing from reports until they are delivered"
        what, fix = "{} records wait for more than 15 minutes", "on the node: senergy doctor"
        return NodeResult(CheckState.DEGRADED, what, cost, fix, value=node.counts.get("spooled", 0))
    return NodeResult(CheckState.OK, "none for more than 15 minutes")


NODE_CHECKS: Final[Mapping[str, NodeCheckFunction]] = {
    "agent": _agent,
    "munge": _controller_response,
    "clock": _clock,
    "version": _version,
    "slurmd": _slurm,
    "hooks": _hooks,
    "announced jobs": _announced,
    "SPANK plugin": _flags,
    "sources": _sources,
    "settings": _settings,
    "settings left": _restored,
    "configuration": _configuration,
    "undelivered": _undelivered,
}
"""The checks of a node by name, in the order of the report."""

_BUILD: Final = "build it for this Slurm: make build install-hooks, or install slurm-energy-plugins"


def _plugin(node: NodeFindings, key: str) -> Mapping[str, Any] | None:
    plugin = node.facts.get(key)
    return plugin if isinstance(plugin, Mapping) else None


def _plugin_fault(node: NodeFindings, plugin: Mapping[str, Any]) -> str:
    """Return why Slurm does not load a plugin; an empty value means that no reason is known."""
    release, installed = plugin.get("release"), node.facts.get("slurm")
    if not release:
        return f"is missing or unreadable: {plugin.get('path')}"
    if installed and _series(str(release)) != _series(str(installed)):
        return f"was built for Slurm {_series(str(release))}, installed is {_series(str(installed))}"
    return ""


def _series(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _same_release(one: str, other: str) -> bool:
    """Return whether two release numbers are equal.

    Suffixes are ignored, because Slurm prints some releases with a suffix, such as `24.05.0-rc1`.
    """
    return one.split("-")[0].split(".")[:3] == other.split("-")[0].split(".")[:3]
