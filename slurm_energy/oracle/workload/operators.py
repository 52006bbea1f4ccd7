"""Cost functions of PyTorch's operators: forward and backward cost from the shapes of the tensors.

Importing this module registers the functions in `registry`. Pointwise operators need no entry: `tracing`
counts every operator that PyTorch tags as pointwise.
"""

from __future__ import annotations

import math
from typing import Any

from slurm_energy.oracle.workload.operation_cost import NO_WORK, OperationCost
from slurm_energy.oracle.workload.registry import handles_operator

_COSTLY = {"gelu": 8.0, "silu": 5.0, "sigmoid": 4.0, "tanh": 5.0, "exp": 4.0, "pow": 4.0, "softplus": 6.0}
_DTYPE_WEIGHT = {"torch.int64": 2.0, "torch.bool": 0.25, "torch.uint8": 0.25}


def _aten(names: str) -> list[str]:
    return [f"aten.{name}" for name in names.split()]


def size(tensor: Any) -> float:
    """Return the number of elements of a tensor; 0 for anything else."""
    return float(tensor.numel()) if hasattr(tensor, "numel") else 0.0


def traffic(tensor: Any) -> float:
    """Return the memory traffic of reading a tensor, in elements of four bytes.

    An element of another size counts in proportion to its bytes: an element of a mask counts less, an element
    of an index tensor more.
    """
    return size(tensor) * _DTYPE_WEIGHT.get(str(getattr(tensor, "dtype", "")), 1.0)


def needs_gradient(tensor: Any) -> bool:
    """Return whether the backward pass computes a gradient for a tensor."""
    return bool(getattr(tensor, "requires_grad", False))


def product(
    left: Any, right: Any, rows: float, columns: float, inner: float, count: float = 1.0
) -> OperationCost:
    """Return the cost of `count` matrix products of shapes (rows x inner) and (inner x columns).

    The backward pass has one product for each of the two factors that needs a gradient. Source: thesis, 4.3.4
    (`nn.Linear`).
    """
    forward = 2.0 * count * rows * columns * inner
    out, first, second = (count * rows * columns, count * rows * inner, count * columns * inner)
    gradients = [(second, first)] * needs_gradient(left) + [(first, second)] * needs_gradient(right)
    return OperationCost(
        unit="gemm",
        forward_flops=forward,
        backward_flops=forward * len(gradients),
        forward_read=first + second,
        forward_write=out,
        backward_read=sum(out + other for other, _ in gradients),
        backward_write=sum(own for _, own in gradients),
        backward_kernels=len(gradients),
        dims=(rows, columns, inner),
    )


