"""Main program of the process that emulates one node.

The process mounts the file tree, opens the control socket, prints `ready` and serves requests. The
module contains only wiring and life cycle. `python -m slurm_energy_lab.emulator.main` starts the
process. The process ends on SIGTERM and leaves no mount, socket or control group behind.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EnergyError, UnavailableError, UsageError
from slurm_energy_lab.emulator.control_server import ControlServer
from slurm_energy_lab.emulator.cpu_cgroups import find_groups
from slurm_energy_lab.emulator.cpu_throttle import DEFAULT_SHARE_CORES, CpuThrottle
from slurm_energy_lab.emulator.fuse import TreeOperations, calling_process, serve
from slurm_energy_lab.emulator.request_handler import EmulatorRequestHandler
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.node_tree import NodeOptions, build_tree

NICENESS = 5
_SWITCH_INTERVAL_S = 0.0005
_UNMOUNT_TIMEOUT_S = 10
_DEFAULT_OFFSET_RANGE_J = 200_000
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the emulator's command line."""
    made = argparse.ArgumentParser(prog="slurm_energy_lab.emulator.main", description=__doc__)
    made.add_argument("--name", required=True, help="node name")
    made.add_argument("--profile", required=True, help="profile name or TOML file")
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override in the profile"
    )
    made.add_argument("--mount", required=True, type=Path, help="directory to mount the tree on")
    made.add_argument("--socket", required=True, type=Path, help="control socket to make")
    made.add_argument("--cgroup", help="base of the job groups, e.g. senergy-lab/n1; none: no throttling")
    made.add_argument(
        "--cpu-share",
        type=float,
        default=DEFAULT_SHARE_CORES,
        metavar="CORES",
        help="real cores for all emulated CPUs together (default %(default)s)",
    )
    made.add_argument(
        "--energy-offset",
        type=float,
        metavar="JOULES",
        help="initial value of the RAPL counters (default: derived from the node name)",
    )
    made.add_argument(
        "--counter-range",
        type=float,
        metavar="JOULES",
        help="energy after which the RAPL counters wrap, e.g. 100, to test readers; MSRs keep the real unit",
    )
    made.add_argument("--rapl-locked", action="store_true", help="the firmware has locked the power limits")
    made.add_argument("--pm-counters", action="store_true", help="the node has HPE Cray's pm_counters")
    made.add_argument("--no-gpu-persistence", action="store_true", help="persistence mode is off at first")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the emulator until SIGTERM, by default with the arguments of the process.

    Return the exit code.
    """
    args = parser().parse_args(argv)
    try:
        return _run(args)
    except EnergyError as error:
        print(f"emulator {args.name}: error: {error}", file=sys.stderr)
        return error.exit_code


def _run(args: argparse.Namespace) -> int:
    profile = load_profile(args.profile, dict(_override(text) for text in args.set))
    offset = args.energy_offset
    if offset is None:
        offset = zlib.crc32(args.name.encode()) % _DEFAULT_OFFSET_RANGE_J
    if args.cpu_share <= 0 or offset < 0:
        raise UsageError("--cpu-share and --energy-offset: must not be negative or zero")
    if args.counter_range is not None and args.counter_range < 5:
        raise UsageError(f"--counter-range {args.counter_range:g}: must be 5 J or more")
    free_mountpoint(args.mount)
    realtime_model = RealtimeModel(profile)
    firmware = NodeOptions(
        args.name,
        offset,
        args.rapl_locked,
        not args.no_gpu_persistence,
        args.pm_counters,
        args.counter_range,
    )
    node = build_tree(realtime_model, firmware, caller=calling_process)
    groups, reason = find_groups(args.cgroup) if args.cgroup else (None, "no control group given")
    throttle = CpuThrottle(realtime_model, groups, reason, args.cpu_share)
    operations = TreeOperations(node.tree, _say_ready)
    requests = EmulatorRequestHandler(
        args.name, realtime_model, throttle, node.groups, node.tree, node.resctrl
    )
    server = ControlServer(args.socket, realtime_model, requests, throttle, node.meter)
    _prepare_process(f"emulator {args.name}")
    # Only the thread blocked in libfuse's read may receive these signals: in another they would not end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    server.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        serve(operations, str(args.mount), f"senergy-lab:{args.name}")
    except OSError as error:
        print(f"emulator {args.name}: error: {args.mount}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    finally:
        server.stop()
        realtime_model.close()
    return EXIT_OK


def free_mountpoint(path: Path) -> None:
    """Create the mount point. If a killed emulator left a mount there, detach this mount.

    Raises:
        UnavailableError: the path cannot be used as a mount point.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.close(
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )  # the kernel may answer stat from its cache
        return
    except FileExistsError:
        raise UnavailableError(f"{path}", "is not a directory") from None
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise UnavailableError(f"{path}", error.strerror or str(error)) from None
    subprocess.run(["umount", "-l", str(path)], check=False, timeout=_UNMOUNT_TIMEOUT_S, capture_output=True)


def _override(text: str) -> tuple[str, Any]:
    """Return key and value of a text KEY=VALUE.

    The value is parsed as TOML. A value that is not TOML is plain text.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {text[:40]}: not KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _prepare_process(title: str) -> None:
    """Prepare this process for its work as an emulator.

    The priority of the process is lowered, the interval for switching threads is shortened, and the file tree
    is excluded from garbage collection. `title` becomes the name of the process.
    """
    os.nice(NICENESS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    prctl_set_name = 15
    ctypes.CDLL(None).prctl(prctl_set_name, title[:15].encode(), 0, 0, 0)


def _say_ready() -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    sys.exit(main())
