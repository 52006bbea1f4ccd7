"""`senergy build-plugins`: build the plugins of slurmctld, for which Slurm's source is needed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError

HELP = "build the slurmctld plugin for the Slurm installed on this host"

EPILOG = """\
The plugin site_factor/energy passes the order of the queue that senergyctld computed to slurmctld. Slurm
loads it only if it was built from the source of exactly the same release. Rebuild it after every update of
Slurm, before slurmctld starts. Without --slurm-source the source is fetched from the Debian archive
configured in /etc/apt. The source is configured, not compiled. Without --slurm-prefix the plugin is built
for the Slurm whose scontrol or srun is on PATH. Installation: docs/priority-plugin.md.

examples:
  senergy build-plugins
  senergy build-plugins --slurm-prefix /opt/slurm --slurm-source /usr/src/slurm-24.11.5
  senergy build-plugins --slurm-source /usr/src/slurm-24.11.5 --output /usr/local/lib/slurm-energy
  senergy build-plugins --json
"""


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
        "--output", type=Path, metavar="DIR", help="directory for the plugin (default: plugins/)"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="directory for fetched sources (default: build/)",
    )
    parser.add_argument("--json", action="store_true", help="print path and release as JSON")


def run(args: argparse.Namespace) -> int:
    """Build the plugin and print its path."""
    from slurm_energy.slurm import installation, plugin_build

    slurm = installation.find(args.slurm_prefix)
    print_progress(f"Slurm {slurm.release()} in {slurm.prefix}: {slurm.slurmctld}")
    plugin, release = plugin_build.build(args.output, args.slurm_source, args.cache, print_progress, slurm)
    try:
        directory: Path | None = slurm.plugin_directory()
    except UnavailableError as error:
        directory = None
        print_progress(f"senergy: note: {error}")
    if args.json:
        result = {"plugin": str(plugin), "slurm_release": str(release), "slurm_prefix": str(slurm.prefix)}
        emit_json(result | {"plugin_directory": str(directory) if directory else None})
        return EXIT_OK
    emit([f"{plugin} is for Slurm {release}. On the host of slurmctld:"])
    emit([f"  install -m 0755 {plugin} {directory or 'PLUGIN-DIRECTORY'}/"])
    emit(["Then edit slurm.conf as described in docs/priority-plugin.md."])
    return EXIT_OK


def print_progress(text: str) -> None:
    """Print a line about the progress of the build on standard error."""
    print(text, file=sys.stderr, flush=True)
