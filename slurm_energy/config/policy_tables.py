"""Declaration of two kinds of tables in energy.toml: `[policies.NAME]` and `[[edp]]`.

A site may define several tables of each kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurm_energy.config.value_checks import (
    between,
    key,
    model_name,
    one_line,
    one_of,
    product_name,
    user_names,
)

GOVERNORS = ("performance", "powersave", "ondemand", "conservative", "schedutil")
"""Linux governors that select a frequency by themselves (Documentation/admin-guide/pm/cpufreq.rst)."""
PREFERENCES = ("default", "performance", "balance_performance", "balance_power", "power")
"""Names of energy_performance_preference (Documentation/admin-guide/pm/intel_pstate.rst)."""


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """A policy of the site: a built-in policy with fixed values and a list of permitted users."""

    base: str = key("monitor", "Built-in policy on which it is based.")
    description: str = key("", "One line for `senergy policies`.", one_line)
    users: list[str] = key([], "Users who may request it; empty: all users.", user_names)
    cap_watts: float | None = key(
        None, "Cap per node for jobs without --energy-cap.", between(1, 1e6), show=400
    )
    gpu_cap_watts: float | None = key(
        None, "Cap per GPU for jobs without --energy-gpu-cap.", between(1, 1e5), show=250
    )
    max_frequency_mhz: float | None = key(None, "Maximum CPU frequency.", between(100, 1e5), show=2100)
    governor: str | None = key(
        None, "cpufreq governor, if the driver has it.", one_of(*GOVERNORS), show="schedutil"
    )
    epp: str | None = key(
        None,
        "energy_performance_preference, if the driver has it.",
        one_of(*PREFERENCES),
        show="balance_power",
    )


@dataclass(frozen=True, slots=True)
class EdpEntry:
    """Settings with which jobs start under the policy `edp` on a kind of hardware.

    An entry may be restricted to one workload. If several entries match a job, the most specific entry
    applies. If the job is tuned, tuning replaces the settings by measured values. Without tuning, the
    settings stay in force.
    """

    cpu: str = key(
        "",
        "Words in the model name of the processor; `Platinum 8358` does not match the 8358P. Empty: any.",
        product_name,
        show="Platinum 8358",
    )
    gpu: str = key(
        "",
        "Product name of the GPU; `A100` matches every A100, `A100-SXM4-80GB` only that product. Empty: any.",
        product_name,
        show="",
    )
    model: str = key("", "Value of --energy-model; empty: any.", model_name)
    max_frequency_mhz: float | None = key(None, "Maximum CPU frequency.", between(100, 1e5), show=2100)
    package_cap_watts: float | None = key(None, "RAPL power limit per package.", between(1, 1e5), show=200)
    gpu_cap_watts: float | None = key(None, "Power limit per GPU.", between(1, 1e5), show=300)
    gpu_clock_mhz: float | None = key(None, "Maximum GPU clock.", between(100, 1e5), show=1005)
    source: str = key("", "Origin of the values, for information.")


def policy_name_fault(name: str) -> str | None:
    """Check the name of a policy; return the fault, or None if the name is valid."""
    fits = re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", name)
    return None if fits else "a policy name is a letter a-z, then a-z, 0-9, - and _, at most 32 characters"
