"""Settings in TOML files, one key per setting, as `--config` reads them and a run stores them.

    network = "ResNet20"
    lr = 0.1

Errors name the file, the key, the value, and the fix.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from atomo.config.bounds import BOUNDS
from atomo.config.comm_types import stored_settings
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.core.names import find_spelling, nearest
from atomo.core.safe_read import read_text
from atomo.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["SETTINGS_FILE", "config_name", "read_settings", "settings_text"]

SETTINGS_FILE: Final = "settings.toml"
HEAD: Final = (
    "# All settings of this run. `atomo train --config` this file repeats it in a new folder.\n"
)
KINDS: Final[Mapping[type, str]] = {
    str: 'a string, such as {name} = "..."',
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
MOST: Final = 2**18  # bytes of a file
SHOWN: Final = 200  # characters of a value
NUMBERS_TOO: Final = {"local_steps", "overlap", "mix"}  # texts, of which most are numbers
OF_A_PLACE: Final = {"train_dir"}  # a repeated run needs a folder of its own


def read_settings(files: Sequence[Path]) -> dict[str, Any]:
    """Reads settings from files, by field of Settings; later files win.

    Raises:
        ConfigError: a file cannot be read, or has an unknown setting or an invalid value.
    """
    settings: dict[str, Any] = {}
    for path in files:
        for key, value in parsed(path).items():
            name = field_of_key(path, key)
            settings[name] = checked_value(path, name, value)
    return settings


def settings_text(settings: Settings) -> str:
    """Writes resolved settings as a file that `read_settings` reads back, defaults included.

    >>> settings_text(Settings(lr=0.5)).splitlines()[2]
    'n = 3'
    """
    values = stored_settings(asdict(settings))
    values["num_aggregate"] = number_to_wait_for(settings)
    lines = [
        f"{name} = {literal(value)}"
        for name, value in values.items()
        if value is not None and name not in OF_A_PLACE
    ]
    return "\n".join([HEAD, *lines, ""])


def config_name(files: Sequence[Path]) -> str:
    """Joins the names of a run's configuration files, for the name of its folder.

    >>> config_name([Path("configs/cifar/resnet20.toml"), Path("configs/dgc/wm5.toml")])
    '[cifar.resnet20]+[dgc.wm5]'
    >>> config_name([Path("runs/[cifar.resnet20]+[dgc.wm5]-20260131-235959/settings.toml")])
    '[cifar.resnet20]+[dgc.wm5]'
    """
    return "+".join(short(path) for path in files)


def short(path: Path) -> str:
    """Returns a file's folder and name without suffix; for the settings file of a run, the run's
    name.
    """
    folder = path.parent.name
    if path.name == SETTINGS_FILE and folder:
        return re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", folder)
    return f"[{path.stem}]" if folder in ("", "configs", "..") else f"[{folder}.{path.stem}]"


def number_to_wait_for(settings: Settings) -> int:
    """Returns 0 for all workers, so that a repeated run with more workers waits for all as well."""
    return 0 if settings.num_aggregate == settings.workers else settings.num_aggregate


def parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, MOST))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"--config {path}: lists or tables in it are nested too deep") from error
    except ValueError as error:  # its syntax, its encoding, or a number of thousands of digits
        raise ConfigError(
            f'--config {path}: {error}; a line is a key and a value, such as network = "ResNet20"'
        ) from error


@cache
def kinds_of_settings() -> dict[str, Any]:
    """Returns the type of each field. Cached: it takes a millisecond, and files have many keys."""
    return get_type_hints(Settings)


def field_of_key(path: Path, key: str) -> str:
    """Returns the field of a key; `-` and `_` make no difference."""
    names = kinds_of_settings()
    name = find_spelling(key, names)
    if not name:
        raise ConfigError(f"--config {path}: there is no setting {key!r}; {nearest(key, names)}")
    return name


def checked_value(path: Path, name: str, value: Any) -> Any:
    """Returns a value of the field's type and within its range."""
    hint = kinds_of_settings()[name]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind in KINDS]
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ConfigError(f"--config {path}: {name}: a whole number of more than 64 bits")
    if type(value) is int and kinds == [float]:
        value = float(value)
    if type(value) in (int, float) and name in NUMBERS_TOO:
        value = str(value)
    if type(value) not in kinds:
        types = " or ".join(KINDS[kind].format(name=name) for kind in kinds)
        raise ConfigError(f"--config {path}: {name} = {shown(value)}: write {types}")
    complaint = BOUNDS[name].complaint(value) if name in BOUNDS else ""
    if complaint:
        raise ConfigError(f"--config {path}: {name} = {shown(value)}: {flag(name)} {complaint}")
    return value


def shown(value: Any) -> str:
    """Returns a value about as a file has it, for error messages."""
    if isinstance(value, Mapping):
        return "a table of its own, and settings are in none"
    if isinstance(value, list):
        return "a list, and settings are none"
    text = literal(value) if type(value) in KINDS else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def literal(value: str | bool | int | float) -> str:
    """Returns a value in TOML. JSON strings are TOML strings, except for the DEL character."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
