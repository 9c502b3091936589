"""The three stages of an exchange, which the buckets of a step pass one after the other.

    encode     a gradient becomes the message of this rank
    exchange   ranks send and receive
    decode     the received messages become the mean

Each stage has a thread of its own: one bucket is encoded while the bucket before it is on the
links. Every stage takes the buckets in the order of their submission, so that all ranks exchange
them in the same order.
"""

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import torch

__all__ = [
    "Executor",
    "HeldGradients",
    "SerialExecutor",
    "StagePipeline",
    "StageWork",
    "Submission",
    "one_thread",
]

T = TypeVar("T")
Encoded = TypeVar("Encoded")
Received = TypeVar("Received")
Call = Callable[[], None]
STOP: Final = None


@final
class HeldGradients(Generic[T]):
    """Queue before the first stage.

    A memory that clips needs the norm of the whole gradient, and runs agree on all scales of a
    step in one round: then nothing is encoded before the last bucket is there.
    """

    def __init__(self, holds: bool = False) -> None:
        """Makes an empty queue. `holds`: True if items wait for `release`."""
        self.holds = holds
        self._items: list[T] = []

    def push(self, item: T) -> list[T]:
        """Returns the items that may be encoded now: this one, or none where items are held."""
        if not self.holds:
            return [item]
        self._items.append(item)
        return []

    def release(self) -> list[T]:
        """Returns the held items, in their order: the gradient is whole."""
        items, self._items = self._items, []
        return items


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


def one_thread() -> None:
    """Begins a thread that works on a bucket, while others work on other buckets.

    Several buckets in parallel keep the cores busy, not several threads on each; and a sum has
    the same bits on hosts of any number of cores.
    """
    torch.set_num_threads(1)  # of this thread: the others keep theirs


Executor: TypeAlias = SerialExecutor | ThreadPoolExecutor
"""One or several threads."""


class StageWork(ABC, Generic[Encoded, Received]):
    """The work of the stages on one bucket. Abstract; subclasses are final."""

    @abstractmethod
    def encode(self) -> Encoded:
        """Returns the encoded bucket, the argument of `exchange`."""

    @abstractmethod
    def exchange(self, encoded: Encoded) -> Received:
        """Returns the received messages, the argument of `decode`."""

    @abstractmethod
    def decode(self, received: Received) -> None:
        """Completes the work."""

    def close(self) -> None:
        """Runs after the last stage, or after the stage that failed."""


@final
class Submission(Generic[Encoded, Received]):
    """A work on its way through the stages."""

    def __init__(self, work: StageWork[Encoded, Received]) -> None:
        self.work = work
        self.encoded: Future[Encoded] = Future()
        """The result of the first stage."""
        self.done: Future[None] = Future()
        """Resolved after `close`; the error of the stage that failed, if one did."""

    def fail(self, error: BaseException) -> None:
        """Closes the work after a stage that failed."""
        self.work.close()
        self.done.set_exception(error)


@final
class StagePipeline:
    """Runner of works through the stages. An error ends only its own work."""

    def __init__(
        self,
        encoder: Executor,
        exchanger: Executor,
        decoder: Executor,
        *,
        sequential: bool = False,
    ) -> None:
        """Makes a pipeline.

        Args:
            encoder: the threads of the first stage; several encode different buckets at a time.
            exchanger: the thread of the second stage.
            decoder: the thread of the third stage.
            sequential: True if the encoder, then of one thread, runs all stages of one work before
                the next work starts.
        """
        self._encoder, self._exchanger, self._decoder = encoder, exchanger, decoder
        self._sequential = sequential
        self._waiting: deque[Submission[Any, Any]] = deque()  # for the second stage, in order
        self._lock = Lock()

    def submit(self, work: StageWork[Encoded, Received]) -> Submission[Encoded, Received]:
        """Submits a work to the stages, after all earlier submissions."""
        submission = Submission(work)
        with self._lock:
            self._waiting.append(submission)
            self._encoder.submit(self._encode, submission)
        return submission

    def repeat(
        self, submission: Submission[Encoded, Received], work: StageWork[Encoded, Received]
    ) -> None:
        """Exchanges the encoded bucket of a submission again, for another work."""
        submission.work, submission.done = work, Future()
        self._exchanger.submit(self._exchange, submission)

    def run_in_exchange(self, function: Callable[[], T]) -> T:
        """Calls a function in the thread of the second stage, after all that this has to do."""
        return self._exchanger.submit(function).result()

    def _encode(self, submission: Submission[Any, Any]) -> None:
        try:
            encoded = submission.work.encode()
        except BaseException as error:
            submission.encoded.set_exception(error)
            submission.fail(error)
        else:
            submission.encoded.set_result(encoded)
        if self._sequential:
            self._waiting.popleft()
            self._exchange(submission)
            return
        with self._lock:
            # Several threads encode: a bucket waits here for those before it.
            while self._waiting and self._waiting[0].encoded.done():
                self._exchanger.submit(self._exchange, self._waiting.popleft())

    def _exchange(self, submission: Submission[Any, Any]) -> None:
        if submission.encoded.exception() is not None:
            return
        try:
            received = submission.work.exchange(submission.encoded.result())
        except BaseException as error:
            submission.fail(error)
            return
        if self._sequential:
            self._decode(submission, received)
        else:
            self._decoder.submit(self._decode, submission, received)

    def _decode(self, submission: Submission[Any, Any], received: Any) -> None:
        try:
            submission.work.decode(received)
        except BaseException as error:
            submission.fail(error)
            return
        submission.work.close()
        submission.done.set_result(None)
