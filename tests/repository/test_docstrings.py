"""Docstrings of exported names; a helper may be plain from its name and types."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomo
import atomo_cluster

MODULES = [
    path
    for package in (atomo, atomo_cluster)
    for path in Path(package.__file__).parent.rglob("*.py")
]


def undocumented(source: str) -> Iterator[str]:
    """Yields the functions and classes of a module that it exports and does not describe."""
    body = ast.parse(source).body
    public = exported(body)
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                overloads = any(ast.unparse(one) == "overload" for one in node.decorator_list)
                if name in public and not overloads and ast.get_docstring(node) is None:
                    yield name


def exported(body: list[ast.stmt]) -> list[str]:
    """Returns the names in `__all__`."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                return list(ast.literal_eval(names))
    return []


def is_backend(path: Path) -> bool:
    """Returns True if a module is a backend of a kernel."""
    return path.parents[1].name == "kernels" and path.stem in ("cpu", "reference", "cuda")


@pytest.mark.slow
def test_every_exported_name_has_a_docstring():
    silent = {
        f"{path}: {name}"
        for path in MODULES
        # The docstring of a kernel is the contract in the `__init__` of its folder.
        if not is_backend(path)
        for name in undocumented(path.read_text())
    }
    assert not silent


@pytest.mark.parametrize(("source", "names"), [
    ("__all__ = ['f']\ndef f(): pass", ["f"]),
    ("__all__ = ['f']\ndef f():\n    'What it does.'", []),
    ("__all__ = ['f']\n@overload\ndef f(): ...\ndef f():\n    'What it does.'", []),
    ("__all__ = ['C']\nclass C: pass\ndef f(): pass", ["C"]),
    ("def f(): pass", []),
])  # fmt: skip
def test_finds_what_is_exported_and_silent(source, names):
    assert list(undocumented(source)) == names
