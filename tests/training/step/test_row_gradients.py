"""Gradients of embeddings go to the codec as rows, and training is the same to the bit."""

import pytest
import torch
from support.harness import run_threads
from support.selection import slow_but
from torch import Size
from torch.nn import Embedding, Linear, Module, Sequential
from workloads.real_format import write_labels, write_sentences, write_text

from atomo.codecs import make_codec
from atomo.codecs.rows import RowGradient
from atomo.config.settings import Settings
from atomo.exchange.report import Report
from atomo.fusion import Bucket, Gradients, apart, plan, shapes
from atomo.fusion.embeddings import rows_of
from atomo.launch.resolve import canonical_settings
from atomo.options.grouping import ONE, Grouping
from atomo.training.checkpoints.checkpoint import load
from atomo.training.job.job import make_job
from atomo.training.loop import exchange_setup, worker
from atomo.training.step.row_gradients import row_gradients
from atomo.transports.local import network
from atomo.workloads import choose_workload as with_task
from atomo.workloads import make_task

LAYERS = Grouping("layer")


def asked(folder, name: str = "run", **changes: object) -> Settings:
    short = {
        "n": 3, "max_steps": 4, "eval_freq": 1000, "batch_size": 4, "epochs": 1000, "lr": 0.1,
        "task": "labels(hidden=64)", "dataset": "eurlex4k", "fusion": "layer", "momentum": 0.0,
        "batches_per_step": 2, "data_dir": str(folder), "train_dir": str(folder / name),
    }  # fmt: skip
    return canonical_settings(with_task(**(short | changes)))


WAYS = [
    {"code": "topk(ratio=0.02)"},
    {"code": "rows", "comm_type": "Allgather"},
    {"code": "dragonn", "memory": "none", "comm_type": "Allgather", "optimizer": "adam"},
    {"code": "threshold(value=0.01)", "memory": "residual(beta=0.5, gamma=2.0)"},
    {"code": "dgc(ratio=0.05)", "memory": "residual", "comm_type": "Allgather"},
    {"code": "sgd", "memory": "residual"},
    {"code": "topk(ratio=0.02)", "num_aggregate": 1},
]


@pytest.mark.long(
    cases=(
        "dragonn",
        "threshold",
    )
)
@pytest.mark.parametrize("given", slow_but(WAYS[1:2], WAYS), ids=lambda given: given["code"])
def test_training_is_the_same_as_with_whole_gradients(given, tmp_path, monkeypatch):
    write_labels(tmp_path / "eurlex4k")
    as_rows = asked(tmp_path, **given)
    if "num_aggregate" in given:  # who is late differs from run to run: it is enough that it runs
        run_threads(as_rows)
        return
    assert row_gradients(make_job(as_rows, 3)) == {}
    run_threads(as_rows)
    for module in (worker, exchange_setup):
        monkeypatch.setattr(module, "row_gradients", lambda job: None)
    whole = asked(tmp_path, "whole", **given)
    run_threads(whole)
    snapshot, expected = load(tmp_path / "run", 4), load(tmp_path / "whole", 4)
    for state, expected_state in (
        (snapshot.model, expected.model),
        *zip(snapshot.workers, expected.workers, strict=True),
    ):
        assert state.keys() == expected_state.keys()
        assert all(tensor.equal(expected_state[name]) for name, tensor in state.items())


@pytest.mark.parametrize(
    "given",
    [
        {"code": "dgc", "momentum": 0.9},  # momentum moves rows that no batch touched
        {"code": "topk", "memory": "dgc(clip=1.0)"},
        {"code": "rows(values=qsgd)"},  # steps are damped by the norm of the gradient
        {"code": "sgd", "comm_type": "Allreduce"},
        {"code": "topk", "dump_every": 1},
    ],
)
def test_who_needs_the_whole_gradient_gets_it(given, tmp_path):
    write_labels(tmp_path / "eurlex4k")
    assert row_gradients(make_job(asked(tmp_path, **given), 3)) is None


