"""`senergy build-plugins`: build the plugins of slurmctld that need the source of Slurm."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError

HELP = "build slurmctld's plugin for the Slurm that is installed here"

EPILOG = """\
site_factor/energy gives slurmctld the order of the queue that senergyctld computed. Slurm loads it only if
it was built from the source of exactly the same release, so build it again after every update of Slurm,
before slurmctld starts. The source is fetched from the Debian archive that /etc/apt names unless
--slurm-source says where it is; it is configured, not compiled. docs/priority-plugin.md: how to install it.
Without --slurm-prefix the Slurm is the one whose scontrol or srun is on PATH.

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
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to put it (default: plugins/)")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where fetched sources are kept (default: build/)",
    )
    parser.add_argument("--json", action="store_true", help="print path and release as JSON")


def run(args: argparse.Namespace) -> int:
    """Build the plugin and print its path."""
    from slurm_energy.slurm import installation, plugin_build

    slurm = installation.find(args.slurm_prefix)
    say(f"Slurm {slurm.release()} in {slurm.prefix}: {slurm.slurmctld}")
    plugin, release = plugin_build.build(args.output, args.slurm_source, args.cache, say, slurm)
    try:
        directory: Path | None = slurm.plugin_directory()
    except UnavailableError as error:
        directory = None
        say(f"senergy: note: {error}")
    if args.json:
        found = {"plugin": str(plugin), "slurm_release": str(release), "slurm_prefix": str(slurm.prefix)}
        emit_json(found | {"plugin_directory": str(directory) if directory else None})
        return EXIT_OK
    emit([f"{plugin} is for Slurm {release}. On the host of slurmctld:"])
    emit([f"  install -m 0755 {plugin} {directory or 'PLUGIN-DIRECTORY'}/"])
    emit(["then slurm.conf as docs/priority-plugin.md says."])
    return EXIT_OK


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
