"""The language of the code: openings of docstrings, names that are exported once, the glossary."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
DOCUMENTED = ("src", "benchmarks", "tools", "tests", "examples")
RIDDLES = {
    "How", "Of", "So", "That", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why",
}  # fmt: skip
ROW = re.compile(r"\| ([a-z][a-z ]*) \| (.+?) \| ?(.*?) ?\|")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z]|\d|\b)|[A-Z]?[a-z]+")
# A kernel has one name in each of its backends, and a command is the `main` of its module.
KERNELS = re.compile(r"kernels/.*")
CONTRACTS = {"main", "backend", "connect"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of all docstrings, those of attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield line, text.strip()


@pytest.mark.slow
@pytest.mark.parametrize("folder", DOCUMENTED)
def test_docstrings_begin_with_a_verb_or_a_noun(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    riddles = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in paths
        for line, text in docstrings(parsed(path))
        if text.partition(" ")[0].rstrip(",:;\n") in RIDDLES
    ]
    assert not riddles


def exports(path: Path) -> list[str]:
    """Returns the names in `__all__` that the module itself defines."""
    tree = parsed(path)
    names: list[str] = []
    defined: set[str] = set()
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names = list(ast.literal_eval(value))
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                defined.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined.add(name)
    return [name for name in names if name in defined]


def doubles(package: str, *, classes: bool) -> dict[str, list[str]]:
    """Returns the exported names that several modules define, with these modules."""
    places = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "src" / package).rglob("*.py")):
        name = path.relative_to(ROOT / "src" / package).as_posix()
        room = "" if classes else name.rpartition("/")[0]
        for export in exports(path):
            if export[0].isupper() and export.isupper() != classes and export not in CONTRACTS:
                places[f"{room} {export}".strip()].append(name)
            elif not classes and not KERNELS.match(name) and export not in CONTRACTS:
                places[f"{room} {export}"].append(name)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["atomo", "atomo_cluster"])
def test_no_two_classes_have_one_name(package):
    assert not doubles(package, classes=True)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["atomo", "atomo_cluster"])
def test_no_room_exports_a_name_twice(package):
    assert not doubles(package, classes=False)


def glossary() -> dict[str, tuple[str, list[str]]]:
    """Returns each word of the glossary with its meaning, and the words that it replaced."""
    rows = ROW.findall(GLOSSARY.read_text())
    return {
        word: (meaning, [old.strip() for old in gone.split(",") if old.strip()])
        for word, meaning, gone in rows
        if word != "word"
    }


def words_of(name: str) -> set[str]:
    """Returns the words of an exported name or of a file's.

    >>> sorted(words_of("HookAttachment")), sorted(words_of("weight_sync"))
    (['attachment', 'hook'], ['sync', 'weight'])
    """
    return {word.lower() for word in WORD.findall(name)}


def names_of_modules() -> Iterator[tuple[str, str]]:
    """Yields the exported names and the names of files, with the paths of their modules."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        place = path.relative_to(ROOT / "src").as_posix()
        yield path.stem, place
        for name in exports(path):
            yield name, place


def test_the_glossary_is_sorted_and_says_something():
    words = [*glossary()]
    assert words == sorted(words)
    assert len(words) > 30
    assert all(len(meaning) > 20 for meaning, _ in glossary().values())


@pytest.mark.slow
def test_names_use_no_word_that_the_glossary_replaced():
    gone = {old: word for word, (_, olds) in glossary().items() for old in olds}
    assert gone
    for name, place in names_of_modules():
        for word in words_of(name) & gone.keys():
            pytest.fail(f"{place}: {name} says {word!r}; the glossary has {gone[word]!r}")


@pytest.mark.slow
def test_each_word_of_the_glossary_is_in_use():
    names = {word for name, _ in names_of_modules() for word in words_of(name)}
    pages = [page for page in (ROOT / "docs").glob("*.md") if page != GLOSSARY]
    text = " ".join(page.read_text().lower() for page in pages)
    for word in glossary():
        assert set(word.split()) <= names or re.search(rf"\b{word}s?\b", text), word
