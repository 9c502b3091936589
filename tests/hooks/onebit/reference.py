"""The algorithms in float64, written from their papers, all ranks in one process."""

import math
from itertools import pairwise

import torch
from torch import Tensor

BETAS, EPS, DECAY, RATE = (0.9, 0.99), 1e-8, 0.1, 0.01


def signs(values: Tensor) -> Tensor:
    return torch.where(values < 0, -1.0, 1.0).double()


class Mean:
    """The mean by one bit an entry of one vector, with the errors of all ranks."""

    def __init__(self, ranks: int, size: int) -> None:
        self.worker = [torch.zeros(size).double() for _ in range(ranks)]
        self.server = torch.zeros(size).double()
        cuts = [size * rank // ranks for rank in range(ranks + 1)]
        self.pieces = [slice(*pair) for pair in pairwise(cuts)]

    def __call__(self, vectors: list[Tensor]) -> Tensor:
        sent = []
        for rank, vector in enumerate(vectors):
            corrected = vector + self.worker[rank]
            sent.append(corrected.norm() / math.sqrt(len(corrected)) * signs(corrected))
            self.worker[rank] = corrected - sent[-1]
        corrected = torch.stack(sent).mean(0) + self.server
        mean = torch.zeros_like(corrected)
        for piece in self.pieces:
            own = corrected[piece]
            mean[piece] = own.norm() / math.sqrt(max(1, len(own))) * signs(own)
        self.server = corrected - mean
        return mean


def onebit_adam(start: Tensor, all_gradients: list[list[Tensor]], freeze_step: int) -> Tensor:
    """Returns the weights after the steps; `all_gradients[step][rank]` is of one parameter."""
    ranks, p = len(all_gradients[0]), start.double()
    mean, m, v = Mean(ranks, len(p)), torch.zeros_like(p), torch.zeros_like(p)
    for step, own in enumerate(all_gradients, 1):
        own = [gradient.double() for gradient in own]
        if step <= freeze_step:
            g = torch.stack(own).mean(0)
            m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        else:
            m = mean([BETAS[0] * m + (1 - BETAS[0]) * gradient for gradient in own])
        p = p - RATE * (m / (v.sqrt() + EPS) + DECAY * p)
    return p


def zero_one_adam(
    start: Tensor, all_gradients: list[list[Tensor]], freeze: int, kappa: int, doubling: int,
    longest: int,
) -> Tensor:  # fmt: skip
    """Returns the weights of rank 0 after the steps, which end a round."""
    ranks, p = len(all_gradients[0]), start.double()
    mean, m, v = Mean(ranks, len(p)), torch.zeros_like(p), torch.zeros_like(p)
    interval = local = 1
    updates = counter = 0
    for step, own in enumerate(all_gradients[:freeze], 1):
        own = [gradient.double() for gradient in own]
        dense = step % interval == 0
        g = torch.stack(own).mean(0) if dense else mean(own)
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        if dense:
            v = BETAS[1] * v + (1 - BETAS[1]) * g * g
            updates += 1
            if updates == kappa:
                updates, interval = 0, 2 * interval
        p = p - RATE * (m / (v.sqrt() + EPS) + DECAY * p)
    mean, scale, rates = Mean(ranks, len(p)), v.sqrt() + EPS, 0.0
    alone, momenta = [p] * ranks, [m] * ranks
    for step, own in enumerate(all_gradients[freeze:], freeze + 1):
        rates += RATE
        for rank, gradient in enumerate(own):
            momenta[rank] = BETAS[0] * momenta[rank] + (1 - BETAS[0]) * gradient.double()
            alone[rank] = alone[rank] - RATE * (momenta[rank] / scale + DECAY * alone[rank])
        if step % local == 0:
            u = mean([(weights - p) * scale for weights in alone])
            p = p + u / scale
            alone, momenta, rates = [p] * ranks, [-u / rates] * ranks, 0.0
        counter += 1
        if counter == doubling:
            counter, local = 0, min(longest, 2 * local)
    return alone[0]


def onebit_lamb(
    starts: list[Tensor], all_gradients: list[list[list[Tensor]]], freeze_step: int
) -> list[Tensor]:
    """Returns all parameters after the steps; `all_gradients[step][rank][parameter]`."""
    ranks, ps = len(all_gradients[0]), [start.double() for start in starts]
    ms, vs = [torch.zeros_like(p) for p in ps], [torch.zeros_like(p) for p in ps]
    fresh, coeffs, factors, scales = list(vs), [0.0] * len(ps), [1.0] * len(ps), [1.0] * len(ps)
    mean = Mean(ranks, sum(len(p) for p in ps))
    for step, own in enumerate(all_gradients, 1):
        old = list(ms)
        if step <= freeze_step:
            gs = [torch.stack([g[n].double() for g in own]).mean(0) for n in range(len(ps))]
            ms = [BETAS[0] * m + (1 - BETAS[0]) * g for m, g in zip(ms, gs, strict=True)]
            vs = [BETAS[1] * v + (1 - BETAS[1]) * g * g for v, g in zip(vs, gs, strict=True)]
            fresh = list(vs)
        else:
            sent = [
                torch.cat([
                    scales[n] * (BETAS[0] * ms[n] + (1 - BETAS[0]) * g[n].double())
                    for n in range(len(ps))
                ])
                for g in own
            ]  # fmt: skip
            parts = torch.split(mean(sent), [len(p) for p in ps])
            ms = [part / scale for part, scale in zip(parts, scales, strict=True)]
        for n, p in enumerate(ps):
            plain = ms[n] / (vs[n].sqrt() + EPS)
            update = plain + DECAY * p
            if step <= freeze_step:
                coeff = min(10.0, max(0.01, float(p.norm() / update.norm())))
                if coeff != 1:
                    coeffs[n] = 0.9 * coeffs[n] + 0.1 * coeff
            else:
                g = (ms[n] - BETAS[0] * old[n]) / (1 - BETAS[0])
                fresh[n] = BETAS[1] * fresh[n] + (1 - BETAS[1]) * g * g
                factor = float(((vs[n].sqrt() + EPS) / (fresh[n].sqrt() + EPS)).max())
                share = min(1.0, float(plain.norm() / update.norm()))
                factor = min(4.0, max(0.5, factor * share + 1 - share))
                factors[n] = min(1.1 * factors[n], max(0.9 * factors[n], factor))
                coeff = coeffs[n] * factors[n]
            ps[n] = p - RATE * coeff * update
        if step == freeze_step:
            sizes = [float(m.norm()) / math.sqrt(len(m)) for m in ms]
            scales = [sum(sizes) / len(sizes) / size for size in sizes]
    return ps
