"""The option `--down`: the weight sync of a parameter server."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from atomo.codecs import Codec, Law, make_codec
from atomo.core.names import resolve
from atomo.errors import ConfigError

__all__ = [
    "AUTO_DOWNLINK",
    "DELTA",
    "UPDATES",
    "WEIGHTS",
    "canonical_downlink",
    "delta_codec",
    "downlink_name",
    "repeats_steps",
    "weights_dtype",
]

AUTO_DOWNLINK: Final = "auto"
WEIGHTS: Final = "weights"
UPDATES: Final = "updates"
DELTA: Final = "delta"
NAMES: Final = (AUTO_DOWNLINK, WEIGHTS, UPDATES, DELTA)
WHOLE: Final = "fp32"
ROUNDED: Final = "bf16"
CALL: Final = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def canonical_downlink(text: str) -> str:
    """Returns the setting as Atomo spells it.

    >>> canonical_downlink("Updates")
    'updates'
    >>> canonical_downlink("Delta( TopK(ratio = 0.05) )")
    'delta(topk(ratio=0.05))'
    >>> canonical_downlink("weights(BF16)")
    'weights(bf16)'

    Raises:
        ConfigError: it names no way down, or one with a codec that does not go with it.
    """
    match = CALL.fullmatch(text)
    name = resolve("way down", match[1] if match else text, NAMES)
    spec = match[2] if match else None
    if name == WEIGHTS:
        return WEIGHTS if spec is None else weights_as(spec, text)
    if name != DELTA:
        if spec is not None:
            raise ConfigError(
                f"--down {text!r}: {name} takes no settings; {DELTA} has a codec, and {WEIGHTS} "
                "may travel as bf16"
            )
        return name
    if not (spec or "").strip():
        raise ConfigError(f"--down {text!r}: {DELTA} needs a codec, e.g. delta(topk(ratio=0.05))")
    return f"{DELTA}({check_delta_codec(make_codec(str(spec)))})"


def weights_as(spec: str, text: str) -> str:
    """Returns the full name of the weight encoding that a spec names.

    Raises:
        ConfigError: there is no such weight encoding.
    """
    name = spec.strip().lower()
    if name not in (WHOLE, ROUNDED):
        raise ConfigError(
            f"--down {text!r}: weights travel as fp32, which is {WEIGHTS}, or rounded to half the "
            f"bytes, which is {WEIGHTS}(bf16); codecs are for {DELTA}(CODEC)"
        )
    return WEIGHTS if name == WHOLE else f"{WEIGHTS}({name})"


def check_delta_codec(codec: Codec[Any]) -> Codec[Any]:
    """Returns a codec that may carry differences of weights.

    Raises:
        ConfigError: the codec is no contraction, so that the error does not shrink.
    """
    if codec.laws & {Law.LOSSLESS, Law.CONTRACTION}:
        return codec
    alternative = (
        f", or {codec.id}({codec.contraction_setting})" if codec.contraction_setting else ""
    )
    raise ConfigError(
        f"--down delta({codec}): the error of a step is sent with the next step, and shrinks only "
        f"under a contraction, which {codec} is not; give e.g. topk, efsignsgd or bf16{alternative}"
    )


def repeats_steps(downlink: str, one_host: bool) -> bool:
    """True if workers are likely to need an optimizer, under a canonical setting.

    Within one host bytes cost nothing, while to decode W frames in each of W processes does.
    """
    return downlink == UPDATES or (downlink == AUTO_DOWNLINK and not one_host)


def downlink_name(downlink: str) -> str:
    """Returns the name in a canonical setting."""
    return downlink.partition("(")[0]


def weights_dtype(downlink: str) -> torch.dtype:
    """Returns the codec of weights that travel whole, under a canonical setting."""
    return torch.bfloat16 if downlink == f"{WEIGHTS}({ROUNDED})" else torch.float32


def delta_codec(downlink: str) -> Codec[Any] | None:
    """Returns the codec in a canonical setting, where it has one."""
    spec = downlink.removeprefix(f"{DELTA}(")
    return make_codec(spec[:-1]) if spec != downlink else None
