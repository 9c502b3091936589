"""Pages of the reference that are tables of the code: codecs, memories, recipes, names, errors."""

import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import atomo_cluster.errors as cluster_errors
from atomo import errors
from atomo.codecs import CODECS
from atomo.config.comm_types import COMM_TYPES
from atomo.memory import MEMORIES, default_memory
from atomo.options.local_recipes import LOCAL_RECIPES
from atomo.options.recipes import RECIPES, Recipe
from atomo.workloads import TASKS
from atomo.workloads.datasets import DATASETS
from atomo.workloads.models import CIFAR_EXAMPLES, MODELS

__all__ = ["codecs_page", "exit_codes_page", "names_page"]

CODECS_INTRO: Final = """\
# Codecs, memories and recipes

A codec is given by its name, with settings in brackets: `--code 'topk(ratio=0.01, values=fp16)'`,
or as an object, `atomo.codecs.TopK(ratio=0.01)`. Definitions, papers and costs are on the page of
each family; measured sizes, times and errors are in the [figures](../codecs/figures.md).
[Which codec](../which-codec.md) helps to
choose.

- *unbiased*: the expected decoded gradient is the gradient.
- *contraction*: the decoded gradient is nearer to the gradient than zero is, so that error
  feedback converges.
- *summable*: payloads of several workers can be added without decoding.
- *lossless*: the decoded gradient is the gradient.
"""
NAMES_INTRO: Final = """\
# Names: networks, data sets, tasks

Names may be written in any case, with or without `-`, `_` and `/`. `--network` takes
`torchvision:NAME`, `timm:NAME` and `module.path:callable` as well
([workloads](../workloads.md#images)).
"""
EXIT_INTRO: Final = """\
# Exit codes

`atomo` and `pytorch_ec2.py` print one line about an error, and end with its code. The Python API
raises the classes of the table, which are subclasses of `atomo.AtomoError`. Code 1 is any other
failure, such as an output that cannot be written; with a traceback it is a defect of this
package. `mpirun` that refuses its arguments ends a job with 2.
"""

CUT_OFF: Final = (
    "Of a rank alone: all is written, but MPI did not end within 30 s and was cut off; `atomo "
    "train` says so and ends with 0."
)


def first_line(thing: Any) -> str:
    """Returns the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns rows as a table."""
    escaped = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, ("---",) * len(head), *escaped]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False) + "\n"


def codec_rows() -> Iterator[tuple[str, ...]]:
    """Yields a row for each codec."""
    entries: Mapping[str, Any] = CODECS
    for name, codec in entries.items():
        family = CODECS.places[name].partition(".")[0]
        settings = codes(f"{field.name}={field.default}" for field in dataclasses.fields(codec))
        laws = ", ".join(sorted(law.name.lower() for law in codec().laws)) or "none"
        yield (
            f"[`{name}`](../codecs/{family}.md#{name})",
            f"`{codec.__name__}`",
            settings,
            laws,
            f"`{default_memory(name)}`",
            first_line(codec),
        )


def shown(value: object) -> str:
    """Returns a setting as its option takes it."""
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"'{text}'" if " " in text or "(" in text else text


def recipe_rows(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each recipe: its paper, and the options that it stands for."""
    for name, recipe in recipes.items():
        options = [
            f"--{key.replace('_', '-')} {shown(value)}" for key, value in recipe.settings.items()
        ]
        yield f"`{name}`", recipe.paper, codes(options)


def codecs_page() -> str:
    """Returns the page of codecs, memories and recipes."""
    head = ("codec", "class", "settings", "laws", "memory", "in a sentence")
    memories = [(f"`{name}`", first_line(memory)) for name, memory in MEMORIES.items()]
    recipe_head = ("recipe", "paper", "options")
    return "\n".join(
        [
            CODECS_INTRO,
            f"## The {len(CODECS)} codecs\n",
            table(head, codec_rows()),
            f"## The {len(MEMORIES)} memories\n",
            "A memory is a worker's state for error feedback ([memories](../memories.md)).\n",
            table(("memory", "keeps"), memories),
            f"## The {len(RECIPES)} recipes\n",
            "`--recipe NAME` stands for these options ([recipes](../recipes.md)).\n",
            table(recipe_head, recipe_rows(RECIPES)),
            f"## The {len(LOCAL_RECIPES)} recipes of local steps\n",
            table(recipe_head, recipe_rows(LOCAL_RECIPES)),
        ]
    )


def names_page() -> str:
    """Returns the page of the names that options take."""
    kinds = [(f"`{name}`", first_line(kind)) for name, kind in TASKS.items()]
    return "\n".join(
        [
            NAMES_INTRO,
            "## `--network`\n",
            wrapped(f"{codes(MODELS)}."),
            "Networks of the published CIFAR-100 examples:\n",
            wrapped(f"{codes(CIFAR_EXAMPLES)}."),
            "## `--dataset`\n",
            wrapped(f"{codes(DATASETS)}. [Data sets](../data.md) lists their files."),
            "## `--task`\n",
            table(("task", "meaning"), kinds),
            "## `--comm-type`\n",
            wrapped(f"{codes(COMM_TYPES)}. The first has a master; the others have none."),
        ]
    )


def error_rows(module: Any, base: type[Any]) -> Iterator[tuple[str, ...]]:
    """Yields a row for each error, in the order of exit codes."""
    classes = [getattr(module, name) for name in module.__all__]
    kinds: list[Any] = [
        kind for kind in classes if isinstance(kind, type) and issubclass(kind, base)
    ]
    for kind in sorted(kinds, key=lambda kind: (kind.exit_code, kind.__name__)):
        yield f"{kind.exit_code}", f"`{kind.__name__}`", first_line(kind)


def exit_codes_page() -> str:
    """Returns the page of exit codes, of both programs."""
    head = ("code", "error", "meaning")
    own = [*error_rows(errors, errors.AtomoError)]
    own.append((f"{errors.CUT_OFF}", "", CUT_OFF))
    ends = (f"{errors.INTERRUPTED}", "", "The command was interrupted.")
    done = ("0", "", "Success.")
    return "\n".join(
        [
            EXIT_INTRO,
            "## `atomo`\n",
            table(head, [done, *own, ends]),
            "## `pytorch_ec2.py` and `virtual_cluster.py`\n",
            "`train`, `attach` and `ssh` end with the code of the program that they run.\n",
            table(head, [done, *error_rows(cluster_errors, cluster_errors.ClusterError), ends]),
        ]
    )
