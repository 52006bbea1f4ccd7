"""Facts and counts about this node and its agent that the agent sends with the live reports.

`protocol.node_states` defines the format.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.state.spool import Spool
from slurm_energy.config import Config
from slurm_energy.config.section_digests import section_digests
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.protocol.node_states import FACTS_INTERVAL_S, facts_text
from slurm_energy.records import SCHEMA_VERSION
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.plugin_files import PluginFile, SlurmFiles, find_slurm_files

_NUMBER: Final = re.compile(r"\[\d+\]$")
_MAX_TEXT: Final = 120
_READ_TIMEOUT_S: Final = 2.0
"""Files may be on a network file system that hangs."""

log = logging.getLogger(__name__)


class AgentFacts:
    """State of this node, which the agent sends to senergyctld together with its live reports.

    The state has two parts. Facts change rarely, such as releases, plugins and configuration. Counts are
    a few numbers that every report contains (`protocol.node_states`).

    Args:
        jobs: the job manager.
        devices: the node's hardware.
    """

    def __init__(self, jobs: JobManager, devices: NodeDevices) -> None:
        self._jobs = jobs
        self._started_s = time.monotonic()
        counters = (*devices.counters, *devices.node_counters)
        self._sources = _sources({counter.component: counter.source for counter in counters})
        self._settings = dict(collections.Counter(knob.name for knob in devices.knobs.values()))
        self._has_gpu = bool(devices.hardware.gpus)
        self._sent = ""
        self._sent_s = -FACTS_INTERVAL_S
        self._read: str = ""
        self._read_s = -FACTS_INTERVAL_S
        self._reading: asyncio.Task[str] | None = None

    def counts(self) -> dict[str, float]:
        """Return the numbers that the agent's next live report contains about the agent itself.

        Examples are the number of running jobs and the number of stored records that wait for delivery.
        Numbers that are 0 are left out. Call this method in the worker thread.
        """
        spool, periods = self._jobs.spool.state(), self._jobs.period_spool.state()
        numbers = {
            "uptime_s": round(time.monotonic() - self._started_s),
            "announced_jobs": self._jobs.queries.announced_jobs,
            "running_jobs": self._jobs.queries.running_jobs,
            "unrestored": self._jobs.queries.unrestored,
            "oldest_waiting_s": _oldest_waiting_s((self._jobs.spool, self._jobs.period_spool)),
        }
        numbers |= {name: spool[name] + periods[name] for name in ("spooled", "deferred", "rejected")}
        return {name: number for name, number in numbers.items() if number}

    async def facts(self, config: Config, *, requested: bool) -> str | None:
        """Return the facts about this node as canonical JSON for the next report to senergyctld.

        The result is None if the next report need not contain the facts. A separate thread reads the files
        that contain the facts, at most once in `FACTS_INTERVAL_S` seconds.

        Args:
            config: the current configuration.
            requested: whether senergyctld has requested the facts.
        """
        now_s = time.monotonic()
        if not self._read or now_s - self._read_s >= FACTS_INTERVAL_S:
            await self._read_again(config)
        if not self._read:
            return None
        due = now_s - self._sent_s >= FACTS_INTERVAL_S
        return self._read if requested or due or self._read != self._sent else None

    async def _read_again(self, config: Config) -> None:
        """Collect the facts. If a file cannot be read in time, reports continue without the facts."""
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._collect, config))
        done, _ = await asyncio.wait({self._reading}, timeout=_READ_TIMEOUT_S)
        if done:
            reading, self._reading = self._reading, None
            self._read_s = time.monotonic()
            self._read = reading.result()

    def mark_sent(self, facts: str) -> None:
        """Record that senergyctld has received the facts."""
        self._sent, self._sent_s = facts, time.monotonic()

    def refresh(self) -> None:
        """Collect the facts again with the next report, for example after a reload of the configuration."""
        self._read = ""

    def _collect(self, config: Config) -> str:
        try:
            files = find_slurm_files(conf_files.locate_slurm_conf())
        except (OSError, ValueError) as error:
            log.info("files of Slurm: %s", error)
            files = SlurmFiles()
        facts: dict[str, Any] = {
            "version": __version__,
            "schema": SCHEMA_VERSION,
            "slurm": str(files.release) if files.release else None,
            "slurm_conf": files.conf is not None,
            "flags_plugin": _described(files.flags),
            "hooks_plugin": _described(files.hooks),
            "prolog": files.prolog[:_MAX_TEXT] or None,
            "sources": self._sources,
            "gpus": self._has_gpu,
            "settings": self._settings,
            "config": section_digests(config),
            "live_report_s": config.agent.live_report_s,
        }
        return facts_text(facts)


def _sources(by_component: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the measurement sources for each kind of component.

    The sources of all GPUs are listed under `gpu`.
    """
    sources: dict[str, dict[str, None]] = {}
    for component, source in by_component.items():
        sources.setdefault(_NUMBER.sub("", component), {})[source] = None
    return {kind: ", ".join(names)[:_MAX_TEXT] for kind, names in sources.items()}


def _described(plugin: PluginFile | None) -> dict[str, str | None] | None:
    if plugin is None:
        return None
    release = str(plugin.release) if plugin.release else None
    return {"path": str(plugin.path)[:_MAX_TEXT], "release": release}


def _oldest_waiting_s(spools: Iterable[Spool]) -> int:
    """Return the seconds since the end of the oldest undelivered record; 0 if every record is delivered."""
    ends = [end for spool in spools if (end := spool.oldest_end) is not None]
    return max(0, round(time.time() - min(ends))) if ends else 0
