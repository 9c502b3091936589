"""Types and shapes that annotations promise, checked while the tests run, at a price they can pay.

jaxtyping's own decorator does for every function what only shapes need: it binds the arguments
twice at each call, and builds two checked functions at import. It goes on doing so where there are
shapes; elsewhere beartype alone checks the same types, from a function's first call on.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
import jaxtyping._decorator  # where it finds itself again for the methods of a class

with_shapes = jaxtyping.jaxtyped


def install() -> None:
    """From here on, modules that jaxtyping's import hook loads are checked in this way."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = checked


def has_shapes(annotation: object) -> bool:
    """Whether an annotation is a shape or holds one; text that is resolved later may be one."""
    if isinstance(annotation, str):
        return "[" in annotation
    if parts := get_args(annotation):
        return any(has_shapes(part) for part in parts)
    return inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)


def checked(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """What stands in `jaxtyping.jaxtyped`'s place: the same checks."""
    if function is None:
        return functools.partial(checked, typechecker=typechecker)
    if not inspect.isfunction(function):  # classes, properties: each of their functions comes here
        return with_shapes(function, typechecker=typechecker)
    if any(has_shapes(annotation) for annotation in function.__annotations__.values()):
        return with_shapes(function, typechecker=typechecker)
    return checked_from_the_first_call(function, typechecker)


def checked_from_the_first_call(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    made: list[Any] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not made:
            made.append(typechecker(function))
        return made[0](*arguments, **options)

    return call
