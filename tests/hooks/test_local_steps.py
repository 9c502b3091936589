"""Laws of local steps, on ranks that are threads."""

import copy
from typing import Any

import pytest
import torch
from hooks.local_ranks import adamw, anchor_of, one_step, plain_sgd, replicas, steps
from hooks.loops import batch, flat, model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from atomo import transports
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.replicas import copy_first
from atomo.options.outer import OuterSGD

PLAIN = "sgd(lr=1)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [plain_sgd, adamw])
def test_one_worker_with_plain_outer_steps_is_plain_training_bit_for_bit(make, dtype):
    [network], [wrapped] = replicas(
        1, "sgd", steps_in(dtype, 20), make, lambda: model().to(dtype), every=3, outer=PLAIN
    )
    plain = model().to(dtype)
    steps_in(dtype, 20)(0, plain, make(plain))
    assert flat(network).equal(flat(plain))
    assert wrapped.exchange.stats.steps == 6


def steps_in(dtype: torch.dtype, count: int) -> Any:
    """Returns the body of a training of one rank in a dtype."""

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(count):
            images, labels = batch(step)
            optimizer.zero_grad()
            cross_entropy(network(images.to(dtype)).float(), labels).backward()
            optimizer.step()

    return body


def test_an_exchange_after_each_step_of_sgd_is_data_parallel_sgd_within_2_ulp():
    size, count = 3, 10
    weights: list[Tensor] = [flat(model())]
    gradients: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(count):
            one_step(rank, size, step, network, optimizer)
            gradients[rank].append(torch.cat([p.grad.flatten() for p in network.parameters()]))
            if rank == 0:
                weights.append(flat(network))

    networks, _ = replicas(size, "sgd", body, every=1, outer=PLAIN)
    assert all(flat(network).equal(flat(networks[0])) for network in networks)
    for step in range(count):
        before, after = weights[step], weights[step + 1]
        mean = torch.stack([gradients[rank][step] for rank in range(size)]).double().mean(0)
        expected = before.double() - 0.1 * mean
        # Of the largest that is rounded: the weight before, after, or its change.
        largest = torch.stack([before.abs(), after.abs(), (before - after).abs()]).amax(0)
        ulp = torch.nextafter(largest, torch.tensor(torch.inf)) - largest
        assert ((after - expected).abs() <= 2 * ulp).all()


OUTER = OuterSGD(0.7, 0.9, nesterov=True)


@pytest.mark.parametrize("outer", [OUTER, OuterSGD(0.5, 0.8, nesterov=False)])
def test_one_fragment_without_overlap_is_diloco_in_float64(outer):
    size, every, count = 2, 4, 17
    networks, _ = replicas(size, "sgd", steps(size, count), momentum_sgd, every=every, outer=outer)
    replicated = [copy.deepcopy(model()).double() for _ in range(size)]
    inner = [momentum_sgd(network) for network in replicated]
    anchor = flat(replicated[0])
    b = torch.zeros_like(anchor)
    for t in range(1, count + 1):
        for rank, network in enumerate(replicated):
            images, labels = batch(t - 1)
            inner[rank].zero_grad()
            cross_entropy(network(images[rank::size].double()), labels[rank::size]).backward()
            inner[rank].step()
        if t % every == 0:
            delta = torch.stack([anchor - flat(network) for network in replicated]).mean(0)
            b = outer.momentum * b + delta
            anchor = anchor - outer.lr * (delta + outer.momentum * b if outer.nesterov else b)
            for network in replicated:
                fill(network, anchor)
    for network, reference in zip(networks, replicated, strict=True):
        torch.testing.assert_close(flat(network).double(), flat(reference), rtol=1e-4, atol=1e-6)
    assert not flat(networks[0]).equal(flat(networks[1]))  # in the middle of a round


def momentum_sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.05, momentum=0.9)


def fill(network: nn.Module, weights: Tensor) -> None:
    torch.nn.utils.vector_to_parameters(weights.clone(), network.parameters())


FIRST = {
    (0, 0.0): "1 -1 -3 -11 -13 -15 -17 -19 -21 -35 -37 -39 -41 -43 -45 -59",
    (0, 0.5): "1 -1 -3 -8 -10 -12 -14 -16 -18 -24.5 -26.5 -28.5 -30.5 -32.5 -34.5 -40.25",
    (0, 1.0): "1 -1 -3 -5 -7 -9 -11 -13 -15 -17 -19 -21 -23 -25 -27 -29",
    (1, 0.0): "1 -1 -3 -7 -9 -11 -13 -15 -17 -27 -29 -31 -33 -35 -37 -47",
    (1, 0.5): "1 -1 -3 -6 -8 -10 -12 -14 -16 -21.5 -23.5 -25.5 -27.5 -29.5 -31.5 -35.75",
}
SECOND = {
    (0, 0.0): "1 -1 -3 -5 -7 -9 -23 -25 -27 -29 -31 -33 -47 -49 -51 -53",
    (0, 0.5): "1 -1 -3 -5 -7 -9 -17 -19 -21 -23 -25 -27 -32 -34 -36 -38",
    (0, 1.0): "1 -1 -3 -5 -7 -9 -11 -13 -15 -17 -19 -21 -23 -25 -27 -29",
    (1, 0.0): "1 -1 -3 -5 -7 -9 -19 -21 -23 -25 -27 -29 -39 -41 -43 -45",
    (1, 0.5): "1 -1 -3 -5 -7 -9 -15 -17 -19 -21 -23 -25 -29 -31 -33 -35",
}
ANCHORS: dict[tuple[int, float], tuple[dict[int, float], dict[int, float]]] = {
    (0, 0.0): ({0: 1, 3: -11, 9: -35}, {6: -23, 12: -47}),
    (1, 0.0): ({3: -7, 9: -27}, {6: -19, 12: -39}),
    (1, 0.5): ({3: -7, 9: -25}, {6: -19, 12: -31}),
}


