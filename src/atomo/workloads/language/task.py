"""Language models: each next word of a running text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, final

import torch
from torch.nn import Module

from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.workloads.base import Metric, Task, Workload
from atomo.workloads.language.corpus import Corpus, read_corpus
from atomo.workloads.language.lstm import LSTMLanguageModel
from atomo.workloads.language.perplexity import PERPLEXITY, NextWord, PerplexityScorer
from atomo.workloads.language.transformer import TransformerLanguageModel
from atomo.workloads.language.windows import Windows
from atomo.workloads.models import build_own, is_own, network_named, probe_output
from atomo.workloads.text.tokens import token_splitter

__all__ = ["Language"]

ANY: Final = "Corpus"
# Each corpus, and its folder below the data directory.
FOLDERS: Final[Mapping[str, str]] = MappingProxyType(
    {"PTB": "ptb", "WikiText-2": "wikitext-2", "WikiText-103": "wikitext-103", ANY: ""}
)
SCORES: Final = 2**26  # of the evaluator in memory: 256 MiB


@final
@dataclass(frozen=True)
class Language(Task):
    """Language modelling. White space or a tokeniser divides words."""

    hidden: int = 200
    """Width of word vectors and layers."""
    layers: int = 2
    heads: int = 4
    """Attention heads of the Transformer."""
    dropout: float = 0.2
    tied: bool = False
    """True if the embedding of words is also the output layer."""
    length: int = 35
    """Words that a window predicts."""
    context: int = 35
    """Words that are read before them."""
    least: int = 1
    """Occurrences in training below which a word is unknown."""
    tokenizer: str = ""
    """A tokeniser in the JSON format of `tokenizers`, a path below the data directory."""
    sparse: bool = False
    """True if gradients of word vectors reach the codec as the rows that a batch touched."""

    id: ClassVar[str] = "language"
    samples: ClassVar[str] = "windows"
    metrics: ClassVar[tuple[Metric, ...]] = (PERPLEXITY,)
    network: ClassVar[str] = "LSTM"
    dataset: ClassVar[str] = "PTB"

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "length", "least"):
            if not 1 <= getattr(self, name) <= 65_536:
                raise ConfigError(f"language: {name} must be 1 to 65536, got {getattr(self, name)}")
        if not 0 <= self.context <= 65_536:
            raise ConfigError(f"language: context must be 0 to 65536, got {self.context}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"language: dropout must be 0 to below 1, got {self.dropout}")
        if self.tied and self.sparse:
            raise ConfigError(
                "language: sparse=True with tied=True: scoring gives each word's vector a gradient "
                "in every batch; leave out one option"
            )

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return tuple(FOLDERS)

    @classmethod
    def networks(cls) -> tuple[str, ...]:
        return tuple(BUILDERS)

    def network_named(self, name: str) -> str:
        return network_named(name) if is_own(name) else resolve("network", name, self.networks())

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        split = token_splitter(data_dir / self.tokenizer if self.tokenizer else None)
        folder = data_dir / FOLDERS[self.dataset_named(dataset)]
        corpus = read_corpus(folder, split, self.least)
        train, test = (
            Windows(text, corpus.end, self.length, self.context)
            for text in (corpus.train, corpus.test)
        )
        return Workload(
            train,
            test,
            lambda name: self._build(name, corpus),
            NextWord(),
            PerplexityScorer,
            max(1, SCORES // ((self.context + self.length) * len(corpus.words))),
        )

    def _build(self, name: str, corpus: Corpus) -> Module:
        spelling, words = self.network_named(name), len(corpus.words)
        if is_own(spelling):
            return self._own(spelling, words)
        network = BUILDERS[spelling](self, words)
        network.embedding.sparse = self.sparse
        return network

    def _own(self, name: str, words: int) -> Module:
        """Returns a network from elsewhere, which is seen to score the words of a window."""
        read = self.context + self.length
        network = build_own(name, (read,), words)
        sample = torch.zeros(1, read, dtype=torch.int64)
        match probe_output(name, network, sample, f"the numbers of words, (1, {read})"):
            case (1, scored, known) if known == words and self.length <= scored:
                return network
            case got:
                raise ConfigError(
                    f"--network {name} makes {got} of a window of {read} words; it must be scores "
                    f"of each next word, (1, {read}, {words}), or of the last {self.length} alone"
                )


def lstm(task: Language, words: int) -> LSTMLanguageModel:
    return LSTMLanguageModel(words, task.hidden, task.layers, task.dropout, task.tied, task.context)


def transformer(task: Language, words: int) -> TransformerLanguageModel:
    if task.hidden % task.heads:
        raise ConfigError(
            f"language: hidden {task.hidden} must be a multiple of heads, which are {task.heads}"
        )
    read = task.context + task.length
    return TransformerLanguageModel(
        words, task.hidden, task.layers, task.heads, task.dropout, task.tied, read
    )


Builder = Callable[[Language, int], LSTMLanguageModel | TransformerLanguageModel]
BUILDERS: Final[Mapping[str, Builder]] = MappingProxyType(
    {"LSTM": lstm, "Transformer": transformer}
)
