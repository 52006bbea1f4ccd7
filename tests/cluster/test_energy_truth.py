"""Tests that recorded energy equals the true energy.

The energy of a record is compared with the emulator's own integral, and with the independent tool zeus. The
tests run in real time, with a real program on CPUs and a kernel on GPUs. Other kernels and profiles are
tested on a virtual clock in lab/test_energy_on_a_virtual_clock.
"""

from __future__ import annotations

import bisect
import itertools
import json
import threading

import judges
import pytest
from lab_driver import LabDriver

from slurm_energy_lab import client

pytestmark = [pytest.mark.cluster, pytest.mark.root]

ZEUS_WINDOW = """\
import json, subprocess, sys, time
from zeus.monitor import ZeusMonitor

if __name__ == "__main__":
    command = ["senergy", "lab", "run", "gemm", sys.argv[1], "--seconds"]
    monitor = ZeusMonitor()
    subprocess.run([*command, "1"], check=True)  # zeus starts its helper processes at the first reading
    begin = [time.time()]
    monitor.begin_window("w", sync_execution=False)
    begin.append(time.time())
    subprocess.run([*command, "12"], check=True)
    end = [time.time()]
    found = monitor.end_window("w", sync_execution=False)
    end.append(time.time())
    window = {"begin": begin, "end": end, "gpu": found.gpu_energy or {}}
    window |= {"cpu": found.cpu_energy or {}, "dram": found.dram_energy or {}}
    with open(sys.argv[2], "w") as file:
        json.dump(window, file)
"""


_USUAL_GAP_S = 0.3
"""Longest time between two answers of the emulator on a machine that is not overloaded."""


class TruthRecorder:
    """Recorder of the true energy in the emulator's model, for comparison with measured energy.

    The energy at any past moment can be read from the recording. With `jobs` the recording also contains the
    energy that each job caused.
    """

    def __init__(self, lab: LabDriver, node: str, interval_s: float = 0.05, jobs: bool = False) -> None:
        self.socket, self.interval_s, self.jobs = lab.layout.emulator_socket(node), interval_s, jobs
        self.samples: list[dict] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> TruthRecorder:
        self._sample()  # before any further action of the caller
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    def _follow(self) -> None:
        while not self._done.wait(self.interval_s):
            self._sample()

    def _sample(self) -> None:
        self.samples.append(client.truth(self.socket, jobs=self.jobs))

    def stalled_s(self, start: float, end: float) -> float:
        """Return for how many seconds the emulator did not answer at its usual rate.

        The result is the total length of all unusually long gaps between two samples from `start` to `end`.
        """
        times = [start, *(s["time"] for s in self.samples if start < s["time"] < end), end]
        gaps = (later - sooner for sooner, later in itertools.pairwise(times))
        return sum(gap for gap in gaps if gap > _USUAL_GAP_S)

    def around(self, when: float) -> tuple[dict, dict]:
        """Return the samples before and after a time."""
        times = [sample["time"] for sample in self.samples]
        assert times[0] <= when <= times[-1]
        place = max(1, bisect.bisect_left(times, when))
        return self.samples[place - 1], self.samples[place]

    def joules(self, component: str, start: float, end: float) -> float:
        """Return the energy between two times."""
        return self._at(component, end) - self._at(component, start)

    def _at(self, component: str, when: float) -> float:
        return energy_between(*self.around(when), component, when)


def energy_between(one: dict, other: dict, component: str, when: float) -> float:
    """Return the energy counted until a time between two samples, however far apart they are.

    The result is exact if the power changed at most once between the samples. The power and energy in both
    samples then determine the moment of the change. For more changes, the result is interpolated linearly.
    """
    before, after = one["power_watts"][component], other["power_watts"][component]
    length_s = other["time"] - one["time"]
    joules = other["energy_joules"][component] - one["energy_joules"][component]
    change_s = (joules - after * length_s) / (before - after) if before != after else -1.0
    passed_s = when - one["time"]
    if not 0 <= change_s <= length_s:
        return one["energy_joules"][component] + joules * passed_s / length_s
    if passed_s <= change_s:
        return one["energy_joules"][component] + before * passed_s
    return other["energy_joules"][component] - after * (length_s - passed_s)


@pytest.mark.parametrize(
    ("node", "command", "parts"),
    [
        ("n3", "senergy lab run train --gpu --seconds 11", ["cpu", "dram", "gpu[0]", "gpu[7]"]),
        ("n1", "timeout 11 sh -c 'while :; do :; done'; true", ["cpu", "dram"]),
    ],
)
def test_record_equals_the_integral_within_one_percent(lab: LabDriver, node: str, command: str, parts):
    gpus = ["--gpus-per-node=" + {"n2": "4", "n3": "8", "n4": "8"}[node]] if node != "n1" else []
    with TruthRecorder(lab, node) as recorder:
        job = lab.sbatch(command, "--exclusive", "-w", node, "--energy-policy=monitor", *gpus)
        lab.wait(job)
        (record,) = judges.acct(lab, job)[0]["nodes"]  # it may end later than the job in Slurm
    assert record["end"] - record["start"] > 8  # of 11, if senergyd could not record it at once
    for part in parts:
        truth = recorder.joules(part, record["start"], record["end"])
        assert record["components"][part]["energy_joules"] == pytest.approx(truth, rel=0.01), part


@pytest.mark.parametrize(
    ("node", "device", "parts"),
    [("n1", "--cpu", ["cpu", "dram"]), ("n2", "--gpu", ["gpu[0]", "gpu[1]", "gpu[2]", "gpu[3]"])],
)
def test_zeus_agrees_within_two_percent(lab: LabDriver, node: str, device: str, parts: list[str]):
    pytest.importorskip("zeus", reason="zeus is not installed (make test installs it)")
    program, output = lab.layout.root / "zeus_window.py", lab.layout.root / "window.json"
    program.write_text(ZEUS_WINDOW)
    gpus = ["--gpus-per-node=4"] if device == "--gpu" else []
    with TruthRecorder(lab, node) as recorder:
        job = lab.sbatch(f"python3 {program} {device} {output}", "--exclusive", f"-w{node}", *gpus)
        assert lab.wait(job) == "COMPLETED"
        (record,) = judges.acct(lab, job)[0]["nodes"]
    window = json.loads(output.read_text())
    for part in parts:
        kind, _, index = part.rstrip("]").partition("[")
        by_zeus = window[kind][index] if index else sum(window[kind].values())
        # Zeus reads at some moment within each pair of times: the energy between the two may count.
        outside = recorder.joules(part, record["start"], window["begin"][1])
        outside += recorder.joules(part, window["end"][0], record["end"])
        between = sum(recorder.joules(part, *window[name]) for name in ("begin", "end"))
        ours = record["components"][part]["energy_joules"] - outside
        assert ours - 0.02 * by_zeus <= by_zeus <= ours + between + 0.02 * by_zeus, part
