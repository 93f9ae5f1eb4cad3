"""Operations: what the steps of a machine are made of, each of which can be made again by itself."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from .base import Machine

__all__ = ["operation"]

F = TypeVar("F", bound=Callable[..., Any])


def operation(method: F) -> F:
    """Makes a method of a machine an operation: steps are made of it, and a counterexample may do without the rest.

    It draws nothing, its arguments are plain values, and it ends with `Nothing` where it makes no sense.
    """

    @functools.wraps(method)
    def operate(machine: "Machine", *arguments: Any, **options: Any) -> Any:
        act = functools.partial(method, machine, *arguments, **options)
        return machine.operate(method.__name__, act, (*arguments, options))

    return cast(F, operate)
