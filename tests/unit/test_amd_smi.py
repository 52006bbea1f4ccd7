"""Tests of AMD GPUs with the vendor's real Python package and an emulated library of the lab.

The emulated library exports every symbol that the package uses. The package loads the library once per
process, so that each case runs in a process of its own. Limits behave as in
drivers/gpu/drm/amd/pm/amdgpu_pm.c (`value / 1000000`, whole watts) and amdsmi_set_power_cap.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.devices.gpu import amd_smi
from slurm_energy_lab import amdsmi_library as lab

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the lab's library"),
    pytest.mark.skipif(importlib.util.find_spec("amdsmi") is None, reason="amdsmi is not installed"),
]

BEGIN = "import json\nfrom slurm_energy.devices.gpu import amd_smi\nfound = amd_smi.discover()\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rocm")
    lab.build(directory)
    return directory


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Any]:
    shared = lab.SharedGpus.write(tmp_path / "amdsmi.state", [lab.AmdGpuState()] * 2)
    yield shared
    shared.close()


def run(library: Path, gpus: Any, script: str, uid: int | None = None) -> Any:
    environment = {
        **os.environ,
        "ROCM_PATH": str(library),
        "ROCM_HOME": str(library),
        lab.STATE_VARIABLE: str(gpus.path) if gpus else "/nonexistent",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    become = f"import os\nos.setuid({uid})\n" if uid is not None else ""
    done = subprocess.run(
        [sys.executable, "-c", become + BEGIN + script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_symbol_of_the_package_is_there(library: Path) -> None:
    wrapper = lab._wrapper().read_text()
    bound_symbols = set(lab._BOUND.findall(wrapper))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library / "lib" / lab.LIBRARY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert bound_symbols <= {line.split()[-1] for line in listed.splitlines()}
    assert len(bound_symbols) > 100


def test_gpus_are_described(library: Path, gpus: Any) -> None:
    script = "print(json.dumps([[g.index, list(g.slurm_numbers), g.name, g.limit_watts, g.min_limit_watts,"
    script += " g.max_limit_watts, g.interface] for g in found.gpus]))"
    assert run(library, gpus, script) == [
        [0, [0], "AMD Instinct MI300X", 550.0, 100.0, 750.0, "amdsmi"],
        [1, [1], "AMD Instinct MI300X", 550.0, 100.0, 750.0, "amdsmi"],
    ]


def test_energy_is_the_accumulator_times_its_resolution_exactly(library: Path, gpus: Any) -> None:
    count = 2**60 + 1  # beyond the resolution of a float
    gpus.put(0, lab.AmdGpuState(accumulator=count, resolution_uj=15.25))
    gpus.put(1, lab.AmdGpuState(accumulator=2**64 - 1))
    script = "import contextlib\nfrom slurm_energy.devices.driver import DeviceError\n"
    script += (
        "why = ''\ntry:\n    found.counters[1].read()\nexcept DeviceError as error:\n    why = error.why\n"
    )
    script += "print(json.dumps([found.counters[0].read(), found.counters[0].component, why]))"
    assert run(library, gpus, script) == [count * 61 // 4, "gpu[0]", "the driver has no value now"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to set a limit")
def test_a_limit_is_set_in_whole_watts_and_visible_to_every_process(library: Path, gpus: Any) -> None:
    script = "knob = found.knobs[1]\nknob.write('300700000')\n"
    script += "print(json.dumps([knob.key, knob.read(), knob.is_equivalent('300700000', knob.read())]))"
    assert run(library, gpus, script) == ["amdsmi.power_limit[gpu1]", "300000000", True]
    assert (gpus.get(0).cap_uw, gpus.get(1).cap_uw) == (550_000_000, 300_000_000)


REFUSED = """
from slurm_energy.devices.driver import DeviceError
try:
    found.knobs[0].write('{microwatts}')
    print(json.dumps('taken'))
except DeviceError as error:
    print(json.dumps(error.why))
"""


def test_a_limit_out_of_range_is_refused_with_the_library_s_reason(library: Path, gpus: Any) -> None:
    why = run(library, gpus, REFUSED.format(microwatts=900_000_000))
    assert why == "AMDSMI_STATUS_INVAL - Invalid parameters"


@pytest.mark.root
@pytest.mark.other_user
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_only_root_may_set_a_limit(library: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copytree(library / "lib", place / "lib")
        (place / "lib").chmod(0o755)
        (place / "lib" / lab.LIBRARY).chmod(0o755)
        shared = lab.SharedGpus.write(place / "state", [lab.AmdGpuState()])
        why = run(place, shared, REFUSED.format(microwatts=300_000_000), uid=65534)
        assert shared.get(0).cap_uw == 550_000_000
        shared.close()
    assert why == "AMDSMI_STATUS_NO_PERM - Permission Denied"


THROTTLED = """
from pathlib import Path
from slurm_energy_lab import amdsmi_library as lab
shared = lab.SharedGpus(Path({path!r}))
(sensor,) = found.throttle_sensors
seconds = []
for samples, power, heat in ((2000, 350, 0), (2000, 350, 0), (3000, 350, 1000)):
    shared.put(0, lab.AmdGpuState(samples=samples, power_samples=power, heat_samples=heat))
    seconds.append(sensor.throttled_s(2.0))
print(json.dumps([sensor.component, seconds]))
"""


def test_throttling_is_the_fraction_of_the_firmware_s_samples(library: Path, gpus: Any) -> None:
    gpus.put(0, lab.AmdGpuState(samples=1000, power_samples=100))
    # The second GPU does not count its samples and has no sensor.
    result = run(library, gpus, THROTTLED.format(path=str(gpus.path)))
    assert result == ["gpu[0]", [0.5, 0.0, 2.0]]


def test_a_library_without_driver_has_no_devices(library: Path) -> None:
    assert run(library, None, "print(json.dumps([found.gpus, found.counters]))") == [[], []]


def test_a_node_without_the_library_has_no_devices_and_no_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_PATH", "/nonexistent")
    monkeypatch.setenv("ROCM_HOME", "/nonexistent")
    assert amd_smi.discover().gpus == []
    assert capsys.readouterr().out == ""
