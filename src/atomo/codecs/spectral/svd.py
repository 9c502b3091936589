"""Spectral ATOMO: a few singular triples, sampled so that their expectation is the gradient.

A parameter is read as a matrix (`matricise`), split into orthogonal atoms (`spectrum`), and each
atom is sent with the probability that makes the variance least for the budget (`atoms`). Only the
atoms that were drawn are ever formed. Another codec may code their two factors (`factors`).

Law: unbiased, with the variance sum_i c_i^2 (1 / p_i - 1) over the singular values c; with
`selection=top` a contraction. Bits: 32 k (m + n) / (m n) an entry for k atoms of an m x n matrix.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known
from atomo.codecs.cost import FUSED, Cost, number
from atomo.codecs.flat import flat
from atomo.codecs.settings import Inner
from atomo.codecs.spectral.factors import (
    CodedFactors,
    Factors,
    best_scale,
    code_factors,
    join,
    plain_factors,
)
from atomo.codecs.spectral.leading import leading
from atomo.codecs.spectral.matricise import MATRICISATIONS, add_matrix, as_matrix, matrix_shapes
from atomo.codecs.spectral.selection import Selection
from atomo.codecs.spectral.spectrum import (
    LARGE,
    Spectrum,
    decompose,
    indicator,
    tall,
    times,
)
from atomo.codecs.spectral.together import Drawn, draw_together, uniform_of
from atomo.devices import to_device
from atomo.errors import CodecError, ConfigError

__all__ = ["SVD"]

SELECTIONS = ("sample", "top")


@final
@dataclass(frozen=True)
class SVD(Codec[Factors | CodedFactors]):
    """Atoms of the singular value decomposition.

    Raises:
        ConfigError: a setting is out of range, or `selection` and `rank` contradict each other.
    """

    rank: int = 3
    """Expected number of atoms; 0: p_i = sigma_i / sigma_1. Lower => more compression."""
    matricisation: str = "pairs"
    """The reading of a convolution: "pairs", "filters", or "auto" for the reading with the smaller
    nuclear norm times sqrt(m + n), an estimate of the error at a given number of bytes."""
    selection: str = "sample"
    """"sample" draws atoms, unbiased; "top" takes the `rank` largest, which needs a memory."""
    factors: Inner[Codec[Any] | None] = Inner(None)
    """Codes both factors of the atoms, with draws of their own; none: float32. With a biased one
    nothing can be unbiased, so that the atoms are sent as they are, not over their probabilities,
    and a memory keeps the rest."""

    id: ClassVar[str] = "svd"
    default_payload_type: ClassVar[type[Factors]] = Factors
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER
    batch_decodes: ClassVar[bool] = True
    batch_encodes: ClassVar[bool] = True
    contraction_setting: ClassVar[str] = "selection=top"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 0:
            raise ConfigError(f"svd: rank must be >= 0, got {self.rank}")
        check_known(self.id, "matricisation", self.matricisation, MATRICISATIONS)
        check_known(self.id, "selection", self.selection, SELECTIONS)
        if self.selection == "top" and self.rank == 0:
            raise ConfigError("svd: selection=top needs rank >= 1, got 0, which draws by chance")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED if self.unbiased else Law.CONTRACTION})

    @property
    def unbiased(self) -> bool:
        """True if neither the choice of the atoms nor the coding of their factors is biased."""
        exact = self.factors is None or Law.UNBIASED in self.factors.laws
        return exact and self.selection == "sample"

    @property
    def payload_type(self) -> type[Any]:
        return Factors if self.factors is None else CodedFactors

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {} if self.factors is None else {"left": self.factors, "right": self.factors}

    def encode(
        self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator
    ) -> Factors | CodedFactors:
        entries = flat(gradient, self.id)
        shapes = matrix_shapes(gradient.shape, self.matricisation)
        split = decompose if len(shapes) > 1 else self.split
        spectra = [
            split(tall(as_matrix(entries, *shape)), self.rank, generator) for shape in shapes
        ]
        candidates = list(zip(shapes, spectra, strict=True))
        # To compare one with nothing would be to wait for the device.
        shape, spectrum = min(candidates, key=indicator) if candidates[1:] else candidates[0]
        matrix = as_matrix(entries, *shape)
        return self.written(matrix, self.select(spectrum, generator), generator)

    def encode_all(
        self,
        gradients: Sequence[Float[torch.Tensor, "..."]],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Factors | CodedFactors]:
        single = {
            place: as_matrix(flat(gradient, self.id), *shapes[0])
            for place, gradient in enumerate(gradients)
            if len(shapes := matrix_shapes(gradient.shape, self.matricisation)) == 1
        }
        own = [generators[place] for place in single]
        drawn = draw_together([*map(tall, single.values())], own, self.selected)
        found = dict(zip(single, drawn, strict=True))
        for place, (gradient, generator) in enumerate(zip(gradients, generators, strict=True)):
            one = found.get(place)
            if one is None:
                yield self.encode(gradient, generator)
            else:
                yield self.written(single[place], one, generator)

    @property
    def split(self) -> Callable[[torch.Tensor, int, torch.Generator], Spectrum]:
        """The decomposition for a matrix with one reading; with two readings all atoms are
        compared.
        """
        return leading if self.selection == "top" else decompose

    @property
    def selected(self) -> Selection:
        """The rule that selects the atoms to send."""
        return Selection(self.rank, self.selection == "top", self.unbiased)

    def select(self, spectrum: Spectrum, generator: torch.Generator) -> Drawn:
        """Selects the atoms to send of a matrix."""
        coefficients = spectrum.coefficients
        uniform = to_device(uniform_of(len(coefficients), generator), coefficients.device)
        drawn, chances = self.selected.choose(coefficients, uniform)
        chosen = drawn.nonzero().squeeze(1)
        checked = float(coefficients.max()) > LARGE
        return Drawn(spectrum.vectors(chosen), chances[chosen], checked)

    def written(
        self, matrix: Float[torch.Tensor, "m n"], drawn: Drawn, generator: torch.Generator
    ) -> Factors | CodedFactors:
        """Builds the payload of atoms: weighted on the long side of the matrix, of norm 1 on the
        other.
        """
        weighted = times(drawn.basis / drawn.chances[:, None].float(), tall(matrix))
        if drawn.large and not weighted.isfinite().all():
            raise CodecError("svd: atoms of this gradient overflow float32; scale it down first")
        left, right = weighted, drawn.basis
        atoms = Factors(left, right) if len(matrix) >= matrix.shape[1] else Factors(right, left)
        if self.factors is None:
            return atoms
        payload = code_factors(atoms, self.factors, generator)
        if not self.unbiased:  # no farther from the matrix than zero is
            m, n = matrix.shape
            decoded = plain_factors(payload, self.factors, m, n, matrix.device)
            payload.scale.fill_(best_scale(decoded, matrix))
        return payload

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        shapes = matrix_shapes(shape, self.matricisation)
        most = max(min(m, n) for m, n in shapes)
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        # No factor has more: it has as many rows as the shorter side.
        entries = max(m * n for m, n in shapes)
        if self.factors is None:
            return tuple(Field(torch.float32, (most, size), entries) for size in longest)
        head = Field(torch.int32, (2,)), Field(torch.float32, (1,))
        left, right = (
            self.factors.fields(torch.Size([min(most * size, entries)])) for size in longest
        )
        return *head, *left, *right

    def cost(self, payload: Factors | CodedFactors, shape: torch.Size) -> Cost:
        usual = super().cost(payload, shape)
        if isinstance(payload, Factors):
            return usual + Cost(product(len(payload.left), shape))
        atoms, m = (number(payload.sizes, place) for place in range(2))
        sides = dict(matrix_shapes(shape, self.matricisation))
        if self.factors is None or m not in sides or atoms > min(m, sides[m]):
            return usual  # refused before anything is decoded
        coded = (payload.left, atoms * m), (payload.right, atoms * sides[m])
        factors = (
            self.factors.cost(part, torch.Size([size])) + Cost(0, 4 * size) for part, size in coded
        )
        return sum(factors, usual + Cost(product(atoms, shape)))

    def add_decoded(
        self, payload: Factors | CodedFactors, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        atoms, scale = self.plain(payload, out, scale)
        add_matrix(out, atoms.left, atoms.right, scale)

    def add_all(
        self,
        payloads: Sequence[Factors | CodedFactors],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        # The atoms of all in one product: `out` is read and written once, whoever sends how many.
        readings: dict[int, list[tuple[Factors, float]]] = {}
        for payload in payloads:
            atoms, factor = self.plain(payload, out, scale)
            readings.setdefault(atoms.left.shape[1], []).append((atoms, factor))
        for some in readings.values():
            add_matrix(out, *join(some), 1.0)

    def plain(
        self, payload: Factors | CodedFactors, out: Float[torch.Tensor, "..."], scale: float
    ) -> tuple[Factors, float]:
        """Returns the factors of a payload on the device of `out`, and their scale.

        Raises:
            CodecError: they do not fit `out`.
        """
        if isinstance(payload, CodedFactors):
            atoms, scale = self.uncoded(payload, out), scale * float(payload.scale)
        else:
            atoms = payload
        self.check(atoms.left.shape, atoms.right.shape, out.shape)
        if atoms.left.device == atoms.right.device == out.device:
            return atoms, scale
        left, right = (to_device(side, out.device) for side in (atoms.left, atoms.right))
        return Factors(left, right), scale

    def uncoded(self, payload: CodedFactors, out: Float[torch.Tensor, "..."]) -> Factors:
        """Decodes the factors, after a check that `out` allows their sizes."""
        if self.factors is not None and payload.sizes.shape == (2,) and payload.scale.shape == (1,):
            k, m = payload.sizes.tolist()
            sides = dict(matrix_shapes(out.shape, self.matricisation))
            if m in sides and 1 <= k <= min(m, sides[m]) and payload.scale.isfinite():
                return plain_factors(payload, self.factors, m, sides[m], out.device)
        raise CodecError(
            f"svd: factors of sizes {payload.sizes[:2].tolist()} times {payload.scale[:1].tolist()}"
            f" for shape {tuple(out.shape)}"
        )

    def check(self, left: torch.Size, right: torch.Size, shape: torch.Size) -> None:
        """Raises CodecError unless factors agree on an (m, n) that `shape` allows."""
        shapes = matrix_shapes(shape, self.matricisation)
        if len(left) == len(right) == 2 and left[0] == right[0]:
            m, n = left[1], right[1]
            if (m, n) in shapes and left[0] <= min(m, n):
                return
        raise CodecError(
            f"svd: factors {tuple(left)} and {tuple(right)} for shape {tuple(shape)}, "
            f"which is read as {' or '.join(map(str, shapes))}"
        )


def product(atoms: int, shape: torch.Size) -> int:
    """Returns the visits that correspond to a sum of `atoms` atoms of `shape`."""
    return atoms * shape.numel() // FUSED
