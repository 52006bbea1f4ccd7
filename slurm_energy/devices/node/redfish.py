"""Node power from the management controller (BMC) through Redfish: HTTPS and JSON, polled in a thread.

The module reads PowerWatts in the EnvironmentMetrics of a chassis, or PowerConsumedWatts in its older Power
resource. The computer systems link to the chassis of the node. If several of these chassis report a power,
the administrator must configure the chassis. Source: DMTF DSP0266 (protocol) and DSP0268 (Chassis, Power,
EnvironmentMetrics, ComputerSystem schemas).
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.polled_sensor import PolledPowerSensor

_MAX_WATTS = 30_000.0
_MAX_BYTES = 4 << 20
INTERVAL_S = 5.0


@dataclass(slots=True)
class RedfishClient:
    """Client of a BMC's Redfish service.

    Attributes:
        url: `https://HOST[:PORT]`; `http` only for a BMC without https.
        user: user name on the BMC; read-only privilege suffices.
        password_file: file whose first line is the password.
        authority: file of trusted certificates; None means the certificates that the operating system trusts.
            The certificates of BMCs are rarely signed by a public authority.
        chassis: path of the node's chassis, for example `/redfish/v1/Chassis/1`. None means that the client
            searches for the chassis.
        timeout_s: time limit of one request in seconds.
    """

    url: str
    user: str
    password_file: Path
    authority: Path | None = None
    chassis: str | None = None
    timeout_s: float = 10.0
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)
    _resource: str | None = field(default=None, repr=False)

    def power_watts(self) -> float:
        """Request the current power of the node from the BMC and return it in watts.

        Raises:
            DeviceError: the BMC does not respond, refuses the request, or has no chassis that reports its
                power.
        """
        if self._resource is None:
            self._resource = self._find()
        watts = _watts(self.get(self._resource))
        if watts is None:
            raise DeviceError(self.url + self._resource, "the BMC has no reading now")
        return watts

    def get(self, path: str) -> dict[str, Any]:
        """Request a Redfish resource and return its JSON object.

        Args:
            path: path of the resource, for example `/redfish/v1/Systems`.

        Raises:
            DeviceError: there is no response, the BMC refuses the request or lacks the resource, or the
                response is not a JSON object.
        """
        url = self.url + path
        for attempt in (1, 2):
            was_open = self._connection is not None
            try:
                status, body = self._request(path)
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # BMCs close idle connections; only the failure of a new connection is meaningful.
                if not was_open or attempt == 2:
                    raise DeviceError(url, str(error) or type(error).__name__) from None
        if status != 200:
            raise DeviceError(url, _STATUS.get(status, f"HTTP status {status}"))
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise DeviceError(url, "not JSON") from None
        if not isinstance(data, dict):
            raise DeviceError(url, "not a JSON object")
        return data

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, path: str) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        try:
            password = self.password_file.read_text().partition("\n")[0]
        except OSError as error:
            raise DeviceError(str(self.password_file), error.strerror or "cannot be read") from None
        token = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Accept": "application/json", "OData-Version": "4.0"}
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        return response.status, response.read(_MAX_BYTES)

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if not parts.hostname or parts.scheme not in ("http", "https"):
            raise DeviceError(self.url, "not an address such as https://bmc7")
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        context = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=self.timeout_s, context=context
        )

    def _find(self) -> str:
        """Return the path of the resource that reports the node's power.

        Raises:
            DeviceError: no chassis, or more than one, reports a power.
        """
        candidates = [self.chassis] if self.chassis else self._system_chassis()
        resources = [resource for path in candidates if (resource := self._power_of(path))]
        if len(resources) == 1:
            return resources[0]
        if not resources:
            raise DeviceError(self.url, "no chassis of a computer system reports its power")
        raise DeviceError(self.url, f"{len(resources)} chassis report a power: {', '.join(resources)}")

    def _system_chassis(self) -> list[str]:
        """Return the Redfish paths of the chassis that belong to the computer systems."""
        paths: list[str] = []
        for system in _members(self.get("/redfish/v1/Systems")):
            links = self.get(system).get("Links")
            chassis = links.get("Chassis") if isinstance(links, dict) else None
            paths += [path for path in _references(chassis) if path not in paths]
        return paths

    def _power_of(self, chassis: str) -> str | None:
        """Return the Redfish path of the resource that reports the power of a chassis.

        `chassis` is the path of the chassis. Return None if no resource reports its power.
        """
        data = self.get(chassis)
        for name in ("EnvironmentMetrics", "Power"):
            for path in _references([data.get(name)]):
                try:
                    if _watts(self.get(path)) is not None:
                        return path
                except DeviceError:
                    continue
        return None


_STATUS = {
    401: "user or password is wrong",
    403: "the account may not read this",
    404: "there is no such resource",
}


def _watts(data: dict[str, Any]) -> float | None:
    """Return the power in watts that a resource reports; None if the value is missing or impossible.

    A resource may have several PowerControl entries. The first entry is the whole chassis; the others are
    power inputs or domains of the same chassis.

    Args:
        data: JSON object of an EnvironmentMetrics or Power resource.
    """
    reading = data.get("PowerWatts")
    values = [reading.get("Reading") if isinstance(reading, dict) else None]
    controls = data.get("PowerControl")
    for control in controls[:1] if isinstance(controls, list) else []:
        values.append(control.get("PowerConsumedWatts") if isinstance(control, dict) else None)
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return float(numbers[0]) if numbers and 0 <= numbers[0] <= _MAX_WATTS else None


def _members(data: dict[str, Any]) -> list[str]:
    return _references(data.get("Members"))


def _references(items: Any) -> list[str]:
    """Return the paths in a JSON list of Redfish references (`@odata.id`); an empty list for other data."""
    paths = (
        [item.get("@odata.id") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    )
    return [path for path in paths if isinstance(path, str) and path.startswith("/")]


def power_sensor(bmc: RedfishClient, interval_s: float = INTERVAL_S) -> PolledPowerSensor:
    """Return a polled power sensor of the node that uses a Redfish client.

    Args:
        bmc: the client. The sensor takes over the ownership of the client and closes it.
        interval_s: seconds between measurements.
    """
    return PolledPowerSensor(
        "redfish", "node", "redfish:power", _MAX_WATTS, interval_s, bmc.power_watts, bmc.close
    )
