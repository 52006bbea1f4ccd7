"""Text output of `senergy policies` and `senergy status`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import plain, with_unit
from slurm_energy.reports.grid_table import series_lines
from slurm_energy.reports.power_saving_text import power_saving_lines
from slurm_energy.reports.queue.deferral_text import deferral_status

_SITE_SETTINGS = (
    ("cap_watts", "cap {} W"),
    ("gpu_cap_watts", "GPU cap {} W"),
    ("max_frequency_mhz", "at most {} MHz"),
    ("governor", "governor {}"),
    ("epp", "energy preference {}"),
)
_FLAGS = (
    ("cap_watts", "--energy-cap", "W per node"),
    ("gpu_cap_watts", "--energy-gpu-cap", "W per GPU"),
    ("slowdown_percent", "--energy-slowdown", "%"),
    ("cpu_freq_mhz", "--energy-cpu-freq", "MHz"),
    ("gpu_clock_mhz", "--energy-gpu-clock", "MHz"),
)
WIDTH = 100


def policies_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a table of the energy policies, the limits of the job flags, and the defaults, as lines.

    Args:
        answer: response to `GET /v1/policies`.
    """
    policies = answer.get("policies", [])
    rows = [("POLICY", "USERS", "SETTINGS")]
    rows += [(p["name"], ",".join(p.get("users") or ()) or "everyone", policy_text(p)) for p in policies]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    second = min(second, 24)
    lines = []
    for name, users_text, settings_text in rows:
        indent = " " * (first + second + 4)
        cell = users_text if len(users_text) <= second else users_text[: second - 1] + "+"
        lines += textwrap.wrap(
            settings_text,
            WIDTH,
            initial_indent=f"{name:<{first}}  {cell:<{second}}  ",
            subsequent_indent=indent,
        )
    lines += ["", "BOUNDS"]
    for key, flag, unit in _FLAGS:
        low, high = answer.get("bounds", {}).get(key, (None, None))
        if low is not None:
            lines.append(f"{flag:<18} {plain(low)} to {plain(high)} {unit}")
    if tuning := answer.get("tuning"):
        lines += ["", "TUNING of policies with an objective", *_tuning_lines(tuning)]
    return [*lines, "", "DEFAULTS without --energy-policy", *_default_lines(answer.get("defaults", {}))]


def policy_text(policy: Mapping[str, Any]) -> str:
    """Return the description of an energy policy with the values that the site configured."""
    settings = policy.get("settings") or {}
    values = [
        text.format(plain(value) if isinstance(value, (int, float)) else value)
        for key, text in _SITE_SETTINGS
        if (value := settings.get(key)) is not None
    ]
    description = policy.get("description", "")
    if policy.get("base") not in (None, policy.get("name")) and policy["base"] not in description:
        values.insert(0, f"from {policy['base']}")
    return f"{description} ({', '.join(values)})" if values else description


def _tuning_lines(tuning: Mapping[str, Any]) -> list[str]:
    lines = [f"partition {name}: {mode}" for name, mode in tuning.get("partition", {}).items()]
    lines.append(f"{'all others' if lines else 'everywhere'}: {tuning.get('mode', 'unknown')}")
    limit = tuning.get("slowdown_limit_percent")
    if limit is not None:
        lines.append(f"slowdown of energy without --energy-slowdown: {plain(limit)} %")
    return lines


def _default_lines(defaults: Mapping[str, Any]) -> list[str]:
    lines = [f"user {name}: {policy}" for name, policy in defaults.get("user", {}).items()]
    lines += [f"partition {name}: {policy}" for name, policy in defaults.get("partition", {}).items()]
    return [*lines, f"{'all others' if lines else 'everyone'}: {defaults.get('policy', 'unknown')}"]


