"""Fetches data sets, verified, ahead of a run."""

from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

from atomo.core.names import resolve
from atomo.errors import ConfigError, DataError
from atomo.workloads.datasets import DATASETS
from atomo.workloads.datasets.base import DatasetMissing, DatasetSource

__all__ = ["prepare"]

Report = Callable[[str], None]


def prepare(names: Sequence[str], data_dir: Path, report: Report) -> None:
    """Prepares these data sets in `data_dir` for `load_dataset`.

    A data set that is there and sound is left alone. If its archives are there they are unpacked
    (ImageNet). A data set that cannot be downloaded has to be put there by hand.

    Args:
        names: keys of `DATASETS`, in any case, with or without `-` and `_`.
        data_dir: made if need be.
        report: takes a line of text about each data set.

    Raises:
        ConfigError: a name is unknown, and nothing has been fetched; or a data set that cannot be
            downloaded is not there, and all others are.
        DataError: there is no network, or a downloaded or present file is damaged.
    """
    by_hand: list[str] = []
    for name in [resolve("data set", name, DATASETS) for name in names]:
        try:
            prepare_one(DATASETS[name], data_dir, report)
        except DatasetMissing as problem:
            if DATASETS[name].fetch:  # the download is not the data set
                raise
            by_hand.append(f"{name} cannot be downloaded. {problem}")
    if by_hand:
        raise ConfigError("; ".join(by_hand))


def prepare_one(source: DatasetSource, data_dir: Path, report: Report) -> None:
    """Fetches one data set if it is not there.

    Raises:
        DatasetMissing: it is not there, and cannot be downloaded.
        DataError: the data set is damaged, or the download fails.
    """
    try:
        source.load(data_dir, None)
    except DataError as problem:
        if source.unpack and source.unpack(data_dir):
            source.load(data_dir, None)
            report(f"{source.name}: unpacked in {data_dir}")
            return
        if not source.fetch:
            raise
        fetch(source, source.fetch, data_dir, problem)
        source.load(data_dir, None)
        report(f"{source.name}: downloaded to {data_dir} and verified")
    else:
        report(f"{source.name}: already there and sound; left alone")


def fetch(
    source: DatasetSource, download: Callable[[Path], None], data_dir: Path, problem: DataError
) -> None:
    """Downloads a data set; the error of a failure says how to get it by hand."""
    try:
        download(data_dir)
    except HTTPError as error:
        reason = f"{source.host()} answered {error.code} {error.reason}"
        raise DataError(f"{source.name}: {reason}. {problem}") from error
    except URLError as error:
        reason = f"there is no network to {source.host()} ({error.reason})"
        raise DataError(f"{source.name}: {reason}. {problem}") from error
    except (OSError, RuntimeError, HTTPException) as error:
        reason = f"the download from {source.host()} to {data_dir} failed ({error})"
        raise DataError(f"{source.name}: {reason}. {problem}") from error
