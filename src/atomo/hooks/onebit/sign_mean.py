"""Mean over ranks with one bit an entry in both directions, and error feedback in both.

Each rank adds its error to its vector, and sends the signs with one scale, |m| / sqrt(n). The rank
that owns a piece averages what it decodes, adds its own error, and sends the signs of the mean with
one scale. A rank sends 2 n / 8 bytes. Both senders keep what their signs leave out.

Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Size, Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.codecs.signs.payload import Signs, add_sign_payload, scale_of, sign_fields
from atomo.errors import Diverged, FrameError
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.kernels import sign
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["SignMean", "copy_parts"]

RAW: Final = Compression(codec="none")


@final
class SignMean:
    """The mean of some vectors over all ranks. Each vector has scales of its own."""

    def __init__(self, collective: Collective, sizes: Sequence[int], device: torch.device) -> None:
        """Makes a mean without errors.

        Args:
            collective: the ranks.
            sizes: the entries of each vector.
            device: the device of the vectors.
        """
        self.collective, self.step = collective, 0
        self._sizes = [*sizes]
        self.sent_bytes = 0
        self.worker_errors = [torch.zeros(size, device=device) for size in sizes]
        """The unsent rest of each vector."""
        self.server_errors = [
            torch.zeros(last - first, device=device)
            for first, last in (self._bounds(size, collective.rank) for size in sizes)
        ]
        """The unsent rest of the mean of each piece of this rank."""

    def _bounds(self, size: int, rank: int) -> tuple[int, int]:
        """Returns where the piece of a rank begins and ends in a vector."""
        ranks = self.collective.size
        return size * rank // ranks, size * (rank + 1) // ranks

    def clear(self) -> None:
        """Drops all errors, when vectors change their meaning."""
        for error in (*self.worker_errors, *self.server_errors):
            error.zero_()

    @torch.no_grad()
    def average(self, vectors: Sequence[Float[Tensor, " n"]], *, label: str = "momentum") -> None:
        """Replaces vectors by their mean with one bit an entry, the same bits on all ranks.

        Args:
            vectors: contiguous float32 vectors of the sizes of this mean.
            label: the name in errors, the same on all ranks.

        Raises:
            Diverged: a vector of some rank holds NaN or infinity; on all ranks.
            FrameError: a received message is no piece of this mean.
        """
        self.step += 1
        name = f"{label} of step {self.step}"
        frames = self.collective.swap(self._encode(vectors), f"the signs of {name}")
        own = self._reduce(frames, f"the signs of {name}")
        gathered = [*self.collective.gather(own, f"the mean {name}")]
        self.sent_bytes += own.size
        for rank, frame in enumerate(gathered):
            payloads = self._read(frame, rank, f"the mean {name}")
            for vector, payload in zip(vectors, payloads, strict=True):
                first, last = self._bounds(len(vector), rank)
                add_all([payload], [1.0], vector[first:last].zero_())

    @torch.no_grad()
    def average_dense(self, vectors: Sequence[Float[Tensor, " n"]], label: str) -> None:
        """Replaces vectors by their uncompressed mean, the same bits on all ranks."""
        joined = torch.cat([*vectors])
        self.collective.sum([Addend(joined, DENSE)], label)
        joined /= self.collective.size
        copy_parts(joined, vectors)

    def _encode(self, vectors: Sequence[Float[Tensor, " n"]]) -> list[Bytes]:
        """Returns the frame for each rank, and keeps the errors of this rank."""
        rows: list[list[Signs]] = [[] for _ in range(self.collective.size)]
        for vector, error in zip(vectors, self.worker_errors, strict=True):
            error += vector
            scale = scale_for(error)
            cuts = [self._bounds(len(error), rank) for rank in range(self.collective.size)]
            for row, (first, last) in zip(rows, cuts, strict=True):
                row.append(encode(error[first:last], scale))
        frames = [self._pack(row) for row in rows]
        self.sent_bytes += sum(
            frame.size for rank, frame in enumerate(frames) if rank != self.collective.rank
        )
        return frames

    def _reduce(self, frames: Sequence[Bytes], label: str) -> Bytes:
        """Returns the frame of the mean of this rank's pieces, and keeps its errors."""
        rank, share = self.collective.rank, 1 / len(frames)
        received = [self._read(frame, rank, label, checked=False) for frame in frames]
        payloads = []
        for error, column in zip(self.server_errors, zip(*received, strict=True), strict=True):
            add_all([*column], [share] * len(column), error)
            payloads.append(encode(error, scale_for(error)))
        return self._pack(payloads)

    def _pack(self, payloads: Sequence[Signs]) -> Bytes:
        header = Header(Kind.PIECE, step=self.step, worker=self.collective.rank)
        sections = [tensor.cpu() for p in payloads for tensor in (p.words, p.scale)]
        return pack(header, sections, RAW)

    def _read(
        self, frame: Bytes, rank: int, label: str, *, checked: bool = True
    ) -> Iterator[Signs]:
        """Yields the payloads of a frame with the pieces of a rank.

        Args:
            frame: the bytes.
            rank: the owner of the pieces.
            label: the name in errors.
            checked: True to refuse scales that are not finite.
        """
        header = read_header(frame)
        if header.kind is not Kind.PIECE or header.step != self.step:
            raise FrameError(
                f"{header.kind.name} of step {header.step} came where {label} was expected: do all "
                "ranks run the same version with the same settings?"
            )
        lengths = [last - first for first, last in (self._bounds(n, rank) for n in self._sizes)]
        fields = [field for length in lengths for field in sign_fields(Size((length,)))]
        sections = unpack(frame, fields)
        for words, scale in zip(sections[::2], sections[1::2], strict=True):
            payload = Signs(words, scale)
            if checked and not math.isfinite(scale_of(payload, label)):
                raise Diverged(f"{label}: a rank's values are no longer finite")
            yield payload


def scale_for(values: Float[Tensor, " n"]) -> float:
    """Returns the scale of the signs of a vector: its norm over the root of its length."""
    return float(values.norm()) / math.sqrt(max(1, len(values)))


def encode(values: Float[Tensor, " n"], scale: float) -> Signs:
    """Returns the signs of values with a scale, and keeps in `values` what they leave out."""
    words, _ = sign.pack_signs(values) if len(values) else (torch.empty(0, dtype=torch.int32), 0.0)
    payload = Signs(words, torch.tensor([scale]))
    add_all([payload], [-1.0], values)
    return payload


def add_all(payloads: Sequence[Signs], shares: Sequence[float], out: Float[Tensor, " n"]) -> None:
    """Adds each payload times its share, in the order of ranks."""
    if len(out):
        units = [s * scale_of(p, "signs") for p, s in zip(payloads, shares, strict=True)]
        add_sign_payload(payloads, units, out)


def copy_parts(joined: Float[Tensor, " m"], vectors: Sequence[Float[Tensor, " n"]]) -> None:
    """Copies a vector to the vectors that it was joined from."""
    parts = torch.split(joined, [len(vector) for vector in vectors])
    for vector, part in zip(vectors, parts, strict=True):
        vector.copy_(part)
