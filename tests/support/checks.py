"""Types and shapes that annotations promise, checked while the tests run, at a price they can pay.

jaxtyping's own decorator builds two checked functions at import, and at each call binds the
arguments to names and checks them twice. Here beartype checks a function from its first call on,
arguments and result once each; where there are shapes, within a scope of jaxtyping's in which a
letter has one size.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
import jaxtyping._decorator  # where it finds itself again for the methods of a class
from beartype.roar import BeartypeCallHintViolation, BeartypeDecorHintException
from jaxtyping._storage import pop_shape_memo, push_shape_memo, shape_str

with_shapes = jaxtyping.jaxtyped
own: set[Any] = set()  # constructors that check their arguments themselves


def install() -> None:
    """Installs the checks for all modules that jaxtyping's import hook loads later."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = checked


def has_shapes(annotation: object) -> bool:
    """True if an annotation is a shape or holds one; text that is resolved later may be one."""
    if isinstance(annotation, str):
        return "[" in annotation
    if parts := get_args(annotation):
        return any(has_shapes(part) for part in parts)
    return inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)


def checked(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Replaces `jaxtyping.jaxtyped`: does the same checks."""
    if function is None:
        return functools.partial(checked, typechecker=typechecker)
    if checks_itself(function):
        own.add(function.__init__)
    if function in own:
        return function
    if not inspect.isfunction(function):  # the functions of classes are checked one by one
        return with_shapes(function, typechecker=typechecker)
    if not any(has_shapes(annotation) for annotation in function.__annotations__.values()):
        return checked_from_the_first_call(function, typechecker)
    if computes_sizes(function) or inspect.isgeneratorfunction(function):
        return with_shapes(function, typechecker=typechecker)
    return shapes_from_the_first_call(function, typechecker)


def checks_itself(kind: object) -> bool:
    """True if it is a codec: its constructor checks the types of settings, in words of its own."""
    return inspect.isclass(kind) and any(
        (base.__module__, base.__name__) == ("atomo.codecs.base", "Codec") for base in kind.__mro__
    )


def computes_sizes(function: Any) -> bool:
    """True if a shape has a size that is computed of arguments, which jaxtyping knows by name."""
    return any("{" in str(annotation) for annotation in function.__annotations__.values())


def checked_from_the_first_call(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    made: list[Any] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not made:
            made.append(typechecker(function))
        return made[0](*arguments, **options)

    return call


def readable(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    """Returns a function with its checks; jaxtyping leaves out those that are text which has no
    meaning while a program runs, as `"array[int]"`, and beartype would have none of them then.
    """
    try:
        return typechecker(function)
    except BeartypeDecorHintException:
        return with_shapes(function, typechecker=typechecker)


def shapes_from_the_first_call(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    made: list[Any] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        if not made:
            made.append(readable(function, typechecker))
        sizes = push_shape_memo({})
        try:
            return made[0](*arguments, **options)
        except BeartypeCallHintViolation as error:
            raise jaxtyping.TypeCheckError(f"{error}\n{shape_str(sizes)}") from error
        finally:
            pop_shape_memo()

    return call
