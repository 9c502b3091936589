"""docs/wire.md is a page about frames and payloads; its tables are made from the code.

After a change, `python tests/wire/test_document.py` writes them again.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Size, Tensor

from atomo.codecs import CODECS, Codec, make_codec
from atomo.exchange.report import Report
from atomo.wire import Kind, compression

DOCUMENT = Path(__file__).parents[2] / "docs" / "wire.md"
SHAPE = Size((32, 16, 3, 3))
SPECS = (*CODECS, "svd(factors=fp16)", "topk(values=qsgd)")
CODES = ("rice", "entropy", "quantise", "sign", "clusters", "quantiles", "sketch", "draws")
REGION = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def payload_of(codec: Codec[Any]) -> Any:
    gradient = torch.randn(SHAPE, generator=Generator().manual_seed(0))
    return codec.encode(gradient, Generator().manual_seed(0))


def walk(payload: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the sections of a payload, by their names within it."""
    for field in fields(payload):
        value = getattr(payload, field.name)
        if is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sections() -> str:
    """Makes one row for each codec."""
    rows = ["| codec | payload | sections, in order |", "| --- | --- | --- |"]
    for spec in SPECS:
        codec = make_codec(spec)
        payload = payload_of(codec)
        named, allowed = list(walk(payload)), codec.fields(SHAPE)
        parts = [
            f"{name}: {dtype_name(field.dtype)} [{', '.join(map(str, field.max_shape))}]"
            for (name, _), field in zip(named, allowed, strict=True)
        ]
        rows.append(f"| `{spec}` | {type(payload).__name__} | {'; '.join(parts)} |")
    return "\n".join(rows) + "\n"


def field_meanings(record: type[Any]) -> Iterator[str]:
    """Yields the name of each field of a record, and the comment beside it."""
    comments = dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.*)$", inspect.getsource(record), re.M))
    for field in fields(record):
        yield f"`{field.name}`" + (f" ({comments[field.name]})" if field.name in comments else "")


def kinds() -> str:
    """Makes one row for each kind of frame, from its docstring and the fields of reports."""
    rows = ["| kind | name | direction | sections |", "| --- | --- | --- | --- |"]
    docstrings = dict(field_docstrings(Kind))
    report = {"report": len(fields(Report)), "report_fields": ", ".join(field_meanings(Report))}
    for kind in Kind:
        direction, layout = joined(docstrings[kind.name]).format(**report).split(" | ")
        rows.append(f"| {kind.value} | {kind.name} | {direction} | {layout} |")
    return "\n".join(rows) + "\n"


def payload_types() -> list[type[Any]]:
    """Returns all payload classes, nested ones included, in the order of the codecs."""
    found: dict[type[Any], None] = {}

    def visit(payload: Any) -> None:
        found.setdefault(type(payload))
        for field in fields(payload):
            if is_dataclass(value := getattr(payload, field.name)):
                visit(value)

    for spec in SPECS:
        visit(payload_of(make_codec(spec)))
    return list(found)


def field_docstrings(record: type[Any]) -> Iterator[tuple[str, str]]:
    """Yields the fields of a class with the docstrings below them."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    for field, said in zip(body.body, body.body[1:], strict=False):
        match field, said:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(ast.Constant(str(text))),
            ):
                yield name, text


def joined(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split())


def payloads() -> str:
    """Makes one item for each payload, with the docstrings of its fields."""
    items = []
    for payload in payload_types():
        said = [f"`{name}`: {joined(text)}" for name, text in field_docstrings(payload)]
        items.append(
            " ".join([f"- **{payload.__name__}**. {joined(payload.__doc__ or '')}", *said])
        )
    return "\n".join(textwrap.fill(item, 118, subsequent_indent="  ") for item in items) + "\n"


def codes() -> str:
    """Makes one item for each kernel whose docstring defines a format."""
    items = []
    for name in CODES:
        text = importlib.import_module(f"atomo.kernels.{name}").__doc__ or ""
        first, *others = inspect.cleandoc(text).split("\n\n")
        first = first.replace(" The contract of all backends.", "")
        items.append(f"- **`{name}`**. {joined(' '.join([first, *others]))}")
    return "\n".join(textwrap.fill(item, 118, subsequent_indent="  ") for item in items) + "\n"


def made(text: str) -> str:
    """Returns the page with every generated part made anew."""
    makers = {"kinds": kinds, "sections": sections, "payloads": payloads, "codes": codes}
    return REGION.sub(lambda found: found[1] + makers[found[2]]() + found[3], text)


def test_the_document_says_what_the_code_does():
    text = DOCUMENT.read_text()
    assert len(REGION.findall(text)) == 4
    assert made(text) == text, "write it anew: python tests/wire/test_document.py"


@pytest.mark.parametrize("spec", SPECS)
def test_a_payload_is_walked_as_it_is_sent(spec):
    codec = make_codec(spec)
    payload = payload_of(codec)
    sent = codec.sections(payload)
    assert all(a is b for (_, a), b in zip(walk(payload), sent, strict=True))


def test_the_figures_of_compression_are_those_of_the_code():
    text = " ".join(DOCUMENT.read_text().split())
    for figure in (
        f"more than {100 - 100 * compression.GAIN:.0f} %",
        f"below {compression.SMALLEST} bytes",
        f"above {2 * compression.PROBES * compression.PROBE // 1024} KiB",
        f"{compression.PROBES} pieces of {compression.PROBE // 1024} KiB",
        f"more than {100 - 100 * compression.PROBE_GAIN:.0f} %",
    ):
        assert figure in text, figure


if __name__ == "__main__":
    sys.exit(DOCUMENT.write_text(made(DOCUMENT.read_text())) == 0)
