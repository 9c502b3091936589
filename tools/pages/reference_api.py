"""The page of the reference about the public names of `atomo`: signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import atomo

__all__ = ["api_page"]

INTRO: Final = """\
# Python API

Every public name of `atomo`, from its docstring. The examples run in one session that
begins with

```python
>>> import torch
>>> from torch import nn
>>> import atomo
>>> from atomo import *

```

Codecs are classes of `atomo.codecs`: [codecs](codecs.md). Errors are on the page of [exit
codes](exit-codes.md).
"""
SECTION: Final = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")


def parameters(thing: Any) -> str:
    """Returns the names and defaults of parameters, without their types."""
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return ""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r"<([\w.]+)[^>]*>", r"\1", text)


def signature(name: str, thing: Any) -> str:
    """Returns the call of a public name, in lines that fit on a page."""
    line = f"atomo.{name}{parameters(thing)}"
    return textwrap.fill(line, 88, subsequent_indent="    ", break_on_hyphens=False)


def markdown(text: str) -> Iterator[str]:
    """Yields a docstring as Markdown: sessions are fenced, and arguments are a list."""
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if SECTION.match(lines[0]):
            yield f"**{lines[0][:-1]}**\n\n{listed(lines[1:])}"
        elif lines[0].startswith(">>> "):
            yield f"```python\n{block}\n\n```"
        elif all(line.startswith("    ") for line in lines):
            code = "\n".join(line[4:] for line in lines)
            yield f"```python\n{code}\n```"
        else:
            yield block


def listed(lines: list[str]) -> str:
    """Returns the lines of a section of a docstring as the items of a list."""
    items: list[str] = []
    for line in lines:
        if not line.startswith("     ") and re.match(r" {4}[\w`*]+: ", line):
            name, _, meaning = line.strip().partition(": ")
            items.append(f"- `{name}`: {meaning}")
        elif items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    return "\n".join(
        textwrap.fill(item, 118, subsequent_indent="  ", break_on_hyphens=False) for item in items
    )


def fields_of(thing: type) -> Iterator[str]:
    """Yields the keys of a dictionary of options."""
    keys = getattr(thing, "__annotations__", {})
    if issubclass(thing, dict) and keys:
        yield textwrap.fill("Keys: " + ", ".join(f"`{key}`" for key in keys) + ".", 118)


def methods(thing: type) -> Iterator[str]:
    """Yields the public methods and properties that a class defines itself."""
    for name, member in vars(thing).items():
        method = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        text = inspect.getdoc(method) if not name.startswith("_") else None
        if text and (inspect.isfunction(method) or isinstance(method, property)):
            shown = parameters(method) if inspect.isfunction(method) else ""
            yield f"### `{thing.__name__}.{name}{shown}`"
            yield from markdown(text)


def section(name: str) -> str:
    """Returns the section of a public name."""
    thing = getattr(atomo, name)
    is_class = inspect.isclass(thing)
    has_call = inspect.isfunction(thing) or (is_class and not inspect.isabstract(thing))
    head = f"## `{name}`"
    if has_call and parameters(thing):
        head += f"\n\n```\n{signature(name, thing)}\n```"
    parts = [head, *markdown(inspect.getdoc(thing) or "")]
    if is_class:
        parts += [*fields_of(thing), *methods(thing)]
    return "\n\n".join(parts) + "\n"


def is_listed(name: str) -> bool:
    """Returns True for names with a section here: functions, and classes that are no errors."""
    thing = getattr(atomo, name)
    if inspect.isclass(thing):
        return not issubclass(thing, BaseException)
    return inspect.isfunction(thing)


def api_page() -> str:
    """Returns the page of all public names."""
    names = sorted(filter(is_listed, atomo.__all__), key=str.lower)
    links = ",\n".join(f"[`{name}`](#{name.lower()})" for name in names)
    return "\n".join([INTRO, f"{links}.\n", *(section(name) for name in names)])
