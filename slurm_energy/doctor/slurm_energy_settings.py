"""Inspection and checks of the settings that bring measured energy into Slurm's own accounting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from slurm_energy.doctor.findings import SlurmEnergyFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState
from slurm_energy.slurm import conf_files
from slurm_energy.slurm.energy_include import INCLUDE_NAME, stale_reason
from slurm_energy.slurm.energy_plugin import PLUGIN_TYPE

_CONTAINING_FLAGS: Final = frozenset(("contain", "x11"))
_DOCUMENT: Final = "docs/slurm-energy-plugin.md"


def energy_settings(conf: Path, settings: Mapping[str, list[str]]) -> SlurmEnergyFindings:
    """Return the settings of slurm.conf that concern energy.

    Args:
        conf: path of slurm.conf.
        settings: result of `conf_files.read_settings`.
    """
    plugins = _last(settings, "acctgatherenergytype")
    include = conf.with_name(INCLUDE_NAME)
    try:
        in_include = PLUGIN_TYPE in _last(conf_files.read_settings(include), "acctgatherenergytype")
    except OSError:
        in_include = False
    flags = conf_files.items(settings, "prologflags")
    gather = _last(settings, "jobacctgathertype").lower()
    frequency = _last(settings, "acctgathernodefreq")
    return SlurmEnergyFindings(
        plugins=plugins,
        ours=PLUGIN_TYPE in plugins.split(","),
        stale=stale_reason(include),
        from_include=in_include,
        contain=not _CONTAINING_FLAGS.isdisjoint(flags),
        gathers=gather not in ("", "jobacct_gather/none"),
        node_interval_s=int(frequency) if frequency.isdecimal() else 0,
    )


def energy_checks(energy: SlurmEnergyFindings) -> Iterator[CheckResult]:
    """Check the settings of Slurm that bring energy into Slurm's accounting, and yield the results.

    Another function checks the file of the energy plugin.
    """
    name = "Slurm energy"
    if not energy.ours:
        what = f"AcctGatherEnergyType={energy.plugins or '(none)'}"
        cost = "sacct, sstat, sreport and scontrol show no energy of ours"
        if energy.stale:
            todo = "run on the host that is named, or on this host if none is: senergy build-plugins --enable"
            yield CheckResult(name, CheckState.DEGRADED, energy.stale, cost, todo)
        else:
            yield CheckResult(name, CheckState.ABSENT, what, cost, _DOCUMENT)
        return
    if "," in energy.plugins:
        cost = "Slurm adds the values of all energy plugins, so energy counts twice"
        yield CheckResult(
            name, CheckState.DEGRADED, energy.plugins, cost, f"AcctGatherEnergyType={PLUGIN_TYPE}"
        )
    elif not energy.from_include:
        cost = "after an upgrade of Slurm its daemons do not start until the plugin is built again"
        todo = f"name it in {INCLUDE_NAME}: senergy build-plugins --enable"
        yield CheckResult(name, CheckState.DEGRADED, "slurm.conf itself names the plugin", cost, todo)
    else:
        yield CheckResult(name, CheckState.OK, PLUGIN_TYPE)
    if not energy.contain:
        cost = "batch jobs without srun have no energy in sacct and sreport, and others lack the batch step's"
        todo = "PrologFlags=Alloc,Contain"
        yield CheckResult("energy of jobs", CheckState.DEGRADED, "PrologFlags without Contain", cost, todo)
    if not energy.gathers:
        cost = "no step has energy"
        todo = "JobAcctGatherType=jobacct_gather/cgroup"
        yield CheckResult("energy of steps", CheckState.DEGRADED, "JobAcctGatherType not set", cost, todo)
    if not energy.node_interval_s:
        cost = "scontrol show node shows the watts of slurmd's start"
        what = "AcctGatherNodeFreq not set"
        yield CheckResult("watts of nodes", CheckState.DEGRADED, what, cost, "AcctGatherNodeFreq=60")


def _last(settings: Mapping[str, list[str]], key: str) -> str:
    return "".join(settings.get(key, [])[-1:]).replace(" ", "")
