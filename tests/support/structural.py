"""A check of manifests against structural schemas, as Kubernetes' API server makes it: unknown
fields, types, enumerations, required fields.
"""

from collections.abc import Iterator, Mapping
from typing import Any

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
}


def faults(value: object, schema: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yields the faults of a value; a field without a type may be an integer or a string."""
    kind = schema.get("type")
    is_wrong = kind is not None and not isinstance(value, TYPES[kind])
    if is_wrong or (kind == "integer" and isinstance(value, bool)):
        yield f"{place}: {value!r} is not of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        yield from faults_of_fields(value, schema, place)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from faults(item, schema["items"], f"{place}[{number}]")


def faults_of_fields(
    value: Mapping[str, object], schema: Mapping[str, Any], place: str
) -> Iterator[str]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (
        f"{place}.{name} is missing" for name in schema.get("required", []) if name not in value
    )
    for name, item in value.items():
        if name in fields:
            yield from faults(item, fields[name], f"{place}.{name}")
        elif isinstance(others, dict):
            yield from faults(item, others, f"{place}.{name}")
        elif fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{place}.{name} is no field; known: {', '.join(fields)}"
