#!/usr/bin/env python3
"""Compute the shipped workload profiles: `packaging/make_profiles.py [NAME ...]`.

The program needs torch, transformers and torchvision. It needs no weights, no data and no GPU. It
writes the profiles to slurm_energy/oracle/workload/profiles/NAME.json. It also writes
tests/unit/profile_references.json. This file contains the parameters and operations of the same
models, as PyTorch's own counter counts them. Tests compare the profiles with these numbers.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurm_energy.oracle.workload.profile_files import save_profile  # noqa: E402
from slurm_energy.oracle.workload.tracing import ProfileLabels, profile_module  # noqa: E402

PROFILES = ROOT / "slurm_energy/oracle/workload/profiles"
REFERENCES = ROOT / "tests/unit/profile_references.json"
REFERENCE_BATCH = 3


@dataclass(frozen=True)
class Entry:
    """One model for which a workload profile is computed: its constructor, inputs and labels."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    description: str
    optimizer: str
    dataset: str
    samples: int
    family: str = "torchvision"
    shared_weights: bool = False


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision(), name)(**options)


def torchvision() -> Any:
    """Import torchvision's models, even from a build whose compiled operators cannot be loaded."""
    try:
        import torchvision.models as models
    except RuntimeError:
        for name in [key for key in sys.modules if key.startswith("torchvision")]:
            del sys.modules[name]
        stand_in = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            stand_in.define(f"{name}() -> ()")
        _KEPT.append(stand_in)
        import torchvision.models as models
    return models


_KEPT: list[Any] = []


def images(size: int, channels: int = 3) -> Callable[[int], Any]:
    return lambda batch: (torch.empty(batch, channels, size, size, device="meta"),)


def tokens(length: int) -> Callable[[int], Any]:
    return lambda batch: {"input_ids": torch.empty(batch, length, dtype=torch.long, device="meta")}


def text(length: int) -> Callable[[int], Any]:
    """Return a function that builds the inputs of a language model for a given batch size.

    The inputs contain labels, so that the model also computes its loss. They also contain the attention
    mask. Without it, the model would compute a mask and inspect its values, but the tensors have no
    values (device `meta`).

    Args:
        length: tokens per sample.
    """

    def build(batch: int) -> Any:
        ids = torch.empty(batch, length, dtype=torch.long, device="meta")
        mask = torch.empty(batch, 1, length, length, device="meta")
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    return build


