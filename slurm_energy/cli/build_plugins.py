"""`senergy build-plugins`: build and enable the plugins that must fit the installed Slurm exactly."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli.output import emit, emit_json, print_error
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EnergyError, UnavailableError

if TYPE_CHECKING:
    from slurm_energy.slurm.energy_include import ExactPlugin, PluginState
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
file beside slurm.conf that slurm.conf includes; with --only site-factor it does so with the plugin of the
queue. --check removes a plugin from this file if it does not fit the installed Slurm, so that Slurm's daemons
start without it, and then exits with 1: run it before each start of slurmctld and slurmd. --update builds
the plugins in use again after an upgrade of Slurm, and selects energy.so and energy_hooks.so of the packages
for its series; it downloads nothing. Installation: docs/slurm-energy-plugin.md, docs/priority-plugin.md,
docs/packages.md.

examples:
  senergy build-plugins
  senergy build-plugins --only energy --output /usr/local/lib/slurm-energy
  senergy build-plugins --slurm-prefix /opt/slurm --slurm-source /usr/src/slurm-24.11.5
  senergy build-plugins --enable
  senergy build-plugins --check
  senergy build-plugins --update
  senergy build-plugins --json
"""
USAGE = """\
%(prog)s [OPTION ...]
       %(prog)s {--enable|--disable|--check|--update|--remove}
                             [OPTION ...]"""
