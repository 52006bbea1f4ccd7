"""Comparison of the task-graph trainer of slurm-energy with PyTorch, both in float64.

The benchmark compares values, gradients, updates and training curves of the two programs. Random networks
with the layers of DAHL (section 3) run in both programs with the same parameters. The training curves come
from a network on generated images of ten classes. The images have the size of Fashion-MNIST (28 x 28 x 1).
The benchmark also measures the CPU use of idle workers. It needs StarPU and OpenBLAS. The interpreter given
by --python needs PyTorch (Debian: python3-torch).

The benchmark prints three results (claims):

- `CLAIM taskgraph_digits ratio=DIGITS target=>=10`: number of decimal digits in which both
  programs agree. It is the minimum over all networks, layers, batch splits and updates.
- `CLAIM taskgraph_curve_digits`: the same for the loss in each step of the training curves.
- `CLAIM taskgraph_idle_cpu`: number of processors that idle workers use.

`--table FILE` writes the curves as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from claims import at_least, at_most, publish

ROOT = Path(__file__).resolve().parents[1]
SPLITS = (1, 2, 3, (1, 2), (2, 3))
NETWORKS, UPDATES, RATE = 24, 3, 0.05
EPOCHS, IMAGES, BATCH = 5, 2048, 32
IDLE_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="/usr/bin/python3", help="Python with PyTorch")
    parser.add_argument(
        "--networks", type=int, default=NETWORKS, help=f"random networks (default {NETWORKS})"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument("--table", metavar="FILE", help="write the training curves to FILE as Markdown")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measure(arguments.networks)))
        return 0
    command = [arguments.python, __file__, "--inside", "--networks", str(arguments.networks)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=False)
    if done.returncode:
        return done.returncode
    result = json.loads(done.stdout.splitlines()[-1])
    if arguments.table:
        Path(arguments.table).write_text(curve_table(result["curves"]))
    claims = [
        at_least("taskgraph_digits", result["digits"], 10),
        at_least("taskgraph_curve_digits", result["curve_digits"], 10),
        at_most("taskgraph_idle_cpu", result["idle_cpu"], 0.01),
    ]
    return publish(claims, arguments.json)


def measure(networks: int) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = min(digits_of_network(seed) for seed in range(networks))
    curves = training_curves()
    curve_digits = min(
        equal_digits(a, b) for a, b in zip(curves["pytorch"], curves["taskgraph"], strict=True)
    )
    before = time.process_time()
    time.sleep(IDLE_S)
    idle_cpu = (time.process_time() - before) / IDLE_S
    return {"digits": digits, "curve_digits": curve_digits, "curves": curves, "idle_cpu": idle_cpu}


def equal_digits(first: Any, second: Any) -> float:
    """Return the number of decimal digits in which two arrays agree, at most 16.

    The number is -log10(d / m). Here d is the largest absolute difference of the arrays, and m is the
    largest absolute value in `first`. If the arrays are equal, the result is 16.
    """
    import numpy as np

    difference, scale = np.abs(np.asarray(first) - second).max(), np.abs(np.asarray(first)).max()
    return 16.0 if difference == 0 else min(16.0, -math.log10(difference / max(scale, 1e-300)))


def random_layers(
    generator: Any, channels: int, height: int, width: int
) -> list[tuple[str, tuple[Any, ...]]]:
    layers: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(int(generator.integers(1, 4))):
        kernel = (
            int(generator.integers(1, min(6, height + 1))),
            int(generator.integers(1, min(6, width + 1))),
        )
        stride, padding = int(generator.integers(1, 3)), int(generator.integers(0, 3))
        outputs = int(generator.integers(1, 20))
        layers.append(("Conv2d", (channels, outputs, kernel, stride, padding)))
        channels = outputs
        height, width = (
            (n + 2 * padding - k) // stride + 1 for n, k in zip((height, width), kernel, strict=True)
        )
        if generator.integers(4):
            layers.append(("ReLU", ()))
        window, step = int(generator.integers(2, 4)), int(generator.integers(1, 4))
        if min(height, width) >= window and generator.integers(4):
            layers.append(("MaxPool2d", (window, step)))
            height, width = ((n - window) // step + 1 for n in (height, width))
    hidden = int(generator.integers(3, 30))
    flat = channels * height * width
    return [*layers, ("Flatten", ()), ("Linear", (flat, hidden)), ("ReLU", ()), ("Linear", (hidden, 10))]


def both(layers: list[tuple[str, tuple[Any, ...]]]) -> tuple[Any, Any]:
    """Return the same network twice: for the task-graph trainer and for PyTorch, in this order.

    Both networks use float64 and the initial parameters of PyTorch.
    """
    from torch import nn

    from slurm_energy.training import taskgraph as tg

    reference = nn.Sequential(*(getattr(nn, name)(*arguments) for name, arguments in layers)).double()
    model = tg.Sequential(*(getattr(tg, name)(*arguments) for name, arguments in layers))
    model.load_state({name: values.numpy() for name, values in reference.state_dict().items()})
    return model, reference


def digits_of_network(seed: int) -> float:
    """Compare the training of a random network with PyTorch; return the digits that always agree.

    The loss, logits, gradients and updated parameters are compared. The result is the minimum number of
    equal digits.
    """
    import numpy as np
    import torch

    from slurm_energy.training import taskgraph as tg

    generator = np.random.default_rng(seed)
    shape = tuple(int(n) for n in (generator.integers(1, 4), *generator.integers(9, 40, 2)))
    layers, batch = random_layers(generator, *shape), int(generator.integers(1, 9))
    images, labels = generator.standard_normal((batch, *shape)), generator.integers(0, 10, batch)
    digits = 16.0
    for granularity in SPLITS:
        model, reference = both(layers)
        trainer = tg.Trainer(model, RATE, batch, "float64", 2, granularity)
        loss, gradients = trainer.gradients(images, labels)
        logits = reference(torch.tensor(images))
        wanted = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
        wanted.backward()
        digits = min(digits, equal_digits(wanted.item(), loss))
        digits = min(digits, equal_digits(logits.detach().numpy(), trainer.predict(images)))
        for name, values in reference.named_parameters():
            digits = min(digits, equal_digits(values.grad.numpy(), gradients[name]))
        torch_losses(reference, images, labels, UPDATES, batch)
        trainer.fit(images, labels, epochs=UPDATES)
        for name, values in reference.named_parameters():
            digits = min(digits, equal_digits(values.detach().numpy(), model.parameters()[name]))
    return digits


def torch_losses(model: Any, images: Any, labels: Any, epochs: int, batch: int) -> list[float]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    inputs, classes = torch.tensor(images), torch.tensor(labels)
    losses = []
    for _ in range(epochs):
        for first in range(0, len(images), batch):
            optimizer.zero_grad()
            logits = model(inputs[first : first + batch])
            loss = torch.nn.functional.cross_entropy(logits, classes[first : first + batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def generated_images() -> tuple[Any, Any]:
    """Return images of ten classes: a smooth pattern per class, shifted and with noise, 28 x 28 x 1."""
    import numpy as np

    generator = np.random.default_rng(0)
    coarse = generator.standard_normal((10, 8, 8))
    patterns = np.kron(coarse, np.ones((4, 4)))[:, 2:30, 2:30]
    labels = generator.integers(0, 10, IMAGES)
    shifts = generator.integers(-3, 4, (IMAGES, 2))
    images = np.stack(
        [np.roll(patterns[label], shift, (0, 1)) for label, shift in zip(labels, shifts, strict=True)]
    )
    return (images + 1.5 * generator.standard_normal(images.shape))[:, None], labels


def training_curves() -> dict[str, list[float]]:
    from slurm_energy.training import taskgraph as tg

    images, labels = generated_images()
    layers: list[tuple[str, tuple[Any, ...]]] = [
        *(("Conv2d", (1, 16, 3)), ("ReLU", ()), ("MaxPool2d", (2,))),
        *(("Flatten", ()), ("Linear", (16 * 13 * 13, 10))),
    ]
    model, reference = both(layers)
    trainer = tg.Trainer(model, RATE, BATCH, "float64", 2, 2)
    losses = [float(loss) for loss in trainer.fit(images, labels, epochs=EPOCHS)]
    return {"pytorch": torch_losses(reference, images, labels, EPOCHS, BATCH), "taskgraph": losses}


def curve_table(curves: dict[str, list[float]]) -> str:
    """Return a Markdown table that compares the training curves of two programs.

    It shows the mean loss of each epoch for PyTorch and for the task-graph trainer.
    """
    lines = ["| epoch | mean loss, PyTorch | mean loss, task graph |", "|---|---|---|"]
    steps = IMAGES // BATCH
    for epoch in range(EPOCHS):
        part = slice(epoch * steps, (epoch + 1) * steps)
        means = (sum(curves[name][part]) / steps for name in ("pytorch", "taskgraph"))
        lines.append("| " + " | ".join([str(epoch + 1), *(f"{mean:.12f}" for mean in means)]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
