"""Product names of processors and GPUs, as drivers, Slurm and people write them: which mean the same product.

Names are compared word by word. A word that is left over must be one that every model of a product may carry
(maker, form factor, memory size); any other, such as `Ada` or `v4`, is a different product.
"""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[a-z0-9][a-z0-9.+]*")
_MAKERS = frozenset({"nvidia", "amd", "intel", "r", "tm"})
# Not `pro`: the RTX PRO 6000 is no RTX 6000.
_GPU_BRANDS = frozenset({"tesla", "quadro", "geforce", "rtx", "gtx", "instinct", "radeon", "gpu"})
_GPU_VARIANT = re.compile(
    r"\d+gb|sxm\d*|pcie|pci|hbm\d*e?|nvl|oam|mcm|ac|mba|dgxs|fhhl|generation|graphics|accelerator|gddr\d+x?"
)
_CPU_REVISION = re.compile(r"v\d+")


@functools.cache
def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower().replace("_", " ").replace("-", " ")))


@functools.cache
def matches_gpu(wanted: str, name: str) -> bool:
    """Return whether a GPU is of the product that somebody named.

    Args:
        wanted: a product, as exact as its author likes: `A100`, `A100-SXM4`, `NVIDIA A100-SXM4-80GB`. `A100`
            is every A100, but not an A100X. An empty name is every GPU.
        name: the name that the driver gives.
    """
    words, named = _words(name), _words(wanted)
    if not named - _MAKERS - _GPU_BRANDS:  # a whole brand
        return named <= words
    left = words - named - _MAKERS - _GPU_BRANDS
    return named - _MAKERS <= words and all(_GPU_VARIANT.fullmatch(word) for word in left)


@functools.cache
def matches_cpu(wanted: str, name: str) -> bool:
    """Return whether a processor is of the model or series that somebody named.

    Args:
        wanted: words of the model name: `Platinum 8358` (not the 8358P), `EPYC`. An empty name is every
            processor.
        name: the model name of /proc/cpuinfo.
    """
    words, named = _words(name), _words(wanted)
    return named <= words and not any(_CPU_REVISION.fullmatch(word) for word in words - named)


def gpu_product_words(name: str) -> frozenset[str]:
    """Return the words that tell a GPU from others: without maker and brands, which are often left out."""
    return _words(name) - _MAKERS - _GPU_BRANDS - {"generation"}
