"""Sentences: files, inputs of the network, and a network that learns them."""

import re
import sys

import pytest
import torch
from workloads.real_format import write_sentences
from workloads.training import trained

from atomo.core.distribution import install_command
from atomo.errors import ConfigError, DataError
from atomo.workloads import Workload, make_task
from atomo.workloads.classes import FScorer
from atomo.workloads.text.tokens import token_splitter
from atomo.workloads.text.vectors import read_vectors
from atomo.workloads.text.vocabulary import PADDING, UNKNOWN_NUMBER, Vocabulary

SMALL = "text(dimension=16, hidden=16)"


@pytest.fixture
def corpus(tmp_path):
    write_sentences(tmp_path / "UIT-VSFC")
    return tmp_path


def opened(folder, spec: str = SMALL) -> Workload:
    return make_task(spec).open("UIT-VSFC", folder)


def test_the_folder_may_have_the_name_of_the_published_archive(corpus):
    assert len(opened(corpus).train) == 192
    (corpus / "UIT-VSFC").rename(corpus / "_UIT-VSFC")
    assert len(opened(corpus).train) == 192


def test_dropout_is_a_setting(corpus):
    network = opened(corpus, "text(dimension=16, hidden=16, dropout=0.2)").build("BiLSTM")
    assert (network.dropout.p, network.lstm.dropout) == (0.2, 0.2)
    with pytest.raises(ConfigError, match=r"text: dropout must be 0 to below 1, got 1\.0"):
        make_task("text(dropout=1.0)")


@pytest.mark.slow
def test_three_processes_learn_the_sentiment_of_sentences(corpus):
    values = trained(corpus, task=SMALL, optimizer="adam", lr=0.005)
    assert values["accuracy"] > 0.9
    assert values["f1"] > 0.9


def test_words_are_numbered_by_how_often_they_are_said():
    words = Vocabulary([["b", "a", "b"], ["a", "c"]], 2)
    assert words.words == ("a", "b")
    assert [words["a"], words["b"], words["c"], len(words)] == [2, 3, UNKNOWN_NUMBER, 4]


def test_what_a_sentence_is_padded_with_is_not_seen(corpus):
    (corpus / "UIT-VSFC/test/sents.txt").write_text("hay\n" + "hay cô rất tốt .\n" * 59)
    work = opened(corpus)
    torch.manual_seed(3)
    network = work.build("BiLSTM").eval()
    alone, beside = work.test.batch(torch.tensor([0])), work.test.batch(torch.tensor([0, 1]))
    assert beside.inputs[0].shape == (2, 5)
    torch.testing.assert_close(network(*beside.inputs)[:1], network(*alone.inputs))


def test_vectors_are_where_the_network_begins(corpus):
    (corpus / "words.vec").write_text("3 4\nhay 1 2 3 4\nkhông_có 0 0 0 0\ntốt .5 -1 1e-3 0 \n")
    work = opened(corpus, "text(vectors='words.vec', hidden=8)")
    weight = work.build("bilstm").embedding.weight
    assert weight.shape[1] == 4
    assert not weight[PADDING].any()
    rows = {tuple(row) for row in weight.tolist()}
    assert {(1.0, 2.0, 3.0, 4.0), tuple(torch.tensor([0.5, -1, 1e-3, 0]).tolist())} <= rows


WITHOUT = "needs transformers: `.venv/bin/pip install -e '.[text]'` has it"


def test_a_tokeniser_divides_words(corpus):
    library = pytest.importorskip("tokenizers", reason=WITHOUT)
    pieces = {"<unk>": 0, "tuyệt": 1, "_": 2, "vời": 3, "▁": 4}
    made = library.Tokenizer(library.models.WordLevel(pieces, unk_token="<unk>"))
    made.pre_tokenizer = library.pre_tokenizers.Punctuation()
    made.enable_truncation(1)
    made.enable_padding(length=9)
    made.save(str(corpus / "pieces.json"))
    divide = token_splitter(corpus / "pieces.json")
    assert divide("tuyệt_vời") == ["tuyệt", "_", "vời"]
    (corpus / "UIT-VSFC/test/sents.txt").write_text("tuyệt_vời\n" * 60, encoding="utf-8")
    work = opened(corpus, "text(tokenizer='pieces.json', length=2)")
    tokens, lengths = work.test.batch(torch.tensor([0])).inputs
    assert (tokens.shape, lengths.tolist()) == ((1, 2), [2])


