"""Tests of the mounted file tree of an emulated node.

System calls on its files must behave as on the kernel's sysfs.
"""

from __future__ import annotations

import errno
import os
import stat

import pytest

pytestmark = [pytest.mark.node, pytest.mark.root]

RAPL = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0"
GOVERNOR = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"


@pytest.fixture(scope="module")
def node(emulate):
    return emulate("xeon-8358")


def failure(action, *arguments) -> int:
    with pytest.raises(OSError) as caught:
        action(*arguments)
    return caught.value.errno


def test_attributes_show_a_page_and_their_modes(node):
    found = node.file(f"{RAPL}/energy_uj").stat()
    assert found.st_size == 4096
    assert stat.S_IMODE(found.st_mode) == 0o400
    assert stat.S_IMODE(node.file(GOVERNOR).stat().st_mode) == 0o644
    assert node.file("proc/cpuinfo").stat().st_size == 0
    assert (node.file("sys/devices/system/cpu/cpu0/cpufreq") / "scaling_governor").read_text()


def test_nothing_can_be_made_or_removed(node):
    base = node.file("sys/devices/system/cpu")
    assert failure(lambda: (base / "new").write_text("x")) == errno.EACCES
    assert failure((base / "dir").mkdir) == errno.EPERM
    assert failure((base / "online").unlink) == errno.EPERM
    assert failure((base / "cpu0").rmdir) == errno.EPERM
    assert failure((base / "online").rename, base / "off") == errno.EPERM


def test_root_cannot_open_a_read_only_file_for_writing(node):
    assert failure(os.open, node.file(f"{RAPL}/name"), os.O_WRONLY) == errno.EACCES
    assert failure(os.open, node.file(f"{RAPL}/energy_uj"), os.O_RDWR) == errno.EACCES


def test_truncation_is_ignored(node):
    node.file(GOVERNOR).write_text("powersave")
    assert node.read(GOVERNOR) == "powersave"
    node.write(GOVERNOR, "performance\n")
    assert node.read(GOVERNOR) == "performance"


def test_each_write_is_one_store(node):
    descriptor = os.open(node.file(f"{RAPL}/constraint_0_power_limit_uw"), os.O_RDWR)
    try:
        assert os.write(descriptor, b"100000000") == 9
        assert os.write(descriptor, b"200000000\0") == 10
        assert os.pread(descriptor, 64, 0) == b"200000000\n"
        assert failure(os.write, descriptor, b"200 W") == errno.EINVAL
        assert os.write(descriptor, b"2" * 9) == 9
        assert os.pread(descriptor, 64, 0) == b"222125000\n"
    finally:
        os.close(descriptor)
        node.write(f"{RAPL}/constraint_0_power_limit_uw", "250000000")


def test_content_is_generated_at_offset_0(node):
    descriptor = os.open(node.file(f"{RAPL}/energy_uj"), os.O_RDONLY)
    try:
        whole = os.pread(descriptor, 64, 0)
        assert os.pread(descriptor, 64, 4) == whole[4:]
        assert os.pread(descriptor, 64, len(whole)) == b""
        assert int(os.pread(descriptor, 64, 0)) >= int(whole)
    finally:
        os.close(descriptor)


def test_long_files_are_read_whole(node):
    text = node.file("proc/cpuinfo").read_text()
    assert text.count("processor\t:") == 128
    assert text.endswith("power management:\n\n")


def test_permissions_can_be_changed_as_sites_do(node):
    path = node.file(f"{RAPL}/intel-rapl:0:0/energy_uj")
    path.chmod(0o440)
    os.chown(path, 0, 1234)
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o440, 0, 1234)


def test_other_users_read_what_the_modes_allow(node):
    done = node.run("cat", f"/{RAPL}/name", uid=1001)
    assert done.stdout == "package-0\n"
    assert "Permission denied" in node.run("cat", f"/{RAPL}/energy_uj", uid=1001).stderr
    limit = f"/{RAPL}/constraint_0_power_limit_uw"
    assert "Permission denied" in node.run("sh", "-c", f"echo 1 > {limit}", uid=1001).stderr
    assert "Permission denied" in node.run("cat", "/dev/cpu/0/msr", uid=1001).stderr
    done = node.run("sh", "-c", f"echo powersave > /{GOVERNOR}", uid=1001)
    assert "Permission denied" in done.stderr


def test_msrs_are_read_at_their_number(node):
    descriptor = os.open(node.file("dev/cpu/0/msr"), os.O_RDONLY)
    try:
        assert os.pread(descriptor, 8, 0x606) == (0x000A0E03).to_bytes(8, "little")
        assert failure(os.pread, descriptor, 8, 0x10) == errno.EIO
        os.lseek(descriptor, 0x611, os.SEEK_SET)
        assert len(os.read(descriptor, 8)) == 8
    finally:
        os.close(descriptor)


def test_faults_emulate_broken_hardware(node):
    from slurm_energy_lab import client

    path = f"{RAPL}/energy_uj"
    client.set_fault(node.socket, f"/{path}", "EIO")
    assert failure(node.file(path).read_text) == errno.EIO
    client.set_fault(node.socket, f"/{path}", None)
    assert int(node.read(path)) > 0


def test_the_rest_of_sys_keeps_working_inside(node):
    assert "lo" in node.output("ls", "/sys/class/net").split()
    assert node.output("cat", "/sys/class/powercap/intel-rapl:0/name") == "package-0\n"
    assert node.output("cat", "/sys/class/hwmon/hwmon0/name") == "power_meter\n"
