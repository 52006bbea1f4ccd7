"""Emulated management controller (BMC) of a node: IPMI over LAN with DCMI power readings, and Redfish.

The IPMI service is the server of `pyghmi` with the command Get Power Reading added, so that any IPMI client
can use it. The Redfish service has the few resources that contain a node's power. Both show whole watts, as
BMCs do. The BMC is a separate process.
"""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyghmi.ipmi import bmc as pyghmi_bmc
from pyghmi.ipmi.private.session import Session

from slurm_energy_lab.client import DEFAULT_SOCKET, truth

USER = "operator"
_GROUP_NETFN = 0x2C
_GET_POWER_READING = 0x02
_DCMI = 0xDC
_SYSTEM_POWER, _ENHANCED_SYSTEM_POWER = 0x01, 0x02
_UNKNOWN_COMMAND, _TOO_SHORT, _BAD_FIELD = 0xC1, 0xC7, 0xCC
_PERIOD_MS = 1000
_ACTIVE = 0x40
_POLL_S = 0.2

Watts = Callable[[], float]


@dataclass(slots=True)
class DcmiPowerStatistics:
    """Power in watts as reported by DCMI: current value, and minimum, maximum and mean since the start."""

    watts: Watts
    active: bool = True
    min_watts: float | None = None
    max_watts: float = 0.0
    total_watts: float = 0.0
    readings: int = 0

    def answer(self) -> bytes:
        """Return the response to the IPMI command Get Power Reading as bytes (DCMI 1.5, table 6-16)."""
        now = self.watts()
        self.min_watts = now if self.min_watts is None else min(now, self.min_watts)
        self.max_watts = max(now, self.max_watts)
        self.total_watts += now
        self.readings += 1
        figures = (now, self.min_watts, self.max_watts, self.total_watts / self.readings)
        words = b"".join(round(watts).to_bytes(2, "little") for watts in figures)
        stamp = int(time.time()).to_bytes(4, "little") + _PERIOD_MS.to_bytes(4, "little")
        return bytes((_DCMI,)) + words + stamp + bytes((_ACTIVE if self.active else 0,))


class PowerBmc(pyghmi_bmc.Bmc):  # type: ignore[misc]
    """An IPMI 2.0 BMC that supports only the command Get Power Reading."""

    def __init__(self, watts: Watts, user: str, password: str, address: str, port: int) -> None:
        """Bind the UDP port of the BMC.

        Args:
            watts: function that returns the node's current power in watts.
            user: user name that may log in.
            password: password of the user.
            address: numeric IP address to bind.
            port: UDP port; 0 for any free port.
        """
        super().__init__({user: password}, port=port, address=address)
        self.port = int(self.serversocket.getsockname()[1])
        self.statistics = DcmiPowerStatistics(watts)

    def get_power_state(self) -> str:
        """Return the power state of the chassis."""
        return "on"

    def handle_raw_request(self, request: dict[str, Any], session: Any) -> None:
        """Respond to one IPMI request."""
        if request["netfn"] != _GROUP_NETFN:
            super().handle_raw_request(request, session)
            return
        data = bytes(request["data"])
        if request["command"] != _GET_POWER_READING or data[:1] != bytes((_DCMI,)):
            session.send_ipmi_response(code=_UNKNOWN_COMMAND)
        elif len(data) < 4:
            session.send_ipmi_response(code=_TOO_SHORT)
        elif data[1] not in (_SYSTEM_POWER, _ENHANCED_SYSTEM_POWER):
            session.send_ipmi_response(code=_BAD_FIELD)
        else:
            session.send_ipmi_response(data=list(self.statistics.answer()))


def serve_ipmi(stop: threading.Event) -> None:
    """Serve the IPMI requests to all BMCs of this process until the event `stop` is set."""
    while not stop.is_set():
        Session.wait_for_rsp(_POLL_S)


