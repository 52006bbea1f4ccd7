"""Fixtures with emulated nodes, which need root and /dev/fuse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_node import LabNode, start_nodes


@pytest.fixture(scope="session")
def machine() -> None:
    """Skip the tests if this machine cannot run emulated nodes, and state the reason."""
    if os.geteuid() != 0:
        pytest.skip("emulated nodes need root")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("emulated nodes need /dev/fuse")
    pytest.importorskip("mfusepy", reason="emulated nodes need mfusepy", exc_type=ImportError)


@pytest.fixture(scope="module")
def emulate(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LabNode]]:
    """Return a function that starts an emulated node.

    The first argument of the function is the name of a hardware profile. Further arguments are options of
    the emulator.
    """
    directory: Path = tmp_path_factory.mktemp("lab")
    nodes: list[LabNode] = []

    def start(profile: str, *arguments: str) -> LabNode:
        node = start_nodes(directory, profile, arguments)
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        assert node.process
        if node.process.poll() is None:
            assert node.stop() == 0
        else:
            node.unmount()
