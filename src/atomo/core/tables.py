"""Tables of what can be asked for by name, a line each: a module and a name in it.

A line of text in place of an import and a mention, so that what is added needs only one. And who
asks for one thing needs nothing of what the others need: its module is imported when it is asked
for, while names are there without any.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar, final

__all__ = ["Table"]

T = TypeVar("T")


@final
class Table(Mapping[str, T]):
    """A mapping from names to objects that are imported when they are looked up.

    >>> table = Table("atomo.workloads.datasets", {"Digits": "digits:DIGITS"})
    >>> list(table), table["Digits"].name
    (['Digits'], 'Digits')
    """

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        """Creates a table.

        Args:
            package: where the modules are.
            places: "module:name" below `package`; where a mapping stands there, it has the thing by
                its name in this table.
        """
        self.places = MappingProxyType(dict(places))
        self._package = package

    def __getitem__(self, name: str) -> T:
        module, _, inner = self.places[name].partition(":")
        attribute: Any = getattr(import_module(f"{self._package}.{module}"), inner)
        entry: T = attribute[name] if isinstance(attribute, Mapping) else attribute
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
