"""Tests of reading a node's power through IPMI (DCMI).

The tests cover the layout of the response, the message interface of the Linux kernel, and the program
ipmitool with an emulated BMC.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_bmc import serving_bmc

from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node import ipmi

ANSWER = bytes.fromhex("dc b501 6400 5802 a401 78563412 e8030000 40")


def test_a_response_is_decoded_by_the_specification_s_layout() -> None:
    statistics = ipmi.decode_power_reading(ANSWER)
    assert (statistics.current, statistics.minimum, statistics.maximum, statistics.mean) == (
        437,
        100,
        600,
        420,
    )
    assert (statistics.period_ms, statistics.active) == (1000, True)


@given(st.binary(max_size=40))
def test_other_bytes_are_a_response_or_an_error(data: bytes) -> None:
    try:
        statistics = ipmi.decode_power_reading(data)
    except DeviceError:
        assert len(data) < 18 or data[0] != 0xDC
    else:
        assert 0 <= statistics.current <= 65535


class FakeBmc:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[tuple[int, int, bytes]] = []

    def command(self, netfn: int, command: int, data: bytes) -> bytes:
        self.requests.append((netfn, command, data))
        return self.answer

    def close(self) -> None:
        self.requests.clear()


def test_the_request_is_for_the_system_s_power() -> None:
    bmc = FakeBmc(ANSWER)
    assert ipmi.power_watts(bmc) == 437.0
    assert bmc.requests == [(0x2C, 0x02, bytes((0xDC, 0x01, 0, 0)))]


def test_the_figures_of_a_bmc_that_does_not_measure_are_refused() -> None:
    with pytest.raises(DeviceError, match="switched off"):
        ipmi.power_watts(FakeBmc(ANSWER[:-1] + b"\0"))


class Driver:
    """Emulation of the kernel's IPMI driver (ipmi_devintf.c) for one process.

    It reads requests through the pointers that the process passes, and puts responses in a queue.
    """

    def __init__(self) -> None:
        self.pipe = os.pipe()  # readable while there are responses
        self.queue: list[tuple[int, bytes]] = []
        self.requests: list[tuple[int, int, int, bytes]] = []
        self.reply: Any = lambda netfn, command, data: b"\0" + ANSWER

    def open(self, path: Path, flags: int) -> int:
        return os.dup(self.pipe[0])

    def put(self, number: int, answer: bytes) -> None:
        self.queue.append((number, answer))
        os.write(self.pipe[1], b"x")

    def ioctl(self, descriptor: int, request: int, argument: Any) -> int:
        if request == ipmi.SEND_COMMAND:
            address = ipmi._Address.from_address(argument.addr)
            assert (address.addr_type, address.channel, address.lun) == (0x0C, 0x0F, 0)
            data = ctypes.string_at(argument.msg.data, argument.msg.data_len)
            self.requests.append((argument.msgid, argument.msg.netfn, argument.msg.cmd, data))
            if (answer := self.reply(argument.msg.netfn, argument.msg.cmd, data)) is not None:
                self.put(argument.msgid, answer)
            return 0
        assert request == ipmi.RECEIVE_TRUNCATED
        if not self.queue:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        os.read(descriptor, 1)
        argument.msgid, answer = self.queue.pop(0)
        answer = answer[: argument.msg.data_len]
        ctypes.memmove(argument.msg.data, answer, len(answer))
        argument.msg.data_len = len(answer)
        argument.recv_type = 1
        return 0

    def close(self) -> None:
        for descriptor in self.pipe:
            os.close(descriptor)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(ipmi.os, "open", made.open)
    yield made
    monkeypatch.undo()
    made.close()


def device(driver: Driver) -> ipmi.IpmiDevice:
    return ipmi.IpmiDevice(Path("/dev/ipmi0"), driver.ioctl)


def test_the_local_bmc_is_queried_through_the_driver(driver: Driver) -> None:
    bmc = device(driver)
    assert [ipmi.power_watts(bmc), ipmi.power_watts(bmc)] == [437.0, 437.0]
    assert driver.requests == [(number, 0x2C, 0x02, bytes((0xDC, 1, 0, 0))) for number in (1, 2)]
    bmc.close()


def test_a_response_to_an_earlier_request_is_dropped(driver: Driver) -> None:
    bmc = device(driver)
    late = bytearray(b"\0" + ANSWER)
    late[2:4] = (999).to_bytes(2, "little")
    driver.put(77, bytes(late))
    assert ipmi.power_watts(bmc) == 437.0
    bmc.close()


@pytest.mark.parametrize(
    ("code", "why"), [(0xC1, "does not support DCMI"), (0xD4, "higher privilege"), (0x99, "code 0x99")]
)
def test_a_completion_code_is_explained(driver: Driver, code: int, why: str) -> None:
    driver.reply = lambda netfn, command, data: bytes((code,))
    bmc = device(driver)
    with pytest.raises(DeviceError, match=why):
        ipmi.power_watts(bmc)
    bmc.close()


def test_a_missing_response_times_out(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipmi, "_RESPONSE_TIMEOUT_S", 0.01)
    driver.reply = lambda netfn, command, data: None
    bmc = device(driver)
    with pytest.raises(DeviceError, match="no response within"):
        ipmi.power_watts(bmc)
    bmc.close()


def test_a_failed_driver_is_opened_again(driver: Driver) -> None:
    bmc = device(driver)
    work, driver.ioctl = driver.ioctl, _broken  # type: ignore[method-assign]
    failing = ipmi.IpmiDevice(Path("/dev/ipmi0"), driver.ioctl)
    with pytest.raises(DeviceError, match="No such device"):
        ipmi.power_watts(failing)
    failing._ioctl = work
    assert ipmi.power_watts(failing) == 437.0
    failing.close()
    bmc.close()


def _broken(descriptor: int, request: int, argument: Any) -> int:
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


C_LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <linux/ipmi.h>
int main(void) {
    printf("%lu %lu %zu %zu %zu %zu %zu %zu %zu\\n", (unsigned long)IPMICTL_SEND_COMMAND,
           (unsigned long)IPMICTL_RECEIVE_MSG_TRUNC, sizeof(struct ipmi_system_interface_addr),
           sizeof(struct ipmi_msg), offsetof(struct ipmi_msg, data), sizeof(struct ipmi_req),
           offsetof(struct ipmi_req, msg), sizeof(struct ipmi_recv), offsetof(struct ipmi_recv, msg));
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler to ask for the kernel's layout")
def test_numbers_and_layout_are_those_of_the_kernel_s_header(tmp_path: Path) -> None:
    (tmp_path / "layout.c").write_text(C_LAYOUT)
    command = ["gcc", "-o", str(tmp_path / "layout"), str(tmp_path / "layout.c")]
    if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("linux/ipmi.h is not installed")
    out = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert [int(word) for word in out.split()] == [
        ipmi.SEND_COMMAND,
        ipmi.RECEIVE_TRUNCATED,
        ctypes.sizeof(ipmi._Address),
        ctypes.sizeof(ipmi._Message),
        ipmi._Message.data.offset,
        ctypes.sizeof(ipmi._Request),
        ipmi._Request.msg.offset,
        ctypes.sizeof(ipmi._Received),
        ipmi._Received.msg.offset,
    ]


def test_a_node_with_an_ipmi_device_has_a_node_counter(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ipmi0").touch()
    devices = discover(tmp_path)
    assert [(c.key, c.component) for c in devices.node_counters] == [("ipmi:dcmi", "node")]
    devices.close()


# The emulated BMC over the network.

needs_ipmitool = pytest.mark.skipif(shutil.which("ipmitool") is None, reason="ipmitool is not installed")


class Emulator(threading.Thread):
    """Stand-in for the control socket of an emulated node; it always reports a power of 437.4 W."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()

    def stop(self) -> None:
        """Stop the emulator and wait for the end of its thread.

        The thread must end before the listener is closed. Otherwise, a system call of the thread would
        continue on the file that next gets the number of the listener's descriptor.
        """
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.join()
        self.listener.close()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(b'{"ok": true, "power_watts": {"node": 437.4}}\n')


