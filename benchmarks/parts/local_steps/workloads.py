"""Workloads of local_steps.py: LeNet on MNIST, a model of characters, ResNet-20 on CIFAR-10."""

import ast
import sysconfig
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Final, final

import torch
from torch import Generator, Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer

from atomo.core.randomness import derive
from atomo.training.job.shard import Shard
from atomo.workloads.datasets import load_dataset
from atomo.workloads.language.transformer import TransformerLanguageModel
from atomo.workloads.models import build_model

__all__ = ["WORKLOADS", "Batch", "Workload"]

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


class Workload(ABC):
    """A model, its batches, its optimizer, and the metric on test data. Abstract."""

    target: float
    """The metric that a run is to reach."""
    rising: bool
    """True if a better metric is higher."""
    rate: float
    """The learning rate of data-parallel training."""
    batch_size: int
    grid: int = 32
    """The steps between two evaluations."""

    @abstractmethod
    def build(self) -> Module:
        """Returns a model with random weights."""

    @abstractmethod
    def batch(self, step: int, rank: int, world: int, seed: int) -> Batch:
        """Returns the batch of a rank; steps count from 1."""

    @abstractmethod
    def optimizer(self, model: Module, rate: float) -> Optimizer:
        """Returns the inner optimizer."""

    @abstractmethod
    def test(self, rank: int, world: int) -> Iterator[Batch]:
        """Yields the rank's share of the test data."""

    def factor(self, step: int, steps: int) -> float:
        """Returns the factor of the learning rate of a step."""
        del step, steps
        return 1.0

    def loss(self, model: Module, batch: Batch) -> Tensor:
        """Returns the training loss of a batch."""
        return cross_entropy(model(batch[0]), batch[1])

    @torch.inference_mode()
    def sums(self, model: Module, rank: int, world: int) -> Tensor:
        """Returns the sum of losses, the number of correct answers and of answers, of a share of
        the test data.
        """
        sums = torch.zeros(3, dtype=torch.float64)
        model.eval()
        for inputs, targets in self.test(rank, world):
            scores = model(inputs).flatten(0, -2).float()
            right = (scores.argmax(1) == targets.flatten()).sum()
            loss = cross_entropy(scores, targets.flatten(), reduction="sum")
            sums += torch.stack([loss, right, torch.tensor(targets.numel())]).double()
        model.train()
        return sums

    def metric(self, sums: Tensor) -> float:
        """Returns the metric: the accuracy if it rises, or the loss."""
        return float((sums[1] if self.rising else sums[0]) / sums[2])

    def reached(self, metric: float) -> bool:
        """True if a metric is at the target or beyond."""
        return metric >= self.target if self.rising else metric <= self.target


class Images(Workload):
    """Images of a data set. Abstract."""

    rising = True
    network: str
    dataset: str

    def __init__(self, data_dir: Path) -> None:
        self._data = load_dataset(self.dataset, data_dir)
        self._shard: tuple[tuple[int, ...], Shard] | None = None

    def build(self) -> Module:
        return build_model(self.network, self._data.input_shape, self._data.classes)

    def batch(self, step: int, rank: int, world: int, seed: int) -> Batch:
        key = (rank, world, seed)
        if self._shard is None or self._shard[0] != key:
            total = len(self._data.train)
            self._shard = key, Shard(total, world, rank, self.batch_size, seed)
        return self._data.train.batch(self._shard[1].indices(step))  # not augmented

    def test(self, rank: int, world: int) -> Iterator[Batch]:
        for part in torch.split(torch.arange(rank, len(self._data.test), world), 250):
            yield self._data.test.batch(part)


@final
class Digits(Images):
    """LeNet on MNIST with SGD: 431,080 parameters."""

    network, dataset = "LeNet", "MNIST"
    target, rate, batch_size = 0.985, 0.02, 64

    def optimizer(self, model: Module, rate: float) -> Optimizer:
        return SGD(model.parameters(), lr=rate, momentum=0.9)


