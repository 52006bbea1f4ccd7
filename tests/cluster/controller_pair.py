"""Two senergyctld with one database, of which one is active."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from own_controller import RUNS_AS, Controller, reserved_port, wait_for

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy_lab.database_servers import DatabaseServer

DEADLINE_S = 120.0
"""Generous: the machine may be busy. What a takeover takes is measured by benchmarks/failover.py."""


class PairedController(Controller):
    """One of two controllers."""

    def __init__(self, directory, munge_socket, port, urls, database):
        directory.mkdir()
        self.urls, self.database = urls, database
        super().__init__(directory, munge_socket, port)

    def configure(self, extra="", database=None, port=None):
        self.file.write_text(
            f'[cluster]\nmunge_socket = "{self.munge_socket}"\ncontroller_url = {self.urls!r}\n'
            f'controller_users = ["{RUNS_AS}"]\n[controller]\nlisten = "127.0.0.1:{self.port}"\n'
            f'database = "{self.database}"\npolicy_file = "{self.policies}"\nrecord_hosts = "off"\n'
            f'state_dir = "{self.directory}"\nagent_users = ["{os.getuid()}"]\n'
            f'operators = ["{os.getuid()}"]\n{extra}'
        )

    def answers(self):
        """Return whether the process answers, in either role."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            ControllerClient(self.url, self.munge_socket, 5.0, [RUNS_AS]).get("/v1/status")
        except UnavailableError as error:
            return "passive" in str(error)
        return True


class ControllerPair:
    """Two controllers in one cluster."""

    def __init__(self, directory, munge_socket, ports, database):
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.munge_socket = munge_socket
        self.controllers = [
            PairedController(directory / f"c{port}", munge_socket, port, self.urls, database)
            for port in ports
        ]

    def client(self, timeout_s=5.0, total_s=20.0):
        return ControllerClient(self.urls, self.munge_socket, timeout_s, [RUNS_AS], total_timeout_s=total_s)

    def start(self):
        for controller in self.controllers:
            controller.start()

    def active(self):
        """Return the active controller by its own response; None: none answers."""
        for controller in self.controllers:
            if controller.process is None or controller.process.poll() is not None:
                continue
            with contextlib.suppress(EnergyError):
                client = ControllerClient(
                    controller.url, self.munge_socket, 2.0, [RUNS_AS], total_timeout_s=2.0
                )
                client.get("/v1/status")
                return controller
        return None

    def other(self, controller):
        return next(one for one in self.controllers if one is not controller)

    def wait_active(self, expected=None):
        """Wait until a controller, or the expected one, is active; return it."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.active()) is None or (expected is not None and found is not expected):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)
        return found

    def wait_passive_ready(self):
        """Wait until the active controller knows that the other one can take over."""

        def ready():
            with contextlib.suppress(EnergyError):
                states = self.client().get("/v1/status")["lease"]["controllers"]
                return sum(one["present"] and one["ready"] for one in states) == len(self.controllers)
            return False

        wait_for(ready)

    def logs(self):
        return "\n".join(f"{one.url}:\n{one.log.read_text()}" for one in self.controllers)

    def close(self):
        for controller in self.controllers:
            with contextlib.suppress(ProcessLookupError):
                if controller.process is not None and controller.process.poll() is None:
                    controller.process.send_signal(signal.SIGCONT)
            controller.stop(signal.SIGKILL)


@contextlib.contextmanager
def running_pair(directory, munge_socket, server: DatabaseServer, name="senergy_pair"):
    """Run two controllers with a new database of a server."""
    with reserved_port() as first, reserved_port() as second:
        pair = ControllerPair(directory, munge_socket, (first, second), server.create_database(name))
        try:
            pair.start()
            yield pair
        finally:
            pair.close()
            server.drop_database(name)
