"""Traffic of the node's network interfaces and InfiniBand ports.

Sources: man 5 proc (/proc/net/dev); Linux, Documentation/ABI/stable/sysfs-class-infiniband. The data counters
of InfiniBand ports are in units of four bytes. Only hardware interfaces are read. A bond, bridge or tunnel
would count the traffic of its hardware interfaces a second time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slurm_energy.devices.kept_file import KeptFile
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor

MAX_INTERFACES: Final = 16
"""Maximum number of interfaces, and of InfiniBand ports, whose traffic is read, in the order of their names.
"""
_MAX_NAME: Final = 32
_NET: Final = "sys/class/net"
_INFINIBAND: Final = "sys/class/infiniband"
_LANE_BYTES: Final = 4
_SATURATED: Final = 2**32 - 1
"""Maximum value of 32-bit data counters, at which they stay instead of wrapping."""
_RECEIVED_FIELD, _SENT_FIELD = 0, 8  # column of /proc/net/dev, counted after the name


class NetworkSensor(SignalSensor):
    """Traffic of the network interfaces.

    Args:
        root: directory that contains /sys and /proc.
        names: names of the interfaces.
    """

    def __init__(self, root: Path, names: frozenset[str]) -> None:
        self._names = names
        self._file = KeptFile(str(root / "proc/net/dev"))
        self._rates = RateMeter()

    def read(self, now_s: float) -> list[SignalReading]:
        """Return bytes received and sent per second by interface since the previous call."""
        readings = []
        for line in (self._file.read() or b"").splitlines():
            text, _, rest = line.partition(b":")
            name, fields = text.strip().decode("ascii", "replace"), rest.split()
            if name not in self._names or len(fields) <= _SENT_FIELD:
                continue
            for direction, field in (("receive", _RECEIVED_FIELD), ("transmit", _SENT_FIELD)):
                if fields[field].isdigit():
                    signal = f"network_{direction}_bytes_per_s"
                    rate = self._rates.per_second(f"{direction} {name}", int(fields[field]), now_s)
                    if rate is not None:
                        readings.append(SignalReading(signal, name, rate, "proc:net/dev"))
        return readings

    def forget(self) -> None:
        """Discard the previous reading."""
        self._rates.forget()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class InfinibandSensor(SignalSensor):
    """Traffic of one InfiniBand port.

    Args:
        folder: directory of the port.
        part: name of the port, `DEVICE:PORT`.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self.part = part
        self._files = {
            "receive": KeptFile(str(folder / "counters/port_rcv_data")),
            "transmit": KeptFile(str(folder / "counters/port_xmit_data")),
        }
        self._rates = RateMeter()

    def read(self, now_s: float) -> list[SignalReading]:
        """Return bytes received and sent per second since the previous call."""
        readings = []
        for direction, file in self._files.items():
            content = (file.read() or b"").strip()
            if not content.isdigit() or int(content) == _SATURATED:
                continue
            rate = self._rates.per_second(direction, int(content) * _LANE_BYTES, now_s)
            if rate is not None:
                signal = f"infiniband_{direction}_bytes_per_s"
                readings.append(SignalReading(signal, self.part, rate, "sysfs:infiniband"))
        return readings

    def forget(self) -> None:
        """Discard the previous reading, so that the next one has no rate."""
        self._rates.forget()

    def close(self) -> None:
        """Close the open files of the InfiniBand counters."""
        for file in self._files.values():
            file.close()


def discover(root: Path) -> list[SignalSensor]:
    """Return the sensors of the node's network.

    Args:
        root: directory that contains /sys and /proc.
    """
    sensors: list[SignalSensor] = []
    names = [name for name in _entries(root / _NET) if (root / _NET / name / "device").exists()]
    if names:
        sensors.append(NetworkSensor(root, frozenset(names[:MAX_INTERFACES])))
    ports = [
        (device, port)
        for device in _entries(root / _INFINIBAND)
        for port in _entries(root / _INFINIBAND / device / "ports")
    ]
    for device, port in ports[:MAX_INTERFACES]:
        folder = root / _INFINIBAND / device / "ports" / port
        if (folder / "counters/port_rcv_data").exists():
            sensors.append(InfinibandSensor(folder, f"{device}:{port}"))
    return sensors


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if len(path.name) <= _MAX_NAME)
    except OSError:
        return []
