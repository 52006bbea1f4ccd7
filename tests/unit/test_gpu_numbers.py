"""Slurm's numbers of the GPUs of a node, from slurm.conf and gres.conf.

`tests/cluster/test_gpu_order_on_slurm.py` compares the order with that of slurmd.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st
from shared_node import SharedNode

from slurm_energy.agent.jobs import gpu_numbers
from slurm_energy.agent.jobs.gpu_numbers import GpuNumbers
from slurm_energy.agent.metering.components import job_gpus
from slurm_energy.devices.discovery import NodeDevices, discover
from slurm_energy.devices.hardware import GpuInfo, NodeHardware
from slurm_energy.doctor.gpu_order_check import inspect_gpu_order
from slurm_energy.errors import UnavailableError
from slurm_energy.slurm import conf_files, hostlist
from slurm_energy.slurm.gpu_order import GpuOrder, detected_gpus, read_gpu_order
from slurm_energy.slurm.hook_environment import job_context

DGX_MINORS = (2, 3, 0, 1)
"""Minor numbers in the order of NVML, on a machine where they differ from the indices."""


def gpu(index: int, minor: int | None, name: str = "NVIDIA A100-SXM4-40GB", **values: Any) -> GpuInfo:
    return GpuInfo(index, minor, name, 400.0, 100.0, 400.0, None, **values)


def gpus(*minors: int) -> tuple[GpuInfo, ...]:
    return tuple(gpu(index, minor) for index, minor in enumerate(minors))


class Site:
    """Directory with the configuration of Slurm and the plugins of slurmd."""

    def __init__(self, folder: Path) -> None:
        self.conf, self.gres, self.plugins = folder / "slurm.conf", folder / "gres.conf", folder / "plugins"
        self.plugins.mkdir()

    def write(self, gres: str = "Gres=gpu:4", lines: str = "", *plugins: str) -> None:
        self.conf.write_text(f"PluginDir={self.plugins}\nNodeName=n[1-3] CPUs=8 {gres}\n")
        self.gres.write_text(lines + "\n")
        for name in plugins:
            (self.plugins / f"gpu_{name}.so").touch()

    def order(self, node: str = "n1", found: tuple[GpuInfo, ...] = gpus(*DGX_MINORS)) -> GpuOrder:
        return read_gpu_order(self.conf, node, detected_gpus(found))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PATH", str(tmp_path))  # the plugins of this host's Slurm do not count
    monkeypatch.setattr(gpu_numbers, "_READ_TIMEOUT_S", 60.0)  # on a loaded machine
    return Site(tmp_path)


def minors(order: GpuOrder) -> list[str]:
    return [name.removeprefix("nvidia") for names in order.names for name in names]


@pytest.mark.parametrize(
    ("lines", "plugins", "source", "expected"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", ["nvml"], "gres.conf", "0123"),
        ("name=gpu file=/dev/nvidia[3,0],/dev/nvidia1,/dev/nvidia2 # all", [], "gres.conf", "3012"),
        (
            "NodeName=n1 Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]",
            [],
            "gres.conf",
            "0123",
        ),
        ("NodeName=n2 Name=gpu File=/dev/nvidia[0-3]", [], "", ""),
        ("Name=nic File=/dev/mlx[0-3]\nName=gpu MultipleFiles=/dev/nvidia[0-1] ", [], "", ""),
        ("AutoDetect=nvml", ["nvml"], "AutoDetect=nvml", "2301"),
        ("AutoDetect=NVML\nName=gpu File=/dev/nvidia[0-3] Cores=0-3", ["nvml"], "AutoDetect=nvml", "2301"),
        ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]", [], "gres.conf", "0123"),
        ("AutoDetect=nvml\nNodeName=n[2-3] AutoDetect=off", ["nvml"], "AutoDetect=nvml", "2301"),
        (
            "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia[0-3]",
            ["nvml"],
            "gres.conf",
            "0123",
        ),
        ("AutoDetect=off\nNodeName=n1 AutoDetect=nvml", ["nvml"], "AutoDetect=nvml", "2301"),
        ("AutoDetect=nvidia", ["nvml", "nvidia"], "AutoDetect=nvidia", "0123"),
        ("AutoDetect=full", ["nvml", "nvidia"], "AutoDetect=nvml", "2301"),
        ("AutoDetect=full", ["nvidia"], "AutoDetect=nvidia", "0123"),
        ("AutoDetect=rsmi\nName=gpu File=/dev/nvidia[0-3]", ["nvml", "rsmi"], "gres.conf", "0123"),
    ],
)
def test_the_configuration_decides_the_order(
    site: Site, lines: str, plugins: list[str], source: str, expected: str
) -> None:
    (site.plugins / "gpu_generic.so").touch()
    site.write("Gres=gpu:4", lines, *plugins)
    if not source:
        with pytest.raises(UnavailableError, match=r"gres\.conf"):
            site.order()
        return
    order = site.order()
    assert (order.source, "".join(minors(order))) == (source, expected)


def test_plugins_of_another_installation_do_not_count(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for folder in ("bin", "lib/slurm"):
        (other / folder).mkdir(parents=True)
    scontrol = other / "bin" / "scontrol"
    scontrol.touch(mode=0o755)
    (other / "lib/slurm/gpu_nvml.so").touch()
    monkeypatch.setenv("PATH", str(scontrol.parent))
    site.write("Gres=gpu:4", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]")
    assert site.order().source == "gres.conf"
    site.conf.write_text("NodeName=n1 Gres=gpu:4\n")  # without PluginDir
    assert site.order().source == "AutoDetect=nvml"


def test_the_types_have_the_order_of_slurm_conf(site: Site) -> None:
    site.write(
        "Gres=gpu:b:2,gpu:a:1", "Name=gpu Type=a File=/dev/nvidia3\nName=gpu Type=b File=/dev/nvidia[0-1]"
    )
    assert minors(site.order()) == ["0", "1", "3"]
    assert str(site.order()) == "gres.conf: 0 is nvidia0, 1 is nvidia1, 2 is nvidia3"
    with pytest.raises(UnavailableError, match="does not list node n9, whose GPUs have several types"):
        site.order("n9")


def test_a_node_that_slurm_conf_does_not_list_has_all_gpus(site: Site) -> None:
    site.write("Gres=gpu:1", "AutoDetect=nvml", "nvml")
    assert minors(site.order("n9")) == ["2", "3", "0", "1"]
    site.write("Gres=gpu:1", "Name=gpu File=/dev/nvidia[2-3]")
    assert minors(site.order("n9")) == ["2", "3"]


def test_defaults_and_included_files(site: Site) -> None:
    site.write("", "Include more.conf")
    site.gres.with_name("more.conf").write_text("Name=gpu File=/dev/nvidia[1-3]\n")
    site.conf.write_text(
        "NodeName=DEFAULT Gres=gpu:3(S:0-1)\nNodeName=DEFAULT CPUs=8\nNodeName=n1 RealMemory=1\n"
    )
    assert minors(site.order()) == ["1", "2", "3"]
    folder = site.gres.with_name("conf.d")
    folder.mkdir()
    (folder / "gpus.conf").write_text("Include more.conf\n")
    site.gres.write_text("Include conf.d/gpus.conf\n")
    assert minors(site.order()) == ["1", "2", "3"]  # relative to slurm.conf, as in Slurm from 23.02 on
    site.gres.with_name("more.conf").unlink()
    with pytest.raises(UnavailableError, match=r"more\.conf: No such file"):
        site.order()


def test_lines_of_other_nodes_are_not_parsed_as_host_lists(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job does not wait long, even if a file has one line for each of thousands of nodes."""
    parsed: list[str] = []
    real = hostlist._parse

    def parse(text: str, name: str) -> Any:
        parsed.append(text)
        return real(text, name)

    monkeypatch.setattr(hostlist, "_parse", parse)
    others = range(10, 1000)
    site.write("Gres=gpu:4", "\n".join(f"NodeName=n{n} Name=gpu File=/dev/nvidia[0-7]" for n in others))
    lines = "".join(f"NodeName=n{n} Gres=gpu:8\nNodeName=m[{n}-{n}] Gres=gpu:8\n" for n in others)
    site.conf.write_text(lines + site.conf.read_text())
    site.gres.write_text(site.gres.read_text() + "NodeName=n[1-3] Name=gpu File=/dev/nvidia[3,2,1,0]\n")
    assert minors(site.order()) == ["3", "2", "1", "0"]
    assert parsed == ["n[1-3]", "n[1-3]"]


