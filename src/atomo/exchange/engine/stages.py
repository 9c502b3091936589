"""The three stages of an exchange, which the buckets of a step pass one after the other.

    encode     a gradient becomes the message of this rank
    exchange   ranks send and receive
    decode     the received messages become the mean

Each stage has a thread of its own: one bucket is encoded while the bucket before it is on the
links. Every stage takes the buckets in the order of their submission, so that all ranks exchange
them in the same order.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar, final

from atomo.exchange.engine.serial_executor import SerialExecutor

__all__ = ["Executor", "StagePipeline", "StageWork", "Submission"]

T = TypeVar("T")
Encoded = TypeVar("Encoded")
Received = TypeVar("Received")


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