class RedfishServer(ThreadingHTTPServer):
    """The Redfish service of one node.

    `resources` may change while the server runs.
    """

    daemon_threads = True

    def __init__(
        self,
        watts: Watts,
        user: str,
        password: str,
        address: tuple[str, int],
        certificate: Path | None = None,
    ) -> None:
        """Bind the TCP port of the Redfish service.

        Args:
            watts: function that returns the node's current power in watts.
            user: user name that may log in.
            password: password of the user.
            address: host and port; port 0 stands for any free port.
            certificate: PEM file with certificate and key; None for plain HTTP.
        """
        super().__init__(address, _Handler)
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.authorization = f"Basic {token}"
        self.resources: dict[str, Callable[[], dict[str, Any]]] = _resources(watts)
        self.requests = 0
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RedfishServer

    def do_GET(self) -> None:
        """Send a Redfish resource.

        A request must be authenticated, except for the service root (DSP0266, 13.3).
        """
        self.server.requests += 1
        path = self.path.rstrip("/")
        resource = self.server.resources.get(path)
        if path != _ROOT and self.headers.get("Authorization") != self.server.authorization:
            self._answer(401, {"error": {"code": "Base.1.8.InsufficientPrivilege"}})
        elif resource is None:
            self._answer(404, {"error": {"code": "Base.1.8.ResourceMissingAtURI"}})
        else:
            self._answer(200, resource())

    def log_message(self, *arguments: Any) -> None:
        """Discard the message. The base class would print one line per request."""

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("OData-Version", "4.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_ROOT = "/redfish/v1"
_SYSTEM = f"{_ROOT}/Systems/1"
_CHASSIS = f"{_ROOT}/Chassis/1"
_METRICS = f"{_CHASSIS}/EnvironmentMetrics"
_POWER = f"{_CHASSIS}/Power"


def _link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def _resource(path: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return an emulated Redfish resource with the mandatory properties.

    `kind` is the schema and version of the resource.
    """
    schema = kind.partition(".")[0]
    common = {"@odata.type": f"#{kind}.{schema}", "Id": path.rsplit("/", 1)[-1], "Name": schema}
    return {**_link(path), **common, **more}


def _collection(kind: str, schema: str, *members: str) -> dict[str, Any]:
    path = f"{_ROOT}/{kind}"
    head = {"@odata.type": f"#{schema}Collection.{schema}Collection", "Name": kind}
    return {
        **_link(path),
        **head,
        "Members": [_link(member) for member in members],
        "Members@odata.count": len(members),
    }


def _resources(watts: Watts) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the Redfish resources of a server with one chassis (DSP0268).

    The result maps each path to a function that returns the resource at this path.
    """
    root = _resource(
        _ROOT,
        "ServiceRoot.v1_9_0",
        RedfishVersion="1.8.0",
        Systems=_link(f"{_ROOT}/Systems"),
        Chassis=_link(f"{_ROOT}/Chassis"),
    )
    chassis = _resource(
        _CHASSIS,
        "Chassis.v1_15_0",
        ChassisType="RackMount",
        Power=_link(_POWER),
        EnvironmentMetrics=_link(_METRICS),
        Links={"ComputerSystems": [_link(_SYSTEM)]},
    )
    return {
        _ROOT: lambda: root,
        f"{_ROOT}/Systems": lambda: _collection("Systems", "ComputerSystem", _SYSTEM),
        _SYSTEM: lambda: _resource(
            _SYSTEM, "ComputerSystem.v1_15_0", PowerState="On", Links={"Chassis": [_link(_CHASSIS)]}
        ),
        f"{_ROOT}/Chassis": lambda: _collection("Chassis", "Chassis", _CHASSIS),
        _CHASSIS: lambda: chassis,
        _METRICS: lambda: _resource(
            _METRICS, "EnvironmentMetrics.v1_1_0", PowerWatts={"Reading": round(watts())}
        ),
        _POWER: lambda: _resource(
            _POWER,
            "Power.v1_7_0",
            PowerControl=[{"MemberId": "0", "PowerConsumedWatts": round(watts())}],
        ),
    }


def main() -> None:
    """Serve the BMC of one emulated node until killed. Print the ports as JSON when the BMC is ready."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--emulator", default=DEFAULT_SOCKET, help="control socket of the node's emulator")
    parser.add_argument("--address", default="127.0.0.1", help="address of the BMC")
    parser.add_argument("--ipmi-port", type=int, default=623, help="UDP; 0 for any (default 623)")
    parser.add_argument("--redfish-port", type=int, default=8443, help="TCP; 0 for any (default 8443)")
    parser.add_argument("--certificate", type=Path, help="PEM file for HTTPS")
    parser.add_argument("--password-file", type=Path, required=True)
    options = parser.parse_args()
    password = options.password_file.read_text().partition("\n")[0]

    def watts() -> float:
        return float(truth(options.emulator)["power_watts"]["node"])

    address = (options.address, options.redfish_port)
    redfish = RedfishServer(watts, USER, password, address, options.certificate)
    threading.Thread(target=redfish.serve_forever, daemon=True).start()
    ipmi = PowerBmc(watts, USER, password, options.address, options.ipmi_port)
    print(json.dumps({"ipmi_port": ipmi.port, "redfish_port": redfish.server_port}), flush=True)
    serve_ipmi(threading.Event())


if __name__ == "__main__":
    main()
