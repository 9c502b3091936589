"""The parsers of commands, as `--help` prints them."""

import argparse
from importlib import import_module
from typing import NoReturn

from atomo.cli import MODULES

__all__ = ["options_of", "parser_of"]


class ParserFound(BaseException):
    """The parser of a command, caught when it would print its help."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def catch(parser: argparse.ArgumentParser, file: object = None) -> NoReturn:
    raise ParserFound(parser)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Returns the parser of `atomo COMMAND`."""
    module = import_module(f"atomo.cli.{MODULES.get(command, command)}")
    kept = argparse.ArgumentParser.print_help
    argparse.ArgumentParser.print_help = catch  # type: ignore[assignment]
    try:
        module.main(["--help"])
    except ParserFound as found:
        return found.parser
    finally:
        argparse.ArgumentParser.print_help = kept  # type: ignore[method-assign]
    raise ValueError(f"atomo {command} has no parser of its own")


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the options and arguments of a parser, without its help."""
    return [action for action in parser._actions if "--help" not in action.option_strings]
