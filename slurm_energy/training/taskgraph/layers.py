"""Layers of neural networks for the task-graph trainer.

The arguments of each layer have the same meaning as in `torch.nn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from slurm_energy.errors import UsageError

Pair: TypeAlias = tuple[int, int]


def _pair(value: int | Pair, name: str, minimum: int = 1) -> Pair:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(not isinstance(item, int) or item < minimum for item in pair):
        raise UsageError(f"{name}={value!r}", f"must be one or two integers >= {minimum}")
    return pair[0], pair[1]


def _count(value: int, name: str) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}", "must be an integer >= 1")


class Layer:
    """Base class of all layers of a neural network."""


@dataclass(frozen=True, slots=True)
class Conv2d(Layer):
    """Convolution with weights (out_channels, in_channels, kernel height, kernel width)."""

    in_channels: int
    out_channels: int
    kernel_size: int | Pair
    stride: int | Pair = 1
    padding: int | Pair = 0
    bias: bool = True

    def __post_init__(self) -> None:
        _count(self.in_channels, "in_channels")
        _count(self.out_channels, "out_channels")
        _pair(self.kernel_size, "kernel_size")
        _pair(self.stride, "stride")
        _pair(self.padding, "padding", 0)

    @property
    def kernel(self) -> Pair:
        """Height and width of the convolution kernel."""
        return _pair(self.kernel_size, "kernel_size")

    @property
    def strides(self) -> Pair:
        """Distance of neighbouring windows in rows and columns."""
        return _pair(self.stride, "stride")

    @property
    def paddings(self) -> Pair:
        """Numbers of rows and of columns of zeros that are added on each side of the input."""
        return _pair(self.padding, "padding", 0)


@dataclass(frozen=True, slots=True)
class ReLU(Layer):
    """Rectification: max(0, x)."""


@dataclass(frozen=True, slots=True)
class MaxPool2d(Layer):
    """Max-pooling layer: its output is the maximum of each window of the input.

    If several elements of a window are equal to the maximum, the first one receives the gradient.

    Args:
        kernel_size: height and width of a window, at most 254 elements.
        stride: distance of windows; the kernel size if None.
    """

    kernel_size: int | Pair
    stride: int | Pair | None = None

    def __post_init__(self) -> None:
        height, width = _pair(self.kernel_size, "kernel_size")
        if height * width > 254:
            raise UsageError(f"kernel_size={self.kernel_size!r}", "a window has more than 254 elements")
        if self.stride is not None:
            _pair(self.stride, "stride")

    @property
    def kernel(self) -> Pair:
        """Height and width of a window."""
        return _pair(self.kernel_size, "kernel_size")

    @property
    def strides(self) -> Pair:
        """Distance between neighbouring pooling windows, in rows and columns."""
        return self.kernel if self.stride is None else _pair(self.stride, "stride")


@dataclass(frozen=True, slots=True)
class Flatten(Layer):
    """Channels, rows and columns of a sample as one vector."""


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """Dense layer with weights (out_features, in_features)."""

    in_features: int
    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        _count(self.in_features, "in_features")
        _count(self.out_features, "out_features")
