"""NVIDIA's GPU performance monitoring (GPM), which exists from Hopper on.

Source: NVML API reference, "GPM Functions".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.gpu.nvml_caller import NvmlCaller

_VERSION: Final = 1


def supports_gpm(nvml: NvmlCaller, index: int) -> bool:
    """Return whether a GPU supports GPM and the installed nvidia-ml-py has the structs for it."""
    if nvml.struct("c_nvmlGpmMetricsGet_t") is None:
        return False
    support = nvml.optional("nvmlGpmQueryDeviceSupport", index)
    return bool(support is not None and support.isSupportedDevice)


class GpmSampler:
    """Sampler of one GPU's GPM metrics. Each reading is the mean since the previous reading.

    Args:
        nvml: the open library.
        index: index of a GPU that supports GPM.
        metrics: numbers of the metrics (NVML_GPM_METRIC_...).
    """

    def __init__(self, nvml: NvmlCaller, index: int, metrics: Collection[int]) -> None:
        self._nvml, self._index, self._numbers = nvml, index, tuple(metrics)
        self._samples: list[Any] = []

    def read(self) -> dict[int, float] | None:
        """Return the means since the previous call, by metric. Unavailable metrics are omitted.

        Return None at the first call, and at the first call after an error.

        Raises:
            DeviceError: the GPU does not answer.
        """
        try:
            return self._read()
        except DeviceError:
            self.forget()
            raise

    def forget(self) -> None:
        """Free the samples, so that the next call of `read` acts like the first one."""
        samples, self._samples = self._samples, []
        for sample in samples:
            try:
                self._nvml.query("nvmlGpmSampleFree", sample)
            except DeviceError:
                continue

    def _read(self) -> dict[int, float] | None:
        nvml = self._nvml
        if not self._samples:
            self._samples = [nvml.query("nvmlGpmSampleAlloc"), nvml.query("nvmlGpmSampleAlloc")]
            nvml.call("nvmlGpmSampleGet", self._index, self._samples[0])
            return None
        earlier, later = self._samples
        nvml.call("nvmlGpmSampleGet", self._index, later)
        self._samples = [later, earlier]
        return self._means(earlier, later)

    def _means(self, earlier: Any, later: Any) -> dict[int, float]:
        request = self._nvml.struct("c_nvmlGpmMetricsGet_t")
        request.version, request.numMetrics = _VERSION, len(self._numbers)
        request.sample1, request.sample2 = earlier, later
        for slot, number in enumerate(self._numbers):
            request.metrics[slot].metricId = number
        self._nvml.query("nvmlGpmMetricsGet", request)
        metrics = (request.metrics[slot] for slot in range(len(self._numbers)))
        return {int(metric.metricId): float(metric.value) for metric in metrics if metric.nvmlReturn == 0}
