"""An encoder and its tokeniser, from a folder, through the package `transformers`.

    config.json, model.safetensors or pytorch_model.bin, and files of the tokeniser: vocab.txt and
    bpe.codes as PhoBERT's (Nguyen and Nguyen, EMNLP Findings 2020), tokenizer.json, ...

Nothing is fetched, no code from the folder runs, and of a .bin tensors alone are read.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch.nn import Module

from atomo.core.distribution import install_command
from atomo.core.safe_read import MAX_JSON_BYTES, memory_bytes
from atomo.errors import DataError, MissingPackage

__all__ = ["read_encoder", "read_tokeniser", "token_ids"]

T = TypeVar("T")

OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
WEIGHTS: Final = (".bin", ".safetensors")
DRAWN: Final = "pooler."  # weights that an encoder may lack: they belong to its pre-training task


def read_tokeniser(folder: Path) -> Any:
    """Reads a tokeniser of `transformers` from a folder.

    Raises:
        ConfigError: the package is not installed.
        DataError: there is no such folder, or no tokeniser in it that can pad.
    """
    library = transformers(folder)
    read = library.AutoTokenizer.from_pretrained
    made = translate_errors(
        "tokeniser", folder, lambda: read(folder, local_files_only=True, trust_remote_code=False)
    )
    if made.pad_token_id is None:
        raise DataError(f"the tokeniser in {folder} has no token for padding; it must have one")
    return made


def token_ids(
    tokeniser: Any, folder: Path, sentences: Sequence[str], longest: int
) -> list[list[int]]:
    """Returns the tokens of each sentence, at most `longest`.

    Raises:
        DataError: the tokeniser, which came from this folder, cannot divide a sentence.
    """
    ids: list[list[int]] = translate_errors(
        "tokeniser",
        folder,
        lambda: tokeniser([*sentences], truncation=True, max_length=longest)["input_ids"],
    )
    return ids


def read_encoder(folder: Path) -> Module:
    """Reads the encoder in a folder, with weights in float32; a missing pooler gets random weights.

    Raises:
        ConfigError: the package is not installed.
        DataError: there is no such folder, or no encoder in it that has all of its weights.
    """
    library = transformers(folder)
    made, report = translate_errors("encoder", folder, lambda: load_encoder(library, folder))
    lacking = sorted(name for name in report["missing_keys"] if not name.startswith(DRAWN))
    if lacking or report["mismatched_keys"]:
        names = [*lacking, *(str(mismatch[0]) for mismatch in report["mismatched_keys"])]
        raise DataError(
            f"the weights in {folder} are not those of its config.json: {names[0]!r}, one of "
            f"{len(names)}, is missing or of another shape"
        )
    encoder: Module = made
    return encoder


def load_encoder(library: Any, folder: Path) -> Any:
    """Returns the encoder, and the loading report of the package."""
    return library.AutoModel.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        weights_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `read_encoder` raises an error with their names
        dtype=torch.float32,
    )


def transformers(folder: Path) -> Any:
    """Imports the package, set to use no network and to print nothing.

    Raises:
        MissingPackage: the package is not installed.
        DataError: there is no such folder, or a file in it is too large to be read.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder; nothing is fetched from a hub: put config.json, "
            "model.safetensors (or pytorch_model.bin) and the tokeniser's files there"
        )
    check_sizes(folder)
    for name in OFFLINE:  # read when the package is imported
        os.environ[name] = "1"
    try:
        library: Any = import_module("transformers")
    except ImportError as error:
        raise MissingPackage(
            f"encoders need the package transformers ({error}); "
            f"`{install_command('text')}` brings it"
        ) from error
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def check_sizes(folder: Path) -> None:
    """Raises DataError for a file that the package would read whole, and that has no such size."""
    for path in folder.iterdir():
        limit = memory_bytes() if path.suffix in WEIGHTS else MAX_JSON_BYTES
        if path.is_file() and (size := path.stat().st_size) > limit:
            raise DataError(f"{path} has {size} bytes; at most {limit} are read")


def translate_errors(part: str, folder: Path, read: Callable[[], T]) -> T:
    """Translates errors of a read into ours."""
    try:
        return read()
    except Exception as error:  # the package lets through those of all packages that it uses
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"cannot read the {part} in {folder}: {reason}") from error
