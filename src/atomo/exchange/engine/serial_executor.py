"""One thread that runs calls in the order of their submission."""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar, final

import torch

__all__ = ["SerialExecutor"]

T = TypeVar("T")
Call = Callable[[], None]
STOP: Final = None


@final
class SerialExecutor:
    """Starts its thread with the first call. The thread ends when nobody refers to the executor.

    The thread is a daemon, unlike those of a `ThreadPoolExecutor`: a thread that waits for a dead
    peer does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        """Creates an executor with a thread of this name."""
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._started = False

    def submit(self, function: Callable[..., T], /, *args: Any) -> "Future[T]":
        """Queues a call after all earlier calls, and returns the future of its result."""
        future: Future[T] = Future()
        self._calls.put(partial(resolve, future, function, args))
        if not self._started:
            self._started = True
            Thread(target=serve, args=(self._calls,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._calls.put, STOP)
        return future


def resolve(future: "Future[T]", function: Callable[..., T], args: tuple[Any, ...]) -> None:
    """Gives a future the result of a call, or its error."""
    try:
        future.set_result(function(*args))
    except BaseException as error:
        future.set_exception(error)


def serve(calls: "SimpleQueue[Call | None]") -> None:
    """Runs the thread. It refers to the queue alone, so that the executor can be collected."""
    with torch.no_grad():
        while (call := calls.get()) is not STOP:
            call()
            del call  # it refers to gradients
