"""Settings of the lossless compression of a frame's sections; `wire` applies them."""

from dataclasses import dataclass
from typing import Final, final

from atomo.errors import ConfigError

__all__ = ["BLOSC_CODECS", "SHUFFLES", "Compression"]

BLOSC_CODECS: Final = ("none", "blosclz", "lz4", "lz4hc", "zlib", "zstd")
SHUFFLES: Final = ("none", "byte", "bit")


@final
@dataclass(frozen=True)
class Compression:
    """Settings of blosc: codec, level and shuffle."""

    codec: str = "lz4"
    level: int = 5  # 0 to 9; higher => smaller and slower
    shuffle: str = "byte"

    def __post_init__(self) -> None:
        if type(self.level) is not int:
            raise ConfigError(f"blosc level must be a whole number, got {self.level!r}")
        if self.codec not in BLOSC_CODECS:
            raise ConfigError(f"blosc codec {self.codec!r}; known: {', '.join(BLOSC_CODECS)}")
        if self.shuffle not in SHUFFLES:
            raise ConfigError(f"blosc shuffle {self.shuffle!r}; known: {', '.join(SHUFFLES)}")
        if not 0 <= self.level <= 9:
            raise ConfigError(f"blosc level must be in 0..9, got {self.level}")