def huggingface(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return build


def llama(hidden: int, inner: int, depth: int, heads: int, key_heads: int, words: int = 32000) -> Any:
    return huggingface(
        "LlamaForCausalLM",
        "LlamaConfig",
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=words,
        use_cache=False,
    )


def small_shufflenet() -> nn.Module:
    """Return ShuffleNetV2 for 32 x 32 images: no stride and no pooling before the first stage."""
    module = torchvision().shufflenet_v2_x1_0(num_classes=100)
    module.conv1[0].stride = (1, 1)
    module.maxpool = nn.Identity()
    return module


class NeuralCollaborativeFilter(nn.Module):
    """Recommender network NeuMF: a matrix factorisation and a perceptron side by side.

    By default, it has 32 factors and 3 layers, and the numbers of users and items of MovieLens-1M.
    """

    def __init__(self, users: int = 6040, items: int = 3706, factors: int = 32, layers: int = 3) -> None:
        super().__init__()
        wide = factors * 2 ** (layers - 1)
        self.tables = nn.ModuleList(
            nn.Embedding(rows, width) for width in (factors, wide) for rows in (users, items)
        )
        steps: list[nn.Module] = []
        for layer in range(layers):
            width = 2 * wide // 2**layer
            steps += [nn.Dropout(0.0), nn.Linear(width, width // 2), nn.ReLU()]
        self.perceptron = nn.Sequential(*steps)
        self.head = nn.Linear(2 * factors, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        product = self.tables[0](user) * self.tables[1](item)
        hidden = self.perceptron(torch.cat((self.tables[2](user), self.tables[3](item)), -1))
        return self.head(torch.cat((product, hidden), -1)).view(-1)


class DeepSpeech(nn.Module):
    """Two convolutions over a spectrogram, five bidirectional GRU layers, one linear layer."""

    def __init__(self, bands: int = 161, hidden: int = 800, depth: int = 5, letters: int = 29) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        width = 32 * ((bands + 3) // 4)
        self.recurrent = nn.ModuleList(
            nn.GRU(width if layer == 0 else hidden, hidden, bidirectional=True) for layer in range(depth)
        )
        self.head = nn.Linear(hidden, letters)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        hidden = self.convolutions(spectrogram)
        hidden = hidden.flatten(1, 2).permute(2, 0, 1)
        for layer in self.recurrent:
            both, _ = layer(hidden)
            hidden = both.view(*both.shape[:2], 2, -1).sum(2)
        return self.head(hidden).log_softmax(-1)


class UNet(nn.Module):
    """U-Net: convolutional network with four steps down and four steps up in resolution.

    Each step has two 3x3 convolutions. The number of channels is 64 to 1,024.
    """

    def __init__(self, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**step for step in range(depth + 1)]
        self.down = nn.ModuleList(_double(low, high) for low, high in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(high, low, 2, stride=2) for low, high in itertools.pairwise(widths)
        )
        self.merge = nn.ModuleList(_double(2 * low, low) for low in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = []
        for step, block in enumerate(self.down):
            image = block(image if step == 0 else nn.functional.max_pool2d(image, 2))
            kept.append(image)
        for step in reversed(range(len(self.up))):
            image = self.merge[step](torch.cat((kept[step], self.up[step](image)), 1))
        return self.head(image)


def _double(low: int, high: int) -> nn.Sequential:
    parts = []
    for first in (low, high):
        parts += [nn.Conv2d(first, high, 3, padding=1, bias=False), nn.BatchNorm2d(high), nn.ReLU()]
    return nn.Sequential(*parts)


class SSD300(nn.Module):
    """Single-shot detector SSD300, a neural network that detects objects in images.

    It consists of a ResNet-34 up to its third stage and five further scales. It has 8,732 boxes and 81
    classes.
    """

    def __init__(self, classes: int = 81) -> None:
        super().__init__()
        base = torchvision().resnet34()
        base.layer3[0].conv1.stride = base.layer3[0].downsample[0].stride = (1, 1)
        self.base = nn.Sequential(
            base.conv1, base.bn1, base.relu, base.maxpool, base.layer1, base.layer2, base.layer3
        )
        shapes = [(256, 256, 512, 2, 1), (512, 256, 512, 2, 1), (512, 128, 256, 2, 1)]
        shapes += [(256, 128, 256, 1, 0), (256, 128, 256, 1, 0)]
        self.scales = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(low, middle, 1), nn.ReLU(), nn.Conv2d(middle, high, 3, step, edge), nn.ReLU()
            )
            for low, middle, high, step, edge in shapes
        )
        widths, boxes = (256, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4)
        self.heads = nn.ModuleList(
            nn.Conv2d(width, count * (classes + 4), 3, padding=1)
            for width, count in zip(widths, boxes, strict=True)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scales = [self.base(image)]
        for block in self.scales:
            scales.append(block(scales[-1]))
        return torch.cat([head(scale).flatten(1) for head, scale in zip(self.heads, scales, strict=True)], 1)


def speech(batch: int) -> Any:
    return (torch.empty(batch, 1, 161, 1230, device="meta"),)  # 12.3 s, 10 ms a frame


def ratings(batch: int) -> Any:
    return tuple(torch.empty(batch, dtype=torch.long, device="meta") for _ in range(2))


IMAGENET, CIFAR, SST2 = ("ImageNet-1k", 1281167), ("CIFAR", 50000), ("GLUE SST-2", 67349)
WIKI = ("Wikitext-103, blocks", 380000)


def bert(length: int, dataset: str, samples: int, **size: int) -> Entry:
    model = huggingface("BertForSequenceClassification", "BertConfig", **size)
    name = "BERT large" if size else "BERT base"
    return Entry(model, tokens(length), f"{name}, {length} tokens", "adamw", dataset, samples, "transformers")


ZOO: dict[str, Entry] = {
    name: Entry(vision(name.replace("-", "_")), images(224), f"{name}, 224 x 224", "momentum", *IMAGENET)
    for name in ("resnet18", "resnet50", "resnet101", "vgg16", "mobilenet-v2", "densenet121")
} | {
    "efficientnet-b0": Entry(vision("efficientnet_b0"), images(224), "EfficientNet-B0", "adam", *IMAGENET),
    "convnext-tiny": Entry(vision("convnext_tiny"), images(224), "ConvNeXt-T, 224 x 224", "adamw", *IMAGENET),
    "swin-t": Entry(vision("swin_t"), images(224), "Swin-T, 224 x 224", "adamw", *IMAGENET),
    "vit-b-16": Entry(vision("vit_b_16"), images(224), "ViT-B/16, 224 x 224", "adamw", *IMAGENET),
    "resnet50-32": Entry(
        vision("resnet50", num_classes=10), images(32), "ResNet-50, 32 x 32", "momentum", *CIFAR
    ),
    "vgg16-32": Entry(vision("vgg16", num_classes=10), images(32), "VGG-16, 32 x 32", "momentum", *CIFAR),
    "shufflenetv2": Entry(
        vision("shufflenet_v2_x1_0"), images(224), "ShuffleNetV2 1x, 224 x 224", "momentum", *IMAGENET
    ),
    "shufflenetv2-32": Entry(
        small_shufflenet,
        images(32), "ShuffleNetV2 1x, 32 x 32", "adadelta", *CIFAR
    ),
    "unet": Entry(UNet, images(256), "U-Net, 256 x 256", "adam", "", 10000, "own"),
    "ssd300": Entry(SSD300, images(300), "SSD300 on ResNet-34", "momentum", "COCO 2017", 117266, "own"),
    "deepspeech2": Entry(
        DeepSpeech, speech, "DeepSpeech2-like, 12.3 s of speech", "adamw", "LibriSpeech", 281241, "own"
    ),
    "ncf": Entry(
        NeuralCollaborativeFilter, ratings, "neural collaborative filter", "adam",
        "MovieLens-1M, 4 negatives each", 4970845, "own",
    ),
    "bert-base": bert(384, "SQuAD 1.1", 88524),
    "bert-base-48": bert(48, "Sentiment140", 1600000),
    "bert-base-128": bert(128, "GLUE SST-2", 67349),
    "bert-large": bert(
        512, "Wikipedia, blocks", 1000000,
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    ),
    "distilbert": Entry(
        huggingface("DistilBertForSequenceClassification", "DistilBertConfig"),
        tokens(256), "DistilBERT base, 256 tokens", "adamw", *SST2, "transformers",
    ),
    "albert-base-v2": Entry(
        huggingface(
            "AlbertForSequenceClassification", "AlbertConfig", hidden_size=768, num_attention_heads=12,
            intermediate_size=3072,
        ),
        tokens(256), "ALBERT base v2, 256 tokens", "adamw", *SST2, "transformers", True,
    ),
    "gpt2": Entry(
        huggingface("GPT2LMHeadModel", "GPT2Config", use_cache=False),
        text(1024), "GPT-2, 1,024 tokens", "adamw", *WIKI, "transformers",
    ),
    "tinyllama-1.1b": Entry(
        llama(2048, 5632, 22, 32, 4), text(512), "TinyLlama 1.1B, 512 tokens", "adamw", *WIKI, "transformers"
    ),
    "llama2-7b": Entry(
        llama(4096, 11008, 32, 32, 32), text(4096), "Llama 2 7B, 4,096 tokens", "adamw", *WIKI, "transformers"
    ),
    "llama2-13b": Entry(
        llama(5120, 13824, 40, 40, 40),
        text(4096), "Llama 2 13B, 4,096 tokens", "adamw", *WIKI, "transformers"
    ),
    "llama2-70b": Entry(
        llama(8192, 28672, 80, 64, 8), text(4096), "Llama 2 70B, 4,096 tokens", "adamw", *WIKI, "transformers"
    ),
    "llama3-8b": Entry(
        llama(4096, 14336, 32, 32, 8, 128256), text(4096), "Llama 3 8B, 4,096 tokens", "adamw", *WIKI,
        "transformers",
    ),
}  # fmt: skip


def main() -> None:
    """Trace the models that the command line names, or all models, and write their workload profiles."""
    torch.manual_seed(0)
    PROFILES.mkdir(exist_ok=True)
    references = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in sys.argv[1:] or ZOO:
        entry = ZOO[name]
        with torch.device("meta"):
            module = entry.build()
        labels = ProfileLabels(
            name, entry.description, origin(entry), entry.optimizer, entry.dataset, entry.samples
        )
        profile = profile_module(module, entry.inputs, labels)
        save_profile(replace(profile, shared_weights=entry.shared_weights), PROFILES / f"{name}.json")
        references[name] = reference(module, entry)
        matrix = profile.gemm_flops_forward.at(REFERENCE_BATCH) + profile.conv_flops_forward.at(
            REFERENCE_BATCH
        )
        print(f"{name:16s} {profile.parameters:>12,} parameters, {matrix / references[name]['flops']:.4f} of"
              f" PyTorch's {references[name]['flops'] / REFERENCE_BATCH / 1e9:.2f} GFLOP/sample")  # fmt: skip
    REFERENCES.write_text(json.dumps(dict(sorted(references.items())), indent=1) + "\n")


def reference(module: nn.Module, entry: Entry) -> dict[str, Any]:
    """Return the number of operations of one forward pass, counted by PyTorch, for comparison.

    The result also contains the number of parameters, the batch size and the family of the model.
    """
    given = entry.inputs(REFERENCE_BATCH)
    module.train()
    with FlopCounterMode(display=False) as counter:
        module(**given) if isinstance(given, dict) else module(*given)
    parameters = sum(weight.numel() for weight in module.parameters())
    return {
        "family": entry.family,
        "batch": REFERENCE_BATCH,
        "flops": counter.get_total_flops(),
        "parameters": parameters,
    }


def origin(entry: Entry) -> str:
    """Return the origin of a profile: the program that computed it."""
    from importlib.metadata import version

    tools = ["torch"] + ([entry.family] if entry.family != "own" else [])
    return "packaging/make_profiles.py, " + ", ".join(
        f"{tool} {version(tool).partition('+')[0]}" for tool in tools
    )


if __name__ == "__main__":
    main()
