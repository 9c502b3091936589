"""Very many labels: files, losses, and a network that learns them."""

import numpy as np
import pytest
import torch
from torch.nn.functional import relu
from workloads.real_format import write_labels
from workloads.training import trained

from atomo.errors import ConfigError, DataError
from atomo.workloads import Workload, make_task
from atomo.workloads.labels.precision import LabelPrecisionScorer, inverse_propensities
from atomo.workloads.labels.repository import read_samples, read_split_file

SMALL = "labels(hidden=64)"


@pytest.fixture
def folder(tmp_path):
    write_labels(tmp_path / "eurlex4k")
    return tmp_path


def opened(folder, name: str = "eurlex4k") -> Workload:
    return make_task(SMALL).open(name, folder)


@pytest.mark.slow
def test_three_processes_learn_planted_labels(folder):
    values = trained(folder, dataset="eurlex4k", task=SMALL, code="topk(ratio=0.02)", max_steps=50)
    assert values["p1"] > 0.9
    assert values["p3"] > 0.6  # of two labels a sample, 2 / 3 at most
    assert values["psp3"] > 0.9


def test_a_row_is_what_its_line_says(folder):
    table = read_samples(folder / "eurlex4k/train.txt")
    lines = (folder / "eurlex4k/train.txt").read_text().splitlines()
    assert (len(table.bags), table.features, table.labels) == (320, 56, 12)
    rows = torch.tensor([7, 0, 7])
    batch = opened(folder).train.batch(rows)
    features, starts, values = batch.inputs
    for place, row in enumerate(rows.tolist()):
        own, *pairs = lines[1 + row].split()
        here = slice(int(starts[place]), int(starts[place + 1]))
        columns = [f"{f}:{v:.4f}" for f, v in zip(features[here], values[here], strict=True)]
        assert columns == pairs
        assert batch.targets[place].nonzero().flatten().tolist() == [*map(int, own.split(","))]


def test_a_sample_may_have_no_labels_and_no_features(tmp_path):
    (tmp_path / "a").write_text("4 5 3\n 1:2\n0:1 2:3\n2,0\n1 4:1e-3 0:2\n")
    bags = read_samples(tmp_path / "a").bags
    assert bags.label_starts.tolist() == [0, 0, 0, 2, 3]
    assert bags.feature_starts.tolist() == [0, 1, 3, 3, 5]


def test_the_network_is_a_dense_one_whose_gradients_are_sparse(folder):
    work = opened(folder)
    torch.manual_seed(1)
    network, batch = work.build("MLP"), work.train.batch(torch.arange(6))
    features, starts, values = batch.inputs
    dense = torch.zeros(6, 56)
    dense[torch.arange(6).repeat_interleave(starts.diff()), features] = values
    scores = network.last(relu(dense @ network.first.weight + network.bias))
    torch.testing.assert_close(network(*batch.inputs), scores)
    loss = work.objective.loss(network(*batch.inputs), batch.targets)
    loss.backward()
    sparse = network.first.weight.grad
    assert sparse.is_sparse
    (expected,) = torch.autograd.grad(
        work.objective.loss(scores, batch.targets), network.first.weight
    )
    torch.testing.assert_close(sparse.to_dense(), expected)


