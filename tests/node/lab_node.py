"""One emulated node for tests: its emulator process, and commands in its file system."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_energy_lab.nvml_library import build_nvml

START_TIMEOUT_S = 120
COMMAND_TIMEOUT_S = 60
INSIDE = Path(__file__).with_name("inside.py")


class LabNode:
    """A running emulator of a node.

    `run` executes a command that sees the emulated files in place of the host's files.
    """

    def __init__(self, directory: Path, profile: str, *arguments: str) -> None:
        self.directory = directory
        self.tree = directory / "fuse"
        self.socket = directory / "emulator.sock"
        self.stage = directory / "stage"
        self.libraries = directory / "lib"
        self.stage.mkdir()
        directory.chmod(0o755)
        self.arguments = (profile, *arguments)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> LabNode:
        profile, *rest = self.arguments
        command = [
            sys.executable,
            "-m",
            "slurm_energy_lab.emulator.main",
            "--name",
            "n1",
            "--profile",
            profile,
        ]
        command += ["--mount", str(self.tree), "--socket", str(self.socket), *rest]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout and self.process.stderr
        ready, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        line = self.process.stdout.readline() if ready else ""
        if line != "ready\n":
            self.process.kill()
            raise AssertionError(f"emulator did not get ready: {self.process.stderr.read()}")
        return self

    def stop(self) -> int:
        """End the emulator with SIGTERM, as the lab does; return its exit code."""
        assert self.process
        self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.process.wait(timeout=60)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()
            with contextlib.suppress(OSError):
                if os.path.ismount(self.tree):
                    self.unmount()

    def unmount(self) -> None:
        """Unmount the file tree of a killed emulator."""
        subprocess.run(["umount", "-l", str(self.tree)], check=False, timeout=10, capture_output=True)

    def run(
        self, *command: str, uid: int = 0, stdin: str | None = None, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the node."""
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": "/run/senergy-lab/lib",
            "LC_ALL": "C",
            **(extra or {}),
        }
        argv = [sys.executable, str(INSIDE), str(self.tree), str(self.stage), str(uid), *command]
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=environment,
            input=stdin,
            check=False,
        )

    def output(self, *command: str, uid: int = 0) -> str:
        """Run a command that must succeed and return what it printed."""
        done = self.run(*command, uid=uid)
        assert done.returncode == 0, f"{command}: rc {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str, uid: int = 0) -> str:
        """Run a Python program inside the node, with the NVML stub on the library path."""
        build_nvml(self.libraries)
        return self.output(sys.executable, "-c", program, uid=uid)

    def file(self, path: str) -> Path:
        """Return the path of an emulated file as processes outside the emulated node see it."""
        return self.tree / path.lstrip("/")

    def read(self, path: str) -> str:
        return self.file(path).read_text().removesuffix("\n")

    def write(self, path: str, data: bytes | str) -> None:
        """Write data to an emulated file with one system call, so that the emulator gets one write."""
        descriptor = os.open(self.file(path), os.O_WRONLY)
        try:
            os.write(descriptor, data if isinstance(data, bytes) else data.encode())
        finally:
            os.close(descriptor)


def start_nodes(directory: Path, profile: str, arguments: Sequence[str]) -> LabNode:
    """Start one node below `directory`."""
    place = directory / f"node{len(list(directory.iterdir()))}"
    place.mkdir()
    return LabNode(place, profile, *arguments).start()