@handles_operator("aten.mm")
def matrix_product(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of one matrix product of shapes (m x k) and (k x n)."""
    (rows, inner), columns = args[0].shape, args[1].shape[1]
    return product(args[0], args[1], rows, columns, inner)


@handles_operator("aten.addmm")
def biased_product(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a matrix product plus a bias, e.g. of `nn.Linear`.

    The bias costs one addition per output on the ALU.
    """
    from dataclasses import replace

    work = matrix_product(args[1:], kwargs, out)
    reduction = size(out) if needs_gradient(args[0]) else 0.0
    return replace(
        work,
        forward_alu=size(out),
        backward_alu=reduction,
        forward_read=work.forward_read + size(args[0]),
        backward_read=work.backward_read + reduction,
        backward_write=work.backward_write + (size(args[0]) if reduction else 0.0),
        backward_kernels=work.backward_kernels + (1.0 if reduction else 0.0),
    )


@handles_operator("aten.bmm")
def batched_product(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a batch of matrix products, e.g. of those in attention (thesis, Eq. 4.3)."""
    (count, rows, inner), columns = args[0].shape, args[1].shape[2]
    return product(args[0], args[1], rows, columns, inner, count)


@handles_operator("aten.baddbmm")
def biased_batched_product(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a batch of matrix products plus a bias. The cost of adding the bias is neglected."""
    return batched_product(args[1:], kwargs, out)


@handles_operator(
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
)
def fused_attention(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of attention in one compute kernel.

    The attention scores are not written to memory. The backward pass recomputes them.
    """
    query, key, value = args[:3]
    *batch, length, width = query.shape
    count, keys, values = math.prod(batch), key.shape[-2], value.shape[-1]
    flops = 2.0 * count * length * keys * (width + values)
    inputs = size(query) + size(key) + size(value)
    result = count * length * values
    gradient = 1.0 if needs_gradient(query) or needs_gradient(key) or needs_gradient(value) else 0.0
    return OperationCost(
        unit="gemm",
        forward_flops=flops,
        backward_flops=2.5 * flops * gradient,
        forward_alu=5.0 * count * length * keys,
        backward_alu=8.0 * count * length * keys * gradient,
        forward_read=inputs,
        forward_write=result,
        backward_read=(inputs + 3 * result) * gradient,
        backward_write=inputs * gradient,
        backward_kernels=2.0 * gradient,
        dims=(length, keys, width),
    )


@handles_operator("aten.convolution", "aten._convolution")
def convolution(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the operations and memory traffic of a convolution or transposed convolution.

    The convolution may have any number of dimensions and groups. A multiply-add counts as two operations.
    """
    image, weight, bias = args[:3]
    transposed = bool(args[6])
    grid = image if transposed else out
    pixels = float(grid.shape[0] * math.prod(grid.shape[2:]))
    flops = 2.0 * pixels * size(weight)
    to_image, to_weight = needs_gradient(image), needs_gradient(weight)
    result, inputs = size(out), size(image)
    biased = size(out) if bias is not None else 0.0
    return OperationCost(
        unit="conv",
        forward_flops=flops,
        backward_flops=flops * (to_image + to_weight),
        forward_alu=biased,
        backward_alu=biased,
        forward_read=inputs + size(weight),
        forward_write=result,
        backward_read=to_image * (result + size(weight)) + to_weight * (result + inputs) + biased,
        backward_write=to_image * inputs + to_weight * size(weight),
        backward_kernels=float(to_image + to_weight + (bias is not None)),
        dims=(pixels, float(weight.shape[1]), float(weight.shape[0])),
    )


@handles_operator(
    *_aten(
        """
        native_batch_norm cudnn_batch_norm _native_batch_norm_legit _batch_norm_with_update
        _native_batch_norm_legit_functional
        """
    )
)
def batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a batch normalisation.

    The forward pass reads the input twice (statistics, scaling), the backward pass reads input and gradient
    twice.
    """
    return _sweeps(args[0], flops=8.0, back_flops=12.0, reads=2.0, back_reads=4.0)


@handles_operator("aten.native_layer_norm", "aten.native_group_norm", "aten._fused_rms_norm", "aten.rms_norm")
def layer_norm(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a layer normalisation whose rows fit into the cache.

    The forward pass reads the input once. The backward pass reads input and gradient twice: for the gradient
    of the input, and for the gradients of the weights.
    """
    from dataclasses import replace

    return replace(_sweeps(args[0], flops=8.0, back_flops=14.0, back_reads=4.0), backward_kernels=2.0)


@handles_operator("aten._softmax", "aten._log_softmax", "aten._safe_softmax")
def softmax(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of a softmax: maximum, exponential, sum and division.

    The backward pass reads the output and the gradient of the output.
    """
    return _sweeps(args[0], flops=5.0, back_flops=4.0, back_reads=2.0)


@handles_operator("aten.native_dropout")
def dropout(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the operations and memory traffic of a dropout.

    A dropout draws a random mask, writes the mask, and multiplies the input by the mask.
    """
    return _sweeps(args[0], flops=3.0, back_flops=1.0, writes=1.25, back_reads=1.25)


@handles_operator("aten.embedding")
def embedding(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of copying rows from the table of an embedding.

    The backward pass clears a gradient that has the size of the table. The gradients of the rows are then
    added to this gradient.
    """
    table, indices = args[:2]
    gradient = 1.0 if needs_gradient(table) else 0.0
    return OperationCost(
        forward_read=size(out) + traffic(indices),
        forward_write=size(out),
        backward_flops=size(out) * gradient,
        backward_read=(2 * size(out) + traffic(indices)) * gradient,
        backward_write=(size(table) + size(out)) * gradient,
        backward_kernels=2.0 * gradient,
        elements=size(out),
    )


@handles_operator(
    *_aten(
        """
        max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d max_pool3d_with_indices
        adaptive_max_pool2d avg_pool1d avg_pool3d
        """
    )
)
def pooling(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the computing and memory cost of a pooling operator in a training step.

    A pooling operator reads an image and writes a smaller one.
    """
    image, result = args[0], out[0] if isinstance(out, tuple) else out
    gradient = 1.0 if needs_gradient(image) else 0.0
    return OperationCost(
        forward_flops=size(image),
        backward_flops=size(image) * gradient,
        forward_read=size(image),
        forward_write=size(result),
        backward_read=size(result) * 2 * gradient,
        backward_write=size(image) * gradient,
        backward_kernels=gradient,
        elements=size(image),
    )


@handles_operator(
    *_aten(
        """
        mean sum amax amin var_mean var cumsum max min argmax nll_loss_forward nll_loss2d_forward
        linalg_vector_norm any all norm logsumexp prod std mse_loss smooth_l1_loss
        binary_cross_entropy binary_cross_entropy_with_logits
        """
    )
)
def reduction(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of an operation that reduces a tensor, such as a sum or a mean.

    The forward pass reads all elements. The backward pass writes all gradients.
    """
    result = out[0] if isinstance(out, tuple) else out
    gradient = 1.0 if needs_gradient(args[0]) else 0.0
    return OperationCost(
        forward_flops=size(args[0]),
        backward_flops=size(args[0]) * gradient,
        forward_read=traffic(args[0]),
        forward_write=size(result),
        backward_read=size(result) * gradient,
        backward_write=size(args[0]) * gradient,
        backward_kernels=gradient,
        elements=size(args[0]),
    )


@handles_operator(
    *_aten(
        """
        cat stack clone _to_copy copy_ copy index index_select gather constant_pad_nd roll flip
        repeat repeat_interleave pixel_shuffle channel_shuffle upsample_nearest2d
        native_channel_shuffle upsample_bilinear2d upsample_bicubic2d im2col tril triu
        _pack_padded_sequence _unsafe_index masked_fill masked_fill_ scatter slice_scatter
        select_scatter index_put index_put_ reflection_pad2d replication_pad2d linspace sort topk
        unfold grid_sampler_2d diagonal_copy split_with_sizes_copy _unsafe_masked_index
        """
    )
)
def copying_operator(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the cost of copying elements, and of copying their gradients backward."""
    result = out[0] if isinstance(out, (tuple, list)) else out
    sources = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    gradient = 1.0 if any(map(needs_gradient, sources)) else 0.0
    moved = traffic(result)
    return OperationCost(
        forward_read=moved,
        forward_write=moved,
        backward_read=moved * gradient,
        backward_write=moved * gradient,
        backward_kernels=gradient,
        elements=size(result),
    )


@handles_operator(
    *_aten(
        """
        empty empty_like new_empty empty_strided new_empty_strided _local_scalar_dense is_same_size
        lift_fresh _unsafe_view scalar_tensor sym_size detach_ _reshape_alias resize_ equal
        _reshape_copy native_dropout_backward _assert_async _assert_tensor_metadata item set_
        as_strided_ view_as_real view_as_complex
        """
    )
)
def no_kernel(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return a cost of 0, for an operator that launches no compute kernel."""
    return NO_WORK


@handles_operator(
    *_aten(
        """
        arange zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full zero_
        fill_ bernoulli_ rand rand_like randn randn_like uniform_ normal_ eye bernoulli random_
        new_tensor hann_window
        """
    )
)
def initialization(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperationCost:
    """Return the operations and memory traffic of an operator that fills a tensor.

    Examples are operators that write constants or random numbers.
    """
    return OperationCost(forward_write=traffic(out), elements=size(out), backward_kernels=0.0)


def pointwise(name: str, args: tuple[Any, ...], out: Any) -> OperationCost:
    """Return the operations and memory traffic of an operator that processes each element separately."""
    result = out[0] if isinstance(out, (tuple, list)) else out
    plain = name.split(".")[1].rstrip("_")
    flops = _COSTLY.get(plain, 1.0) * size(result)
    inputs = [arg for arg in args if hasattr(arg, "numel")]
    gradient_inputs = sum(map(needs_gradient, inputs))
    linear = plain in ("add", "sub", "neg", "rsub")  # the gradient passes through unchanged
    back = 0.0 if linear else float(gradient_inputs)
    return OperationCost(
        forward_flops=flops,
        backward_flops=flops * back,
        forward_read=sum(map(traffic, inputs)),
        forward_write=traffic(result),
        backward_read=back * 2 * size(result),
        backward_write=back * size(result),
        backward_kernels=back,
        elements=size(result),
    )


def _sweeps(
    data: Any,
    *,
    flops: float,
    back_flops: float,
    reads: float = 1.0,
    writes: float = 1.0,
    back_reads: float = 2.0,
) -> OperationCost:
    count = size(data)
    gradient = 1.0 if needs_gradient(data) else 0.0
    return OperationCost(
        forward_flops=flops * count,
        backward_flops=back_flops * count * gradient,
        forward_read=reads * count,
        forward_write=writes * count,
        backward_read=back_reads * count * gradient,
        backward_write=count * gradient,
        backward_kernels=gradient,
        elements=count,
    )
