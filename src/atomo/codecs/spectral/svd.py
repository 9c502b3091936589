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
from atomo.codecs.cost import FUSED, DecodeCost, read_count
from atomo.codecs.flat import flat
from atomo.codecs.settings import Inner
from atomo.codecs.spectral.batched import DrawnAtoms, draw_together, uniform_of
from atomo.codecs.spectral.factors import (
    AtomFactors,
    CodedFactors,
    best_scale,
    code_factors,
    join_factors,
    plain_factors,
)
from atomo.codecs.spectral.leading import leading
from atomo.codecs.spectral.matricise import (
    MATRICISATIONS,
    add_matrix,
    aligned,
    as_matrix,
    matrix_shapes,
)
from atomo.codecs.spectral.selection import Selection
from atomo.codecs.spectral.spectrum import (
    LARGE,
    Spectrum,
    decompose,
    indicator,
    tall,
    times,
)
from atomo.core.devices import to_device
from atomo.errors import CodecError, ConfigError

__all__ = ["SVD"]

SELECTIONS = ("sample", "top")


@final
@dataclass(frozen=True)
class SVD(Codec[AtomFactors | CodedFactors]):
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
    default_payload_type: ClassVar[type[AtomFactors]] = AtomFactors
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
        return AtomFactors if self.factors is None else CodedFactors

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {} if self.factors is None else {"left": self.factors, "right": self.factors}

    def encode(
        self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator
    ) -> AtomFactors | CodedFactors:
        entries = aligned(flat(gradient, self.id))
        shapes = matrix_shapes(gradient.shape, self.matricisation)
        split = decompose if len(shapes) > 1 else self.split
        spectra = [
            split(tall(as_matrix(entries, *shape)), self.rank, generator) for shape in shapes
        ]
        candidates = list(zip(shapes, spectra, strict=True))
        # The indicator waits for the device, so that a single reading is not compared.
        shape, spectrum = min(candidates, key=indicator) if candidates[1:] else candidates[0]
        matrix = as_matrix(entries, *shape)
        return self.written(matrix, self.select(spectrum, generator), generator)

    def encode_all(
        self,
        gradients: Sequence[Float[torch.Tensor, "..."]],
        generators: Sequence[torch.Generator],
    ) -> Iterator[AtomFactors | CodedFactors]:
        single = {
            place: as_matrix(aligned(flat(gradient, self.id)), *shapes[0])
            for place, gradient in enumerate(gradients)
            if len(shapes := matrix_shapes(gradient.shape, self.matricisation)) == 1
        }
        own = [generators[place] for place in single]
        drawn = draw_together([*map(tall, single.values())], own, self.selected)
        atoms = dict(zip(single, drawn, strict=True))
        for place, (gradient, generator) in enumerate(zip(gradients, generators, strict=True)):
            if (own_atoms := atoms.get(place)) is None:
                yield self.encode(gradient, generator)
            else:
                yield self.written(single[place], own_atoms, generator)

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

    def select(self, spectrum: Spectrum, generator: torch.Generator) -> DrawnAtoms:
        """Selects the atoms to send of a matrix."""
        coefficients = spectrum.coefficients
        uniform = to_device(uniform_of(len(coefficients), generator), coefficients.device)
        drawn, divisors = self.selected.choose(coefficients, uniform)
        chosen = drawn.nonzero().squeeze(1)
        checked = float(coefficients.max()) > LARGE
        return DrawnAtoms(spectrum.vectors(chosen), divisors[chosen], checked)

    def written(
        self, matrix: Float[torch.Tensor, "m n"], drawn: DrawnAtoms, generator: torch.Generator
    ) -> AtomFactors | CodedFactors:
        """Builds the payload of atoms: weighted on the long side of the matrix, of norm 1 on the
        other.
        """
        weighted = times(drawn.basis / drawn.divisors[:, None].float(), tall(matrix))
        if drawn.large and not weighted.isfinite().all():
            raise CodecError("svd: atoms of this gradient overflow float32; scale it down first")
        left, right = weighted, drawn.basis
        atoms = (
            AtomFactors(left, right) if len(matrix) >= matrix.shape[1] else AtomFactors(right, left)
        )
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
        max_atoms = max(min(m, n) for m, n in shapes)
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        # A factor has at most as many rows as the shorter side of the matrix.
        entries = max(m * n for m, n in shapes)
        if self.factors is None:
            return tuple(Field(torch.float32, (max_atoms, size), entries) for size in longest)
        head = Field(torch.int32, (2,)), Field(torch.float32, (1,))
        left, right = (
            self.factors.fields(torch.Size([min(max_atoms * size, entries)])) for size in longest
        )
        return *head, *left, *right

    def cost(self, payload: AtomFactors | CodedFactors, shape: torch.Size) -> DecodeCost:
        usual = super().cost(payload, shape)
        if isinstance(payload, AtomFactors):
            return usual + DecodeCost(product(len(payload.left), shape))
        atoms, m = (read_count(payload.sizes, place) for place in range(2))
        sides = dict(matrix_shapes(shape, self.matricisation))
        if self.factors is None or m not in sides or atoms > min(m, sides[m]):
            return usual  # refused before anything is decoded
        coded = (payload.left, atoms * m), (payload.right, atoms * sides[m])
        factors = (
            self.factors.cost(part, torch.Size([size])) + DecodeCost(0, 4 * size)
            for part, size in coded
        )
        return sum(factors, usual + DecodeCost(product(atoms, shape)))

    def add_decoded(
        self,
        payload: AtomFactors | CodedFactors,
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        atoms, scale = self.plain(payload, out, scale)
        add_matrix(out, atoms.left, atoms.right, scale)

    def add_all(
        self,
        payloads: Sequence[AtomFactors | CodedFactors],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        # One product for the atoms of all payloads: `out` is read and written only once.
        readings: dict[int, list[tuple[AtomFactors, float]]] = {}
        for payload in payloads:
            atoms, factor = self.plain(payload, out, scale)
            readings.setdefault(atoms.left.shape[1], []).append((atoms, factor))
        for factors in readings.values():
            add_matrix(out, *join_factors(factors), 1.0)

    def plain(
        self, payload: AtomFactors | CodedFactors, out: Float[torch.Tensor, "..."], scale: float
    ) -> tuple[AtomFactors, float]:
        """Returns the factors of a payload on the device of `out`, and their scale.

        Raises:
            CodecError: the factors do not fit `out`.
        """
        if isinstance(payload, CodedFactors):
            atoms, scale = self.uncoded(payload, out), scale * float(payload.scale)
        else:
            atoms = payload
        self.check(atoms.left.shape, atoms.right.shape, out.shape)
        if atoms.left.device == atoms.right.device == out.device:
            return atoms, scale
        left, right = (to_device(side, out.device) for side in (atoms.left, atoms.right))
        return AtomFactors(left, right), scale

    def uncoded(self, payload: CodedFactors, out: Float[torch.Tensor, "..."]) -> AtomFactors:
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
