"""Settings from a YAML file and the command line, and the template that `init` writes."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from atomo_cluster.arguments import CONVERTERS, flag
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import NO, YES
from atomo_cluster.errors import ConfigError
from atomo_cluster.names import nearest

__all__ = ["DEFAULT_FILE", "add_settings", "load", "template"]

DEFAULT_FILE: Final = Path("cluster.yaml")
MISSING: Final = f"PyYAML is missing; `{sys.executable} -m pip install pyyaml` brings it"
SECTIONS: Final[Mapping[str, str]] = {
    "name": "Name, owner and place",
    "method": "Hosts",
    "max_hours": "The fuse",
    "supervise": "A cluster that looks after itself",
    "key_name": "ssh",
    "subnet_id": "Network",
    "nfs_ip_address": "Shared folder, e.g. EFS",
    "remote_dir": "On the hosts, and here",
    "setup_commands": "Commands: lists of lines",
    "num_replicas_to_aggregate": "Jobs",
}


def load(path: Path | None, overrides: Mapping[str, Any]) -> Cluster:
    """Loads the settings from a file; options of the command line override them.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or value is invalid.
    """
    settings = read(path or DEFAULT_FILE) if path or DEFAULT_FILE.exists() else None
    if settings is None and "name" not in overrides:
        raise ConfigError(
            f"there is no {DEFAULT_FILE} here and no --name; `pytorch_ec2.py init` writes one, "
            "--config names another"
        )
    return Cluster(**{**(settings or {}), **overrides})


def read(path: Path) -> dict[str, Any]:
    """Returns the checked keys and values of a YAML file."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(MISSING) from None
    try:
        text = path.read_text()
        check_unique(path, yaml.compose(text, yaml.SafeLoader))
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: this is not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: it must be lines of `key: value`")
    return {name: value for key, value_in_file in values.items()
            for name, value in [convert(path, str(key), value_in_file)]
            if value is not None}  # fmt: skip


def check_unique(path: Path, node: Any) -> None:
    """Raises ConfigError for a repeated key, of which YAML would take the last."""
    keys = [key.value for key, _ in node.value] if node is not None and node.id == "mapping" else []
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"--config {path}: {', '.join(twice)} is given twice; keep one")


def convert(path: Path, key: str, value: object) -> tuple[str, Any]:
    """Converts the value of a key to its type."""
    hints = get_type_hints(Cluster)
    if key not in hints:
        raise ConfigError(f"{path}: unknown key {key!r}; {nearest(key, hints)}")
    if value is None:
        return key, None
    kind = base(hints[key])
    if kind is tuple:
        return key, lines(path, key, value)
    if key in FLAGS and isinstance(value, bool):
        return key, YES if value else NO
    if isinstance(value, (list, dict)) or (kind is str and isinstance(value, bool)):
        raise ConfigError(f"{path}: {key}: {value!r} is not {ARTICLES[kind]}; quote it")
    try:
        return key, CONVERTERS[kind](str(value))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{path}: {key}: {error}") from None


FLAGS: Final = ("aws_end",)  # words of which YAML reads yes and no as True and False
ARTICLES: Final = {str: "text", int: "a whole number", float: "a number", bool: "yes or no"}


def lines(path: Path, key: str, value: object) -> tuple[str, ...]:
    """Returns a list of commands; a single command may be given without a list."""
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in listed):
        raise ConfigError(f"{path}: {key}: {value!r} is not a list of lines; quote each")
    return tuple(listed)


def base(kind: Any) -> type:
    """Returns the type of a field without its None."""
    if kind == tuple[str, ...]:
        return tuple
    return next(iter(get_args(kind)), kind)  # type: ignore[no-any-return]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds --config and an option per setting to a parser."""
    group = parser.add_argument_group("settings of the cluster, which override those of the file")
    group.add_argument("--config", type=Path, default=None, metavar="FILE",
                       help=f"YAML file (default {DEFAULT_FILE})")  # fmt: skip
    hints = get_type_hints(Cluster)
    for field in fields(Cluster):
        kind = base(hints[field.name])
        several = {"nargs": "*"} if kind is tuple else {"type": CONVERTERS[kind]}
        group.add_argument(flag(field.name), dest=f"set_{field.name}", metavar="X",
                           default=argparse.SUPPRESS, help=help_text(field), **several)  # fmt: skip


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of the command line."""
    values = {key: value for key, value in vars(options).items() if key.startswith("set_")}
    return {
        key.removeprefix("set_"): tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
    }


def help_text(field: Field[Any]) -> str:
    """Returns the help text of a setting."""
    shown = "" if field.default in (None, "", ()) else f" (default {yaml_text(field.default)})"
    return f"{field.metadata['help']}{shown}".replace("%", "%%")


def yaml_text(value: object) -> str:
    """Formats a default as YAML."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return {None: "", "": "", (): "[]"}.get(value, str(value))  # type: ignore[call-overload, no-any-return]


def template() -> str:
    """Returns the file that `init` writes: every key with its default and its meaning."""
    head = "# A cluster for tools/pytorch_ec2.py. Every key may also be given as an option,\n"
    text = head + "# e.g. --n-workers 8. The comment of a setting explains an empty value.\n"
    for field in fields(Cluster):
        if field.name in SECTIONS:
            text += f"\n# --- {SECTIONS[field.name]} ---\n"
        value = yaml_text(field.default)
        text += f"{field.name}:{' ' + value if value else ''}  # {field.metadata['help']}\n"
    return text
