"""Language models: files, losses, and a network that learns them."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from workloads.real_format import write_text
from workloads.training import trained

from atomo.errors import ConfigError, DataError
from atomo.launch.display.lines import evaluation_line
from atomo.launch.display.summary import Summary
from atomo.training.evaluation import scoring
from atomo.training.evaluation.scoring import Evaluation
from atomo.workloads import Workload, make_task
from atomo.workloads.language.perplexity import NextWord, PerplexityScorer
from atomo.workloads.language.windows import NO_WORD, Windows

SMALL = "language(hidden=32, heads=2, layers=1, dropout=0.0, length=14, context=7)"
BEST = math.exp((math.log(12) + 5 * math.log(2)) / 7)  # what `write_text` leaves to chance


@pytest.fixture
def folder(tmp_path):
    write_text(tmp_path)
    return tmp_path


def opened(folder, spec: str = SMALL, dataset: str = "Corpus") -> Workload:
    return make_task(spec).open(dataset, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "lr"), [("LSTM", 0.02), ("Transformer", 0.01)])
def test_three_processes_learn_which_word_comes_next(folder, network, lr):
    chosen = {"optimizer": "adam", "lr": lr, "max_steps": 50, "batch_size": 8, "code": "sgd"}
    values = trained(folder, task=SMALL, dataset="Corpus", network=network, **chosen)
    assert 0.98 * BEST < values["perplexity"] < 1.25 * BEST
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]))


def test_every_word_is_asked_for_once_behind_what_comes_before_it():
    text = torch.arange(10, 20, dtype=torch.int32)
    samples = Windows(text, 7, length=4, context=2)
    batch = samples.batch(torch.tensor([2, 0, 1]))
    assert [row[:4] for row in batch.inputs[0].tolist()] == [
        [15, 16, 17, 18],
        [7, 7, 7, 10],
        [11, 12, 13, 14],
    ]
    assert batch.inputs[0].shape == (3, 6)
    assert batch.targets.tolist() == [
        [18, 19, NO_WORD, NO_WORD],
        [10, 11, 12, 13],
        [14, 15, 16, 17],
    ]


@pytest.mark.parametrize(
    ("names", "dataset", "place"),
    [
        ("ptb.{}.txt", "PTB", "ptb"),
        ("wiki.{}.tokens", "WikiText-2", "wikitext-2"),
        ("wiki.{}.raw", "wikitext103", "wikitext-103"),
    ],
)
def test_published_layouts_are_read(tmp_path, names, dataset, place):
    (tmp_path / place).mkdir()
    (tmp_path / place / names.format("train")).write_text(" a <unk> a \n \n b a\n")
    (tmp_path / place / names.format("test")).write_text("b c\n")
    work = opened(tmp_path, "language(length=8, context=0)", dataset)
    # a and <eos> three times each, then by spelling: <unk>, b.
    assert work.train.batch(torch.tensor([0])).targets.tolist() == [[1, 2, 1, 0, 0, 3, 1, 0]]
    assert work.test.batch(torch.tensor([0])).targets.tolist() == [[3, 2, 0, *[NO_WORD] * 5]]


def test_rare_words_are_unknown_and_unknown_is_a_word(tmp_path):
    (tmp_path / "train.txt").write_text("a a b b c\n")
    (tmp_path / "test.txt").write_text("c d\n")
    work = opened(tmp_path, "language(length=3, context=0, least=2)")
    assert work.test.batch(torch.tensor([0])).targets.tolist() == [[3, 3, 2]]
    assert work.build("LSTM")(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 4)


def test_nothing_is_seen_of_what_is_foretold(folder):
    work = opened(folder)
    tokens = work.train.batch(torch.tensor([3])).inputs[0]
    changed = tokens.clone()
    changed[0, 15:] = (changed[0, 15:] + 1) % 13
    for name in ("LSTM", "Transformer"):
        torch.manual_seed(1)
        network = work.build(name).eval()
        read_plain, read_changed = (network(read)[0, -14:] for read in (tokens, changed))
        torch.testing.assert_close(read_plain[:8], read_changed[:8])  # of the words 7 to 14
        assert not torch.allclose(read_plain[8:], read_changed[8:])


def test_the_context_of_an_lstm_is_the_state_that_a_longer_text_would_leave(folder):
    work = opened(folder)
    torch.manual_seed(1)
    network, tokens = work.build("LSTM").eval(), work.train.batch(torch.arange(2, 4)).inputs[0]
    outputs, _ = network.lstm(network.embedding(tokens))
    whole = network.scores(outputs, network.embedding.weight)
    torch.testing.assert_close(network(tokens), whole[:, 7:])


def test_the_published_lstm_has_as_many_bytes_as_its_paper_says(tmp_path):
    task = make_task("language(hidden=1500, dropout=0.65, tied=True)")
    words = [f"w{n}" for n in range(9_998)]
    (tmp_path / "train.txt").write_text(f"{' '.join(words)} <unk>\n")
    (tmp_path / "test.txt").write_text("w1\n")
    work = task.open("Corpus", tmp_path)
    with torch.device("meta"):
        network = work.build("lstm")
    entries = sum(parameter.numel() for parameter in network.parameters())
    assert f"{4 * entries / 2**20:.2f}" == "194.68"  # MB of a gradient: Lin et al., table 4


def test_perplexity_by_hand():
    torch.manual_seed(2)
    outputs, targets = torch.randn(3, 5, 6), torch.randint(6, (3, 4))
    targets[2, 1:] = NO_WORD
    losses = [
        cross_entropy(outputs[b, 1 + t], targets[b, t]).item()
        for b in range(3)
        for t in range(4)
        if targets[b, t] != NO_WORD
    ]
    scorer = PerplexityScorer()
    scorer.add(outputs[:1], targets[:1])
    scorer.add(outputs[1:], targets[1:])
    values = scorer.values()
    assert values["loss"] == pytest.approx(sum(losses) / 9)
    assert values["perplexity"] == pytest.approx(math.exp(sum(losses) / 9))
    assert float(NextWord().loss(outputs, targets)) == pytest.approx(sum(losses) / 9)


def test_what_is_right_is_counted_in_windows_and_words_may_be_smoothed():
    outputs = 9 * torch.eye(3)[None, [0, 1, 2, 2]].repeat(2, 1, 1)
    targets = torch.tensor([[0, 1, 2, 0], [0, 0, NO_WORD, NO_WORD]])
    assert float(NextWord().right(outputs, targets)) == 3 / 4 + 1 / 2
    smoothed = NextWord().smoothed(0.1).loss(outputs, targets)
    counted = targets.flatten() != NO_WORD
    expected = cross_entropy(
        outputs.flatten(0, 1)[counted], targets.flatten()[counted], label_smoothing=0.1
    )
    torch.testing.assert_close(smoothed, expected)


def test_a_perplexity_beyond_all_numbers_is_infinite():
    scorer = PerplexityScorer()
    scorer.add(torch.tensor([[[0.0, 1e6]]]), torch.tensor([[0]]))
    assert scorer.values() == {"perplexity": math.inf, "loss": 1e6}


def test_lower_is_better_wherever_it_is_shown():
    summary = Summary()
    for step, value in ((1, 9.0), (2, 5.0), (3, 7.0)):
        last = Evaluation(step, {"perplexity": value, "loss": math.log(value)}, 30, "language")
        summary.add(last)
    assert dict(summary.rows()) == {
        "final test perplexity": "7.0000 (of step 3)",
        "best test perplexity": "5.0000 (of step 2)",
    }
    assert evaluation_line(last) == "step 3: test perplexity 7.0000 loss 1.9459 on 30 windows"


def test_the_evaluator_holds_no_more_scores_than_fit(folder, monkeypatch):
    monkeypatch.setattr("atomo.workloads.language.task.SCORES", 5 * 21 * 14)
    subject = scoring.build_subject(make_task(SMALL), "LSTM", "Corpus", None, folder, "cpu")
    assert subject.workload.eval_batch_size == 5
    seen = []
    subject.network.register_forward_hook(lambda _, inputs, out: seen.append(len(out)))
    scoring.tested(1, subject.network.state_dict(), subject, 1000)
    assert seen == [5] * 6  # 60 lines of 7 words, 14 a window


class Guess(torch.nn.Module):
    """Scores that know nothing but how often words are there."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.zeros(num_classes))

    def forward(self, tokens):
        return self.scores.expand(*tokens.shape, -1)


