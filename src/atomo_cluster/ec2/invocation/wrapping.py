"""Text that fits into 80 columns."""

import textwrap
from typing import Final

__all__ = ["WIDTH", "entry", "wrap_line", "wrap_text"]

WIDTH: Final = 80


def wrap_line(line: str, width: int = WIDTH, indent: str | None = None) -> str:
    """Wraps a line that is too long, with the same indentation. Words stay whole.

    >>> print(wrap_line("  host deeplearning-worker1 is gone", width=24))
      host
      deeplearning-worker1
      is gone
    """
    if len(line) <= width:
        return line
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(), width, initial_indent=begin, break_long_words=False, break_on_hyphens=False,
        subsequent_indent=begin if indent is None else indent,
    )  # fmt: skip


def wrap_text(text: str) -> str:
    """Wraps paragraphs; indented lines are examples and stay as they are."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if not blocks or not line.strip() or line.startswith(" ") or not plain(blocks[-1]):
            blocks.append([line])
        else:
            blocks[-1].append(line.strip())
    return "\n".join(wrap_line(" ".join(block)) if plain(block) else block[0] for block in blocks)


def plain(block: list[str]) -> bool:
    """True if these lines form a paragraph."""
    return bool(block[0].strip()) and not block[0].startswith(" ")


def entry(label: str, text: str) -> str:
    """Formats a label with lines of text beside it.

    >>> entry("cost", "at most $3")
    'cost     at most $3'
    """
    return wrap_line(f"{label:9}{text}", indent=" " * 9)