def test_what_is_no_tokeniser_is_named(corpus, monkeypatch):
    with pytest.raises(DataError, match=r"no.json is not there; expected a tokeniser of `tokeniz"):
        opened(corpus, "text(tokenizer='no.json')")
    (corpus / "bad.json").write_text("{}")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "tokenizers", None)
        message = rf"bad.json needs the package tokenizers .*`{re.escape(install_command('text'))}`"
        with pytest.raises(ConfigError, match=message):
            opened(corpus, "text(tokenizer='bad.json')")
    pytest.importorskip("tokenizers", reason=WITHOUT)
    with pytest.raises(DataError, match=r"bad.json is no tokeniser of `tokenizers`: "):
        opened(corpus, "text(tokenizer='bad.json')")


def test_accuracy_and_f1_by_hand():
    scorer = FScorer(3)
    output, expected = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1])
    for part in (slice(0, 1), slice(1, 4)):
        scorer.add(torch.eye(3)[output[part]], expected[part])
    values = scorer.values()
    # class 0: 1 right of 2 said and 1 meant; class 1: 2 of 2 and 3; class 2: nowhere
    assert values["accuracy"] == 0.75
    assert values["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)


@pytest.mark.slow
def test_f1_is_that_of_scikit_learn():
    from sklearn.metrics import f1_score  # slow to import, and used nowhere else here

    generator = torch.Generator().manual_seed(4)
    scorer = FScorer(6)  # of which the last is nowhere, and another is said alone
    output, expected = (
        torch.randint(5, (80,), generator=generator),
        torch.randint(4, (80,), generator=generator),
    )
    scorer.add(torch.eye(6)[output], expected)
    assert scorer.values()["f1"] == pytest.approx(f1_score(expected, output, average="macro"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test/sents.txt", b"hay\n\nhay\n", "test/sents.txt, line 2: an empty sentence"),
        ("test/sents.txt", b"hay\n\xff\n", "test/sents.txt, line 2: byte 0xff at 1 is not UTF-8"),
        ("test/sents.txt", b"hay\n", "sents.txt has 1 lines and"),
        ("test/sentiments.txt", b"7\n" * 60, "line 1: class '7' is not one of training, 0, 1, 2"),
        ("train/sentiments.txt", b"0\n1 2\n", "line 2: '1 2' is no class"),
        ("test/sentiments.txt", None, "cannot read"),
    ],
)
def test_bad_files_are_named(corpus, file, content, message):
    path = corpus / "UIT-VSFC" / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        opened(corpus)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hay 1 2\n", "line 1: 'hay 1 2'; expected two whole numbers"),
        ("1 99999\n", "line 1: 99999 numbers a word; must be 1 to 16384"),
        ("1 2\nhay 1\n", "line 2: 1 numbers after the word; must be 2"),
        ("1 2\nhay 1 x\n", "line 2: not a number: could not convert string to float: 'x'"),
        ("1 2\nhay 1 inf\n", "line 2: a number is not finite"),
        ("2 2\nhay 1 1\n", "has 1 words, and 2 in its first line"),
    ],
)
def test_bad_vectors_are_named(tmp_path, content, message):
    (tmp_path / "v").write_text(content)
    with pytest.raises(DataError) as caught:
        read_vectors(tmp_path / "v", {"hay"})
    assert message in str(caught.value)


def test_what_is_not_there_is_drawn(tmp_path):
    with pytest.raises(DataError, match=r"UIT-VSFC has no folder train or Train; expected train/"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="which have no pixels"):
        make_task(SMALL).open("UIT-VSFC", tmp_path, 32)
    with pytest.raises(ConfigError, match="hidden must be 1 to 65536, got 0"):
        make_task("text(hidden=0)")
