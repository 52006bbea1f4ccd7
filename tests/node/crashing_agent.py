"""A senergyd that dies on request: at once, after a time, or before its N-th change of a file."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agent_node import NodeAgent
from counting_controller import CountingController
from lab_node import INSIDE, LabNode

from slurm_energy.agent.state.deferred_messages import SUFFIX

HERE = Path(__file__).parent
HOOK = HERE.parents[1] / "prolog_epilog/senergy-hook"
_TAMPERING = struct.Struct("<3q")
_START_S = 120.0
_GPU_LIMIT_AT, _GPU_PERSISTENCE_AT = 28, 60
"""Offsets in a GPU's record, see slurm_energy_lab/native/nvidia_device.h."""


class CrashingAgent(NodeAgent):
    """A senergyd that starts fast, because a launcher inside the node forks it.

    The agent delivers to a controller that counts the deliveries.
    """

    def __init__(self, node: LabNode, extra: str = "") -> None:
        super().__init__(node, sampling_hz=20.0, extra=extra)
        self.controller = CountingController()
        self.config.write_text(self.config.read_text().replace("http://127.0.0.1:9", self.controller.url))
        self._tampering_file = self.folder / "tampering"
        self._tampering_file.write_bytes(bytes(_TAMPERING.size))
        with self._tampering_file.open("r+b") as file:
            self._tampering = mmap.mmap(file.fileno(), _TAMPERING.size)
        self._clock_offset_s = 0
        self.deaths = 0
        self._launcher = self._launch()
        self._gpu_control = node.file("/dev/nvidiactl")
        tree = node.tree / "sys"
        files = [path for path in tree.rglob("*") if not path.is_symlink() and path.is_file()]
        self._settable = [p for p in files if p.stat().st_mode & 0o200 and p.name not in ("uevent",)]

    def _launch(self) -> subprocess.Popen[str]:
        library = self.folder / "tampering.so"
        flags = ["-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
        source = HERE / "tampering.c"
        subprocess.run(["gcc", *flags, "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
        command = [sys.executable, str(INSIDE), str(self.node.tree), str(self.node.stage), "0", "env"]
        command += [
            f"LD_PRELOAD={library}",
            f"SENERGY_TAMPERING={self._tampering_file}",
            sys.executable,
        ]
        command += [str(HERE / "agent_launcher.py"), str(self.folder / "log"), "--config", str(self.config)]
        environment = {**os.environ, "LD_LIBRARY_PATH": "/run/senergy-lab/lib"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes)

    def start(self) -> CrashingAgent:
        """Start senergyd and wait until it responds."""
        self.begin_start()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.is_dead():
                raise AssertionError(f"senergyd ended: {self.log()[-2000:]}")
            try:
                self.ask(op="status")
                assert self.changes() > 0, "nobody counts"
                return self
            except OSError:
                time.sleep(0.005)
        raise AssertionError(f"senergyd does not answer: {self.log()[-2000:]}")

    def begin_start(self, *arguments: str) -> None:
        """Start senergyd without waiting."""
        assert self._launcher.stdin
        self._launcher.stdin.write(" ".join(arguments) + "\n")
        self._launcher.stdin.flush()

    def is_dead(self) -> bool:
        """Return whether senergyd has ended since the last start. Return true only once for each end."""
        assert self._launcher.stdout
        ready, _, _ = select.select([self._launcher.stdout], [], [], 0)
        if ready:
            assert self._launcher.stdout.readline() == "\n", "the launcher ended"
        return bool(ready)

    def revive(self, *, dead: bool = False) -> bool:
        """Restart senergyd if it has died, and return whether it was restarted.

        The method also checks that senergyd's settings journal is readable.

        Args:
            dead: True if senergyd is known to be dead, so that this need not be checked.
        """
        if not dead:
            if not self.is_dead():
                return False
            self.deaths += 1
        self.arm(0)
        self.journal()
        self.start()
        return True

    def wait_dead(self) -> None:
        assert self._launcher.stdout
        ready, _, _ = select.select([self._launcher.stdout], [], [], _START_S)
        assert ready, f"senergyd does not end: {self.log()[-2000:]}"
        assert self._launcher.stdout.readline() == "\n", "the launcher ended"
        self.deaths += 1

    def pid(self) -> int:
        """Return the process id of senergyd in the namespace of the test; 0 if senergyd does not run."""
        children = [pid for launcher in _children(self._launcher.pid) for pid in _children(launcher)]
        return children[0] if children else 0

    def kill(self) -> None:
        """Send SIGKILL; no effect on a dead senergyd."""
        pid = self.pid()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_after(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        return timer

    def arm(self, calls: int) -> None:
        """Make senergyd die directly before its next N-th change of a file.

        N is `calls`. The value 0 cancels an earlier request.
        """
        _TAMPERING.pack_into(self._tampering, 0, calls, 0, self._clock_offset_s)

    def step_clock(self, seconds: int) -> None:
        """Step the wall clock of the agent. The kernel's own clock and the boot clock continue unchanged."""
        self._clock_offset_s += seconds
        self.arm(0)

    def changes(self) -> int:
        """Return how many changes of files senergyd has made since the last call of `arm`."""
        return _TAMPERING.unpack_from(self._tampering)[1]

    def hook(
        self, operation: str, env: dict[str, str], *, patient: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the real hook program as slurmd does.

        With `patient`, the hook waits long enough for a response even on a slow machine.
        """
        command = [str(HOOK), operation, "--socket", str(self.socket)]
        if patient:
            command += ["--connect-timeout-ms", "20000", "--reply-timeout-ms", "20000"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    def journal(self) -> list[str]:
        """Return the names of the changed settings in the journal of senergyd.

        The journal must be readable at any time.
        """
        try:
            data = json.loads((self.folder / "state/journal.json").read_bytes())
        except FileNotFoundError:
            return []
        return [entry["key"] for entry in data["entries"]]

    def left(self) -> list[str]:
        """Return the files that are left of unfinished work: deferred messages and state files.

        The files for lock, accounts and boot id are ignored. Periods of the node's energy are ignored
        too, because their delivery may wait 30 s and is not pending work of a job.
        """
        deferred, state = self.socket.with_name(self.socket.name + SUFFIX), self.folder / "state"
        stays = ("lock", "accounts.json", "boot_id")
        files = [path for folder in (deferred, state) for path in folder.rglob("*") if path.is_file()]
        pending = [path for path in files if path.name not in stays and path.parent.name != "periods"]
        return sorted(str(path.relative_to(self.folder)) for path in pending)

    def settings(self) -> dict[str, Any]:
        """Return all settable values of the node, from its files and the GPUs."""
        found: dict[str, Any] = {str(path): _text(path) for path in self._settable}
        if self._gpu_control.exists():
            with self._gpu_control.open("rb", buffering=0) as control:
                for index in range(self.gpus()):
                    record = os.pread(control.fileno(), 128, 4096 * (index + 1))
                    for at in (_GPU_LIMIT_AT, _GPU_PERSISTENCE_AT):
                        found[f"gpu{index}+{at}"] = int.from_bytes(record[at : at + 4], "little")
        return found

    def come_to_rest(self) -> None:
        """Wait until the agent has no job, no undelivered record and no other pending work."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            status = self.ask(op="status")
            if not status["jobs"] and not status["spooled"] and not self.left():
                return
            time.sleep(0.01)
        raise AssertionError(f"left: {self.left()}, {status}, {self.log()[-2000:]}")

    def restore(self) -> subprocess.CompletedProcess[str]:
        """Run `senergyd --restore` inside the node."""
        return self.run_once("--restore")

    def run_once(self, option: str) -> subprocess.CompletedProcess[str]:
        """Run senergyd once inside the node with an option, such as a check, after which it exits."""
        module = ("-m", "slurm_energy.agent.main")
        return self.node.run(sys.executable, *module, "--config", str(self.config), option)

    def move_in(self) -> None:
        """Start the launcher of senergyd again, after the emulator of the node was restarted.

        The old launcher lives in the earlier mount namespace, in which the restarted emulator is not
        visible.
        """
        self._end_launcher()
        self._launcher = self._launch()

    def _end_launcher(self) -> None:
        self.arm(0)
        self.kill()
        assert self._launcher.stdin and self._launcher.stdout
        self._launcher.stdin.close()
        self._launcher.wait(timeout=120)
        self._launcher.stdout.close()

    def remove(self) -> None:
        self._end_launcher()
        self.controller.close()
        self._tampering.close()
        super().remove()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        return f"errno {error.errno}"
