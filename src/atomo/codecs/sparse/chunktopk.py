"""Chunk top-k: runs of consecutive entries with the largest L1 norms.

One index serves a whole run, and memory is read in order.

Law: contraction. Bits: rho (32 + b / 64) an entry for the share rho of runs of 64, b as in `topk`.

Sun et al., "Optimizing Network
Performance for Distributed DNN Training on GPU Clusters: ImageNet/AlexNet Training in 1.5 Minutes",
2019, add up the norms of all workers first and choose the same runs everywhere, as the communicator
`chunked` does; elsewhere each worker chooses its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_ratio, require_finite
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.sparse.payload import Sparse, count_for, index_cost, index_fields, indices_of
from atomo.core.devices import to_device
from atomo.errors import ConfigError
from atomo.kernels import rice
from atomo.kernels import selection as select

__all__ = ["ChunkTopK"]

LONGEST = 2**20


@final
@dataclass(frozen=True)
class ChunkTopK(Codec[Sparse]):
    """The `ratio` of all chunks with the largest L1 norms, with all their entries.

    The count and the indices of the payload are those of chunks.

    Raises:
        ConfigError: a setting is out of range.
    """

    ratio: float = 0.01
    """The share of the chunks that is sent. Lower => more compression."""
    chunk: int = 64
    """Entries to a chunk. Higher => fewer indices, and a coarser choice."""

    id: ClassVar[str] = "chunktopk"
    default_payload_type: ClassVar[type[Sparse]] = Sparse
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    sparsifies: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True
    batch_decodes_on_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        if not 1 <= self.chunk <= LONGEST:
            raise ConfigError(f"chunktopk: chunk must be in 1..{LONGEST}, got {self.chunk}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sparse:
        del generator  # deterministic
        entries = flat(gradient, self.id)
        return self.take(entries, self.choose(entries, None))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        del generator
        added, entries = flat(gradient, self.id), residual.view(-1)
        numbers = self.choose(entries, added)
        positions = self.positions(numbers, len(entries))
        payload = self.packed(numbers, entries[positions], len(entries))
        entries[positions] = 0
        return payload

    def choose(
        self, entries: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None
    ) -> Int64[torch.Tensor, " k"]:
        """Adds to `entries`, in place, and returns the increasing numbers of the chunks of the sum
        to send.
        """
        return self.largest(self.norms(entries, added), len(entries))

    def norms(
        self, entries: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None
    ) -> Float[torch.Tensor, " chunks"]:
        """Adds to `entries`, in place, and returns the L1 norm of each chunk of the sum."""
        return select.chunk_sums(entries, added, self.chunk)

    def largest(
        self, norms: Float[torch.Tensor, " chunks"], entries: int
    ) -> Int64[torch.Tensor, " k"]:
        """Returns the increasing numbers of the chunks with the largest norms.

        Raises:
            CodecError: a norm is NaN or infinite.
        """
        require_finite(self.id, bool(norms.isfinite().all()))
        # Stable, so that of equal chunks the first are sent.
        order = norms.sort(descending=True, stable=True).indices
        return order[: self.max_count(entries)].sort().values

    def take(
        self, entries: Float[torch.Tensor, " n"], numbers: Int64[torch.Tensor, " k"]
    ) -> Sparse:
        """Returns the payload of the given chunks of a vector."""
        values = entries[self.positions(numbers, len(entries))].float()
        return self.packed(numbers, values, len(entries))

    def packed(
        self, numbers: Int64[torch.Tensor, " k"], values: Float[torch.Tensor, " v"], entries: int
    ) -> Sparse:
        """Packs the entries of chunks into a payload."""
        count = torch.tensor([len(numbers)])
        return Sparse(count, rice.encode(numbers, self.chunks(entries)), values)

    def positions(
        self, numbers: Int64[torch.Tensor, " k"], entries: int
    ) -> Int64[torch.Tensor, " v"]:
        """Returns the indices of the entries of the given chunks; the last chunk may be short."""
        # A chunk longer than the gradient is as long as that: the rest of it is never made.
        offsets = torch.arange(min(self.chunk, entries), device=numbers.device)
        indices = (numbers[:, None] * self.chunk + offsets).view(-1)
        if entries % self.chunk == 0 or not len(indices):  # none is short: no need to look
            return indices
        return indices[: len(indices) - max(0, int(indices[-1]) + 1 - entries)]

    def chunks(self, entries: int) -> int:
        """Returns the number of chunks."""
        return -(-entries // self.chunk)

    def max_count(self, entries: int) -> int:
        """Returns the largest number of chunks that may be sent."""
        return count_for(self.ratio, self.chunks(entries))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        max_count = self.max_count(entries)
        values = Field(torch.float32, (max_count * min(self.chunk, max(1, entries)),))
        return *index_fields(self.chunks(entries), max_count), values

    def cost(self, payload: Sparse, shape: torch.Size) -> DecodeCost:
        entries = shape.numel()
        _, index_part = index_cost(payload, self.max_count(entries), min(self.chunk, entries))
        return super().cost(payload, shape) + index_part

    def add_decoded(
        self, payload: Sparse, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Sparse], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        if not payloads:
            return
        with adding_to(out, self.id) as entries:
            sets = [self.carried(payload, len(entries)) for payload in payloads]
            for positions, payload in zip(sets, payloads, strict=True):
                if len(positions) != len(payload.values):
                    raise ValueError(f"{len(payload.values)} values for {len(positions)} entries")
            values = torch.cat([payload.values for payload in payloads])
            counts = [len(positions) for positions in sets]
            select.add_sets(entries, torch.cat(sets), values, counts, scale)

    def carried(self, payload: Sparse, entries: int) -> Int64[torch.Tensor, " v"]:
        """Returns the indices of the entries of an untrusted payload."""
        numbers = indices_of(payload, self.chunks(entries), self.max_count(entries))
        return self.positions(numbers, entries)

    def clear_sent(self, payload: Sparse, entries: Float[torch.Tensor, " n"]) -> None:
        entries[to_device(self.carried(payload, len(entries)), entries.device)] = 0
