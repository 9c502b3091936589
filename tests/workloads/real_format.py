"""Small data sets in their published formats, which something can be learnt from."""

import random
import wave
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

WORDS = {"0": ["dở", "chán", "tệ"], "1": ["bình_thường", "tạm"], "2": ["hay", "tốt", "tuyệt_vời"]}
COMMON = ["thầy", "cô", "dạy", "môn", "này", "rất", "."]
LEXICON = [*COMMON, *(word for words in WORDS.values() for word in words)]


def write_sentences(root: Path, train: int = 192, test: int = 60) -> None:
    """Sentences of five words, one of which gives the class away; a tenth has it from another."""
    rng = random.Random(3)
    for split, count in (("train", train), ("val", 6), ("test", test)):
        folder = root / split
        folder.mkdir(parents=True)
        classes = [rng.choice(list(WORDS)) for _ in range(count)]
        lines = [[*rng.choices(COMMON, k=4), rng.choice(WORDS[c])] for c in classes]
        sentences = [" ".join(rng.sample(words, 5)) for words in lines]
        (folder / "sents.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
        (folder / "sentiments.txt").write_text("\n".join(classes) + "\n")


def write_encoder(
    folder: Path, words: Collection[str], safe: bool = True, length: int = 64
) -> None:
    """A RoBERTa of one small layer, with a tokeniser, in PhoBERT's layout.

    Args:
        folder: is made.
        words: which the tokeniser knows, whole or as pieces.
        safe: whether the weights are in safetensors; else in a .bin.
        length: the most tokens that it takes.
    """
    import transformers as library

    library.logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    merges = [f"{word[:n]} {word[n]}" for word in words for n in range(1, len(word) - 1)]
    merges += [f"{word[:-1]} {word[-1]}</w>" for word in words if len(word) > 1]
    (folder / "bpe.codes").write_text("".join(f"{pair} 1\n" for pair in merges), encoding="utf-8")
    (folder / "vocab.txt").write_text("")
    pieces = library.PhobertTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    vocabulary = sorted({piece for word in words for piece in pieces.bpe(word).split()})
    (folder / "vocab.txt").write_text(
        "".join(f"{piece} 9\n" for piece in vocabulary), encoding="utf-8"
    )
    config = library.RobertaConfig(
        vocab_size=len(vocabulary) + 5, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=length + 2, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, tokenizer_class="PhobertTokenizer",
        initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(6)
    library.RobertaForMaskedLM(config).save_pretrained(folder)
    if not safe:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")


def label_lines(count: int, labels: int, seed: int) -> list[str]:
    """Samples of two labels; each label has three features of its own, among some of no meaning."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        own = sorted(rng.sample(range(labels), 2))
        features = {3 * label + part for label in own for part in range(3)}
        noise = {3 * labels + rng.randrange(20) for _ in range(3)}
        pairs = " ".join(f"{f}:{rng.uniform(0.8, 1.2):.4f}" for f in sorted(features | noise))
        rows.append(f"{','.join(map(str, own))} {pairs}")
    return rows


def write_labels(root: Path, labels: int = 12, train: int = 320, test: int = 80) -> None:
    """A training and a test file in the repository's format."""
    root.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 1), ("test", test, 2)):
        header = f"{count} {3 * labels + 20} {labels}"
        lines = [header, *label_lines(count, labels, seed)]
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n")


def write_speech(root: Path, train: int = 48, test: int = 16) -> None:
    """Half a second of a voice a recording: harmonics of 110 to 130 Hz, or of 200 to 230 Hz."""
    rng = np.random.default_rng(4)
    for split, count in (("train", train), ("test", test)):
        folder, names = root / split, [f"VIVOSSPK{n:02d}" for n in range(count)]
        for number, speaker in enumerate(names):
            (folder / "waves" / speaker).mkdir(parents=True)
            pitch = rng.uniform(110, 130) if number % 2 else rng.uniform(200, 230)
            write_voice(folder / "waves" / speaker / f"{speaker}_R001.wav", pitch, rng)
        genders = [f"{speaker} {'fm'[number % 2]}\n" for number, speaker in enumerate(names)]
        (folder / "genders.txt").write_text("".join(genders))
        prompts = [f"{speaker}_R001 XIN CHÀO\n" for speaker in names]
        (folder / "prompts.txt").write_text("".join(prompts), encoding="utf-8")


def write_voice(path: Path, pitch: float, rng: np.random.Generator) -> None:
    """A sum of harmonics, and some noise."""
    time = np.arange(8000) / 16_000
    tones = sum(np.sin(2 * np.pi * k * pitch * time + k) / k for k in range(1, 20))
    write_wave(path, 0.2 * tones + rng.normal(0, 0.01, len(time)))


TONES = {"A": 400, "B": 900, "Ế": 1700, "L": 3000}  # Hz


def write_spoken(root: Path, train: int = 160, test: int = 16) -> None:
    """Words of two letters, each a tone of 40 to 80 ms; between words, 40 ms of silence."""
    rng = np.random.default_rng(5)
    words = ["".join(rng.permutation(list(TONES))[:2]) for _ in range(40)]
    for split, count in (("train", train), ("test", test)):
        folder = root / split
        (folder / "waves" / "SPK").mkdir(parents=True)
        texts = [" ".join(rng.choice(words, rng.integers(1, 4))) for _ in range(count)]
        for number, text in enumerate(texts):
            sound = np.concatenate([tone(letter, rng) for letter in text])
            noise = rng.normal(0, 0.01, len(sound))
            write_wave(folder / "waves" / "SPK" / f"SPK_{number:03}.wav", sound + noise)
        prompts = [f"SPK_{number:03} {text}\n" for number, text in enumerate(texts)]
        (folder / "prompts.txt").write_text("".join(prompts), encoding="utf-8")
        (folder / "genders.txt").write_text("SPK f\n")


def tone(letter: str, rng: np.random.Generator) -> np.ndarray:
    """Returns the sound of a letter; the space is silence."""
    if letter == " ":
        return np.zeros(640)
    time = np.arange(rng.integers(640, 1280)) / 16_000
    return 0.3 * np.sin(2 * np.pi * TONES[letter] * time)


def write_wave(path: Path, sound: np.ndarray) -> None:
    """A file of 16 bits, 16 000 samples a second."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((sound.clip(-1, 1) * 32_767).astype("<i2").tobytes())


def write_text(root: Path, train: int = 400, test: int = 60) -> None:
    """Lines of six words out of twelve: after each come two others, as often, and no more.

    So the perplexity of a word within a line is 2 at best; of what ends it, which comes after six,
    1; and of the first of a line, 12.
    """
    rng = random.Random(5)
    root.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("valid", 4), ("test", test)):
        rows = []
        for _ in range(count):
            row = [rng.randrange(12)]
            for _ in range(5):
                row.append((3 * row[-1] + rng.choice((1, 2))) % 12)
            rows.append(" ".join(f"w{word}" for word in row))
        (root / f"{split}.txt").write_text("\n".join(rows) + "\n")
