"""The published data sets and their files, with the names in DRAGONN's scripts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from atomo.errors import DataError
from atomo.workloads.labels.repository import LabelTable, read_samples, read_split_file
from atomo.workloads.lines import line_error

__all__ = ["ANY_SET", "SETS", "LabelSet", "read_set"]

LAYOUT: Final = (
    "expected *train.txt and *test.txt, or *data.txt with *trSplit.txt and *tstSplit.txt, each in "
    "the repository's format: a header `N D L`, then `label,label feature:value ...` a line"
)


@final
@dataclass(frozen=True)
class LabelSet:
    """A data set, and the constants of its propensities (Jain et al., KDD 2016, table 1)."""

    name: str
    a: float = 0.55
    b: float = 1.5


ANY_SET: Final = LabelSet("Labels")  # the files of the data directory itself
SETS: Final = (
    LabelSet("eurlex4k"),
    LabelSet("wiki10"),
    LabelSet("amz13k"),
    LabelSet("amz670k", 0.6, 2.6),
    LabelSet("amz3m", 0.6, 2.6),
    LabelSet("deli"),
    LabelSet("text8"),
    ANY_SET,
)


def read_set(chosen: LabelSet, data_dir: Path) -> tuple[LabelTable, LabelTable]:
    """Returns the training and the test split, from `data_dir`/NAME/ or from `data_dir`/NAME*.

    Raises:
        DataError: both are missing, or a file is not in the repository's format.
    """
    folder = data_dir if chosen is ANY_SET else data_dir / chosen.name
    prefix = ""
    if not folder.is_dir():
        folder, prefix = data_dir, chosen.name
    if train := only_file(folder, prefix, "train.txt"):
        test = only_file(folder, prefix, "test.txt")
        if test is None:
            raise DataError(f"{train} is there, but no {prefix}*test.txt; {LAYOUT}")
        return check_counts(read_samples(train), read_samples(test))
    if data := only_file(folder, prefix, "data.txt"):
        return parts(read_samples(data), folder, prefix)
    place = folder if chosen is ANY_SET else data_dir / chosen.name
    raise DataError(f"{chosen.name} is not in {place}; {LAYOUT}")


def only_file(folder: Path, prefix: str, ending: str) -> Path | None:
    """Returns the only file with this beginning and ending of its name."""
    files = sorted(folder.glob(f"{prefix}*{ending}"))
    if len(files) > 1:
        raise DataError(f"{files[0]} and {files[1]}: two files end in {ending}; leave one there")
    return files[0] if files else None


def check_counts(train: LabelTable, test: LabelTable) -> tuple[LabelTable, LabelTable]:
    """Returns two files that count the same features and labels."""
    expected, counts = (train.features, train.labels), (test.features, test.labels)
    if expected != counts:
        raise line_error(
            test.source, 1, f"features and labels {counts}; {train.source} has {expected}"
        )
    return train, test


def parts(table: LabelTable, folder: Path, prefix: str) -> tuple[LabelTable, LabelTable]:
    """Returns one file, divided by two others."""
    names: Sequence[str] = ("trSplit.txt", "tstSplit.txt")
    files = [only_file(folder, prefix, name) for name in names]
    if None in files:
        raise DataError(f"{table.source} is there, but not both of {' and '.join(names)}; {LAYOUT}")
    train, test = (
        replace(table, bags=table.bags.chosen(read_split_file(file, len(table.bags))))
        for file in files
        if file is not None
    )
    return train, test
