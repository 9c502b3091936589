"""The public names of the package: each is typed, and a user's program sees no other."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import atomo
from atomo import codecs, errors
from atomo.codecs import CODECS, QSGD, SVD, Rows, TopK
from atomo.errors import ConfigError

RIGHT = """
from typing import Any

import torch
from torch import Tensor

import atomo
from atomo.codecs import SVD, TopK

gradient: Tensor = torch.ones(4, 4)
codec = TopK(ratio=0.01, values=atomo.codecs.QSGD(bits=4))
same: bool = codec == TopK(values="qsgd(bits=4)")
matrices: atomo.Codec[Any] = SVD(rank=2, factors=None)
inner: atomo.Codec[Any] = codec.values
frame: bytes = atomo.encode(gradient, codec, seed=0, compression=atomo.Compression("zstd"))
options: atomo.HookOptions = {"memory": atomo.make_memory("dgc"), "momentum": 0.9, "timeout_s": 9}
callback: Any = atomo.lightning_callback(codec, **options)
callback = atomo.lightning_callback(hierarchical=8, recipe="dgc", steps_per_epoch=9)
try:
    atomo.decode(frame)
except (atomo.FrameError, atomo.errors.ConfigError, atomo.PeerLost) as error:
    code: int = error.exit_code
"""
# A line of a program each, and what a checker says of it.
WRONG = {
    "atomo.ddp_hok": '"ddp_hok"',
    "atomo.FrameEror": '"FrameEror"',
    "atomo.codecs.Topk": '"Topk"',
    "from atomo.codecs import TopKK": '"TopKK"',
    "atomo.codecs.TopK(ration=0.1)": 'Unexpected keyword argument "ration"',
    "atomo.codecs.TopK(ratio='0.1')": 'Argument "ratio" to "TopK" has incompatible type "str"',
    "atomo.codecs.TopK(values=3)": 'Argument "values" to "TopK" has incompatible type "int"',
    "atomo.codecs.SVD(factors=3)": 'Argument "factors" to "SVD" has incompatible type "int"',
    "atomo.codecs.QSGD(bits=4.5)": 'Argument "bits" to "QSGD" has incompatible type "float"',
    "atomo.encode(torch.ones(3), 'sgd', seed=None)": 'Argument "seed" to "encode"',
    "atomo.lightning_callback(dense_bellow=3)": 'Unexpected keyword argument "dense_bellow"',
    "atomo.trainer_hook(0, seed='3')": 'Argument "seed" to "trainer_hook" has incompatible type',
    "options: atomo.HookOptions = {'sed': 3}": 'Extra key "sed" for TypedDict "HookOptions"',
}


def imported_for_checkers(module: ModuleType) -> Iterator[str]:
    """Yields the names that a module imports where a checker alone looks."""
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                for line in body:
                    if isinstance(line, ast.ImportFrom):
                        yield from (alias.asname or alias.name for alias in line.names)


@pytest.mark.long
def test_a_checker_knows_every_public_name_and_finds_misspelt_ones(tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text("\n".join(["import atomo, torch", *WRONG]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", right, wrong],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = dict(re.findall(r"^wrong.py:(\d+): error: (.*)", done.stdout, re.M))
    assert "right.py" not in done.stdout, done.stdout
    assert list(map(int, found)) == [*range(2, len(WRONG) + 2)], done.stdout + done.stderr
    for said, expected in zip(found.values(), WRONG.values(), strict=True):
        assert expected in said


def test_checkers_are_told_of_all_that_is_there():
    assert sorted(imported_for_checkers(atomo)) == sorted(atomo.__all__)
    classes = sorted(kind.__name__ for kind in CODECS.values())
    assert sorted(imported_for_checkers(codecs)) == classes


def test_dir_shows_public_names_alone():
    assert dir(atomo) == sorted(atomo.__all__)
    assert {"CODECS", "TopK", "SVD", "make_codec"} <= set(dir(codecs))
    assert "import_module" not in dir(atomo)


def test_every_error_that_a_caller_meets_is_public():
    for name in set(errors.__all__) - {"FrameFault"}:
        assert getattr(atomo, name) is getattr(errors, name)
    assert atomo.codecs is codecs
    assert atomo.errors is errors


@pytest.mark.parametrize("code", CODECS)
def test_a_codec_is_made_by_keywords_as_by_its_specification(code):
    kind = CODECS[code]
    assert getattr(codecs, kind.__name__) is kind
    codec = kind()
    settings = {name: getattr(codec, name) for name in [field.name for field in fields(kind)]}
    assert kind(**settings) == codec == atomo.make_codec(code)
    assert hash(kind(**settings)) == hash(codec)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(ratio="0.01"), "topk: ratio must be of type float, got '0.01'"),
        (lambda: TopK(ratio=True), "topk: ratio must be of type float, got True"),
        (lambda: TopK(scope=3), "topk: scope must be of type str, got 3"),
        (lambda: QSGD(bits=4.5), "qsgd: bits must be of type int, got 4.5"),
        (lambda: QSGD(bits=True), "qsgd: bits must be of type int, got True"),
        (lambda: QSGD(bits=99), r"qsgd: bits must be in 1\.\.8, got 99"),
        (lambda: SVD(rank="3"), "svd: rank must be of type int, got '3'"),
        (lambda: SVD(factors="svd"), "svd: factors must be a codec of plain entries, or none"),
        (lambda: TopK(values=None), "topk: values must be a codec of plain entries; got None"),
        (lambda: Rows(values="fp17"), "unknown codec 'fp17'; did you mean 'fp16'"),
        (lambda: Rows(values=TopK), "rows: values must be a codec of plain entries; got"),
    ],
)
def test_a_constructor_refuses_what_no_codec_can_be_made_of(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_setting_that_is_a_codec_takes_objects_and_specifications():
    assert TopK(values="qsgd(bits=2)") == TopK(values=QSGD(bits=2)) != TopK()
    assert str(TopK(values=QSGD(bits=2))) == "topk(values=qsgd(bits=2))"
    assert SVD(factors="none") == SVD(factors=None) == SVD()
    assert TopK(ratio=1).ratio == 1.0
    assert str(TopK(ratio=1)) == "topk(ratio=1.0)"