@pytest.fixture
def network_bmc(tmp_path: Path, password: Path) -> Iterator[str]:
    """An emulated BMC that runs in a separate process; yields its address as HOST:PORT."""
    emulator = Emulator(tmp_path / "emulator.sock")
    emulator.start()
    try:
        with serving_bmc(tmp_path / "emulator.sock", password) as ports:
            yield f"127.0.0.1:{ports.ipmi}"
    finally:
        emulator.stop()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("secret\n")
    return file


@needs_ipmitool
def test_ipmitool_itself_reads_the_emulated_bmc(network_bmc: str, password: Path) -> None:
    host, _, port = network_bmc.partition(":")
    command = ["ipmitool", "-I", "lanplus", "-H", host, "-p", port, "-U", "operator", "-f", str(password)]
    done = subprocess.run(
        [*command, "dcmi", "power", "reading"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Instantaneous power reading:                   437 Watts" in done.stdout
    assert "activated" in done.stdout


@needs_ipmitool
def test_a_bmc_over_the_network_reports_the_node_s_power(network_bmc: str, password: Path) -> None:
    assert ipmi.power_watts(ipmi.Ipmitool(network_bmc, "operator", password)) == 437.0


@needs_ipmitool
def test_a_refusal_of_the_bmc_is_explained(network_bmc: str, password: Path) -> None:
    bmc = ipmi.Ipmitool(network_bmc, "operator", password)
    with pytest.raises(DeviceError, match="does not support DCMI"):
        bmc.command(0x2C, 0x07, bytes((0xDC,)))
    password.write_text("wrong\n")
    with pytest.raises(DeviceError, match="session"):
        ipmi.power_watts(bmc)


def test_a_missing_ipmitool_is_reported(password: Path) -> None:
    bmc = ipmi.Ipmitool("127.0.0.1", "operator", password, program="no-such-ipmitool")
    with pytest.raises(DeviceError, match="no-such-ipmitool: not found"):
        ipmi.power_watts(bmc)


def test_an_ipmitool_that_hangs_is_killed(tmp_path: Path, password: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    bmc = ipmi.Ipmitool("127.0.0.1", "operator", password, program=str(slow), timeout_s=0.2)
    with pytest.raises(DeviceError, match="no response within"):
        ipmi.power_watts(bmc)
