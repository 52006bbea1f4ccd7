"""Emulated cpufreq files of a node.

The files are those of each cpufreq policy and the global switches of the drivers. A write to a file changes
the node model.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree import kernel_parsers
from slurm_energy_lab.tree.cpufreq_state import CpufreqState, PolicySettings
from slurm_energy_lab.tree.entries import File, Store, Tree, refuse
from slurm_energy_lab.tree.topology import CPU_ROOT

ROOT = f"{CPU_ROOT}/cpufreq"
_STATUS_DIRECTORIES = {"intel": f"{CPU_ROOT}/intel_pstate", "amd": f"{CPU_ROOT}/amd_pstate"}


class CpufreqFiles:
    """All cpufreq files of one node. The files show and change one `CpufreqState`."""

    def __init__(self, tree: Tree, realtime_model: RealtimeModel) -> None:
        self._tree = tree
        self._realtime_model = realtime_model
        cpu = realtime_model.profile.cpu
        self.state = CpufreqState(realtime_model.profile.cpufreq, cpu.cpus, "hwp_epp" in cpu.flags.split())
        for number in range(cpu.cpus):
            tree.link(f"{CPU_ROOT}/cpu{number}/cpufreq", f"../cpufreq/policy{number}")
        self._add_driver_files()
        if not self.state.boost:
            self._store_global(lambda: None)

    def _add_driver_files(self) -> None:
        self._tree.remove(ROOT)
        for directory in _STATUS_DIRECTORIES.values():
            self._tree.remove(directory)
        for policy in self.state.policies:
            self._add_policy(policy)
        if self.state.family == "intel":
            self._add_intel_switches()
        else:
            self._file(f"{ROOT}/boost", lambda: int(self.state.boost), self._store_boost)
        if self.state.family == "amd":
            base = _STATUS_DIRECTORIES["amd"]
            self._file(f"{base}/status", lambda: self.state.mode, self._store_mode)
            self._tree.text(f"{base}/prefcore", "disabled")

    def _file(self, path: str, show: Callable[[], object], store: Store | None = None) -> None:
        def render() -> bytes:
            return f"{show()}\n".encode()

        self._tree.add(path, File(render, 0o644 if store else 0o444, store))

    def _add_policy(self, policy: PolicySettings) -> None:
        base = f"{ROOT}/policy{policy.cpu}"
        self._add_constants(base, policy)
        state = self.state
        self._file(f"{base}/cpuinfo_max_freq", lambda: state.cpuinfo_max_khz)
        self._file(f"{base}/scaling_cur_freq", lambda: self._current_khz(policy))
        self._file(
            f"{base}/scaling_governor",
            lambda: policy.governor,
            lambda data: self._store_governor(policy, data),
        )
        self._file(
            f"{base}/scaling_min_freq",
            lambda: state.limits_khz(policy)[0],
            lambda data: self._store_khz(policy, data, state.request_min),
        )
        self._file(
            f"{base}/scaling_max_freq",
            lambda: state.limits_khz(policy)[1],
            lambda data: self._store_khz(policy, data, state.request_max),
        )
        self._file(
            f"{base}/scaling_setspeed",
            lambda: "<unsupported>" if state.speed_khz(policy) is None else state.speed_khz(policy),
            lambda data: self._store_khz(policy, data, state.set_speed),
        )
        if policy.epp is not None:
            offered = f"{base}/energy_performance_available_preferences"
            self._file(offered, lambda: state.available_epp(policy))
            self._file(
                f"{base}/energy_performance_preference",
                lambda: policy.epp,
                lambda data: self._store_epp(policy, data),
            )

    def _add_constants(self, base: str, policy: PolicySettings) -> None:
        profile, state = self.state.profile, self.state
        texts = {
            "affected_cpus": policy.cpu,
            "related_cpus": policy.cpu,
            "cpuinfo_min_freq": profile.min_khz,
            "cpuinfo_transition_latency": profile.transition_latency_ns,
            "scaling_driver": state.driver,
            "scaling_available_governors": " ".join(state.governors) + ("" if state.active else " "),
        }
        if state.family == "intel":
            texts["base_frequency"] = profile.base_khz
        if state.family == "amd":
            texts["amd_pstate_max_freq"] = profile.max_khz
            texts["amd_pstate_lowest_nonlinear_freq"] = profile.min_khz
        if state.family == "acpi":
            texts["scaling_available_frequencies"] = " ".join(map(str, state.table_khz)) + " "
            texts["bios_limit"] = profile.cpuinfo_max_khz
        if state.family in ("acpi", "cppc"):
            texts["freqdomain_cpus"] = policy.cpu
            current = File(lambda: b"%d\n" % self._current_khz(policy), 0o400)
            self._tree.add(f"{base}/cpuinfo_cur_freq", current)
        for name, text in texts.items():
            self._tree.text(f"{base}/{name}", str(text))

    def _add_intel_switches(self) -> None:
        base, state = _STATUS_DIRECTORIES["intel"], self.state
        profile = state.profile
        self._file(f"{base}/status", lambda: state.mode, self._store_mode)
        self._file(f"{base}/no_turbo", lambda: int(not state.boost), self._store_no_turbo)
        self._file(
            f"{base}/max_perf_pct",
            lambda: state.max_perf_pct,
            lambda data: self._store_global(
                lambda: state.set_perf_pct(high=kernel_parsers.scanned_integer(data))
            ),
        )
        self._file(
            f"{base}/min_perf_pct",
            lambda: state.min_perf_pct,
            lambda data: self._store_global(
                lambda: state.set_perf_pct(low=kernel_parsers.scanned_integer(data))
            ),
        )
        steps = (profile.max_khz - profile.min_khz) // 100_000 + 1
        turbo = (profile.max_khz - profile.base_khz) // 100_000
        self._tree.text(f"{base}/num_pstates", str(steps))
        self._tree.text(f"{base}/turbo_pct", str(100 * turbo // steps))

    def _current_khz(self, policy: PolicySettings) -> int:
        with self._realtime_model.now() as model:
            return model.effective_khz(policy.cpu)

    def _store_governor(self, policy: PolicySettings, data: bytes) -> None:
        word = kernel_parsers.word(data, 15)
        with self._realtime_model.modify() as model:
            self.state.set_governor(policy, word, model.effective_khz(policy.cpu))
            model.set_cpufreq(policy.cpu, self.state.request(policy))

    def _store_khz(
        self, policy: PolicySettings, data: bytes, take: Callable[[PolicySettings, int], None]
    ) -> None:
        khz = kernel_parsers.any_base_unsigned(data)
        with self._realtime_model.modify() as model:
            take(policy, khz)
            model.set_cpufreq(policy.cpu, self.state.request(policy))

    def _store_epp(self, policy: PolicySettings, data: bytes) -> None:
        word = kernel_parsers.word(data, 20)
        with self._realtime_model.modify() as model:
            self.state.set_epp(policy, word)
            model.set_cpufreq(policy.cpu, self.state.request(policy))

    def _store_boost(self, data: bytes) -> None:
        value = kernel_parsers.scanned_integer(data)
        if value not in (0, 1):
            refuse(errno.EINVAL)
        self._store_global(lambda: self.state.set_boost(bool(value)))

    def _store_no_turbo(self, data: bytes) -> None:
        value = kernel_parsers.scanned_integer(data)
        self._store_global(lambda: self.state.set_boost(not value))

    def _store_mode(self, data: bytes) -> None:
        mode = data.partition(b"\n")[0].partition(b"\0")[0].decode("ascii", "replace")
        before = self.state.mode
        self._store_global(lambda: self.state.switch_mode(mode))
        if self.state.mode != before:
            self._add_driver_files()

    def _store_global(self, change: Callable[[], None]) -> None:
        with self._realtime_model.modify() as model:
            change()
            requests = [self.state.request(policy) for policy in self.state.policies]
            if all(request == requests[0] for request in requests):
                model.set_cpufreq_all(requests[0])
                return
            for cpu, request in enumerate(requests):
                model.set_cpufreq(cpu, request)
