"""Model on one rank of a training run that divides its batches among the ranks.

The gradients are summed over the ranks that currently compute. They are weighted by the number of samples of
each rank.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from slurm_energy.training.step_clock import StepClock


class GradientExchange:
    """Communication hook of `DistributedDataParallel` that records begin and end of each gradient exchange.

    Attributes:
        group: process group of those ranks that compute.
        weight: samples of this rank in the training step, divided by the samples of all ranks.
        computed: moment at which the last gradients of the step were computed; None before the first step.
        exchanged: moment at which the last exchange of the step ended.
    """

    def __init__(self, group: Any, clock: StepClock) -> None:
        self.group, self.clock = group, clock
        self.weight = 0.0
        self.computed: Any = None
        self.exchanged: Any = None

    def sum_bucket(self, bucket: Any) -> Any:
        """Start the weighted sum of a part (bucket) of the gradients over all ranks.

        Return a future of the sum.
        """
        gradients = bucket.buffer()
        if self.weight:
            gradients.mul_(self.weight)
        else:
            gradients.zero_()  # the rank has computed only because the others need its part of the exchange
        self.computed = self.clock.now()
        work = torch.distributed.all_reduce(gradients, group=self.group, async_op=True)
        return work.get_future().then(self._result)

    def _result(self, future: Any) -> Any:
        value = future.value()
        self.exchanged = self.clock.now()
        return value[0] if isinstance(value, (list, tuple)) else value


class BalancedModel(torch.nn.Module):
    """A PyTorch model for training on ranks of which some may pause.

    Its backward pass sums gradients over the ranks that currently compute.

    Args:
        module: the model, on the device on which it trains.
        ddp_options: further arguments of `DistributedDataParallel`.
    """

    def __init__(self, module: Any, ddp_options: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = dict(ddp_options)
        parameter = next(module.parameters())
        self.is_gpu: bool = parameter.is_cuda
        self.clock = StepClock(torch, is_gpu=self.is_gpu)
        self.exchange: GradientExchange | None = None
        # A list hides the replica from torch.nn.Module, which would register the parameters twice.
        self._replica: list[Any] = []

    def join(self, group: Any) -> None:
        """Choose the ranks over which gradients are summed from now on.

        The ranks are those of the process group `group`. If `group` is None, this rank computes alone or
        pauses.
        """
        self.exchange = None
        self._replica.clear()
        gc.collect()  # the hooks of the previous replica end with it
        if group is not None:
            exchange = GradientExchange(group, self.clock)
            replica = DistributedDataParallel(self.module, process_group=group, **self._options)
            # PyTorch compares the annotations of a hook with its own types, so it gets one without any.
            replica.register_comm_hook(exchange, lambda own, bucket: own.sum_bucket(bucket))
            self._replica.append(replica)
            self.exchange = exchange

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass and return its output.

        If the rank has a replica for distributed training, the replica is run.
        """
        return (self._replica[0] if self._replica else self.module)(*args, **kwargs)
