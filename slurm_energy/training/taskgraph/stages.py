"""Division of a network into stages, each of which is computed by one C kernel.

A stage is a group of layers. Intermediate values of a stage stay in the cache. A convolution includes the
ReLU and the pooling that follow it. A dense layer includes the ReLU that follows it.

A stage may exchange the order of ReLU and pooling without changing the result: both are monotone, and no
gradient passes a pooling window whose maximum is not positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy.training.taskgraph.layers import Conv2d, Flatten, Layer, Linear, MaxPool2d, Pair, ReLU

CONVOLUTION, DENSE, POOL, RELU = range(4)
"""Kinds of stages, as in taskgraph.h."""


@dataclass(slots=True)
class Stage:
    """One stage of a network: `struct tg_stage_spec` of taskgraph.h without its arrays."""

    kind: int
    layer_index: int
    outputs: int = 0
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    paddings: Pair = (0, 0)
    relu: bool = False
    pool: Pair = (0, 0)


@dataclass(slots=True)
class _Tensor:
    channels: int
    height: int
    width: int
    is_flat: bool = False

    @property
    def features(self) -> int:
        return self.channels * self.height * self.width


def plan_stages(layers: Sequence[Layer], image_shape: tuple[int, int, int]) -> tuple[list[Stage], int]:
    """Return the stages of a network, and the number of classes that the network distinguishes.

    Args:
        layers: layers of the network from input to output.
        image_shape: channels, height and width of an image.

    Raises:
        UsageError: a layer does not accept the shape of its input, or the network does not end in a vector of
            classes.
    """
    stages: list[Stage] = []
    tensor = _Tensor(*image_shape)
    for index, layer in enumerate(layers):
        name = f"layer {index} ({type(layer).__name__})"
        if isinstance(layer, Conv2d):
            tensor = _convolve(layer, tensor, name)
            stages.append(
                Stage(CONVOLUTION, index, layer.out_channels, layer.kernel, layer.strides, layer.paddings)
            )
        elif isinstance(layer, MaxPool2d):
            tensor = _pool(layer, tensor, name)
            _append_pool(stages, layer, index)
        elif isinstance(layer, ReLU):
            _append_relu(stages, index)
        elif isinstance(layer, Flatten):
            tensor = _Tensor(tensor.channels, tensor.height, tensor.width, True)
        elif isinstance(layer, Linear):
            tensor = _connect(layer, tensor, name)
            stages.append(Stage(DENSE, index, layer.out_features))
    if not stages or not tensor.is_flat or not any(stage.kind in (CONVOLUTION, DENSE) for stage in stages):
        raise UsageError("the model", "does not end in one value per class", "end it with Flatten and Linear")
    return stages, tensor.features


def _append_relu(stages: list[Stage], index: int) -> None:
    if stages and stages[-1].kind != RELU:
        stages[-1].relu = True
    elif not stages:
        stages.append(Stage(RELU, index))


def _append_pool(stages: list[Stage], layer: MaxPool2d, index: int) -> None:
    previous = stages[-1] if stages else None
    if (
        previous
        and previous.kind == CONVOLUTION
        and previous.pool == (0, 0)
        and layer.kernel == layer.strides
    ):
        previous.pool = layer.kernel
    else:
        stages.append(Stage(POOL, index, 0, layer.kernel, layer.strides))


def _convolve(layer: Conv2d, tensor: _Tensor, name: str) -> _Tensor:
    if tensor.is_flat or tensor.channels != layer.in_channels:
        found = "a vector" if tensor.is_flat else f"{tensor.channels} channels"
        raise UsageError(name, f"its input has {found}", f"needs {layer.in_channels} channels")
    height, width = (
        (size + 2 * padding - kernel) // stride + 1 if size + 2 * padding >= kernel else 0
        for size, padding, kernel, stride in zip(
            (tensor.height, tensor.width), layer.paddings, layer.kernel, layer.strides, strict=True
        )
    )
    if not height or not width:
        raise UsageError(name, f"its input of {tensor.height} x {tensor.width} is smaller than the kernel")
    return _Tensor(layer.out_channels, height, width)


def _pool(layer: MaxPool2d, tensor: _Tensor, name: str) -> _Tensor:
    if tensor.is_flat:
        raise UsageError(name, "its input is a vector", "put it before Flatten")
    if tensor.height < layer.kernel[0] or tensor.width < layer.kernel[1]:
        raise UsageError(name, f"its input of {tensor.height} x {tensor.width} is smaller than the window")
    height = (tensor.height - layer.kernel[0]) // layer.strides[0] + 1
    width = (tensor.width - layer.kernel[1]) // layer.strides[1] + 1
    return _Tensor(tensor.channels, height, width)


def _connect(layer: Linear, tensor: _Tensor, name: str) -> _Tensor:
    if not tensor.is_flat:
        raise UsageError(name, "its input is not a vector", "put Flatten before it")
    if tensor.features != layer.in_features:
        raise UsageError(name, f"its input has {tensor.features} features", f"needs {layer.in_features}")
    return _Tensor(layer.out_features, 1, 1, True)
