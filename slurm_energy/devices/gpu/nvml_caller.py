"""Interface of `NvmlLibrary` for modules that call NVML functions through it."""

from __future__ import annotations

from typing import Any, Protocol


class NvmlCaller(Protocol):
    """The functions of `NvmlLibrary` that sensors and settings (knobs) of GPUs call."""

    def call(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an NVML function for the GPU `index`; raise DeviceError if it fails."""

    def query(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function that takes no GPU; raise DeviceError if it fails."""

    def optional(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an NVML function for the GPU `index`; return None if it fails."""

    def struct(self, name: str) -> Any:
        """Return a new NVML struct; None if the library does not know this struct."""
