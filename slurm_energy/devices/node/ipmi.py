"""Node power from the management controller (BMC) through IPMI: DCMI Get Power Reading.

The request is sent through the kernel's /dev/ipmi0, or through `ipmitool` over the network. A response takes
10 to 50 ms or longer, so a thread polls the power. Source: DCMI Specification 1.5, 6.6.1; kernel,
include/uapi/linux/ipmi.h and Documentation/driver-api/ipmi.rst.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.polled_sensor import PolledPowerSensor
from slurm_energy.devices.sysfs import error_reason

_GROUP_NETFN = 0x2C
_GET_POWER_READING = 0x02
_DCMI = 0xDC
_SYSTEM_POWER = 0x01
_ACTIVE = 0x40
_MAX_WATTS = 30_000.0
INTERVAL_S = 5.0

_COMPLETION = {
    0xC0: "the BMC is busy",
    0xC1: "the BMC does not support DCMI power readings",
    0xC3: "the BMC did not respond in time",
    0xC9: "the BMC does not support DCMI power readings",
    0xCC: "the BMC rejects the request",
    0xD4: "the BMC requires a higher privilege",
    0xD5: "the BMC cannot measure in its current state",
}


class IpmiTransport(Protocol):
    """A transport that sends one request at a time to the BMC."""

    def command(self, netfn: int, command: int, data: bytes) -> bytes:
        """Send a request and return the bytes of the response after the completion code.

        Args:
            netfn: network function of the request.
            command: command number within the network function.
            data: data bytes of the request.

        Raises:
            DeviceError: there is no response, or its completion code is not 0.
        """

    def close(self) -> None:
        """Close the transport's file descriptors."""


@dataclass(frozen=True, slots=True)
class DcmiPowerReading:
    """Response of a BMC to the IPMI command DCMI Get Power Reading, in watts.

    Attributes:
        current: power at this moment.
        minimum, maximum, mean: power over the statistics period.
        period_ms: length of the statistics period in milliseconds.
        active: whether the BMC is measuring. If False, the other values are meaningless.
    """

    current: int
    minimum: int
    maximum: int
    mean: int
    period_ms: int
    active: bool


def decode_power_reading(response: bytes) -> DcmiPowerReading:
    """Decode the response to DCMI Get Power Reading.

    Args:
        response: data of the response, without its completion code.

    Raises:
        DeviceError: the data is not a response to DCMI Get Power Reading.
    """
    if len(response) < 18 or response[0] != _DCMI:
        raise DeviceError("ipmi:dcmi", f"unexpected response of {len(response)} bytes")
    current, minimum, maximum, mean = (int.from_bytes(response[at : at + 2], "little") for at in (1, 3, 5, 7))
    period_ms = int.from_bytes(response[13:17], "little")
    return DcmiPowerReading(current, minimum, maximum, mean, period_ms, bool(response[17] & _ACTIVE))


def power_watts(transport: IpmiTransport) -> float:
    """Request the current power of the node from the BMC and return it in watts.

    Raises:
        DeviceError: the BMC does not respond, does not support DCMI power readings, or has its power
            measurement switched off.
    """
    response = transport.command(_GROUP_NETFN, _GET_POWER_READING, bytes((_DCMI, _SYSTEM_POWER, 0, 0)))
    statistics = decode_power_reading(response)
    if not statistics.active:
        raise DeviceError("ipmi:dcmi", "power measurement is switched off in the BMC")
    return float(statistics.current)


def power_sensor(transport: IpmiTransport, interval_s: float = INTERVAL_S) -> PolledPowerSensor:
    """Return a sensor that polls the BMC (management controller) of a node for the node's power.

    Args:
        transport: connection to the BMC. The sensor becomes the owner of the connection and closes it.
        interval_s: seconds between measurements.
    """
    return PolledPowerSensor(
        "ipmi:dcmi",
        "node",
        "ipmi:dcmi",
        _MAX_WATTS,
        interval_s,
        lambda: power_watts(transport),
        transport.close,
    )


def discover(root: Path) -> IpmiDevice | None:
    """Return the transport to this node's own BMC; None if there is no IPMI device."""
    for name in ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"):
        if (root / name).exists():
            return IpmiDevice(root / name)
    return None


def check_completion(code: int, data: bytes) -> bytes:
    """Return `data`, the data of a response, if its completion code is 0.

    Raises:
        DeviceError: the completion code is an error.
    """
    if code:
        raise DeviceError("ipmi:dcmi", _COMPLETION.get(code, f"the BMC responded with code 0x{code:02x}"))
    return data


class _Address(ctypes.Structure):
    """The kernel's struct ipmi_system_interface_addr."""

    _fields_ = (("addr_type", ctypes.c_int), ("channel", ctypes.c_short), ("lun", ctypes.c_ubyte))


class _Message(ctypes.Structure):
    """The kernel's struct ipmi_msg."""

    _fields_ = (
        ("netfn", ctypes.c_ubyte),
        ("cmd", ctypes.c_ubyte),
        ("data_len", ctypes.c_ushort),
        ("data", ctypes.c_void_p),
    )


class _Request(ctypes.Structure):
    """The kernel's struct ipmi_req."""

    _fields_ = (
        ("addr", ctypes.c_void_p),
        ("addr_len", ctypes.c_uint),
        ("msgid", ctypes.c_long),
        ("msg", _Message),
    )


