"""Speech as text: CTC by PyTorch's own, errors by hand, alphabets that checkpoints keep."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch.nn.functional import ctc_loss, log_softmax
from workloads.real_format import write_spoken, write_wave
from workloads.training import trained

from atomo.errors import CheckpointError, ConfigError, DataError
from atomo.launch.display.summary import Summary
from atomo.training.evaluation.evaluator import EvaluatorSettings, evaluate
from atomo.training.evaluation.scoring import Evaluation
from atomo.workloads import Workload, make_task, restore_task, spec_of
from atomo.workloads.audio import word_errors
from atomo.workloads.audio.alphabet import Alphabet
from atomo.workloads.audio.ctc import CTC, decode_greedy, frames_needed, silence_after_end
from atomo.workloads.audio.word_errors import WordErrors

SMALL = "transcription(hidden=4)"
CHARACTERS = " ABLẾ"


@pytest.fixture
def folder(tmp_path):
    write_spoken(tmp_path / "vivos", train=6, test=3)
    return tmp_path


def opened(folder, spec: str = SMALL) -> Workload:
    return make_task(spec).open("VIVOS", folder)


def drawn(samples: int, frames: int, classes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(samples)
    return log_softmax(torch.randn(samples, frames, classes, generator=generator), 2)


@pytest.mark.long
def test_three_processes_transcribe_tones(tmp_path):
    write_spoken(tmp_path / "vivos")
    settings = {"optimizer": "adam", "lr": 0.004, "max_steps": 80, "batch_size": 8, "code": "sgd"}
    values = trained(tmp_path, task="transcription(hidden=64)", **settings)
    assert values["wer"] < 0.2
    assert values["cer"] < 0.1
    manifest = json.loads((tmp_path / "run" / "step-00000080.json").read_text())
    assert manifest["config"]["alphabet"] == CHARACTERS


def test_padding_is_seen_in_nothing(folder):
    work = opened(folder)
    torch.manual_seed(1)
    network = work.build("ConvBiLSTM").eval()
    together = work.train.batch(torch.arange(6))
    scores = network(*together.inputs)
    assert together.inputs[1].unique().numel() > 1
    for index in range(6):
        alone = work.train.batch(torch.tensor([index]))
        own = network(*alone.inputs)[0]
        torch.testing.assert_close(scores[index, : len(own)], own)
        assert scores[index, len(own) :].exp().sum(0).tolist()[1:] == [0] * len(CHARACTERS)
    losses = [
        work.objective.loss(network(*batch.inputs), batch.targets)
        for batch in (work.train.batch(torch.tensor([index])) for index in range(6))
    ]
    loss = work.objective.loss(scores, together.targets)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    loss.backward()
    assert all(batch.grad.isfinite().all() for batch in network.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_gradient_are_pytorchs_at_true_lengths(dtype):
    scores, frames = drawn(3, 12, 5), torch.tensor([12, 7, 3])
    targets = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [2, 0, 0, 0]])
    actual, reference = (scores.to(dtype).requires_grad_() for _ in range(2))
    inside = torch.arange(12) < frames[:, None]
    loss = CTC().loss(silence_after_end(actual, inside), targets)
    expected = ctc_loss(
        reference.float().transpose(0, 1), targets, frames, torch.tensor([4, 2, 1]), 0
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(actual.grad, reference.grad)


def test_the_loss_sums_all_alignments_and_leaves_unknown_characters_out():
    scores, text = drawn(1, 4, 3), (1, 2)
    total = sum(
        float(scores[0, range(4), path].sum().exp())
        for path in map(list, itertools.product(range(3), repeat=4))
        if tuple(n for n, _ in itertools.groupby(path) if n) == text
    )
    expected = -torch.tensor(total).log() / 2
    for targets in ([[1, 2]], [[1, 2, 0]], [[1, 3, 2]]):  # 3: one that the outputs do not have
        torch.testing.assert_close(CTC().loss(scores, torch.tensor(targets)), expected)


def test_greedy_reading_drops_repeats_then_blanks():
    frames = torch.tensor([[1, 1, 0, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 3]])
    scores = torch.nn.functional.one_hot(frames, 4).float().log()
    texts = [[1, 1, 2, 0, 0, 0, 0], [0] * 7, [3, 3, 0, 0, 0, 0, 0]]
    assert decode_greedy(scores).tolist() == texts
    right = torch.tensor([[1, 1, 2], [1, 0, 0], [3, 3, 0]])
    assert int(CTC().right(scores, right)) == 2
    assert int(CTC().right(scores[:, :2], right)) == 0
    needed = {(1,): 1, (1, 2): 2, (1, 1, 1): 5, (1, 2, 2, 1): 5}
    assert {text: frames_needed(torch.tensor(text)) for text in needed} == needed


def said(texts: list[str], alphabet: Alphabet, frames: int) -> torch.Tensor:
    """Scores whose greedy reading is these texts."""
    rows = torch.zeros(len(texts), frames, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        row[: 2 * len(text) : 2] = alphabet.numbers(text)
    return (torch.nn.functional.one_hot(rows, 1 + len(alphabet)) * 9.0).log_softmax(2)


def test_errors_are_counted_over_all_texts_whatever_the_batches():
    alphabet = Alphabet.of(["ab c"])
    references, texts = ["a b c", "ab", "xa b"], ["a c", "ab", "a b"]
    targets = torch.nn.utils.rnn.pad_sequence(
        [alphabet.numbers(batch) for batch in references], batch_first=True
    )
    scores = said(texts, alphabet, 12)
    whole, parts = WordErrors(alphabet), WordErrors(alphabet)
    whole.add(scores, targets)
    for number in range(3):
        parts.add(scores[number : number + 1], targets[number : number + 1])
    # Words: b is missing, of 6; xa is wrong, x being a character that training did not have.
    assert whole.values()["wer"] == pytest.approx(2 / 6)
    assert whole.values()["cer"] == pytest.approx(3 / 11)  # "b " and x
    assert parts.values() == pytest.approx(whole.values())


@pytest.mark.slow
def test_what_prompts_become_later_changes_no_checkpoint(folder):
    settings = {"n": 2, "max_steps": 1, "batch_size": 3, "precision": "bf16", "optimizer": "adam"}
    first = trained(folder, task=SMALL, **settings)
    for log in (folder / "run").glob("evaluations.jsonl"):
        log.unlink()
    prompts = folder / "vivos" / "train" / "prompts.txt"
    # As many characters, and others: A is in its place no more.
    prompts.write_text(prompts.read_text().replace("A", "Z"))
    again: list[Evaluation] = []
    evaluate(EvaluatorSettings(folder / "run", None, None, folder), again.append)
    assert [record.values for record in again] == [first]
    with pytest.raises(CheckpointError, match="the alphabet of the training data is ' BLZẾ', and"):
        trained(folder, task=SMALL, **(settings | {"max_steps": 2}))


def test_an_evaluator_decodes_with_the_checkpoints_alphabet(folder):
    task = make_task(SMALL)
    stored = task.open("VIVOS", folder).stored_fields
    assert stored == {"alphabet": CHARACTERS}
    prompts = folder / "vivos" / "train" / "prompts.txt"
    prompts.write_text(prompts.read_text().replace("A", "Z"))  # as many characters, and others
    assert opened(folder).stored_fields != stored
    again = restore_task(task, {"alphabet": CHARACTERS, "network": "x"})
    assert again.open("VIVOS", folder).stored_fields == stored
    assert spec_of(again) == spec_of(task)
    with pytest.raises(ConfigError, match="transcription: unknown setting 'alphabet'"):
        make_task("transcription(alphabet=AB)")


def test_the_best_checkpoint_has_the_lowest_rate():
    summary = Summary()
    for step, rate in ((10, float("nan")), (20, 0.25), (30, 0.75)):
        summary.add(Evaluation(step, {"wer": rate, "cer": 0.1, "loss": 1.0}, 3, SMALL))
    assert ("best test WER", "25.00% (of step 20)") in summary.rows()


def test_texts_are_composed_and_their_words_one_space_apart(folder):
    prompts = folder / "vivos" / "train" / "prompts.txt"
    lines = prompts.read_text().splitlines()
    prompts.write_text("\n".join([lines[0].split()[0] + " \tE\u0302\u0301  A ", *lines[1:]]))
    work = opened(folder)
    alphabet = Alphabet(work.stored_fields["alphabet"])
    assert alphabet.text(work.train.batch(torch.tensor([0])).targets[0].tolist()) == "Ế A"


def test_a_recording_that_cannot_say_its_prompt_is_named(folder):
    prompts = folder / "vivos" / "test" / "prompts.txt"
    lines = prompts.read_text().splitlines()
    prompts.write_text("\n".join([lines[0], lines[1] + " " + "LA" * 99, *lines[2:]]))
    work = opened(folder)
    work.test.batch(torch.tensor([0, 2]))
    with pytest.raises(
        DataError, match=r"SPK_001\.wav: \d+ frames are too few for the 20\d characters"
    ):
        work.test.batch(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("transcription(hidden=0)", "hidden must be 1 to 4096, got 0"),
        ("transcription(stride=17)", "stride must be 1 to 16, got 17"),
        ("transcription(seconds=0)", "seconds must be 1 to 3600, got 0"),
    ],
)
def test_settings_have_bounds(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_task(spec)


def test_what_is_wrong_with_data_is_named(folder, monkeypatch):
    with pytest.raises(ConfigError, match="alphabet of 2 characters, 1 distinct"):
        restore_task(make_task(SMALL), {"alphabet": "AA"}).open("VIVOS", folder)
    prompts = folder / "vivos" / "train" / "prompts.txt"
    prompts.write_text("SPK_000\n")
    with pytest.raises(DataError, match=r"prompts\.txt, line 1: SPK_000 has no text"):
        opened(folder)
    write_wave(folder / "vivos" / "test" / "waves" / "SPK" / "SPK_002.wav", np.zeros(16_001))
    prompts.write_text("SPK_000 A\n")
    with pytest.raises(DataError, match=r"SPK_002\.wav has more than 16000 samples, which is 1 s"):
        opened(folder, "transcription(seconds=1)").test.batch(torch.arange(3))
    monkeypatch.setattr(word_errors, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need the package jiwer.*-m pip install 'jiwer"):
        opened(folder)