@pytest.mark.slow
def test_layers_too_large_for_a_message_are_several(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("atomo.fusion.buckets.MOST", 1000)
        with pytest.raises(ConfigError, match=r"first.weight \(56, 64\) has 3584 entries, .* 1000"):
            trained(folder, dataset="eurlex4k", task=SMALL)
    work = opened(folder)
    monkeypatch.setattr("atomo.workloads.labels.mlp.MOST", 1000)
    torch.manual_seed(1)
    wide, batch = work.build("MLP"), work.train.batch(torch.arange(6))
    assert max(parameter.numel() for parameter in wide.parameters()) <= 1000
    first = torch.cat([part.first.weight for part in wide.parts], 1)
    last = torch.cat([part.last.weight for part in wide.parts], 1)
    assert last.shape == (12, 64)
    assert float(last.detach().std()) == pytest.approx(1 / (64 * 3) ** 0.5, rel=0.1)
    features, starts, values = batch.inputs
    dense = torch.zeros(6, 56)
    dense[torch.arange(6).repeat_interleave(starts.diff()), features] = values
    scores = relu(dense @ first) @ last.T + wide.parts[0].last.bias
    torch.testing.assert_close(wide(*batch.inputs), scores)
    monkeypatch.setattr("atomo.fusion.buckets.MOST", 1000)
    few = {"fusion": "layer", "code": "topk(ratio=0.1)", "max_steps": 2}
    assert trained(folder, dataset="eurlex4k", task=SMALL, **few)["loss"] > 0


def test_precision_and_propensities_by_hand():
    inverse = inverse_propensities(
        torch.tensor([1.0, 10.0, 5.0], dtype=torch.double), 100, 0.5, 1.5
    )
    c = (np.log(100) - 1) * 2.5**0.5
    by_hand = [1 + c * np.exp(-0.5 * np.log(n + 1.5)) for n in (1, 10, 5)]
    assert inverse.tolist() == pytest.approx(by_hand)
    scorer = LabelPrecisionScorer(inverse)
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    scorer.add(scores[:1], torch.tensor([[1.0, 0.0, 1.0]]))
    scorer.add(scores[1:], torch.tensor([[1.0, 0.0, 0.0]]))
    values = scorer.values()
    assert (values["p1"], values["p3"]) == (0.5, 0.5)
    assert values["psp1"] == pytest.approx(by_hand[0] / (by_hand[0] + by_hand[0]))
    assert values["psp3"] == pytest.approx(1)


def test_one_file_is_divided_by_two_others(tmp_path):
    write_labels(tmp_path)
    (tmp_path / "test.txt").unlink()
    (tmp_path / "train.txt").rename(tmp_path / "deli_data.txt")
    (tmp_path / "deli_trSplit.txt").write_text("".join(f"{n} 1\n" for n in range(1, 301)))
    (tmp_path / "deli_tstSplit.txt").write_text("320 5\n301 2\n")
    work = opened(tmp_path, "deli")
    assert (len(work.train), len(work.test)) == (300, 2)
    last = read_samples(tmp_path / "deli_data.txt").bags.chosen(torch.tensor([319]))
    torch.testing.assert_close(work.test.batch(torch.tensor([0])).inputs[0], last.features)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: ''; expected N D L"),
        ("1 2\n0 0:1\n", "line 1: '1 2'; expected N D L"),
        ("1 9999999999 3\n", "each number must be 1 to 2147483647"),
        ("2 5 3\n0 1:2\n", "line 1: the header says 2 samples, and the file has 1"),
        ("1 5 3\n3 1:2\n", "line 2: label '3'; must be a whole number, 0 to 2"),
        ("1 5 3\n0,x 1:2\n", "line 2: label 'x'; must be a whole number, 0 to 2"),
        ("1 5 3\n-1 1:2\n", "line 2: label '-1'; must be"),
        ("1 5 3\n0, 1:2\n", "line 2: label ''; must be"),
        (f"1 5 3\n0 {10**30}:2\n", "line 2: feature '1000000"),
        ("1 5 3\n0 5:2\n", "line 2: feature '5'; must be a whole number, 0 to 4"),
        ("1 5 3\n0 1:two\n", "line 2: the value of a feature: could not convert string"),
        ("1 5 3\n0 1:1e99\n", "line 2: the value of a feature is not finite"),
        ("1 5 3\n0 1\n", "line 2: the value of a feature: could not convert string to float: ''"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    (tmp_path / "bad").write_text(content)
    with pytest.raises(DataError) as caught:
        read_samples(tmp_path / "bad")
    assert f"{tmp_path}/bad, " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n0\n", "line 2: '0' is no sample; must be 1 to 3"),
        ("1\n\n", "line 2: an empty line"),
        ("2\n1\n2\n", "line 3: sample 2 is there twice"),
    ],
)
def test_bad_split_files_are_named(tmp_path, content, message):
    (tmp_path / "bad").write_text(content)
    with pytest.raises(DataError) as caught:
        read_split_file(tmp_path / "bad", 3)
    assert message in str(caught.value)


def test_what_is_not_there_is_drawn(folder):
    with pytest.raises(DataError, match=r"wiki10 is not in .*; expected \*train.txt and \*test"):
        opened(folder, "wiki10")
    (folder / "eurlex4k/test.txt").write_text("1 56 13\n0 1:1\n")
    with pytest.raises(DataError, match=r"test.txt, line 1: features and labels \(56, 13\); .*12"):
        opened(folder)
    with pytest.raises(ConfigError, match="hidden must be 1 to 1000000, got 0"):
        make_task("labels(hidden=0)")
