"""Classification of sentences by a pretrained encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from atomo.errors import ConfigError, DataError
from atomo.workloads.base import Batch, Metric, Samples, Task, Workload
from atomo.workloads.classes import ACCURACY, F1, CrossEntropy, FScorer
from atomo.workloads.encoder.folder import read_encoder, read_tokeniser, token_ids
from atomo.workloads.encoder.network import EncoderClassifier
from atomo.workloads.text.sentences import CORPORA, Sentences, number_classes, read_splits

__all__ = ["SentenceEncoder"]


@final
class TokenSamples(Samples):
    """A split as the tokeniser numbers it, a sentence a sample."""

    def __init__(
        self,
        split: Sentences,
        classes: Sequence[str],
        tokeniser: Any,
        folder: Path,
        length: int,
    ) -> None:
        """Tokenises all sentences with the tokeniser of a folder.

        Raises:
            DataError: a class is not among `classes`, or the tokeniser cannot divide a sentence.
        """
        sentences = [" ".join(words) for words in split.tokens]
        read = token_ids(tokeniser, folder, sentences, length)
        self._tokens = [torch.tensor(ids) for ids in read]
        self._padding = int(tokeniser.pad_token_id)
        self._labels = number_classes(split, classes)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns the tokens, padded to the longest, the attention mask, 1 for each token that is
        no padding, and the classes.
        """
        chosen = [self._tokens[index] for index in indices.tolist()]
        tokens = pad_sequence(chosen, batch_first=True, padding_value=self._padding)
        mask = pad_sequence([torch.ones_like(sentence) for sentence in chosen], batch_first=True)
        return Batch((tokens, mask), self._labels[indices])


@final
@dataclass(frozen=True)
class SentenceEncoder(Task):
    """Classification of sentences, with a Transformer encoder and its tokeniser from a folder."""

    folder: str = "phobert-base"
    """The folder of both, below the data directory."""
    labels: str = "sentiments"
    """The file of the classes, without `.txt`."""
    length: int = 256
    """The most tokens of a sentence, with those that the tokeniser adds."""
    dropout: float = 0.3
    """Before the linear layer; the encoder has its own."""
    sparse: bool = False
    """True if gradients of word vectors reach the codec as the rows that a batch touched."""

    id: ClassVar[str] = "encoder"
    samples: ClassVar[str] = "sentences"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, F1)
    network: ClassVar[str] = "Encoder"
    dataset: ClassVar[str] = CORPORA[0]

    def __post_init__(self) -> None:
        if not 3 <= self.length <= 65_536:
            raise ConfigError(f"encoder: length must be 3 to 65536, got {self.length}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"encoder: dropout must be 0 to below 1, got {self.dropout}")

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return CORPORA

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        name, folder = self.dataset_named(dataset), data_dir / self.folder
        splits = read_splits(name, data_dir, self.labels, self.length, str.split)
        tokeniser = read_tokeniser(folder)
        classes = sorted(set(splits[0].classes))
        train, test = (
            TokenSamples(split, classes, tokeniser, folder, self.length) for split in splits
        )
        return Workload(
            train,
            test,
            lambda name: self._build(name, folder, len(classes), tokeniser),
            CrossEntropy(),
            lambda: FScorer(len(classes)),
        )

    def _build(self, name: str, folder: Path, classes: int, tokeniser: Any) -> Module:
        self.network_named(name)
        encoder: Any = read_encoder(folder)
        vectors = encoder.get_input_embeddings()
        rows, vectors.sparse = vectors.num_embeddings, self.sparse
        if len(tokeniser) > rows:
            raise DataError(
                f"the tokeniser in {folder} has {len(tokeniser)} tokens, and its encoder {rows}"
            )
        network = EncoderClassifier(encoder, encoder.config.hidden_size, classes, self.dropout)
        self._check_length(network, tokeniser)
        return network

    def _check_length(self, network: Module, tokeniser: Any) -> None:
        """Raises ConfigError where the encoder has not as many positions as tokens may be."""
        ids = [i for i in range(len(tokeniser)) if i != tokeniser.pad_token_id][:1]
        sample = torch.tensor([ids * self.length])
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                network.eval()(sample, torch.ones_like(sample))
        except (IndexError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"encoder: length {self.length} is more than {self.folder} takes ({reason}); "
                "give encoder(length=...)"
            ) from error
        network.train()