class _Received(ctypes.Structure):
    """The kernel's struct ipmi_recv."""

    _fields_ = (
        ("recv_type", ctypes.c_int),
        ("addr", ctypes.c_void_p),
        ("addr_len", ctypes.c_uint),
        ("msgid", ctypes.c_long),
        ("msg", _Message),
    )


def _ioc(direction: int, number: int, size: int) -> int:
    """Compute an ioctl number like the macro _IOC in asm-generic/ioctl.h.

    Args:
        direction: _READ, _WRITE or both.
        number: number of the command in the IPMI driver.
        size: size of the argument in bytes.
    """
    return direction << 30 | size << 16 | ord("i") << 8 | number


_READ, _WRITE = 2, 1
SEND_COMMAND = _ioc(_READ, 13, ctypes.sizeof(_Request))
RECEIVE_TRUNCATED = _ioc(_READ | _WRITE, 11, ctypes.sizeof(_Received))
_SYSTEM_INTERFACE = 0x0C
_BMC_CHANNEL = 0x0F
_RESPONSE_BYTES = 272
_RESPONSE_TIMEOUT_S = 10.0


class IpmiDevice:
    """Transport to the BMC of this node through the kernel's IPMI driver."""

    def __init__(self, path: Path, ioctl: Callable[[int, int, Any], int] = fcntl.ioctl) -> None:
        """Create the transport. The first command opens the device.

        Args:
            path: device file, for example /dev/ipmi0.
            ioctl: function that makes the system call.
        """
        self.path = path
        self._ioctl = ioctl
        self._descriptor: int | None = None
        self._number = 0

    def command(self, netfn: int, command: int, data: bytes) -> bytes:
        """Send a request and wait at most ten seconds for its response, see `IpmiTransport.command`."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._number += 1
            self._send(self._descriptor, netfn, command, data)
            return self._receive(self._descriptor)
        except OSError as error:
            self.close()
            raise DeviceError(str(self.path), error_reason(error)) from None

    def close(self) -> None:
        """Close the device; the next command opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _send(self, descriptor: int, netfn: int, command: int, data: bytes) -> None:
        address = _Address(_SYSTEM_INTERFACE, _BMC_CHANNEL, 0)
        body = ctypes.create_string_buffer(data, len(data))
        message = _Message(netfn, command, len(data), ctypes.addressof(body))
        size = ctypes.sizeof(address)
        request = _Request(ctypes.addressof(address), size, self._number, message)
        self._ioctl(descriptor, SEND_COMMAND, request)

    def _receive(self, descriptor: int) -> bytes:
        """Return the data of the BMC's response to the last request.

        Late responses to earlier requests are dropped.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(_RESPONSE_TIMEOUT_S * 1000):
            address = ctypes.create_string_buffer(32)
            body = ctypes.create_string_buffer(_RESPONSE_BYTES)
            message = _Message(0, 0, _RESPONSE_BYTES, ctypes.addressof(body))
            received = _Received(0, ctypes.addressof(address), 32, 0, message)
            self._ioctl(descriptor, RECEIVE_TRUNCATED, received)
            response = body.raw[: received.msg.data_len]
            if received.msgid == self._number and response:
                return check_completion(response[0], response[1:])
        raise DeviceError(str(self.path), f"no response within {_RESPONSE_TIMEOUT_S:.0f} s")


@dataclass(frozen=True, slots=True)
class Ipmitool:
    """Connection to a BMC over the network through the program `ipmitool` (IPMI 2.0, encrypted).

    Attributes:
        host: name or address, with an optional `:port`.
        user: user name on the BMC; operator privilege suffices.
        password_file: file whose first line is the password. The password never appears on the command line.
        program: name of ipmitool.
        timeout_s: time limit of one request in seconds.
    """

    host: str
    user: str
    password_file: Path
    program: str = "ipmitool"
    timeout_s: float = 20.0

    def command(self, netfn: int, command: int, data: bytes) -> bytes:
        """Send a request with `ipmitool raw` and return the response, see `IpmiTransport.command`."""
        if shutil.which(self.program) is None:
            raise DeviceError(f"{self.program}: not found", "needed for a BMC over the network")
        host, _, port = self.host.partition(":")
        arguments = [self.program, "-I", "lanplus", "-H", host, "-p", port or "623", "-U", self.user]
        arguments += ["-f", str(self.password_file), "-L", "OPERATOR", "raw"]
        arguments += [f"0x{byte:02x}" for byte in (netfn, command, *data)]
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, timeout=self.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeviceError(self.host, f"no response within {self.timeout_s:.0f} s") from None
        except OSError as error:
            raise DeviceError(self.program, error_reason(error)) from None
        if done.returncode:
            raise DeviceError(self.host, _failure_reason(done.stderr))
        try:
            return bytes.fromhex(done.stdout)
        except ValueError:
            raise DeviceError(self.host, "the output of ipmitool is not a list of bytes") from None

    def close(self) -> None:
        """Do nothing, because this transport keeps no connection open."""
        return


def _failure_reason(text: str) -> str:
    """Return why ipmitool failed.

    Args:
        text: error output of ipmitool.

    Returns:
        The completion code in words if the output contains one, else the last line of the output.
    """
    _, marker, rest = text.partition("rsp=0x")
    if marker:
        code = int(rest[:2], 16)
        return _COMPLETION.get(code, f"the BMC responded with code 0x{code:02x}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "ipmitool failed without a message"
