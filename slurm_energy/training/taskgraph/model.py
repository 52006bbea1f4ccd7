"""Neural network as a chain of layers, with the parameters of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from slurm_energy.errors import UsageError
from slurm_energy.training.taskgraph.layers import Conv2d, Layer, Linear

Array: TypeAlias = npt.NDArray[Any]


class Sequential:
    """A chain of layers, as `torch.nn.Sequential`.

    Weights and biases start uniform in +-1/sqrt(fan-in), as in PyTorch.

    Args:
        layers: the layers from input to output.
        seed: seed of the random initial weights and biases.
    """

    def __init__(self, *layers: Layer, seed: int = 0) -> None:
        for layer in layers:
            if not isinstance(layer, Layer):
                raise UsageError(f"{layer!r}", "is not a layer of taskgraph")
        self.layers = layers
        self._parameters: dict[str, Array] = {}
        generator = np.random.default_rng(seed)
        for name, shape, fan_in in _parameter_shapes(layers):
            bound = 1.0 / fan_in**0.5
            self._parameters[name] = generator.uniform(-bound, bound, shape)

    def parameters(self) -> dict[str, Array]:
        """Return the parameters by PyTorch's keys ("0.weight"); a trainer updates these arrays in place."""
        return dict(self._parameters)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Copy values into the parameters.

        Args:
            state: an array per key of `parameters`, as `state_dict` of the same `torch.nn.Sequential`.

        Raises:
            UsageError: a key is missing or unknown, or a shape differs.
        """
        if missing := sorted(self._parameters.keys() ^ state.keys()):
            raise UsageError(
                f"state: {', '.join(missing)}", "missing or unknown", f"needs {', '.join(self._parameters)}"
            )
        for name, values in state.items():
            array = np.asarray(values)
            if array.shape != (wanted := self._parameters[name].shape):
                raise UsageError(f"state: {name}", f"has the shape {array.shape}", f"needs {wanted}")
            self._parameters[name][...] = array

    def convert(self, dtype: npt.DTypeLike) -> None:
        """Convert the parameters to an element type; arrays of another type are replaced."""
        for name, values in self._parameters.items():
            self._parameters[name] = np.require(values, dtype, ["C", "A", "W"])


def _parameter_shapes(layers: tuple[Layer, ...]) -> list[tuple[str, tuple[int, ...], int]]:
    shapes: list[tuple[str, tuple[int, ...], int]] = []
    for index, layer in enumerate(layers):
        if isinstance(layer, Conv2d):
            height, width = layer.kernel
            weight: tuple[int, ...] = (layer.out_channels, layer.in_channels, height, width)
            fan_in = layer.in_channels * height * width
        elif isinstance(layer, Linear):
            weight, fan_in = (layer.out_features, layer.in_features), layer.in_features
        else:
            continue
        shapes.append((f"{index}.weight", weight, fan_in))
        if layer.bias:
            shapes.append((f"{index}.bias", weight[:1], fan_in))
    return shapes
