"""Tables of objects by name: each line names a module and an attribute of it.

A new object needs one line of text, and no import. A lookup imports only the module of its object;
listing the names imports nothing.
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
            package: of the modules.
            places: "module:attribute" in `package`, by name; if the attribute is a mapping, its
                entry of this name.
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
