"""Comparison of product names of processors and GPUs, as drivers, Slurm and people write them.

Names are compared word by word. A word that occurs in only one of the two names is ignored if it states the
maker, the form factor or the memory size, because all variants of a product may carry such a word. Any other
word that occurs in only one name, such as `Ada` or `v4`, means another product.
"""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[a-z0-9][a-z0-9.+]*")
_MAKERS = frozenset({"nvidia", "amd", "intel", "r", "tm"})
# `pro` is not in the list: the RTX PRO 6000 is not an RTX 6000.
_GPU_BRANDS = frozenset({"tesla", "quadro", "geforce", "rtx", "gtx", "instinct", "radeon", "gpu"})
_GPU_VARIANT = re.compile(
    r"\d+gb|sxm\d*|pcie|pci|hbm\d*e?|nvl|oam|mcm|ac|mba|dgxs|fhhl|generation|graphics|accelerator|gddr\d+x?"
)
_CPU_REVISION = re.compile(r"v\d+")


@functools.cache
def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower().replace("_", " ").replace("-", " ")))


@functools.cache
def matches_gpu(product: str, name: str) -> bool:
    """Return whether a GPU is the given product.

    Args:
        product: a product name with more or less detail: `A100`, `A100-SXM4`, `NVIDIA A100-SXM4-80GB`. `A100`
            matches every A100, but not an A100X. An empty name matches every GPU.
        name: name that the driver reports.
    """
    name_words, product_words = _words(name), _words(product)
    if not product_words - _MAKERS - _GPU_BRANDS:  # only the name of a brand
        return product_words <= name_words
    extra_words = name_words - product_words - _MAKERS - _GPU_BRANDS
    return product_words - _MAKERS <= name_words and all(_GPU_VARIANT.fullmatch(word) for word in extra_words)


@functools.cache
def matches_cpu(product: str, name: str) -> bool:
    """Return whether a processor is of the given model or series.

    Args:
        product: words of the model name: `Platinum 8358` (not the 8358P), `EPYC`. An empty name matches
            every processor.
        name: model name in /proc/cpuinfo.
    """
    name_words, product_words = _words(name), _words(product)
    return product_words <= name_words and not any(
        _CPU_REVISION.fullmatch(word) for word in name_words - product_words
    )


def gpu_product_words(name: str) -> frozenset[str]:
    """Return the lower-case words of a GPU name that distinguish the product.

    Words for the maker and the brand are left out, because people often omit them.
    """
    return _words(name) - _MAKERS - _GPU_BRANDS - {"generation"}
