"""What devices can do at most, from files with a source for each figure; nothing fitted, nothing measured."""

from slurm_energy.oracle.hardware.device_kind import PRECISIONS, Hardware
from slurm_energy.oracle.hardware.hardware_files import (
    find_hardware,
    hardware_names,
    load_hardware,
    use_site_hardware,
)

__all__ = ["PRECISIONS", "Hardware", "find_hardware", "hardware_names", "load_hardware", "use_site_hardware"]