def test_links_to_device_files(site: Site, tmp_path: Path) -> None:
    for name, minor in (("left", 3), ("right", 0)):
        (tmp_path / name).symlink_to(f"/dev/nvidia{minor}")
    site.write("Gres=gpu:2", f"Name=gpu File={tmp_path}/left,{tmp_path}/right")
    assert minors(site.order()) == ["3", "0"]


@pytest.mark.parametrize(
    ("gres", "lines", "why"),
    [
        (
            "Gres=gpu:4",
            "Name=gpu File=/dev/nvidia[0-2]",
            r"gres\.conf: 3 GPUs of node n1 have device files, and slurm\.conf counts 4",
        ),
        ("Gres=gpu:8", "AutoDetect=nvml", "4 GPUs of node n1 have device files, and slurm.conf counts 8"),
        (
            "",
            "Name=gpu File=/dev/nvidia[0-2]",
            "0 GPUs of node n1 have device files, and slurm.conf counts 0",
        ),
        ("Gres=gpu:4", "Name=gpu Count=4", "0 GPUs of node n1"),
        ("Gres=gpu:x4y", "Name=gpu File=/dev/nvidia0", "0 GPUs of node n1"),
        ("Gres=gpu:4y", "Name=gpu File=/dev/nvidia0", "'4y' is not a number of GPUs"),
        ("Gres=gpu:2", "Name=gpu File=/dev/dri/renderD[128-129]", "names no NVIDIA GPU of node n1"),
        ("Gres=gpu:2", "Name=gpu File=/dev/nvidia[0-99999]", "is not a range of files"),
        ("Gres=gpu:2", "Name=gpu File=/dev/nvidia[0-1023,0-1]", "names more than 1024 files"),
        ("Gres=gpu:999999", "AutoDetect=nvml", "'999999' is not a number of GPUs"),
        ("Gres=gpu:2", "AutoDetect=nvml\nName=gpu Count=1025", "Count=1025: is not a number of GPUs"),
        ("Gres=gpu:2", "Name=gpu File=/dev/nvidia[0", "is not a list of files"),
        ("Gres=gpu:2", "Name=gpu File=/dev/a[0]b[1]", "has several brackets"),
        ("Gres=gpu:2", "Include \0", "null"),
    ],
)
def test_an_order_that_is_not_determined(site: Site, gres: str, lines: str, why: str) -> None:
    site.write(gres, lines, "nvml")
    with pytest.raises(UnavailableError, match=why):
        site.order()


