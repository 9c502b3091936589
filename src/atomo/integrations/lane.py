"""One thread that does what it is given in the order in which it was given."""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar, final

import torch

__all__ = ["Lane"]

T = TypeVar("T")
Job = Callable[[], None]
STOP: Final = None


@final
class Lane:
    """Starts its thread with the first job; the thread ends when nobody holds the lane any more.

    It is a daemon, unlike those of a pool: one that waits for a dead peer does not keep a process
    from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = False

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Does `work` when all that was given before is done; its result or error is a future's."""
        done: Future[T] = Future()
        self._jobs.put(lambda: settle(done, work))
        if not self._started:
            self._started = True
            Thread(target=serve, args=(self._jobs,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._jobs.put, STOP)
        return done


def settle(done: "Future[T]", work: Callable[[], T]) -> None:
    """Gives a future its result."""
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def serve(jobs: "SimpleQueue[Job | None]") -> None:
    """The thread's body: it knows the queue alone, so that a lane can be let go of."""
    with torch.no_grad():
        while (job := jobs.get()) is not STOP:
            job()
            del job  # it holds gradients
