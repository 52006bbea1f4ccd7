"""Subcommands of `senergy`, from this package and from other installed packages.

A subcommand is a module with `HELP` (one line), `EPILOG`, `configure(parser)` and `run(args) -> int`. Another
package adds a subcommand through an entry point of the group `slurm_energy.subcommands`. The entry point
names the module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import UnavailableError, install_extra

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "slurm_energy.subcommands"

BUILT_IN = {
    "acct": "energy of jobs and steps, with the options of sacct",
    "job": "energy label of a job, or a comparison of several jobs",
    "diagnose": "where a job lost time and energy, with evidence",
    "timeline": "events, power, signals and findings of a job over time, for Perfetto or as a page",
    "label": "energy label of a job for papers and model cards, as text, JSON or SVG",
    "report": "energy, emissions and cost by account, user, policy and time, modelled on sreport",
    "experiment": "throughput, completion times, energy and EDP of the jobs of a time window",
    "prio": "order of the queue: place, score and prediction of each job, modelled on sprio",
    "share": "shares and used energy of accounts and users, modelled on sshare",
    "budget": "power budgets: limits, power under them, changes, history, and why a job is limited",
    "grid": "carbon intensity and price of electricity, by which energy becomes emissions and cost",
    "quota": "allowances of energy, cost or carbon by account, their use, and changes",
    "policies": "energy policies, their users, and the bounds of their values",
    "status": "state of the controller and of the agent on this node",
    "spool": "records and periods of this node that wait for the controller or were rejected by it",
    "top": "live power of this node, its jobs and components, or of the cluster",
    "doctor": "devices and daemons of this host or of all nodes, the cost of each fault, and its remedy",
    "tune": "learned response of programs to settings, and operating points fixed by hand",
    "predict": "time, power and energy of a job before it runs",
    "where": "choose the cluster for a job by energy, price, carbon, data transfer and queue",
    "calibrate": "fit the training model of one kind of GPU to measured training steps",
    "sweep": "run a job at several settings and find the best by energy, EDP and EDS",
    "profile": "energy of a command, or of the sections of a program",
    "progress": "report units of work that a script has completed",
    "simulate": "simulate scheduling policies on a workload",
    "workload": "jobs of a workload file: period, sizes, run times, load on a cluster, rejected rows",
    "study": "an energy study of the cluster in six steps, from an objective to a validated saving",
    "setup": "configure slurm-energy and Slurm on this host, or undo that",
    "build-plugins": "build the plugins for the Slurm installed on this host",
    "db": "check, back up, restore, upgrade, prune and export the database of senergyctld",
    "config": "check, show or write an example of the configuration",
    "template": "batch scripts and site files from templates",
}
"""Name and help of each subcommand of this package. Its module is imported only when it runs."""

EXTRAS = {"lab": "lab"}
"""Subcommand to the extra of this distribution that installs it."""


def listing() -> dict[str, str]:
    """Return the help line of each installed subcommand by name. Subcommands of this package come first."""
    return BUILT_IN | {name: _help_of(entry) for name, entry in _entry_points().items()}


def module_of(name: str) -> Any:
    """Import and return the module of a subcommand; None if there is no such subcommand.

    Raises:
        UnavailableError: the subcommand needs an extra, or another package, and the import failed.
    """
    if name in BUILT_IN:
        return importlib.import_module(f"slurm_energy.cli.{name.replace('-', '_')}")
    entry = _entry_points().get(name)
    if entry is not None:
        return _load(entry)
    if name in EXTRAS:
        raise UnavailableError(f"senergy {name}", "not installed", install_extra(EXTRAS[name]))
    return None


def _entry_points() -> dict[str, EntryPoint]:
    """Return the subcommands that other installed packages add, by name.

    A subcommand of slurm-energy itself cannot be replaced.
    """
    from importlib.metadata import entry_points  # slow to import, and most commands do not need it

    return {
        entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in BUILT_IN
    }


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        todo = install_extra(EXTRAS[entry.name]) if entry.name in EXTRAS else ""
        raise UnavailableError(
            f"senergy {entry.name}", f"cannot import {entry.value}: {error}", todo
        ) from None


def _help_of(entry: EntryPoint) -> str:
    try:
        return str(_load(entry).HELP)
    except UnavailableError as error:
        return error.why