class TwoWeights(nn.Module):
    """Two parameters of one weight, 1.0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(("overlap", "mix"), [*FIRST])
def test_streaming_trajectories_are_torchfts(overlap, mix):
    weights: dict[int, list[list[float]]] = {0: [], 1: []}
    anchors: dict[int, list[list[float]]] = {0: [], 1: []}

    def trajectory(rank: int, network: nn.Module, optimizer: Any) -> None:
        for _ in range(16):
            weights[rank].append([float(p.detach()) for p in network.parameters()])
            with optimizer.anchor():
                anchors[rank].append([float(p.detach()) for p in network.parameters()])
            for parameter in network.parameters():
                parameter.grad = torch.full((1,), 2.0)
            optimizer.step()

    replicas(
        2, "sgd", trajectory, lambda network: SGD(network.parameters(), lr=1.0), TwoWeights,
        every=6, fragments=2, overlap=overlap, mix=mix, outer="sgd(lr=2)",
    )  # fmt: skip
    expected = [[float(x) for x in row[overlap, mix].split()] for row in (FIRST, SECOND)]
    for rank in range(2):
        assert [list(row) for row in zip(*weights[rank], strict=True)] == expected
        for fragment, values in enumerate(ANCHORS.get((overlap, mix), ())):
            for step, value in values.items():
                assert anchors[rank][step][fragment] == value


@pytest.mark.parametrize("code", ["topk(ratio=0.1)", "efsignsgd", "svd(rank=1, selection=top)"])
def test_what_is_sent_and_kept_is_what_was_kept_and_the_difference(code):
    size, every = 2, 4
    kept: dict[int, list[Tensor]] = {0: [], 1: []}
    trained: dict[int, list[Tensor]] = {0: [], 1: []}
    anchors: list[Tensor] = [flat(model())]

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        weights: list[Tensor] = []
        # After the inner step, and before the exchange.
        optimizer.optimizer.register_step_post_hook(lambda *_: weights.append(flat(network)))
        for step in range(3 * every):
            one_step(rank, size, step, network, optimizer)
            if (step + 1) % every == 0:
                trained[rank].append(weights[-1])
                memory = optimizer.exchange.state_dict()["memories"][str(rank)]
                names = [name for name, _ in network.named_parameters()]
                kept[rank].append(torch.cat([memory[name].flatten() for name in names]))
                if rank == 0:
                    anchors.append(anchor_of(network, optimizer))

    replicas(size, code, body, every=every, outer=PLAIN, memory="residual")
    before = torch.zeros_like(anchors[0])
    for number in range(3):
        sent = anchors[number] - anchors[number + 1]  # the mean: the outer rate is 1
        mean, after = (
            torch.stack([values[rank][number] for rank in range(size)]).mean(0)
            for values in (trained, kept)
        )
        difference = anchors[number] - mean
        assert float(after.abs().max()) > 0
        torch.testing.assert_close(sent + after, before + difference, rtol=1e-4, atol=2e-6)
        before = after


@pytest.mark.slow(cases=("acpsgd", "chunked", "dgc", "qsgd(bits=8)"))
@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("topk(ratio=0.1)", {}),
        ("sgd", {"fragments": 2, "overlap": 1}),
        ("topk(ratio=0.1)", {"overlap": "round"}),
        ("qsgd(bits=8)", {"transform": "dct"}),
        ("powersgd(rank=1)", {"fragments": 2}),
        ("acpsgd(rank=1)", {"fragments": 2}),
        ("chunked(ratio=0.2, chunk=8)", {}),
        ("qsgd(bits=4)", {"outer": "auto"}),
        ("dgc(ratio=0.1)", {"hierarchical": 2}),
    ],
)
def test_replicas_have_the_same_bits_after_every_exchange(code, settings):
    size, every = 4 if "hierarchical" in settings else 2, 4
    weights: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(12):
            one_step(rank, size, step, network, optimizer)
            if (step + 1) % every == 0:
                weights[rank].append(anchor_of(network, optimizer))
                if "overlap" not in settings and settings.get("fragments", 1) == 1:
                    assert flat(network).equal(weights[rank][-1])

    _, optimizers = replicas(size, code, body, every=every, **settings)
    for rank in range(1, size):
        assert all(a.equal(b) for a, b in zip(weights[0], weights[rank], strict=True))
    assert not weights[0][-1].equal(flat(model()))
    optimizers[0].state_dict()  # waits for what is in flight
    assert optimizers[0].exchange.stats.steps == 3  # a round is one step of the exchange
    assert optimizers[0].exchange.state_dict()["memory"] in ("none", "residual")


def one_layer() -> nn.Module:
    network = nn.Linear(8, 3, bias=False)
    nn.init.normal_(network.weight, 0, 0.3, torch.Generator().manual_seed(1))
    return network


@pytest.mark.parametrize("mean", ["workers", "senders"])
def test_sparseloco_is_the_reference_of_its_paper_with_both_means(mean):
    """Top-k with a decayed residual; the outer rate is applied once."""
    size, every, rate, decay = 3, 4, 0.8, 0.95
    trained: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}
    anchors: list[Tensor] = [flat(one_layer())]

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        weights: list[Tensor] = []
        optimizer.optimizer.register_step_post_hook(lambda *_: weights.append(flat(network)))
        for step in range(3 * every):
            one_step(rank, size, step, network, optimizer)
            if (step + 1) % every == 0:
                trained[rank].append(weights[-1])
                anchors.extend([flat(network)] if rank == 0 else [])

    replicas(
        size, "topk(ratio=0.25)", body, adamw, one_layer, every=every, outer=f"sgd(lr={rate})",
        memory=f"residual(decay={decay})", outer_mean=mean,
    )  # fmt: skip
    kept = [torch.zeros_like(anchors[0]).double() for _ in range(size)]
    k = anchors[0].numel() // 4
    for number in range(3):
        sent = []
        for rank in range(size):
            wanted = decay * kept[rank] + (anchors[number] - trained[rank][number]).double()
            chosen = wanted.abs().topk(k).indices
            sent.append(torch.zeros_like(wanted).index_copy(0, chosen, wanted[chosen]))
            kept[rank] = wanted - sent[-1]
        total = torch.stack(sent)
        counts = total.ne(0).sum(0).clamp_min(1) if mean == "senders" else size
        expected = anchors[number] - rate * total.sum(0) / counts
        torch.testing.assert_close(anchors[number + 1].double(), expected, rtol=1e-5, atol=1e-6)


def test_rank_0_may_step_before_another_rank_has_read_its_weights(monkeypatch):
    messages: list[Any] = []
    weights = torch.ones(3)
    ranks = Direct(transports.network(1)[0], 1.0)
    gather = ranks.gather
    monkeypatch.setattr(ranks, "gather", lambda *args: messages.append(args[0]) or gather(*args))
    copy_first(weights, ranks, "weights")
    weights.zero_()
    assert messages[0].view("float32").tolist() == [1, 1, 1]


def test_the_anchor_of_a_half_precision_model_keeps_small_differences():
    """Four exchanges of a quarter of what bfloat16 can tell from 1."""

    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for _ in range(8):
            network.weight.grad = torch.full((8,), -(2.0**-7), dtype=torch.bfloat16)
            optimizer.step()
            seen.setdefault(rank, []).append(float(network.weight[0].detach()))
        anchor = optimizer.state_dict()["anchor"]["weights"]["weight"]
        assert anchor.dtype == torch.float32
        assert anchor.equal(torch.full((8,), 1 + 8 * 2.0**-9))

    seen: dict[int, list[float]] = {}
    replicas(
        2, "sgd", body, lambda network: SGD(network.parameters(), lr=1.0), Weight,
        every=1, outer="sgd(lr=0.25)",
    )  # fmt: skip
    assert seen[0] == seen[1] == sorted(seen[0])
    assert seen[0][0] == 1.0
    assert seen[0][-1] == 1 + 2.0**-6


class Normalized(nn.Module):
    """A network with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, 0, 0.3, torch.Generator().manual_seed(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


@pytest.mark.parametrize("fragments", [1, 2])
def test_buffers_are_averaged_at_each_exchange(fragments):
    means: dict[int, list[Tensor]] = {0: [], 1: []}
    before: dict[int, list[Tensor]] = {0: [], 1: []}

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        statistics = network.layers[1].running_mean
        optimizer.optimizer.register_step_post_hook(
            lambda *_: before[rank].append(statistics.clone())
        )
        for step in range(8):
            one_step(rank, 2, step, network, optimizer)
            means[rank].append(statistics.clone())
        with optimizer.anchor():
            assert statistics.equal(means[rank][7])

    replicas(2, "topk", body, build=Normalized, every=4, fragments=fragments)
    for step in range(8):
        exchanged = (step + 1) % (4 // fragments) == 0
        assert means[0][step].equal(means[1][step]) == exchanged
        if exchanged:
            expected = (before[0][step] + before[1][step]) / 2
            torch.testing.assert_close(means[0][step], expected)
