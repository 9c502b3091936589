"""Every Triton kernel becomes machine code for a Hopper GPU, which takes no GPU to see."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.backends import TRITON

from atomo import kernels

# A kernel's arguments in Triton's words, and the constants that its launches give it.
KERNELS = {
    "atoms.sum_below": ("*fp32 i64 *fp64 *fp64", {"FIRST": False, "BLOCK": 1024}),
    "atoms.advance": ("*fp64 *fp64 i32", {"FIRST": False, "PARTS": 1024}),
    "atoms.draw_tiles": (
        "*fp32 i64 i64 *fp64 *i64 *i64",
        {"WRITE": True, "TILE": 1024},
    ),
    "draws.claim": ("*i64 i32 i64 i64 *i32", {"BLOCK": 1024}),
    "draws.permute": ("*i64 i64 i64 i64 i64 i32", {"ROUNDS": 4, "BLOCK": 1024}),
    "draws.keep": ("*i64 i32 i64 i64 *i32 *i1", {"BLOCK": 1024}),
    "entropy.count_symbols": (
        "*u8 *i64 *i64",
        {"SAMPLED": 2**17, "RUN": 4096, "EACH": 8, "SYMBOLS": 256, "BLOCK": 2048},
    ),
    "entropy.measure": ("*u8 i64 *i32 *i64", {"EACH": 4, "LANES": 256, "LONGEST": 12}),
    "entropy.write_codes": ("*u8 i64 *i32 *i64 *i32", {"EACH": 4, "LANES": 256, "LONGEST": 12}),
    "gaps.survey": ("*u8 i64 *i64", {"LONGEST": 126, "BLOCK": 512}),
    "gaps.write_gaps": ("*u8 i64 *i64 *i64 *u8", {"LONGEST": 126, "BLOCK": 512}),
    "gaps.span": ("*u8 i64 *i64", {"FAR": 252, "LONGEST": 126, "BLOCK": 512}),
    "gaps.place_trits": (
        "*u8 i64 i64 *i64 *i32 *i64",
        {"FAR": 252, "LONGEST": 126, "BLOCK": 512},
    ),
    "peaks.join_blocks": (
        "*i64 *i64 *i32 *fp32 fp32",
        {"DIVIDE": True, "COPY": True, "BLOCK": 4096},
    ),
    "prefix.try_places": (
        "*i32 *i32 *i64 *i64 *i32",
        {"CHUNK": 32, "LANES": 16, "CHUNKS": 32},
    ),
    "prefix.link_chunks": (
        "*i64 *i64 *i32 *i32 *i64",
        {"CHUNK": 32, "LANES": 16, "BLOCK": 512},
    ),
    "prefix.write_symbols": (
        "*i32 *i32 *i64 *i32 *i64 *u8 *i32",
        {"CHUNK": 32, "CHUNKS": 128},
    ),
    "rice.choose_parameters": (
        "*i64 i64 *i64 *i64",
        {"BLOCK": 512, "ESCAPE": 24, "WIDE": 48},
    ),
    "rice.write_codes": (
        "*i64 i64 *i64 *i64 *i32",
        {"BLOCK": 512, "ESCAPE": 24, "WIDE": 48},
    ),
    "sketch.fill": ("*fp32 i64 i64 *fp32 i64", {"BLOCK": 1024}),
    "sketch.add": ("*fp32 i64 i64 *fp32 i64 fp32", {"BLOCK": 1024}),
    "momentum.grow_and_mark": (
        "*fp32 *fp32 *fp32 fp32 i32 *i32 *i64 i64",
        {"NESTEROV": False, "BLOCK": 2048},
    ),
    "moments.sum_pieces": (
        "*fp32 *fp64 i64 i64 i64 i64 i32",
        {"PIECE": 16384, "RUNS": 1, "LANES": 1024},
    ),
    "powers.pack_tiles": ("*fp32 i64 *u8 *i32 *i32 i64", {"TILES": 8, "TILE": 2048}),
    "powers.pack_last": (
        "*fp32 i64 *u8 *i32 *i32 i64 i64 i32",
        {"TILE": 2048, "WIDTH": 64},
    ),
    "powers.add_tiles": (
        "*u8 *i32 *fp32 *fp32 i32 i64 i32 i32 i64 i64",
        {"WHOLE": True, "WIDTH": 64},
    ),
    "quantise.round_tiles": (
        "*fp32 *fp32 *u8 *i64 i64 i64 i64 i64 i64 i32 i64",
        {"KIND": 1, "WHOLE": True, "ONE": False, "ESCAPES": False, "BASE": 15, "DIGITS": 2}
        | {"CODE": 225, "TILES": 4, "COLUMNS": 512, "TINY": 1e-30, "HUGE": 1e30}
        | {"LIFT_TINY": 2.0**100, "LIFT_HUGE": 2.0**-60},
    ),
    "quantise.add_tiles": (
        "*u8 *i64 *i16 *fp32 *fp32 i64 i64 i64 i64 i64 i32 i64 i64 i64",
        {"ONE": False, "SOME": True, "BASE": 15, "DIGITS": 2, "CODE": 225}
        | {"TILES": 4, "COLUMNS": 512},
    ),
    "counts.count_rows": ("*u8 *i64 *i64 i64 i64 i64 i32", {"ROWS": 4, "COLUMNS": 512}),
    "radix.count_digits": (
        "*i32 *i64 *i64 i64",
        {"PASS": 1, "SHIFT": 9, "OWN": 2048, "VALUES": 2048, "BLOCK": 2048},
    ),
    "radix.store_kth": ("*i64 i64 *i64", {"VALUES": 2048, "NOT_FINITE": 2040}),
    "radix.count_larger": ("*i32 *i64 *i64 i64 *i64", {"BLOCK": 2048}),
    "radix.move_larger": ("*i64 *i32 *i64 *i64 i64 *i64 i64 *i64 *i32", {"BLOCK": 2048}),
    "selection.mark": ("*fp32 *fp32 *i64 *i32 *i64 i64", {"ADD": True, "BLOCK": 2048}),
    "selection.move": ("*fp32 *i32 *i64 i64 *i64 *fp32", {"CLEAR": True, "BLOCK": 2048}),
    "selection.most_of_blocks": ("*fp32 *i32 i64", {"BLOCK": 2048}),
    "selection.gather": ("*fp32 *fp32 *i64 *i32 i64", {"ADD": True, "BLOCK": 2048}),
    "selection.sum_chunks": ("*fp32 *fp32 *fp64 i64 i64", {"ADD": True, "BLOCK": 2048}),
    "selection.add_tiles": (
        "*fp32 *i64 *fp32 *i64 i32 i32 i64 fp32",
        {"SETS": 8, "TILE": 8192, "LANES": 128},
    ),
    "sign.pack_tiles": (
        "*fp32 *fp32 *i32 *fp64 i32 i64 i32",
        {"ADD": True, "WHOLE": True, "WIDTH": 64},
    ),
    "sign.add_tiles": (
        "*i32 *fp32 *fp32 i32 i64 i32 i64 i32 i64 i64",
        {"ONE": False, "WHOLE": True, "WIDTH": 64},
    ),
    "sign.sum_runs": (
        "*fp32 *fp64 i64 i64 i32 i64 i32",
        {"PIECE": 65536, "RUNS": 1, "LANES": 1024},
    ),
}

# Which of their arguments is a gradient, that may be bfloat16.
GRADIENTS = {
    "sketch.fill": 0, "momentum.grow_and_mark": 2, "moments.sum_pieces": 0, "powers.pack_tiles": 0,
    "powers.pack_last": 0, "quantise.round_tiles": 0, "selection.mark": 1,
    "selection.most_of_blocks": 0, "selection.gather": 1, "selection.sum_chunks": 1,
    "sign.pack_tiles": 1, "sign.sum_runs": 0,
}  # fmt: skip


def of_half(name: str) -> tuple[str, dict[str, object]]:
    """Describes a kernel with a bfloat16 gradient."""
    types, constants = KERNELS[name]
    words = types.split()
    words[GRADIENTS[name]] = "*bf16"
    return " ".join(words), constants


COMPILED = KERNELS | {f"{name} bf16": of_half(name) for name in GRADIENTS}

# Those that read and write all of a vector.
WIDE = {"momentum.grow_and_mark", "powers.pack_tiles", "selection.mark", "sign.pack_tiles"}

COMPILE = """
import json, sys
from importlib import import_module
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for name, (types, constants) in json.loads(sys.argv[1]).items():
    idea, kernel = name.split()[0].split(".")
    function = getattr(import_module(f"atomo.kernels.{idea}.cuda"), kernel)
    kinds = types.split() + ["constexpr"] * len(constants)
    signature = dict(zip(function.arg_names, kinds, strict=True))
    # As a launch on tensors of PyTorch, which begin at multiples of 16 bytes and more.
    attributes = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds) if "*" in kind}
    made = triton.compile(
        ASTSource(function, signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"enable_fp_fusion": False},
    )
    code = made.asm["ptx"]
    wide = "ld.global.v4" in code and "st.global.v4" in code
    print(name.replace(" ", "/"), len(made.asm["cubin"]), ".local" in code, wide)
"""


def launched(idea: str) -> set[str]:
    """Finds the kernels that a backend launches, in its source."""
    path = Path(kernels.__file__).parent / idea / "cuda.py"
    calls = [node.func for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]  # fmt: skip
    return {call.value.id for call in calls if isinstance(call.value, ast.Name)} - {"list"}


def test_all_kernels_that_are_launched_are_compiled():
    assert {f"{idea}.{name}" for idea in TRITON for name in launched(idea)} == {*KERNELS}


@pytest.mark.long
def test_all_compile_for_hopper(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(COMPILED)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in lines] == [name.replace(" ", "/") for name in COMPILED]
    for name, size, spills, wide in lines:
        assert int(size) > 0, name
        assert spills == "False", name
        assert wide == "True" or name.partition("/")[0] not in WIDE, (
            f"{name}: not 16 bytes at a time"
        )
