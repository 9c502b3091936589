"""The hosts that a job needs, by its options: enough for its `--min-workers`."""

from collections.abc import Sequence
from typing import Final

from atomo_cluster.errors import ConfigError

__all__ = ["count_masters", "fewest_hosts", "fit_options", "value_of", "whole"]

WITH_MASTER: Final = ("", "parameterserver", "bcast")  # values of --comm-type


def fewest_hosts(words: Sequence[str], hosts: int) -> int:
    """Returns the number of hosts, the master's included, below which a job must not start.

    That is the master's host and `--min-workers`, by default half of the workers, as in `atomo
    train`. Without a master every host has a rank that counts. With `--n` the number of ranks says
    nothing of hosts, and half of the workers must have one.

    Raises:
        ConfigError: the value of `--min-workers` is not a number.

    >>> fewest_hosts([], 5), fewest_hosts(["--min-workers", "3"], 5)
    (3, 4)
    >>> fewest_hosts(["--min-workers=3", "--comm-type=Allreduce"], 5)
    3
    """
    masters = count_masters(words)
    workers = hosts - masters
    given = 0 if value_of(words, "--n") else whole(words, "--min-workers")
    return masters + min(workers, given or -(-workers // 2))


def fit_options(words: Sequence[str], hosts: int) -> tuple[str, ...]:
    """Returns the options of a job on fewer hosts: `--num-aggregate` exceeds no number of workers.

    >>> fit_options(["--num-aggregate", "4"], 3)
    ('--num-aggregate', '4', '--num-aggregate=2')
    """
    workers, wanted = hosts - count_masters(words), whole(words, "--num-aggregate")
    if value_of(words, "--n") or wanted <= workers:
        return tuple(words)
    return (*words, f"--num-aggregate={workers}")  # the last one holds


def count_masters(words: Sequence[str]) -> int:
    """Returns 1 if a rank of the job is a master without gradients, else 0."""
    return int(value_of(words, "--comm-type").lower() in WITH_MASTER)


def whole(words: Sequence[str], option: str) -> int:
    """Returns the number that an option has; 0: it is not given.

    Raises:
        ConfigError: it is not a number.
    """
    value = value_of(words, option) or "0"
    if not value.isdecimal():
        raise ConfigError(f"{option} {value!r}: give a number, such as 2")
    return int(value)


def value_of(words: Sequence[str], option: str) -> str:
    """Returns the value of the last use of an option; empty: it is not given."""
    values = [""]
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            values.append(value if equals else following)
    return values[-1]
