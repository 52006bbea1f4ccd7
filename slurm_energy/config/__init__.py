"""The configuration file `energy.toml`.

One schema defines the validation, the example file and the reference page.
"""

from slurm_energy.config.budget_tables import BudgetConfig, BudgetTable
from slurm_energy.config.daemon_sections import AgentConfig, ClusterConfig, ControllerConfig
from slurm_energy.config.loader import DEFAULT_PATH, load, locate, parse
from slurm_energy.config.node_types import NodeType, this_node
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy
from slurm_energy.config.schema import (
    TUNING_MODES,
    BoundsConfig,
    Config,
    DefaultsConfig,
    NodePowerConfig,
    TuningConfig,
)

__all__ = [
    "DEFAULT_PATH",
    "TUNING_MODES",
    "AgentConfig",
    "BoundsConfig",
    "BudgetConfig",
    "BudgetTable",
    "ClusterConfig",
    "Config",
    "ControllerConfig",
    "DefaultsConfig",
    "EdpEntry",
    "NodePowerConfig",
    "NodeType",
    "SitePolicy",
    "TuningConfig",
    "load",
    "locate",
    "parse",
    "this_node",
]