def test_files_that_cannot_be_read(site: Site) -> None:
    with pytest.raises(UnavailableError, match=r"slurm\.conf: not found"):
        read_gpu_order(None, "n1", detected_gpus(gpus(0)))
    site.write()
    site.gres.unlink()
    with pytest.raises(UnavailableError, match=r"gres\.conf: No such file"):
        site.order()


@given(st.text(alphabet='Name=gpuFile/dvnia0123[],- \n"\\#CountTypeAutoDetectnvml', max_size=120))
def test_any_text_is_an_order_or_a_reason(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    site = Site(tmp_path_factory.mktemp("any"))
    site.write("Gres=gpu:2", f"Name=gpu File={text}\n{text}", "nvml")
    try:
        assert len(site.order().names) == 2
    except UnavailableError as error:
        assert str(error)


def test_a_directory_that_senergyd_may_not_search(
    site: Site, devices: NodeDevices, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """senergyd has no CAP_DAC_OVERRIDE. Directories of SlurmUser may be closed to it."""
    real, closed = os.stat, [site.plugins]

    def stat(path: Any, *args: Any, **keywords: Any) -> os.stat_result:
        if any(Path(path).is_relative_to(folder) for folder in closed if isinstance(path, str | Path)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **keywords)

    site.write("Gres=gpu:4", "AutoDetect=nvml", "nvml")
    monkeypatch.setattr(os, "stat", stat)
    assert minors(site.order()) == ["2", "3", "0", "1"]
    monkeypatch.setenv("SLURM_CONF", "")
    monkeypatch.setattr(conf_files, "_USUAL_PATHS", (site.conf,))
    closed.append(site.conf.parent)
    numbers = GpuNumbers()
    for _ in range(2):
        assert nvml_indices(numbers, devices, "0") == (2,)
    (record,) = caplog.records
    assert "Permission denied" in record.message and record.message.endswith("assumed to be minor numbers")


def test_gpus_that_slurm_does_not_detect_as_such() -> None:
    amd = gpu(0, None, interface="amdsmi")
    assert [one.file for one in detected_gpus((*gpus(1, 0), amd))] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert detected_gpus(gpus(1))[0].kind == "nvidia_a100-sxm4-40gb"
    for other in (gpu(1, None), gpu(1, 1, partitioned=True)):
        assert detected_gpus((gpu(0, 0), other)) == ()


# What a job gets


@pytest.fixture
def devices(tmp_path: Path) -> NodeDevices:
    tree = Tree(tmp_path / "root")
    hardware = NodeHardware("Xeon", 8, gpus=gpus(*DGX_MINORS))
    return dataclasses.replace(discover(tree.root), hardware=hardware)


def nvml_indices(numbers: GpuNumbers, devices: NodeDevices, text: str, conf: str = "") -> tuple[int, ...]:
    env = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": text, "SLURM_CONF": conf}
    context = job_context(env)
    return job_gpus(context, numbers.applied_to(devices, context, "n1").hardware.gpus, has_all=False)


def test_a_job_gets_the_gpus_that_slurm_allocated(site: Site, devices: NodeDevices) -> None:
    """With AutoDetect=nvml, the number is the index. With a list of files, it is the position in the list."""
    numbers = GpuNumbers(lambda: site.conf)
    site.write("Gres=gpu:4", "AutoDetect=nvml", "nvml")
    assert [nvml_indices(numbers, devices, text) for text in ("0", "1-2", "3")] == [(0,), (1, 2), (3,)]
    site.write("Gres=gpu:4", "Name=gpu File=/dev/nvidia[0-3]")
    assert [nvml_indices(numbers, devices, text) for text in ("0", "1-2", "3")] == [(2,), (0, 3), (1,)]
    site.write("Gres=gpu:3", "Name=gpu File=/dev/nvidia[1-3]  # without /dev/nvidia0")
    assert [nvml_indices(numbers, devices, text) for text in ("0", "1-2", "3")] == [(3,), (0, 1), ()]


def test_without_an_order_minor_numbers_are_assumed(
    site: Site, devices: NodeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = GpuNumbers(lambda: site.conf)
    for _ in range(3):
        assert nvml_indices(numbers, devices, "0") == (2,)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "slurm.conf: No such file or directory; they are assumed to be minor numbers" in record.message
    caplog.set_level(logging.INFO)
    site.write("Gres=gpu:4", "AutoDetect=nvml", "nvml")
    assert nvml_indices(numbers, devices, "0") == (0,)
    assert caplog.messages[-1].endswith(
        "AutoDetect=nvml: 0 is nvidia2, 1 is nvidia3, 2 is nvidia0, 3 is nvidia1"
    )


def test_the_files_of_slurmd_decide(site: Site, devices: NodeDevices, tmp_path: Path) -> None:
    """The hook names these files. senergyd may find other files, for example of an earlier Slurm."""
    (tmp_path / "old").mkdir()
    old = Site(tmp_path / "old")
    old.write("Gres=gpu:4", "Name=gpu File=/dev/nvidia[0-3]")
    site.write("Gres=gpu:4", "AutoDetect=nvml", "nvml")
    numbers = GpuNumbers(lambda: old.conf)
    assert nvml_indices(numbers, devices, "0", str(site.conf)) == (0,)
    for missing in ("", str(tmp_path / "none.conf")):
        assert nvml_indices(numbers, devices, "0", missing) == (2,)
    assert nvml_indices(numbers, devices, "0", str(site.conf)) == (0,)


def test_files_are_read_again_after_some_time(
    site: Site, devices: NodeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that gres.conf includes may have changed."""
    numbers = GpuNumbers(lambda: site.conf)
    site.write("Gres=gpu:2", "Include more.conf")
    more = site.gres.with_name("more.conf")
    more.write_text("Name=gpu File=/dev/nvidia[0-1]\n")
    assert nvml_indices(numbers, devices, "0") == (2,)
    more.write_text("Name=gpu File=/dev/nvidia[2-3]\n")
    assert nvml_indices(numbers, devices, "0") == (2,)
    monkeypatch.setattr(gpu_numbers, "_MAX_AGE_S", 0.0)
    assert nvml_indices(numbers, devices, "0") == (0,)


def test_the_order_is_kept_while_files_cannot_be_read(
    site: Site, devices: NodeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    """slurmd keeps its list until it is restarted. A file may be absent only for a moment."""
    numbers = GpuNumbers(lambda: site.conf)
    more = site.gres.with_name("more.conf")
    site.write("Gres=gpu:4", "Include more.conf")
    more.write_text("AutoDetect=nvml\n")
    (site.plugins / "gpu_nvml.so").touch()
    assert nvml_indices(numbers, devices, "0") == (0,)
    more.unlink()
    site.gres.touch()
    for _ in range(2):
        assert nvml_indices(numbers, devices, "0") == (0,)
    (record,) = caplog.records
    assert record.message.endswith(
        "more.conf: No such file or directory; those that were read before remain in force"
    )
    more.write_text("Name=gpu File=/dev/nvidia[0-3]\n")
    assert nvml_indices(numbers, devices, "0") == (2,)
    site.write("Gres=gpu:4", "AutoDetect=nvml")
    assert nvml_indices(numbers, devices, "0") == (0,)
    site.write("Gres=gpu:8", "AutoDetect=nvml")
    assert nvml_indices(numbers, devices, "0") == (2,)  # the files are known, but not the order


def test_a_file_system_that_hangs_is_not_waited_for(
    site: Site, devices: NodeDevices, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("Gres=gpu:4", "AutoDetect=nvml", "nvml")
    hangs, entered = threading.Event(), threading.Event()

    def locate() -> Path:
        entered.set()
        hangs.wait(60)
        return site.conf

    monkeypatch.setattr(gpu_numbers, "_READ_TIMEOUT_S", 0.05)
    numbers = GpuNumbers(locate)
    for _ in range(2):
        assert nvml_indices(numbers, devices, "0") == (2,)
    assert entered.wait(60)
    (record,) = caplog.records
    assert record.message.startswith("slurm.conf and gres.conf: cannot be read in 0.05 s")
    hangs.set()
    monkeypatch.setattr(gpu_numbers, "_READ_TIMEOUT_S", 60.0)
    assert numbers._thread is not None
    numbers._thread.join(60)
    caplog.set_level(logging.INFO)
    assert nvml_indices(numbers, devices, "0") == (0,)
    assert caplog.messages[-1] == "slurm.conf and gres.conf: can be read again"


def test_the_agent_charges_the_gpu_that_gres_conf_numbers(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write("Gres=gpu:2", "Name=gpu File=/dev/nvidia[1,0]")
    monkeypatch.setenv("SLURM_CONF", str(site.conf))
    (tmp_path / "node").mkdir()
    node = SharedNode(tmp_path / "node", ("gpu[0]", "gpu[1]"))
    try:
        node.begin(7, 1, gpus="0")
        (session,) = node.manager._sessions.values()
        assert session.gpus == (1,)
    finally:
        node.die()


def test_doctor_says_which_order_is_used(site: Site) -> None:
    hardware = NodeHardware("Xeon", 8, gpus=gpus(1, 0))
    site.write("Gres=gpu:2", "AutoDetect=nvml", "nvml")
    assert inspect_gpu_order(site.conf, "n1", hardware) == ("AutoDetect=nvml: 0 is nvidia1, 1 is nvidia0", "")
    site.write("Gres=gpu:2", "Name=gpu File=/dev/nvidia0")
    order, error = inspect_gpu_order(site.conf, "n1", hardware)
    assert order == "" and "1 GPUs of node n1 have device files, and slurm.conf counts 2" in error
    assert inspect_gpu_order(None, "n1", hardware) == ("", "")
    assert inspect_gpu_order(site.conf, "n1", NodeHardware("Xeon", 8)) == ("", "")