def controller_lines(url: str, answer: Mapping[str, Any] | str, now: float) -> list[str]:
    """Return the lines about the controller on the status page.

    Args:
        url: address of the controller.
        answer: response to `GET /v1/status`, or the reason why there is no response.
        now: Unix seconds.
    """
    if isinstance(answer, str):
        return [f"controller  not reachable: {answer}"]
    up = answer.get("uptime_s")
    head = f"controller  {url}, version {answer.get('version', '?')}, cluster {answer.get('cluster', '?')}"
    lines = [head + (f", up {format_duration(up)}" if up is not None else "")]
    lines += ["  role      " + line for line in controller_roles(answer.get("lease") or {})]
    size = answer.get("database_bytes")
    megabytes = f", {with_unit(size, 'B')}" if size is not None else ""
    lines.append(f"  database  {answer.get('database', '?')}{megabytes}")
    lines.append(f"  records   {answer.get('records', '?')}, power traces {answer.get('traces', '?')}")
    lines.append(
        "  slurm     " + _slurm_text(answer.get("enrichment") or {}, now, answer.get("records_without_job"))
    )
    if answer.get("priority"):
        lines.append("  queue     " + _queue_text(answer["priority"], now))
    if (answer.get("budget") or {}).get("mode", "off") != "off":
        lines.append("  budgets   " + _budget_text(answer["budget"], now))
    lines += deferral_status(answer.get("deferral") or {})
    if (answer.get("power_saving") or {}).get("mode", "off") != "off":
        lines += ["  on/off    " + line for line in power_saving_lines(answer["power_saving"], now)]
    lines += ["  grid      " + line for line in series_lines(answer.get("grid") or [], now)]
    quotas = answer.get("quotas") or {}
    if quotas.get("quotas"):
        over = quotas.get("over") or []
        held = f", {quotas['held_jobs']} jobs held" if quotas.get("held_jobs") else ""
        lines.append(
            f"  quotas    {quotas['quotas']}, {quotas.get('over_level', len(over))} over a level{held}"
        )
        lines += [f"    {sentence}" for sentence in over]
    nodes = answer.get("nodes", [])
    lines.append(
        f"  nodes     {len(nodes)} {'has' if len(nodes) == 1 else 'have'} delivered records"
        if nodes
        else "  nodes     no node has delivered a record yet"
    )
    lines += [f"    {_node_text(node, now)}" for node in nodes]
    return lines


def controller_roles(lease: Mapping[str, Any]) -> list[str]:
    """Return one line about each controller of a cluster with several controllers.

    Args:
        lease: entry `lease` of the response to `GET /v1/status`; empty if the cluster has one controller.
    """
    lines = []
    for one in lease.get("controllers") or []:
        text = f"{one['name']} is {one['role'] if one['present'] else 'absent'}, version {one['version']}"
        if one["role"] == "active":
            text += f", token {lease['token']}, lease for {max(0.0, lease['expires_s']):.0f} s"
        elif not one["present"]:
            text += f", last seen {format_duration(one['seen_s'])} ago"
        elif not one["ready"]:
            text += ", cannot take over: its release does not know the schema of the database"
        if one["beside_slurmctld"]:
            text += ", beside the active slurmctld"
        lines.append(text)
    return lines


def _queue_text(state: Mapping[str, Any], now: float) -> str:
    """Return one line about the last ranking of the queue. `now` is in Unix seconds."""
    if state.get("mode") == "off":
        return "not ordered by senergyctld (priority.mode is off)"
    parts = [f"{state.get('policy')}, {state.get('mode')}"]
    if state.get("computed") is None:
        parts.append("not ranked yet")
    else:
        duration_text = f" in {state['cycle_s']:.2f} s" if state.get("cycle_s") is not None else ""
        ranked = f"{state.get('ranked')} of {state.get('pending')} pending jobs ranked"
        parts.append(f"{ranked} {_ago(now - state['computed'])}{duration_text}")
    compared = state.get("rank_correlation") or {}
    if compared.get("kendall_tau") is not None:
        parts.append(
            f"{compared['moved_jobs']} of {compared['jobs']} would move, tau {compared['kendall_tau']:.2f}"
        )
    if state.get("error"):
        parts.append(f"failed: {state['error']}")
    return ", ".join(parts)


