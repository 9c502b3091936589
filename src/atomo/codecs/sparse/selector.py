"""Shared base of the sparsifiers that select single entries by magnitude.

Another codec may code the values; the error of that codec counts as not sent. A selector is
therefore a contraction, unless the codec of the values may have a larger error than zero has.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import CONTRACTED, Codec, Field, Granularity, Law
from atomo.codecs.checks import as_codec_error
from atomo.codecs.cost import DecodeCost
from atomo.codecs.dense.dense import DENSE, Entries
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.momentum import MomentumState
from atomo.codecs.rows import RowGradient
from atomo.codecs.sparse.payload import (
    Sparse,
    all_indices_of,
    index_cost,
    index_fields,
    indices_of,
    indices_within,
)
from atomo.codecs.sparse.search import MomentumSearch, RowSearch, Search, WholeSearch
from atomo.core.devices import to_device
from atomo.kernels import rice
from atomo.kernels import selection as select

__all__ = ["SCOPES", "Selector"]

SCOPES: Final = MappingProxyType({"layer": Granularity.PARAMETER, "bucket": Granularity.ENTRIES})


class Selector(Codec[Sparse]):
    """Sends the entries that `find` selects. Abstract; subclasses are final."""

    default_payload_type: ClassVar[type[Sparse]] = Sparse
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    batch_decodes: ClassVar[bool] = True
    sparsifies: ClassVar[bool] = True
    encodes_rows: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def value_codec(self) -> Codec[Any]:
        """The codec of the values."""
        return DENSE

    @abstractmethod
    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Finds the entries to send: increasing indices, and values.

        Raises:
            ValueError: an entry is NaN or infinity.
        """

    @abstractmethod
    def max_count(self, shape: torch.Size) -> int:
        """Returns the largest number of entries of a gradient that may be sent."""

    @cached_property
    def laws(self) -> frozenset[Law]:
        return self.value_codec.laws & {Law.CONTRACTION}

    @property
    def error_bound(self) -> float:
        # The error is all of the unsent entries, and a part of the sent entries.
        return CONTRACTED if self.value_codec.error_bound < 1 else math.inf

    @cached_property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {"values": self.value_codec}

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sparse:
        search = WholeSearch(flat(gradient, self.id), None, gradient.shape)
        return self.select_entries(search, generator)[0]

    def encode_rows(self, gradient: RowGradient, generator: torch.Generator) -> Sparse:
        return self.select_entries(RowSearch(gradient), generator)[0]

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        return self.encode_remainder(residual, flat(gradient, self.id), generator)

    def encode_momentum(
        self,
        gradient: Float[torch.Tensor, "*s"],
        momentum: MomentumState,
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        entries = residual.view(-1)
        search = MomentumSearch(entries, flat(gradient, self.id), momentum, residual.shape)
        payload, indices, values = self.select_entries(search, generator)
        self.keep_error(payload, values, entries, indices)
        if momentum.masking:  # at the indices on the device: decoding the payload needs the host
            momentum.velocity.view(-1).index_fill_(0, indices, 0.0)
        return payload

    def encode_accumulated(
        self, residual: Float[torch.Tensor, "*s"], generator: torch.Generator
    ) -> Sparse:
        return self.encode_remainder(residual, None, generator)

    def encode_remainder(
        self,
        residual: Float[torch.Tensor, "..."],
        added: Float[torch.Tensor, " n"] | None,
        generator: torch.Generator,
    ) -> Sparse:
        """Encodes the sum of `residual` and `added`, and leaves the unsent part in `residual`."""
        entries = residual.view(-1)
        search = WholeSearch(entries, added, residual.shape)
        payload, indices, values = self.select_entries(search, generator)
        self.keep_error(payload, values, entries, indices)
        return payload

    def select_entries(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Sparse, Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Selects and packs the entries; returns the payload, the indices and the values."""
        with as_codec_error(self.id, "the gradient holds"):
            indices, values = self.find(search, generator)
        return self.pack(indices, values, len(search), generator), indices, values

    def keep_error(
        self,
        payload: Sparse,
        values: Float[torch.Tensor, " k"],
        entries: Float[torch.Tensor, " n"],
        indices: Int64[torch.Tensor, " k"],
    ) -> None:
        """Replaces the selected entries by their values less the decoded values."""
        if Law.LOSSLESS in self.value_codec.laws or not len(values):
            entries.index_fill_(0, indices, 0.0)
            return
        error = values.clone()
        self.value_codec.add_decoded(payload.values, error, -1.0)
        entries[indices] = error

    def pack(
        self,
        indices: Int64[torch.Tensor, " k"],
        values: Float[torch.Tensor, " k"],
        entries: int,
        generator: torch.Generator,
    ) -> Sparse:
        """Packs the selected values of a gradient into a payload."""
        packed = rice.encode(indices, entries)
        return Sparse(torch.full((1,), len(values)), packed, self.encode_values(values, generator))

    def encode_values(self, values: Float[torch.Tensor, " k"], generator: torch.Generator) -> Any:
        if len(values):
            with as_codec_error(self.id, "values:"):
                return self.value_codec.encode(values, generator)
        # No codec accepts an empty vector: other codecs than DENSE encode one zero in its place.
        empty = self.value_codec == DENSE
        return Entries(values) if empty else self.value_codec.encode(values.new_zeros(1), generator)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        max_count = self.max_count(shape)
        values = self.value_codec.fields(torch.Size([max(1, max_count)]))
        return *index_fields(shape.numel(), max_count), *values

    def cost(self, payload: Sparse, shape: torch.Size) -> DecodeCost:
        count, indices = index_cost(payload, self.max_count(shape))
        values = self.value_codec.cost(payload.values, torch.Size([max(1, count)]))
        return super().cost(payload, shape) + indices + values

    def add_decoded(
        self, payload: Sparse, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            indices = indices_of(payload, len(entries), self.max_count(out.shape))
            values = entries.new_zeros(len(indices))
            if len(values):  # else the payload holds a placeholder
                with as_codec_error("values"):
                    self.value_codec.add_decoded(payload.values, values)
            select.add_at(entries, indices, values, scale)

    def add_all(
        self, payloads: Sequence[Sparse], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            counts, indices = all_indices_of(payloads, len(entries), self.max_count(out.shape))
            values = self.all_values([payload.values for payload in payloads], counts)
            select.add_sets(entries, indices, values, counts, scale)

    def add_parts(
        self,
        payloads: Sequence[Sequence[Sparse]],
        out: Float[torch.Tensor, " n"],
        places: Sequence[range],
        shapes: Sequence[torch.Size],
        scale: float = 1.0,
    ) -> None:
        senders = len(payloads[0])
        with adding_to(out, self.id) as entries:
            # Sender by sender: the parts of a sender are one set of indices.
            sets = [own[sender] for sender in range(senders) for own in payloads]
            most = [self.max_count(shape) for shape in shapes]
            counts, indices = indices_within(sets, [*places] * senders, most * senders)
            values = self.all_values([payload.values for payload in sets], counts)
            parts = len(places)
            of_sender = [sum(counts[at : at + parts]) for at in range(0, len(counts), parts)]
            select.add_sets(entries, indices, values, of_sender, scale)

    def all_values(
        self, coded: Sequence[Any], counts: Sequence[int]
    ) -> Float[torch.Tensor, " total"]:
        """Decodes the values of several payloads into one vector, one payload after the other."""
        with as_codec_error("values"):
            if self.value_codec == DENSE and [len(part.values) for part in coded] == [*counts]:
                return torch.cat([part.values for part in coded])
            values = torch.zeros(sum(counts))
            for payload, part in zip(coded, torch.split(values, [*counts]), strict=True):
                if len(part):  # else the payload holds a placeholder
                    self.value_codec.add_decoded(payload, part)
        return values

    def clear_sent(self, payload: Sparse, entries: Float[torch.Tensor, " n"]) -> None:
        indices = indices_of(payload, len(entries), len(entries))
        entries[to_device(indices, entries.device)] = 0
