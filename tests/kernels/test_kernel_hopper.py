"""Every Triton kernel becomes machine code for a Hopper GPU, which takes no GPU to see."""

import json
import os
import subprocess
import sys

import pytest
from selection import slow_but
from ways import TRITON

# A kernel's arguments in Triton's words, and the constants that its launches give it.
KERNELS = {
    "sign.pack_tiles": (
        "*fp32 *fp32 *i32 *fp64 i32 i64 i32",
        {"ADD": True, "WHOLE": True, "WIDTH": 64},
    ),
    "sign.add_tiles": (
        "*i32 *fp32 *fp32 i32 i64 i32 i64",
        {"ONE": False, "WHOLE": True, "WIDTH": 64},
    ),
    "sign.sum_runs": (
        "*fp32 *fp64 i64 i64 i32 i64 i32",
        {"PIECE": 65536, "RUNS": 1, "LANES": 1024},
    ),
}

COMPILE = """
import json, sys
from importlib import import_module
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
name, types, constants = json.loads(sys.argv[1])
idea, kernel = name.split(".")
function = getattr(import_module(f"atomo.kernels.{idea}.triton_way"), kernel)
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
print(len(made.asm["cubin"]), ".local" in code, "ld.global.v4" in code and "st.global.v4" in code)
"""


def test_all_ideas_with_a_triton_way_are_compiled():
    assert {name.partition(".")[0] for name in KERNELS} | {"random"} == TRITON


@pytest.mark.parametrize("name", slow_but((), KERNELS))
def test_it_compiles_for_hopper(name, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([name, *KERNELS[name]])],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    size, spills, wide = done.stdout.split()
    assert int(size) > 0
    assert spills == "False"
    assert wide == str("WHOLE" in KERNELS[name][1]), "16 bytes at a time where tiles are whole"