def _budget_text(state: Mapping[str, Any], now: float) -> str:
    """Return one line about the power budgets. `now` is in Unix seconds."""
    parts = [f"{state.get('budgets')}, {state.get('mode')}"]
    if state.get("decided") is None:
        parts.append("no decision yet")
    else:
        duration_text = f" in {state['cycle_s']:.2f} s" if state.get("cycle_s") is not None else ""
        parts.append(f"decided {_ago(now - state['decided'])}{duration_text}")
    if state.get("over"):
        parts.append(f"ABOVE THE LIMIT: {', '.join(map(str, state['over']))}")
    for key, text in (("silent_nodes", "silent"), ("distrusted_nodes", "distrusted")):
        if state.get(key):
            parts.append(f"{state[key]} nodes {text}")
    problems = [*state.get("problems", ()), *filter(None, [state.get("error")])]
    return ", ".join(parts + [f"failed: {problem}" for problem in problems[:2]])


def _slurm_text(state: Mapping[str, Any], now: float, waiting: int | None) -> str:
    parts = [f"release {state['slurm_release']}"] if state.get("slurm_release") else []
    if state.get("last_error"):
        parts.append(f"last query failed: {state['last_error']}")
    elif state.get("last_answer") is not None:
        parts.append(f"last response {_ago(now - state['last_answer'])}")
    else:
        parts.append("not queried yet")
    if waiting:
        parts.append(f"{waiting} records without name, account and state so far")
    return ", ".join(parts)


def _node_text(node: Mapping[str, Any], now: float) -> str:
    text = f"{node.get('node', '?'):<14} last record {_ago(now - node.get('last_received', now))}"
    text += f", {node['spooled']} spooled on the node" if node.get("spooled") else ""
    return text + (
        f", {node['rejected']} REJECTED: see `senergy spool` there" if node.get("rejected") else ""
    )


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{format_duration(seconds)} ago"


def agent_lines(socket: str, answer: Mapping[str, Any] | str) -> list[str]:
    """Return the lines about this node's agent on the status page.

    Args:
        socket: path of senergyd's socket.
        answer: response to `status`, or the reason why there is no response.
    """
    if isinstance(answer, str):
        return [f"agent       none on this node ({socket}): {answer}"]
    jobs = answer.get("jobs") or []
    hertz = answer.get("sampling_hz")
    lines = [
        f"agent       {answer.get('node', '?')}, version {answer.get('version', '?')}"
        + (f", {plain(hertz)} sample{'' if hertz == 1 else 's'} per second" if hertz is not None else ""),
        f"  jobs      {', '.join(map(_job_text, jobs)) if jobs else 'none'}",
        f"  spooled   {_spooled_text(answer)}",
    ]
    if (signals := answer.get("signals") or {}).get("jobs"):
        lines.append(f"  signals   {_signals_text(signals)}")
    if answer.get("rejected"):
        size = f", {with_unit(answer['rejected_bytes'], 'B')}" if answer.get("rejected_bytes") else ""
        lines.append(f"  REJECTED  {answer['rejected']} records{size}: see `senergy spool`")
    if answer.get("unrestored"):
        lines.append(f"  MODIFIED  {', '.join(answer['unrestored'])}: not restored, see senergyd's log")
    return [*lines, *_device_lines(answer.get("devices"))]


def _spooled_text(answer: Mapping[str, Any]) -> str:
    text = f"{answer.get('spooled', '?')} records wait for the controller"
    return text + (
        f", {answer['deferred']} of them for a newer release of it" if answer.get("deferred") else ""
    )


def _signals_text(signals: Mapping[str, Any]) -> str:
    """Return how many jobs have their signals sampled, how often, and at which CPU cost."""
    jobs, interval_s = signals["jobs"], signals.get("interval_s")
    text = f"{jobs} job{'' if jobs == 1 else 's'}"
    if interval_s is not None:
        text += f", every {plain(interval_s)} s"
    cost = signals.get("cpu_percent")
    return text if cost is None else f"{text}, {cost:.2f} % of a core"


def _job_text(job: Any) -> str:
    if isinstance(job, Mapping):
        return (
            f"{job.get('job_id', '?')} ({job['policy']})"
            if job.get("policy")
            else str(job.get("job_id", "?"))
        )
    return str(job)


def _device_lines(devices: Any) -> list[str]:
    if isinstance(devices, Mapping):
        return [f"  {name:<9} {_device_text(value)}" for name, value in devices.items()]
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        return [f"  device    {_device_text(device)}" for device in devices]
    return []


def _device_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_device_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_device_text(item) for item in value) or "none"
    return "none" if value in (None, "") else str(value)
