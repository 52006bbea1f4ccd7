"""Interface of `NvmlLibrary` for the modules that call NVML functions of their own, and the test for GPM."""

from __future__ import annotations

from typing import Any, Protocol


class NvmlCaller(Protocol):
    """The calls of `NvmlLibrary` that sensors and knobs use."""

    def call(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an NVML function for the GPU `index`; raise DeviceError if it fails."""

    def query(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function that takes no GPU; raise DeviceError if it fails."""

    def optional(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an NVML function for the GPU `index`; return None if it fails."""

    def struct(self, name: str) -> Any:
        """Return a new NVML struct; None if the library has no such struct."""


def supports_gpm(nvml: NvmlCaller, index: int) -> bool:
    """Return whether a GPU supports GPM and the installed nvidia-ml-py has its structs."""
    if nvml.struct("c_nvmlGpmMetricsGet_t") is None:
        return False
    support = nvml.optional("nvmlGpmQueryDeviceSupport", index)
    return bool(support is not None and support.isSupportedDevice)