def test_the_rows_of_a_step_reach_the_mean_of_an_exchange(tmp_path):
    """The mapping of rows is empty when the exchange is made; each step fills it."""
    write_labels(tmp_path / "eurlex4k")
    job = make_job(asked(tmp_path, code="rows", comm_type="Allgather", n=1), 1)
    (transport,) = network(1)
    setup = exchange_setup.make_exchange(job, transport)
    assert setup.rows == {}
    bucket = next(b for b in job.buckets if all(p.codec.encodes_rows for p in b.parts))
    (slot,) = bucket.slots
    values = torch.arange(1.0, 1 + 2 * slot.shape[1]).view(2, -1)
    setup.rows[slot.name] = RowGradient(torch.tensor([1, 3]), values.clone(), slot.shape)
    mean = torch.full((sum(b.size for b in job.buckets),), torch.nan)
    setup.communicator.begin(0, job.buckets, mean)
    for each in job.buckets:
        setup.communicator.push(each, torch.zeros(each.size))
    setup.communicator.average(Report(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    matrix = mean[bucket.offset : bucket.offset + bucket.size].view(slot.shape)
    assert matrix[[1, 3]].equal(values)
    assert matrix.count_nonzero() == values.numel()


LANGUAGE = "language(hidden=8, heads=2, layers=1, dropout=0.0, length=6, context=3"


@pytest.mark.parametrize(
    ("task", "dataset", "network"),
    [
        ("text(dimension=8, hidden=8", "UIT-VSFC", "BiLSTM"),
        (LANGUAGE, "Corpus", "LSTM"),
        (LANGUAGE, "Corpus", "Transformer"),
    ],
)
def test_word_vectors_have_gradients_of_rows_where_the_task_says_so(
    task, dataset, network, tmp_path
):
    write_sentences(tmp_path / "UIT-VSFC", train=8)
    write_text(tmp_path, train=8)
    built = []
    for spec in (f"{task})", f"{task}, sparse=True)"):
        torch.manual_seed(1)
        work = make_task(spec).open(dataset, tmp_path)
        model, batch = work.build(network), work.train.batch(torch.tensor([0, 2]))
        torch.manual_seed(2)  # of dropout
        work.objective.loss(model(*batch.inputs), batch.targets).backward()
        built.append(model)
    dense, sparse = built
    weight, buckets = sparse.embedding.weight, plan(shapes(sparse), make_codec("topk"), LAYERS)
    rows, whole = rows_of(weight), torch.empty_like(weight)
    assert apart(sparse, buckets) == {"embedding.weight"}
    assert apart(dense, buckets) == set()
    assert len(rows.rows) < len(weight)
    rows.write_to(whole)
    torch.testing.assert_close(whole, dense.embedding.weight.grad)


@pytest.mark.slow
def test_a_language_model_learns_the_same_by_rows(tmp_path):
    write_text(tmp_path, train=40)
    models = []
    for code, task in (("rows", f"{LANGUAGE}, sparse=True)"), ("sgd", f"{LANGUAGE})")):
        options = {"task": task, "dataset": "Corpus", "network": "LSTM", "code": code, "lr": 1.0}
        settings = asked(tmp_path, code, **options)
        run_threads(settings)
        models.append(load(tmp_path / code, 4).model)
    torch.testing.assert_close(*models)


class Words(Module):
    """Two embeddings; one is also the weight of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.tied = Embedding(9, 3, sparse=True), Embedding(9, 3, sparse=True)
        self.last = Linear(3, 9, bias=False)
        self.last.weight = self.tied.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last((self.read(words) + self.tied(words)).relu()).logsumexp(-1).sum()


def test_embeddings_are_apart_where_nothing_else_uses_their_weights():
    model = Words()
    assert apart(model, plan(shapes(model), make_codec("topk"), LAYERS)) == {"read.weight"}
    assert apart(model, plan(shapes(model), make_codec("topk"), ONE)) == set()
    assert apart(model, plan(shapes(model), make_codec("dgc"), ONE)) == {"read.weight"}
    alone = Embedding(4, 2, sparse=True)
    assert apart(alone, plan(shapes(alone), make_codec("topk"), ONE)) == {"weight"}
    dense = Sequential(Embedding(4, 2))
    assert apart(dense, plan(shapes(dense), make_codec("topk"), LAYERS)) == set()


def test_rows_are_those_of_autograd_in_order_and_once():
    model, rows, came = Words(), dict[str, RowGradient](), list[int]()
    buckets = plan(shapes(model), make_codec("dgc"), ONE)

    def ready(bucket: Bucket, flat: torch.Tensor) -> None:
        came.append(bucket.number)

    gradients = Gradients(model, buckets, ready, rows, apart(model, buckets))
    for words in (torch.tensor([7, 2, 7]), torch.tensor([5])):
        gradients.begin(2)
        model(words).backward()
        model(words).backward()
        gradients.finish()
        gradient = rows["read.weight"]
        assert gradient.rows.tolist() == sorted(set(words.tolist()))
        whole = torch.empty(9, 3)
        gradient.write_to(whole)
        reference = Words()
        reference.load_state_dict(model.state_dict())
        reference.read.sparse = False
        for _ in range(2):
            reference(words).backward()
        torch.testing.assert_close(whole, reference.read.weight.grad)
        assert gradients.are_finite()
    gradient.values[0, 0] = torch.nan
    assert not gradients.are_finite()
    gradients.begin()
    gradients.finish()
    assert came == [0, 0, 0]
    assert (rows["read.weight"].rows.numel(), rows["read.weight"].shape) == (0, Size((9, 3)))