"""Usage text. argparse of Python 3.11 would not break the line of the actions, which is too long."""
_BOTH = ("energy", "site-factor")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy build-plugins`."""
    parser.usage = USAGE
    parser.epilog = EPILOG
    parser.add_argument(
        "--slurm-prefix", type=Path, metavar="DIR", help="prefix of Slurm (default: that of scontrol on PATH)"
    )
    parser.add_argument(
        "--slurm-source", type=Path, metavar="DIR", help="source tree of Slurm (default: fetch it)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="directory for the plugins (default: plugins/; with packages, below /var/lib/slurm-energy)",
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
        help="build and install the plugin, and name it for slurm.conf",
    )
    action.add_argument("--disable", action="store_true", help="no longer name the plugin for slurm.conf")
    action.add_argument("--check", action="store_true", help="no longer name plugins that do not fit Slurm")
    action.add_argument(
        "--update", action="store_true", help="build the plugins in use again if they do not fit Slurm"
    )
    action.add_argument(
        "--remove",
        action="store_true",
        help="no longer name the plugins, and delete those beside Slurm's own",
    )
    parser.add_argument("--json", action="store_true", help="print paths, release and state as JSON")


def run(args: argparse.Namespace) -> int:
    """Build the plugins, or enable, disable, check or update those in use."""
    from slurm_energy.slurm import installation

    if args.update:
        return _update(args)
    slurm = installation.find(args.slurm_prefix)
    if args.enable:
        return _enable(args, slurm)
    if args.disable:
        return _disable(args, slurm)
    if args.check:
        return _check(args, slurm)
    if args.remove:
        return _remove(args, slurm)
    print_progress(f"Slurm {slurm.release()} in {slurm.prefix}: {slurm.daemon}")
    return _build(args, slurm)


def print_progress(text: str) -> None:
    """Print a line about the progress of the build on standard error."""
    print(text, file=sys.stderr, flush=True)


def _build(args: argparse.Namespace, slurm: Installation) -> int:
    """Build the requested plugins and return the exit code of the first plugin that failed."""
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
    from slurm_energy.slurm import energy_plugin, plugin_build, plugin_update
    from slurm_energy.slurm.energy_include import ExactPlugin

    if args.output is None and args.cache is None:
        return plugin_update.build_exact(ExactPlugin(name), slurm, args.slurm_source, print_progress)
    output = args.output or plugin_update.default_output(slurm.release())
    if name == "energy":
        sources = plugin_build.plugin_sources()
        return energy_plugin.build_energy_plugin(sources, output.resolve(), slurm, print_progress)
    return plugin_build.build(output, args.slurm_source, args.cache, print_progress, slurm)[0]


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


def _chosen(args: argparse.Namespace) -> ExactPlugin:
    from slurm_energy.slurm.energy_include import ExactPlugin

    return ExactPlugin(args.only or _BOTH[0])


def _enable(args: argparse.Namespace, slurm: Installation) -> int:
    from slurm_energy.slurm import build_tools, energy_include, energy_plugin

    kind = _chosen(args)
    state = energy_include.plugin_state(slurm, args.conf, kind)
    for directory in {state.plugin.parent, state.include.parent}:  # fails before anything is built
        build_tools.require_writable(directory)
    energy_plugin.install_plugin(_build_one(kind.value, args, slurm), state.plugin)
    energy_include.enable(energy_include.plugin_state(slurm, args.conf, kind))
    changed = energy_include.plugin_state(slurm, args.conf, kind)
    _print_states([changed], args, "restart slurmctld and slurmd")
    return EXIT_OK


def _disable(args: argparse.Namespace, slurm: Installation) -> int:
    from slurm_energy.slurm import energy_include

    kind = _chosen(args)
    energy_include.disable(energy_include.plugin_state(slurm, args.conf, kind))
    changed = energy_include.plugin_state(slurm, args.conf, kind)
    _print_states([changed], args, "restart slurmctld and slurmd")
    return EXIT_OK


def _check(args: argparse.Namespace, slurm: Installation) -> int:
    """Check the plugins against the installed Slurm, and suspend each plugin that does not fit.

    The check runs before each start of Slurm's daemons. It prints the state of each plugin that is
    enabled now or was enabled before. If slurm-energy.conf does not exist, no plugin was ever enabled,
    and nothing is printed.
    """
    from slurm_energy.slurm import energy_include

    code, states = EXIT_OK, []
    for kind in energy_include.ExactPlugin if args.only is None else [_chosen(args)]:
        state = energy_include.plugin_state(slurm, args.conf, kind)
        if state.needed and state.enabled and state.fault:
            energy_include.suspend(state)
            code = EXIT_FAILURE
        if kind.value == (args.only or _BOTH[0]) or state.enabled or state.suspended:
            states.append(energy_include.plugin_state(slurm, args.conf, kind))
    if args.json or any(state.included or state.include.exists() for state in states):
        _print_states(states, args, "")
    return code


def _remove(args: argparse.Namespace, slurm: Installation) -> int:
    from slurm_energy.slurm import energy_include, energy_plugin

    states = []
    for kind in energy_include.ExactPlugin:
        state = energy_include.plugin_state(slurm, args.conf, kind)
        if state.enabled or state.suspended:
            energy_include.disable(state)
        elif not state.plugin.exists():
            continue
        energy_plugin.remove_plugin(state.plugin)
        states.append(energy_include.plugin_state(slurm, args.conf, kind))
    if args.json:
        _print_states(states, args, "")
    elif states:
        emit([f"{state.plugin}: removed" for state in states])
        emit(["Restart slurmctld and slurmd at your convenience; until then they keep the loaded plugin."])
    return EXIT_OK


def _update(args: argparse.Namespace) -> int:
    from slurm_energy.slurm import installation, plugin_update

    errors: list[EnergyError] = []
    states: list[PluginState] = []
    try:
        plugin_update.update_spank(args.slurm_prefix, print_progress)
    except EnergyError as error:
        errors.append(error)
    try:
        slurm = installation.find(args.slurm_prefix)
    except UnavailableError:
        pass  # a login node has no daemon that loads the other plugins
    else:
        errors += plugin_update.update_exact(slurm, args.conf, args.slurm_source, print_progress)
        states = _states_in_use(args, slurm) if args.json else []
    for failure in errors:
        print_error(failure)
    if args.json:
        _print_states(states, args, "")
    return errors[0].exit_code if errors else EXIT_OK


def _states_in_use(args: argparse.Namespace, slurm: Installation) -> list[PluginState]:
    """Return the states of the plugins that this host uses, or would use if they fitted its Slurm.

    Without slurm.conf no plugin is in use.
    """
    from slurm_energy.slurm import energy_include

    try:
        states = [energy_include.plugin_state(slurm, args.conf, kind) for kind in energy_include.ExactPlugin]
    except UnavailableError:
        return []
    return [state for state in states if state.needed and (state.enabled or state.suspended)]


def _print_states(states: list[PluginState], args: argparse.Namespace, todo: str) -> None:
    if args.json:
        documents = [
            {
                "plugin": str(state.plugin),
                "fault": state.fault or None,
                "include": str(state.include),
                "enabled": state.enabled,
                "included": state.included,
            }
            for state in states
        ]
        is_list = args.check or args.update or args.remove
        emit_json({"plugins": documents} if is_list else documents[0])
        return
    for state in states:
        emit([f"{state.plugin}: {state.fault or 'fits the installed Slurm'}"])
        emit([f"{state.include}: {'names the plugin' if state.enabled else 'does not name the plugin'}"])
    if not states[0].included:
        emit([f"{states[0].conf}: add the line: Include {states[0].include.name}"])
    if todo:
        emit([f"Next: {todo}"])
