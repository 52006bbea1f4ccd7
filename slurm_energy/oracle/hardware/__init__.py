"""Peak rates and limits of kinds of device, read from files that state a source for each value.

Nothing here is fitted or measured.
"""

from slurm_energy.oracle.hardware.device_kind import PRECISIONS, Hardware
from slurm_energy.oracle.hardware.hardware_files import (
    find_hardware,
    hardware_names,
    load_hardware,
    use_site_hardware,
)

__all__ = ["PRECISIONS", "Hardware", "find_hardware", "hardware_names", "load_hardware", "use_site_hardware"]
