"""Messages coded and read in all backends: the same words, the same symbols, the same refusals."""

from importlib import import_module

import pytest
import torch
from support.backends import Backend, every_backend
from support.messages import message
from support.selection import slow_but
from torch import Tensor

from atomo.kernels import entropy
from atomo.kernels.entropy import layout
from atomo.kernels.gaps import ZEROS

CPU = Backend("entropy", "cpu")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks small, so that short messages have more chunks than one scan takes."""
    prefix = import_module("atomo.kernels.prefix.cuda")  # Triton, so not at the top
    monkeypatch.setattr(prefix, "CHUNK", 2)
    monkeypatch.setattr(prefix, "SCANNED", 4)


def read(backend: Backend, words: list[Tensor], count: int) -> list[Tensor]:
    return [
        message.cpu()
        for message in backend.decompress_all(words, count, torch.device(backend.device))
    ]


def sparse_trits(n: int) -> Tensor:
    """Trits far apart: gaps longer than a byte holds, at the beginning, within and at the end."""
    symbols = torch.full((n,), ZEROS, dtype=torch.uint8)
    symbols[n // 3 :: 70] += 81
    symbols[n // 3 + 1 :: 15] -= 27
    symbols[-60:] = ZEROS
    return symbols


def bytes_beyond_trits(n: int) -> Tensor:
    symbols = sparse_trits(n)
    symbols[5] = 243
    return symbols


def longest_codes() -> Tensor:
    """Returns symbols each as rare as the next two together: one bit for the last, 12 for the
    first."""
    counts = [1, 1]
    while len(counts) < 13:
        counts.append(sum(counts[-2:]))
    symbols = torch.arange(13).repeat_interleave(torch.tensor(counts)).to(torch.uint8)
    return symbols[torch.randperm(len(symbols), generator=torch.Generator().manual_seed(1))]


MESSAGES = {
    "one symbol": (message("one", 300), False),
    "few bits": (message("one", 192), False),
    "longest codes": (longest_codes(), False),
    "even": (message("even", 200), False),
    "short": (message("one", 5), False),
    "trits": (message("trits", 260), True),
    "trits far apart": (sparse_trits(701), True),
    "no trits": (bytes_beyond_trits(400), True),
    "zeros alone": (torch.full((200,), ZEROS, dtype=torch.uint8), True),
}


# A word and a bit: sizes of the first stream, so that the next ones begin elsewhere; and bits of
# the first and the last word of the streams.
DAMAGES = [(2, 0), (37, 3), (-1, 30)]


def test_the_messages_have_what_they_are_for():
    forms = {name: int(CPU.compress(symbols, True, trits)[1]) for name, (symbols, trits) in
             MESSAGES.items()}  # fmt: skip
    assert [name for name, form in forms.items() if form == entropy.PLAIN] == ["even", "short"]
    assert [name for name, form in forms.items() if form == entropy.GAPS] == [
        "trits",
        "trits far apart",
    ]
    words = CPU.compress(*MESSAGES["longest codes"][:1], True, False)
    assert int((words[5:37].view(torch.uint8) & 15).max()) == 12


@pytest.mark.long(
    cases=(
        "longest codes-cuda",
        "one symbol-cuda",
        "zeros alone-cuda",
    )
)
@pytest.mark.slow(cases=("trits far apart-cuda",))
@every_backend("entropy")
@pytest.mark.parametrize("name", slow_but(("trits far apart",), MESSAGES))
def test_each_backend_makes_the_same_words_and_reads_them(backend, name):
    symbols, trits = MESSAGES[name]
    words = backend.compress(symbols, True, trits)
    assert words.equal(CPU.compress(symbols, True, trits))
    assert backend.compress(symbols, False, trits).equal(CPU.compress(symbols, False, trits))
    (result,) = read(backend, [words], len(symbols))
    assert result.equal(symbols)


@every_backend("entropy")
@pytest.mark.parametrize("name", slow_but(("trits",), ["longest codes", "trits"]))
def test_each_backend_counts_the_same_part_of_a_long_message(backend, name, monkeypatch):
    for bound, value in (("SAMPLED", 40), ("BLOCK", 8)):
        monkeypatch.setattr(layout, bound, value)
    symbols, trits = MESSAGES[name]
    words = CPU.compress(symbols, True, trits)
    assert backend.compress(symbols, True, trits).equal(words)
    monkeypatch.undo()
    assert not CPU.compress(symbols, True, trits).equal(words)


@every_backend("entropy")
def test_a_message_whose_sample_misleads_is_no_longer_than_its_symbols(backend, monkeypatch):
    for bound, value in (("SAMPLED", 40), ("BLOCK", 64)):
        monkeypatch.setattr(layout, bound, value)
    symbols = message("even", 8 * 64)
    symbols[:64] = 7  # the sample; no other symbol seems to matter
    symbols[64:] = torch.arange(7 * 64) % 251  # each of them with the longest code
    words = backend.compress(symbols, True, False)
    assert words[1] == entropy.PLAIN
    assert words.equal(CPU.compress(symbols, True, False))


@every_backend("entropy")
@pytest.mark.slow
def test_messages_of_several_frames_in_any_form(backend):
    plain = message("even", 260)
    originals = [MESSAGES["trits"][0], plain, MESSAGES["trits"][0].flip(0), message("one", 260)]
    words = [CPU.compress(original, True, True) for original in originals]
    assert [int(message_words[1]) for message_words in words] == [3, 0, 3, 1]
    for decoded, symbols in zip(read(backend, words, 260), originals, strict=True):
        assert decoded.equal(symbols)


def damaged(words: Tensor, place: int, change: int) -> Tensor:
    """Returns a message with one word changed."""
    changed = words.clone()
    changed[place] ^= change
    return changed


@pytest.mark.slow
@every_backend("entropy")
@pytest.mark.parametrize("name", slow_but(("few bits",), ["few bits", "trits far apart"]))
def test_damaged_streams_are_told_from_others(backend, name):
    """Damaged sizes, bits or ends of streams: the CPU's message begins with DAMAGED."""
    symbols, trits = MESSAGES[name]
    whole = CPU.compress(symbols, True, trits)
    damages = DAMAGES[:1] if name == "few bits" else DAMAGES
    frames = [damaged(whole, place, 1 << bit) for place, bit in damages]
    results = [result(backend, words, len(symbols)) for words in frames]
    expected = [result(CPU, words, len(symbols)) for words in frames]
    assert [message is None for message in results] == [message is None for message in expected]
    assert any(message is None for message in results)
    for actual, second in zip(results, expected, strict=True):
        assert actual is second is None or actual.equal(second)


def result(backend: Backend, words: Tensor, count: int) -> Tensor | None:
    """Returns the symbols, or None if the words are refused."""
    try:
        (symbols,) = read(backend, [words], count)
    except ValueError:
        return None
    return None if int(symbols[0]) == entropy.DAMAGED_STREAM else symbols
