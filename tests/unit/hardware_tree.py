"""A node's /sys and /proc as plain files in a directory, for tests without emulated hardware."""

from __future__ import annotations

from pathlib import Path

KERNEL_RANGE_UJ = 262143328850  # what real kernels show for a 61 uJ register unit

GOVERNORS = {
    "intel_pstate": "performance powersave",
    "amd-pstate-epp": "performance powersave",
}
GENERIC_GOVERNORS = "conservative ondemand userspace powersave performance schedutil"
PREFERENCES = "default performance balance_performance balance_power power"


class Tree:
    """Builder of test files. `root` is the directory that the drivers use in place of `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, value: object) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
        return file

    def process_ids(self, pid: int, uid: int = 0, gid: int = 0, effective_uid: int = 0) -> Tree:
        """Add the file /proc/PID/status of a process with the given user and group ids.

        By default the ids are those of slurmstepd: all are 0.
        """
        uids = "\t".join(map(str, (uid, *[effective_uid] * 3)))
        gids = "\t".join([str(gid)] * 4)
        self.put(f"proc/{pid}/status", f"Name:\ta\nPid:\t{pid}\nUid:\t{uids}\nGid:\t{gids}\nFDSize:\t64")
        return self

    def get(self, path: str) -> str:
        return (self.root / path).read_text().strip()

    def cpus(self, count: int, model: str = "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz") -> Tree:
        self.put("sys/devices/system/cpu/online", f"0-{count - 1}")
        self.put("proc/cpuinfo", f"processor\t: 0\nmodel name\t: {model}\n")
        return self

    def cores(self, count: int, packages: int) -> Tree:
        """Create `count` CPUs, each with a core of its own, and divide them among packages.

        Each package has consecutive CPUs.
        """
        for number in range(count):
            folder = f"sys/devices/system/cpu/cpu{number}/topology"
            self.put(f"{folder}/physical_package_id", number * packages // count)
            self.put(f"{folder}/thread_siblings_list", number)
        return self

    def cpufreq(self, count: int, driver: str = "acpi-cpufreq", governor: str = "ondemand") -> Tree:
        for number in range(count):
            folder = f"sys/devices/system/cpu/cpufreq/policy{number}"
            values = {
                "affected_cpus": number,
                "scaling_driver": driver,
                "scaling_available_governors": GOVERNORS.get(driver, GENERIC_GOVERNORS),
                "scaling_governor": governor,
                "scaling_min_freq": 800000,
                "scaling_max_freq": 3400000,
                "cpuinfo_min_freq": 800000,
                "cpuinfo_max_freq": 3400000,
                "scaling_setspeed": "2000000" if governor == "userspace" else "<unsupported>",
            }
            if driver in GOVERNORS:
                del values["scaling_setspeed"]
                values["energy_performance_available_preferences"] = PREFERENCES
                values["energy_performance_preference"] = "balance_performance"
            for name, value in values.items():
                self.put(f"{folder}/{name}", value)
        return self

    def zone(self, number: str, name: str, *, limit_watts: float | None = None, energy_uj: int = 0) -> Tree:
        folder = f"sys/class/powercap/{number}"
        self.put(f"{folder}/name", name)
        self.put(f"{folder}/energy_uj", energy_uj)
        self.put(f"{folder}/max_energy_range_uj", KERNEL_RANGE_UJ)
        if limit_watts is not None:
            self.put(f"{folder}/enabled", 0)
            self.put(f"{folder}/constraint_0_name", "long_term")
            self.put(f"{folder}/constraint_0_power_limit_uw", round(limit_watts * 1e6))
            self.put(f"{folder}/constraint_0_time_window_us", 27983872)
            self.put(f"{folder}/constraint_0_max_power_uw", 250_000_000)
        return self

    def two_packages(self) -> Tree:
        self.zone("intel-rapl:0", "package-1", limit_watts=250)  # numbers and names need not agree
        self.zone("intel-rapl:0:0", "dram")
        self.zone("intel-rapl:1", "package-0", limit_watts=250)
        self.zone("intel-rapl:1:0", "core")
        self.zone("intel-rapl:1:1", "dram")
        return self

    def policy(self, number: int, name: str) -> str:
        return self.get(f"sys/devices/system/cpu/cpufreq/policy{number}/{name}")

    def open_files(self) -> int:
        """Return the number of files of this tree that this process has open.

        Files outside the tree are not counted, because their number changes at any time.
        """
        inside = self.root.resolve()
        return sum(inside in link.resolve().parents for link in Path("/proc/self/fd").iterdir())

    def snapshot(self) -> dict[str, str]:
        """Return the contents of every file that a setting may change, by relative path."""
        names = ("scaling_", "energy_performance_preference", "constraint_0_", "enabled", "boost", "no_turbo")
        return {
            str(path.relative_to(self.root)): path.read_text().strip()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name.startswith(names)
        }
