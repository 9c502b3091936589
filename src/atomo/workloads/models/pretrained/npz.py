"""Weights as Google published them for Vision Transformers and Mixers, in `.npz` files.

A key is a path such as `Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel`, and a kernel has its
inputs before its outputs. Here they become the names and the layouts of our networks, and timm's.
"""

import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.core.safe_read import memory_bytes, open_plain
from atomo.errors import ConfigError, DataError

__all__ = ["read_arrays", "read_npz"]

Array = NDArray[Any]
# The errors of NumPy and `zipfile`; an unknown compression is "not implemented".
UNREADABLE: Final = (
    ValueError, EOFError, KeyError, IndexError, TypeError, RuntimeError, SyntaxError, OverflowError,
    MemoryError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
)  # fmt: skip
UNUSED: Final = "pre_logits/"  # a layer before the head, which fine-tuning does without
# Applied in this order, each to the last result; the last patterns turn paths into names.
RENAMES: Final = tuple(
    (re.compile(pattern), into)
    for pattern, into in (
        (r"^(opt/target|params)/", ""),
        (r"^Transformer/encoderblock_(\d+)/", r"blocks/\1/"),
        (r"^MixerBlock_(\d+)/", r"blocks/\1/"),
        (r"/MultiHeadDotProductAttention_1/out/", "/attn/proj/"),
        (r"/MultiHeadDotProductAttention_1/", "/attn/"),
        (r"/MlpBlock_3/Dense_0/", "/mlp/fc1/"),
        (r"/MlpBlock_3/Dense_1/", "/mlp/fc2/"),
        (r"/(token|channel)_mixing/Dense_0/", r"/mlp_\1s/fc1/"),
        (r"/(token|channel)_mixing/Dense_1/", r"/mlp_\1s/fc2/"),
        (r"/LayerNorm_0/", "/norm1/"),
        (r"/LayerNorm_[12]/", "/norm2/"),  # the second is called 2 in one and 1 in the other
        (r"^(Transformer/encoder_norm|pre_head_layer_norm)/", "norm/"),
        (r"^Transformer/posembed_input/pos_embedding$", "pos_embed"),
        (r"^cls$", "cls_token"),
        (r"^embedding/", "patch_embed/proj/"),
        (r"^stem/", "stem/proj/"),
        (r"/(kernel|scale)$", "/weight"),
        (r"/", "."),
    )
)
JOINED: Final = ("query", "key", "value")  # of which ours is one layer


def read_npz(path: Path) -> Mapping[str, Tensor]:
    """Returns the tensors of a published file, by our names, in our layouts.

    Raises:
        DataError: the file is no such file, is damaged, or holds objects that would have to be
            unpickled.
        ConfigError: a layer of attention lacks its query, key or value, or they differ in shape.
        OSError: the file cannot be opened.
    """
    arrays = {key: array for key, array in read_arrays(path).items() if UNUSED not in key}
    tensors = {our_name(key): laid_out(path, key, array) for key, array in arrays.items()}
    return join_attention(path, tensors)


def read_arrays(path: Path, option: str = "--weights") -> Mapping[str, Array]:
    """Reads the arrays of a file, by its own keys.

    Raises:
        DataError: the file is no such file, is damaged, or holds objects that would have to be
            unpickled.
        OSError: the file cannot be opened.
    """
    try:
        # Opened here: numpy leaves a damaged file open.
        with open_plain(path, linked=True) as content:
            file = np.load(content, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{option} {path} is one array, and no .npz file of several")
            if file.zip is not None:
                check_size(path, option, file.zip)
            return {key: file[key] for key in file.files}
    except UNREADABLE as error:
        raise DataError(f"{option} {path} is no .npz file of numbers: {error}") from error


def check_size(path: Path, option: str, archive: zipfile.ZipFile) -> None:
    """Raises DataError where an archive would unpack to more than this machine's memory."""
    size, limit = sum(entry.file_size for entry in archive.infolist()), memory_bytes()
    if size > limit:
        raise DataError(
            f"{option} {path} unpacks to {size} bytes; this machine's memory has {limit}"
        )


def our_name(key: str) -> str:
    """Returns our name of a published key.

    >>> our_name("Transformer/encoderblock_3/MlpBlock_3/Dense_1/kernel")
    'blocks.3.mlp.fc2.weight'
    """
    for pattern, into in RENAMES:
        key = pattern.sub(into, key)
    return key


def laid_out(path: Path, key: str, array: Array) -> Tensor:
    """Returns an array as torch's layers have it: outputs before inputs, heads side by side."""
    if array.dtype.kind != "f":
        raise DataError(f"--weights {path}: {key} is of type {array.dtype}, not of floating point")
    tensor = torch.from_numpy(array.astype(np.float32))
    if not key.endswith("/kernel"):
        return tensor.flatten() if key.endswith("/bias") else tensor
    if tensor.dim() < 2:
        raise DataError(f"--weights {path}: {key} is of shape {array.shape}; kernels have inputs")
    if tensor.dim() == 4:
        return tensor.permute(3, 2, 0, 1)
    flat = tensor.flatten(0, -2) if key.endswith("/out/kernel") else tensor.flatten(1)
    return flat.T


def join_attention(path: Path, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns the same with queries, keys and values one after the other in one tensor."""
    part = re.compile(rf"\.({'|'.join(JOINED)})\.(weight|bias)$")
    whole = {name: tensor for name, tensor in tensors.items() if not part.search(name)}
    for name in dict.fromkeys(part.sub(r".{}.\2", name) for name in tensors.keys() - whole.keys()):
        names = [name.format(key) for key in JOINED]
        shapes = [tuple(tensors[key].shape) if key in tensors else None for key in names]
        if len({*shapes}) > 1:
            listing = ", ".join(f"{n} {s or 'missing'}" for n, s in zip(names, shapes, strict=True))
            raise ConfigError(f"--weights {path}: queries, keys and values differ: {listing}")
        whole[name.format("qkv")] = torch.cat([tensors[key] for key in names])
    return whole
