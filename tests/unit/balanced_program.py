"""Training program for tests of `slurm_energy.training.balanced`; prints one JSON line per rank.

usage: balanced_program.py ALONE|BALANCED SECONDS_PER_SAMPLE OPTIONS
"""

import json
import os
import sys
import time

import torch

RANK = int(os.environ.get("SLURM_PROCID", "0"))
EPOCHS, SAMPLES, BATCH = 3, 230, 20


class Net(torch.nn.Module):
    """A small network whose forward pass takes a given time per sample."""

    def __init__(self, sample_s):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 4)
        )
        self.sample_s = sample_s

    def forward(self, inputs):
        time.sleep(self.sample_s * len(inputs))
        return self.layers(inputs)


def parts(sample_s):
    torch.manual_seed(3)
    model = Net(sample_s).double()
    inputs = torch.randn(SAMPLES, 12, dtype=torch.float64)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long() + 2 * (inputs[:, 0] > 0).long())
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, loader, step=lambda: None):
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step()


def alone():
    model, data, optimizer = parts(0.0)
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
        batches = [order[start : start + BATCH] for start in range(0, SAMPLES, BATCH)]
        train(model, optimizer, torch.utils.data.DataLoader(data, batch_sampler=batches))
    return model, {}


def balanced(sample_s, options):
    from slurm_energy.training import balanced

    model, data, optimizer = parts(sample_s)
    lose_at = options.pop("lose_at", None)
    model, loader = balanced.distribute(
        model, data, global_batch=BATCH, state={"optimizer": optimizer}, window_steps=3, **options
    )
    shares, steps = [], 0

    def step():
        nonlocal steps
        steps += 1
        if steps == lose_at:
            os.kill(os.getpid(), 9)
        if loader.samples != (shares or [None])[-1]:
            shares.append(loader.samples)

    begins = []
    for epoch in loader.epochs(EPOCHS):
        begins.append(epoch)
        train(model, optimizer, loader, step)
    return model.module, {"shares": shares, "steps": steps, "epochs": begins}


def main():
    torch.set_num_threads(1)
    kind, sample_s, options = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    model, extra = alone() if kind == "ALONE" else balanced(sample_s, options)
    weights = [float(value) for tensor in model.state_dict().values() for value in tensor.flatten()]
    print(json.dumps({"rank": RANK, "weights": weights, **extra}))


if __name__ == "__main__":
    main()