@final
class Photographs(Images):
    """ResNet-20 on CIFAR-10 with Adam, without augmentation: 269,722 parameters.

    Passes are in bfloat16 by autocast. In the second half the rate decreases linearly to zero.
    """

    network, dataset = "ResNet20", "Cifar10"
    target, rate, batch_size = 0.63, 1e-3, 128
    grid = 100

    def build(self) -> Module:
        return super().build().to(memory_format=torch.channels_last)

    def batch(self, step: int, rank: int, world: int, seed: int) -> Batch:
        images, labels = super().batch(step, rank, world, seed)
        return images.contiguous(memory_format=torch.channels_last), labels

    def optimizer(self, model: Module, rate: float) -> Optimizer:
        return Adam(model.parameters(), lr=rate)

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, 2 * (1 - (step - 1) / steps))

    def loss(self, model: Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(batch[0])
        return cross_entropy(scores.float(), batch[1])


VOCABULARY: Final = "\n" + "".join(map(chr, range(32, 127)))
LENGTH: Final = 1_000_000  # of the training text
SKIPPED: Final = ("test", "tests", "idlelib", "site-packages", "lib2to3")


@final
class Characters(Workload):
    """A transformer of 4 layers, 4 heads and 128 wide with AdamW: 826,208 parameters.

    It reads windows of 64 characters of the reference and the docstrings of Python's standard
    library. The rate rises linearly in the first 32 steps.
    """

    target, rising, rate, batch_size = 2.5, False, 2e-3, 8
    block, warmup = 64, 32

    def __init__(self, data_dir: Path) -> None:
        del data_dir
        self._train, self._test = texts()

    def build(self) -> Module:
        return TransformerLanguageModel(len(VOCABULARY), 128, 4, 4, 0.0, False, self.block)

    def batch(self, step: int, rank: int, world: int, seed: int) -> Batch:
        generator = Generator().manual_seed(derive(seed, "windows", step * world + rank))
        limit = len(self._train) - self.block
        return self._windows(
            self._train, torch.randint(limit, (self.batch_size,), generator=generator)
        )

    def _windows(self, text: Tensor, starts: Tensor) -> Batch:
        windows = text[starts[:, None] + torch.arange(self.block + 1)].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def optimizer(self, model: Module, rate: float) -> Optimizer:
        return AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, step / self.warmup)

    def loss(self, model: Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def test(self, rank: int, world: int) -> Iterator[Batch]:
        starts = torch.linspace(0, len(self._test) - self.block - 1, 256).long()
        for part in torch.split(starts[rank::world], 32):
            yield self._windows(self._test, part)


def texts() -> Batch:
    """Returns the numbers of the characters of the training text and of the test text."""
    parts: dict[bool, list[str]] = {False: [], True: []}
    for document in documents():
        parts[zlib.crc32(document.encode()) % 10 == 0].append(document)
    train, test = ("\n\n".join(parts[is_test])[:LENGTH] for is_test in (False, True))
    return numbers_of(train), numbers_of(test)


def documents() -> Iterator[str]:
    """Yields the topics of the reference, then the docstrings of the library by file name."""
    yield from (topics[name] for name in sorted(topics))
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts) & {*SKIPPED}:
            yield from docstrings(path)


def docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a file; none if it is of another version of Python."""
    try:
        tree = ast.parse(path.read_text("utf-8", "replace"))
    except SyntaxError:
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def numbers_of(text: str) -> Tensor:
    """Returns the numbers of characters; those that are not in the vocabulary become spaces."""
    known = {character: number for number, character in enumerate(VOCABULARY)}
    space = known[" "]
    return torch.tensor([known.get(character, space) for character in text], dtype=torch.uint8)


WORKLOADS: Final[Mapping[str, type[Images] | type[Characters]]] = MappingProxyType(
    {"LeNet": Digits, "characters": Characters, "ResNet-20": Photographs}
)
