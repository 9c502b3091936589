"""Classification of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from atomo.errors import ConfigError
from atomo.workloads.base import Batch, Metric, Samples, Task, Workload
from atomo.workloads.classes import ACCURACY, F1, CrossEntropy, FScorer
from atomo.workloads.text.bilstm import BiLSTM
from atomo.workloads.text.sentences import CORPORA, Sentences, number_classes, read_splits
from atomo.workloads.text.tokens import token_splitter
from atomo.workloads.text.vectors import dimension_of, read_vectors
from atomo.workloads.text.vocabulary import PADDING, Vocabulary

__all__ = ["Text"]


@final
class SentenceSamples(Samples):
    """A split as numbers, a sentence a sample."""

    def __init__(self, split: Sentences, vocabulary: Vocabulary, classes: Sequence[str]) -> None:
        """Looks every word up; a class that training has not is an error.

        Raises:
            DataError: a class is not among `classes`.
        """
        self._tokens = [torch.tensor([vocabulary[w] for w in words]) for words in split.tokens]
        self._labels = number_classes(split, classes)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns their words, padded to the longest, how many each has, and their classes."""
        chosen = [self._tokens[index] for index in indices.tolist()]
        lengths = torch.tensor([len(sentence) for sentence in chosen])
        padded = pad_sequence(chosen, batch_first=True, padding_value=PADDING)
        return Batch((padded, lengths), self._labels[indices])


@final
@dataclass(frozen=True)
class Text(Task):
    """Classification of sentences. White space or a tokeniser divides words."""

    labels: str = "sentiments"
    """The file of the classes, without `.txt`."""
    vectors: str = ""
    """Word vectors in word2vec's text format to begin with, a path below the data directory."""
    dimension: int = 100
    """Numbers a word, where no vectors are given."""
    hidden: int = 128
    """Width of each LSTM in each direction."""
    dropout: float = 0.3
    """Share of numbers that training sets to zero, between the LSTMs and before the scores."""
    length: int = 256
    """The most words of a sentence."""
    least: int = 1
    """Occurrences in training below which a word is unknown."""
    tokenizer: str = ""
    """A tokeniser in the JSON format of `tokenizers`, a path below the data directory."""
    sparse: bool = False
    """True if gradients of word vectors reach the codec as the rows that a batch touched."""

    id: ClassVar[str] = "text"
    samples: ClassVar[str] = "sentences"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, F1)
    network: ClassVar[str] = "BiLSTM"
    dataset: ClassVar[str] = CORPORA[0]

    def __post_init__(self) -> None:
        for name in ("dimension", "hidden", "length", "least"):
            if not 1 <= getattr(self, name) <= 65_536:
                raise ConfigError(f"text: {name} must be 1 to 65536, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"text: dropout must be 0 to below 1, got {self.dropout}")

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return CORPORA

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        name = self.dataset_named(dataset)
        divide = token_splitter(data_dir / self.tokenizer if self.tokenizer else None)
        train, test = read_splits(name, data_dir, self.labels, self.length, divide)
        vocabulary = Vocabulary(train.tokens, self.least)
        classes = sorted(set(train.classes))
        return Workload(
            SentenceSamples(train, vocabulary, classes),
            SentenceSamples(test, vocabulary, classes),
            lambda name: self._build(name, vocabulary, len(classes), data_dir),
            CrossEntropy(),
            lambda: FScorer(len(classes)),
        )

    def _build(self, name: str, vocabulary: Vocabulary, classes: int, data_dir: Path) -> Module:
        self.network_named(name)
        path = data_dir / self.vectors
        dimension = dimension_of(path) if self.vectors else self.dimension
        network = BiLSTM(len(vocabulary), dimension, self.hidden, classes, self.dropout)
        network.embedding.sparse = self.sparse
        vectors = read_vectors(path, set(vocabulary.words)) if self.vectors else {}
        with torch.no_grad():
            for word, vector in vectors.items():
                network.embedding.weight[vocabulary[word]] = vector
            network.embedding.weight[PADDING] = 0
        return network
