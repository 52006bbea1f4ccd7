"""Networks for tests of the task-graph trainer, and their values and gradients computed with numpy alone.

`python taskgraph_cases.py OUT.npz` computes all cases with StarPU and writes the results.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_energy.training import taskgraph as tg

RATE = 0.1
SPLITS = {"whole": 1, "chunks": 2, "many": 4, "groups": (2, 3), "single-group": (1, 2)}


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int, int]
    layers: tuple[tg.Layer, ...]
    batch: int = 4
    dtype: str = "float64"

    def model(self) -> tg.Sequential:
        return tg.Sequential(*self.layers, seed=3)

    def samples(self) -> tuple[Any, Any]:
        generator = np.random.default_rng(5)
        images = generator.standard_normal((self.batch, *self.shape))
        return images, generator.integers(0, self.layers[-1].out_features, self.batch)


CASES = {
    "dahl": Case(
        (3, 14, 22),
        (tg.Conv2d(3, 12, 3), tg.ReLU(), tg.MaxPool2d(2), tg.Flatten(), tg.Linear(12 * 6 * 10, 5)),
    ),
    "two convolutions": Case(
        (3, 13, 17),
        (
            *(
                tg.Conv2d(3, 9, 3),
                tg.ReLU(),
                tg.MaxPool2d(2),
                tg.Conv2d(9, 13, 3, 1, 1),
                tg.MaxPool2d((2, 3)),
            ),
            *(tg.ReLU(), tg.Flatten(), tg.Linear(13 * 2 * 2, 8), tg.ReLU(), tg.Linear(8, 3, bias=False)),
        ),
    ),
    "strides and overlaps": Case(
        (2, 17, 23),
        (
            *(tg.Conv2d(2, 5, 5, 2, 2), tg.ReLU(), tg.Conv2d(5, 6, (3, 2), (2, 1), (0, 1), False)),
            *(tg.MaxPool2d(3, 2), tg.ReLU(), tg.Flatten(), tg.Linear(6 * 1 * 6, 4)),
        ),
    ),
    "equal maxima": Case((1, 6, 6), (tg.ReLU(), tg.MaxPool2d(2), tg.Flatten(), tg.Linear(9, 3)), batch=3),
}


def windows(values: Any, kernel: tuple[int, int], strides: tuple[int, int]) -> Any:
    """Return all windows of images over which the kernel of a convolution moves, as an array.

    Axes: sample, channel, row, column, window row, window column.
    """
    view = np.lib.stride_tricks.sliding_window_view(values, kernel, (2, 3))
    return view[:, :, :: strides[0], :: strides[1]]


def reference(case: Case) -> dict[str, Any]:
    """Return the expected logits, loss and gradients of a test case.

    The function computes them with numpy, layer by layer. It does not use the trainer under test.
    """
    parameters = case.model().parameters()
    values, labels = case.samples()
    inputs = []
    for index, layer in enumerate(case.layers):
        inputs.append(values)
        values = _forward(layer, values, parameters.get(f"{index}.weight"), parameters.get(f"{index}.bias"))
    shifted = np.exp(values - values.max(1, keepdims=True))
    shares = shifted / shifted.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    result = {"logits": values, "loss": -np.log(shares[rows, labels]).mean()}
    gradient = shares.copy()
    gradient[rows, labels] -= 1
    gradient /= len(labels)
    for index in reversed(range(len(case.layers))):
        weights = parameters.get(f"{index}.weight")
        gradient, of_weights, of_bias = _backward(case.layers[index], inputs[index], gradient, weights)
        if of_weights is not None:
            result[f"{index}.weight"] = of_weights
            result |= {f"{index}.bias": of_bias} if f"{index}.bias" in parameters else {}
    return result


def _padded(layer: tg.Conv2d, values: Any) -> Any:
    (height, width) = layer.paddings
    return np.pad(values, ((0, 0), (0, 0), (height, height), (width, width)))


def _forward(layer: tg.Layer, values: Any, weights: Any, bias: Any) -> Any:
    if isinstance(layer, tg.Conv2d):
        seen = windows(_padded(layer, values), layer.kernel, layer.strides)
        out = np.einsum("nchwij,fcij->nfhw", seen, weights)
        return out if bias is None else out + bias[:, None, None]
    if isinstance(layer, tg.Linear):
        return values @ weights.T + (0 if bias is None else bias)
    if isinstance(layer, tg.MaxPool2d):
        return windows(values, layer.kernel, layer.strides).max((4, 5))
    return values.reshape(len(values), -1) if isinstance(layer, tg.Flatten) else np.maximum(values, 0)


def _backward(layer: tg.Layer, inputs: Any, gradient: Any, weights: Any) -> tuple[Any, Any, Any]:
    if isinstance(layer, tg.Flatten):
        return gradient.reshape(inputs.shape), None, None
    if isinstance(layer, tg.ReLU):
        return gradient * (inputs > 0), None, None
    if isinstance(layer, tg.Linear):
        return gradient @ weights, gradient.T @ inputs, gradient.sum(0)
    kernel, strides = layer.kernel, layer.strides
    is_pool = isinstance(layer, tg.MaxPool2d)
    source = inputs if is_pool else _padded(layer, inputs)
    seen = windows(source, kernel, strides)
    if is_pool:
        flat = seen.reshape(*seen.shape[:4], -1)
        first = flat.argmax(-1)[..., None] == np.arange(flat.shape[-1])
        spread = (first * gradient[..., None]).reshape(seen.shape)
    else:
        spread = np.einsum("nfhw,fcij->nchwij", gradient, weights)
    of_source = np.zeros_like(source)
    for y in range(seen.shape[2]):
        for x in range(seen.shape[3]):
            top, left = y * strides[0], x * strides[1]
            of_source[:, :, top : top + kernel[0], left : left + kernel[1]] += spread[:, :, y, x]
    if is_pool:
        return of_source, None, None
    top, left = layer.paddings
    inner = of_source[:, :, top : top + inputs.shape[2], left : left + inputs.shape[3]]
    return inner, np.einsum("nfhw,nchwij->fcij", gradient, seen), gradient.sum((0, 2, 3))


def computed(case: Case, granularity: int | tuple[int, int] | str, workers: int = 2) -> dict[str, Any]:
    """Return the results of the task-graph trainer for a test case.

    The result has the same keys as the result of `reference`. It also contains the parameters after two
    updates, with keys such as "new 0.weight".
    """
    model = case.model()
    trainer = tg.Trainer(model, RATE, case.batch, case.dtype, workers, granularity)
    images, labels = case.samples()
    loss, gradients = trainer.gradients(images, labels)
    result = {"logits": trainer.predict(images), "loss": loss, **gradients}
    result["losses"] = trainer.fit(images, labels, epochs=2)
    result["part"] = trainer.predict(images[:1])
    return result | {f"new {name}": values for name, values in model.parameters().items()}


def main() -> None:
    results = {}
    for name, case in CASES.items():
        for split, granularity in SPLITS.items():
            for key, values in computed(case, granularity).items():
                results[f"{name}|{split}|{key}"] = values
        for key, values in computed(case, SPLITS["many"], workers=3).items():
            results[f"{name}|other workers|{key}"] = values
    images, labels = CASES["dahl"].samples()
    images[0, 0, 0, 0] = np.nan
    model = CASES["dahl"].model()
    results["nan loss"] = tg.Trainer(model, RATE, 4, "float32", 1, 1).fit(images, labels)
    adaptive = tg.Trainer(CASES["dahl"].model(), RATE, 4, "float64", 2)
    order = np.resize(np.arange(4), 400)
    results["adaptive losses"] = adaptive.fit(images[1:][order % 3], labels[1:][order % 3])
    results["adaptive chunks"] = adaptive.statistics().chunks
    np.savez(sys.argv[1], **results)


if __name__ == "__main__":
    main()
