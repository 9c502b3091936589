"""Small data sets in their published formats, which something can be learnt from."""

import random
from pathlib import Path

WORDS = {"0": ["dở", "chán", "tệ"], "1": ["bình_thường", "tạm"], "2": ["hay", "tốt", "tuyệt_vời"]}
COMMON = ["thầy", "cô", "dạy", "môn", "này", "rất", "."]


def write_sentences(root: Path, train: int = 192, test: int = 60) -> None:
    """Sentences of five words, one of which gives the class away; a tenth has it from another."""
    rng = random.Random(3)
    for split, count in (("train", train), ("val", 6), ("test", test)):
        folder = root / split
        folder.mkdir(parents=True)
        classes = [rng.choice(list(WORDS)) for _ in range(count)]
        told = [[*rng.choices(COMMON, k=4), rng.choice(WORDS[c])] for c in classes]
        sentences = [" ".join(rng.sample(words, 5)) for words in told]
        (folder / "sents.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
        (folder / "sentiments.txt").write_text("\n".join(classes) + "\n")


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
