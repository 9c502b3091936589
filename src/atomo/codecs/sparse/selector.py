"""Shared base of the sparsifiers that select single entries by magnitude.

Another codec may code the values; the error of that codec counts as not sent. A selector is
therefore a contraction, unless the codec of the values may have a larger error than zero has.

Another codec may code the values; what it loses counts as not sent. A law of theirs follows: they
contract, unless what codes the values may throw these farther off than zero is.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
)
from atomo.codecs.sparse.search import MomentumSearch, RowSearch, Search, WholeSearch
from atomo.devices import to_device
from atomo.kernels import rice, select

__all__ = ["SCOPES", "Selector"]

SCOPES: Final = MappingProxyType({"layer": Granularity.PARAMETER, "bucket": Granularity.ENTRIES})


class Selector(Codec[Sparse]):
    """Sends the entries that it finds. Abstract; subclasses are final."""

    default_payload_type: ClassVar[type[Sparse]] = Sparse
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    batch_decodes: ClassVar[bool] = True
    sparsifies: ClassVar[bool] = True
    encodes_rows: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def coded_by(self) -> Codec[Any]:
        """The codec of the values."""
        return DENSE

    @abstractmethod
    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Finds the entries to send: increasing indices, and values.

        Raises:
            ValueError: NaN or infinity was found.
        """

    @abstractmethod
    def most(self, entries: int) -> int:
        """Returns the largest number of entries that may be sent."""

    @property
    def laws(self) -> frozenset[Law]:
        return self.coded_by.laws & {Law.CONTRACTION}

    @property
    def error_bound(self) -> float:
        # Of the entries that are sent a part is lost, and of the others all.
        return CONTRACTED if self.coded_by.error_bound < 1 else math.inf

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {"values": self.coded_by}

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sparse:
        return self.sent(WholeSearch(flat(gradient, self.id), None), generator)[0]

    def encode_rows(self, gradient: RowGradient, generator: torch.Generator) -> Sparse:
        return self.sent(RowSearch(gradient), generator)[0]

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        return self.keep_rest(residual, flat(gradient, self.id), generator)

    def encode_momentum(
        self,
        gradient: Float[torch.Tensor, "*s"],
        momentum: MomentumState,
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sparse:
        entries = residual.view(-1)
        search = MomentumSearch(entries, flat(gradient, self.id), momentum)
        payload, indices, found = self.sent(search, generator)
        entries[indices] = self.lost(payload, found)
        if momentum.masking:  # where it was found: to read the payload again would take the host
            momentum.velocity.view(-1)[indices] = 0
        return payload

    def encode_accumulated(
        self, residual: Float[torch.Tensor, "*s"], generator: torch.Generator
    ) -> Sparse:
        return self.keep_rest(residual, None, generator)

    def keep_rest(
        self,
        residual: Float[torch.Tensor, "..."],
        added: Float[torch.Tensor, " n"] | None,
        generator: torch.Generator,
    ) -> Sparse:
        """Encodes the sum, and leaves in `residual` what was not sent of it."""
        entries = residual.view(-1)
        payload, indices, found = self.sent(WholeSearch(entries, added), generator)
        entries[indices] = self.lost(payload, found)
        return payload

    def sent(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Sparse, Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Selects and packs the entries; returns the payload, the indices and the values."""
        with as_codec_error(self.id, "the gradient holds"):
            indices, found = self.find(search, generator)
        return self.pack(indices, found, len(search), generator), indices, found

    def lost(self, payload: Sparse, found: Float[torch.Tensor, " k"]) -> Float[torch.Tensor, "..."]:
        """Returns the error that the coding of the values made."""
        if Law.LOSSLESS in self.coded_by.laws or not len(found):
            return found.new_zeros(())
        lost = found.clone()
        self.coded_by.add_decoded(payload.values, lost, -1.0)
        return lost

    def pack(
        self,
        indices: Int64[torch.Tensor, " k"],
        found: Float[torch.Tensor, " k"],
        entries: int,
        generator: torch.Generator,
    ) -> Sparse:
        """Packs the selected values of a gradient into a payload."""
        packed = rice.encode(indices, entries)
        return Sparse(torch.tensor([len(found)]), packed, self.coded(found, generator))

    def coded(self, found: Float[torch.Tensor, " k"], generator: torch.Generator) -> Any:
        if len(found):
            with as_codec_error(self.id, "values:"):
                return self.coded_by.encode(found, generator)
        # No codec takes an empty vector: a zero stands for it, except where nothing is coded.
        empty = self.coded_by == DENSE
        return Entries(found) if empty else self.coded_by.encode(found.new_zeros(1), generator)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        most = self.most(shape.numel())
        values = self.coded_by.fields(torch.Size([max(1, most)]))
        return *index_fields(shape.numel(), most), *values

    def cost(self, payload: Sparse, shape: torch.Size) -> DecodeCost:
        count, indices = index_cost(payload, self.most(shape.numel()))
        values = self.coded_by.cost(payload.values, torch.Size([max(1, count)]))
        return super().cost(payload, shape) + indices + values

    def add_decoded(
        self, payload: Sparse, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            indices = indices_of(payload, len(entries), self.most(len(entries)))
            values = entries.new_zeros(len(indices))
            if len(values):  # else it does not matter what stands for none
                with as_codec_error("values"):
                    self.coded_by.add_decoded(payload.values, values)
            select.add_at(entries, indices, values, scale)

    def add_all(
        self, payloads: Sequence[Sparse], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            counts, indices = all_indices_of(payloads, len(entries), self.most(len(entries)))
            values = self.all_values([payload.values for payload in payloads], counts)
            select.add_sets(entries, indices, values, counts, scale)

    def all_values(
        self, coded: Sequence[Any], counts: Sequence[int]
    ) -> Float[torch.Tensor, " total"]:
        """Decodes the values of several payloads into one vector, one payload after the other."""
        with as_codec_error("values"):
            if self.coded_by == DENSE and [len(one.values) for one in coded] == [*counts]:
                return torch.cat([one.values for one in coded])
            values = torch.zeros(sum(counts))
            for one, part in zip(coded, torch.split(values, [*counts]), strict=True):
                if len(part):  # else it does not matter what stands for none
                    self.coded_by.add_decoded(one, part)
        return values

    def clear_sent(self, payload: Sparse, entries: Float[torch.Tensor, " n"]) -> None:
        indices = indices_of(payload, len(entries), len(entries))
        entries[to_device(indices, entries.device)] = 0
