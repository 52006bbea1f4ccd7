"""`senergy build-plugins`: build and enable the plugins that must fit the installed Slurm exactly."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output import emit, emit_json, print_error
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EnergyError, UnavailableError

if TYPE_CHECKING:
    from slurm_energy.slurm.energy_include import PluginState
    from slurm_energy.slurm.installation import Installation

HELP = "build the plugins for the Slurm installed on this host"

EPILOG = """\
acct_gather_energy/senergy reports measured energy to sacct, sstat and scontrol. It needs Slurm's public
headers. site_factor/energy passes the order of the queue that senergyctld computed to slurmctld. It needs the
source of Slurm, which is configured, not compiled; without --slurm-source it is fetched from the Debian
archive configured in /etc/apt. Slurm loads each plugin only if it was built for exactly the same release, so
build both again after every update of Slurm. If one cannot be built, the other one is built all the same.
Without --slurm-prefix the plugins are built for the Slurm whose scontrol or srun is on PATH.

--enable builds the energy plugin, installs it beside Slurm's plugins and names it in slurm-energy.conf, a
file beside slurm.conf that slurm.conf includes. --check empties this file if the installed plugin does not
fit the installed Slurm, so that Slurm's daemons start without it: run it before each start of slurmctld and
slurmd. Installation: docs/slurm-energy-plugin.md, docs/priority-plugin.md.

exit codes: 0 ok; 1 failure, or --check found that the plugin does not fit; 2 usage; 4 something is missing;
5 forbidden

examples:
  senergy build-plugins
  senergy build-plugins --only energy --output /usr/local/lib/slurm-energy
  senergy build-plugins --slurm-prefix /opt/slurm --slurm-source /usr/src/slurm-24.11.5
  senergy build-plugins --enable
  senergy build-plugins --check
  senergy build-plugins --json
"""
_BOTH = ("energy", "site-factor")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy build-plugins`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--slurm-prefix", type=Path, metavar="DIR", help="prefix of Slurm (default: that of scontrol on PATH)"
    )
    parser.add_argument(
        "--slurm-source", type=Path, metavar="DIR", help="source tree of Slurm (default: fetch it)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="directory for the plugins (default: plugins/)"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="directory for fetched sources (default: build/)",
    )
    parser.add_argument("--only", choices=_BOTH, help="build one plugin only")
    parser.add_argument(
        "--conf", type=Path, metavar="FILE", help="slurm.conf (default: $SLURM_CONF, else Slurm's own place)"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--enable",
        action="store_true",
        help="build and install the energy plugin, and name it for slurm.conf",
    )
    action.add_argument(
        "--disable", action="store_true", help="no longer name the energy plugin for slurm.conf"
    )
    action.add_argument(
        "--check", action="store_true", help="no longer name the energy plugin if it does not fit Slurm"
    )
    parser.add_argument("--json", action="store_true", help="print paths, release and state as JSON")


def run(args: argparse.Namespace) -> int:
    """Build the plugins, or enable, disable or check the energy plugin."""
    from slurm_energy.slurm import installation

    slurm = installation.find(args.slurm_prefix)
    if args.enable:
        return _enable(args, slurm)
    if args.disable or args.check:
        return _disable_or_check(args, slurm)
    print_progress(f"Slurm {slurm.release()} in {slurm.prefix}: {slurm.daemon}")
    return _build(args, slurm)


def print_progress(text: str) -> None:
    """Print a line about the progress of the build on standard error."""
    print(text, file=sys.stderr, flush=True)


def _build(args: argparse.Namespace, slurm: Installation) -> int:
    """Build the requested plugins and return the exit code: that of the first plugin that failed."""
    built: dict[str, Path] = {}
    failures: list[EnergyError] = []
    for name in _BOTH if args.only is None else (args.only,):
        try:
            built[name] = _build_one(name, args, slurm)
        except EnergyError as error:
            failures.append(error)
            print_error(error)
    directory = _plugin_directory(slurm)
    if args.json:
        emit_json(
            {
                "plugins": {name: str(path) for name, path in built.items()},
                "slurm_release": str(slurm.release()),
                "slurm_prefix": str(slurm.prefix),
                "plugin_directory": str(directory) if directory else None,
            }
        )
    else:
        _print_next_steps(built, slurm, directory)
    return failures[0].exit_code if failures else EXIT_OK


def _build_one(name: str, args: argparse.Namespace, slurm: Installation) -> Path:
    from slurm_energy.slurm import energy_plugin, plugin_build

    if name == "energy":
        sources = plugin_build.plugin_sources()
        output = (args.output or sources).resolve()
        return energy_plugin.build_energy_plugin(sources, output, slurm, print_progress)
    return plugin_build.build(args.output, args.slurm_source, args.cache, print_progress, slurm)[0]


def _plugin_directory(slurm: Installation) -> Path | None:
    try:
        return slurm.plugin_directory()
    except UnavailableError as error:
        print_progress(f"senergy: note: {error}")
        return None


def _print_next_steps(built: dict[str, Path], slurm: Installation, directory: Path | None) -> None:
    if "energy" in built:
        emit([f"{built['energy']} is for Slurm {slurm.release()}. On every host of the cluster:"])
        emit(["  senergy build-plugins --enable      (docs/slurm-energy-plugin.md)"])
    if "site-factor" in built:
        emit([f"{built['site-factor']} is for Slurm {slurm.release()}. On the host of slurmctld:"])
        emit([f"  install -m 0755 {built['site-factor']} {directory or 'PLUGIN-DIRECTORY'}/"])
        emit(["Then edit slurm.conf as described in docs/priority-plugin.md."])


def _enable(args: argparse.Namespace, slurm: Installation) -> int:
    from slurm_energy.slurm import energy_include, energy_plugin

    energy_include.plugin_state(slurm, args.conf)  # fails before anything is built
    energy_plugin.install_energy_plugin(_build_one("energy", args, slurm), slurm)
    energy_include.enable(energy_include.plugin_state(slurm, args.conf))
    _print_state(energy_include.plugin_state(slurm, args.conf), args, "restart slurmctld and slurmd")
    return EXIT_OK


def _disable_or_check(args: argparse.Namespace, slurm: Installation) -> int:
    from slurm_energy.slurm import energy_include

    state = energy_include.plugin_state(slurm, args.conf)
    if args.disable:
        energy_include.disable(state)
    elif state.enabled and state.fault:
        energy_include.suspend(state)
    changed = energy_include.plugin_state(slurm, args.conf)
    _print_state(changed, args, "restart slurmctld and slurmd" if args.disable else "")
    return EXIT_FAILURE if args.check and state.enabled and state.fault else EXIT_OK


def _print_state(state: PluginState, args: argparse.Namespace, todo: str) -> None:
    if args.json:
        document: dict[str, Any] = {
            "plugin": str(state.plugin),
            "fault": state.fault or None,
            "include": str(state.include),
            "enabled": state.enabled,
            "included": state.included,
        }
        emit_json(document)
        return
    emit([f"{state.plugin}: {state.fault or 'fits the installed Slurm'}"])
    emit([f"{state.include}: {'names the plugin' if state.enabled else 'does not name the plugin'}"])
    if not state.included:
        emit([f"{state.conf}: add the line: Include {state.include.name}"])
    if todo:
        emit([f"Next: {todo}"])