def two(num_classes: int) -> torch.nn.Module:
    return Guess(num_classes + 1)


def test_a_network_of_ones_own_scores_all_words_of_a_window(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "guessing.py").write_text("from workloads.test_language import Guess, two\n")
    work = opened(folder)
    assert work.build("guessing:Guess")(torch.zeros(2, 21, dtype=torch.int64)).shape == (2, 21, 14)
    message = r"makes \(1, 21, 15\) of a window of 21 words; it must be .*\(1, 21, 14\)"
    with pytest.raises(ConfigError, match=message):
        work.build("guessing:two")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"test.txt": None}, "has no file for test; expected one of test.txt, ptb.test.txt, wiki"),
        ({"ptb.train.txt": "a\n"}, "has train.txt and ptb.train.txt for train; expected one of"),
        ({"train.txt": " \n\n"}, "train.txt has no words; expected running text"),
        ({"test.txt": "\xff"}, "test.txt, line 1: byte 0xff at 1 is not UTF-8"),
    ],
)
def test_bad_files_are_named(folder, files, message):
    for name, content in files.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_text(content, encoding="latin-1")
    with pytest.raises(DataError) as caught:
        opened(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("language(length=0)", "length must be 1 to 65536, got 0"),
        ("language(context=-1)", "context must be 0 to 65536, got -1"),
        ("language(dropout=1)", "dropout must be 0 to below 1, got 1.0"),
        ("language(tied=True, sparse=True)", "sparse=True with tied=True: scoring gives each word"),
    ],
)
def test_bad_settings_are_named(spec, message):
    with pytest.raises(ConfigError) as caught:
        make_task(spec)
    assert message in str(caught.value)


def test_heads_must_divide_the_width(folder):
    with pytest.raises(ConfigError, match="hidden 200 must be a multiple of heads, which are 3"):
        opened(folder, "language(heads=3)").build("Transformer")
