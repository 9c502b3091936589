"""Work beside the supervisor's loop, such as the setup of new hosts, which takes minutes."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

__all__ = ["Background", "in_thread"]

Background = Callable[[Callable[[], None]], "Future[None]"]


def in_thread(act: Callable[[], None]) -> "Future[None]":
    """Runs an action in a thread, which does not keep the process from ending."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # raised where the result is read
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=run, daemon=True).start()
    return future
