"""The fixture `lab`: a real Slurm cluster of emulated nodes.

Tests that request the same lab share it. A test or module selects the lab with the marker `lab`, for example
`pytest.mark.lab(profiles=["xeon-8358"], energy={"agent": {"sampling_hz": 10.0}})`. Without the marker, the
lab has the four default nodes n1 to n4. At most one lab runs at a time. The tests are ordered so that the
number of labs is minimal.
"""

from __future__ import annotations

import pytest
from lab_driver import LabDriver, LabRequest, sweep
from own_controller import controller, munged, place  # noqa: F401  fixtures

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.slurm import plugin_build
from slurm_energy_lab.cluster.artifacts import require_machine
from slurm_energy_lab.cluster.startup import StepError


def pytest_configure(config):
    line = "lab(profiles, overrides, slurm, energy, accounting, product, users, slurm_energy): the lab to use"
    config.addinivalue_line("markers", line)


def _wish(item) -> LabRequest:
    arguments = {}
    for marker in reversed(list(item.iter_markers("lab"))):
        arguments.update(marker.kwargs)
    return LabRequest.from_marker(arguments)


def pytest_collection_modifyitems(items):
    """Reorder the tests so that tests with the same lab run together.

    Each group takes the position of its first test.
    """
    order = {}
    places = []
    for number, item in enumerate(items):
        shared = "lab" in getattr(item, "fixturenames", ())
        key = repr(_wish(item)) if shared else None
        places.append((order.setdefault(key, number) if shared else number, number, item))
    items[:] = [item for _, _, item in sorted(places, key=lambda entry: entry[:2])]


@pytest.fixture(scope="session")
def machine():
    """Skip the tests if this machine cannot run a lab (a cluster of emulated nodes)."""
    try:
        require_machine()
    except EnergyError as error:
        pytest.skip(f"no lab possible here: {error}")


def _build_plugin() -> None:
    try:
        plugin_build.ensure_built()
    except UnavailableError as error:
        pytest.skip(f"slurmctld's plugin cannot be built here: {error}")


class _Pool:
    def __init__(self):
        self.current = None

    def get(self, wish: LabRequest) -> LabDriver:
        if self.current is None or self.current.wish != wish:
            self.close()
            if wish.priority == "plugin":
                _build_plugin()
            try:
                self.current = LabDriver(wish)
            except StepError as error:
                pytest.fail("\n".join([str(error), *error.log_tail]), pytrace=False)
        return self.current

    def close(self):
        if self.current:
            self.current.down()
            self.current = None


@pytest.fixture(scope="session")
def _lab_pool(machine):
    sweep()
    pool = _Pool()
    yield pool
    pool.close()


@pytest.fixture
def lab(request, _lab_pool) -> LabDriver:
    """A lab with all daemons running and no job; the module's docstring describes how to select one."""
    driver = _lab_pool.get(_wish(request.node))
    yield driver
    driver.calm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the last lines of our daemons' logs to a failed test."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("lab")
    if report.when == "call" and report.failed and isinstance(driver, LabDriver):
        for path in sorted(driver.layout.log.glob("*senergy*.log")):
            lines = path.read_text(errors="replace").splitlines()[-8:]
            if lines:
                report.sections.append((f"{path.name}", "\n".join(lines)))
    return report
