"""Results of an evaluator for TensorBoard: an event file beside `evaluations.jsonl`."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from atomo.core.safe_read import make_folder
from atomo.training.evaluation.scoring import Evaluation
from atomo.training.folder.run_folder import explained

__all__ = ["TENSORBOARD", "TensorBoardWriter"]

TENSORBOARD = "tensorboard"


@final
class TensorBoardWriter:
    """Writer of TensorBoard's event file, which the first result creates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._writer is None:
            return
        if error is None:
            with explained(self._folder, 0):
                self._writer.close()
            return
        with suppress(OSError):  # it would hide the error that ends the evaluator
            self._writer.close()

    def add(self, evaluation: Evaluation) -> None:
        """Writes one result, and flushes the file.

        Raises:
            CheckpointError: the file cannot be written.
        """
        with explained(self._folder, 0):
            writer = self._writer or self._open()
            for name, value in evaluation.values.items():
                writer.add_scalar(f"test/{name}", value, evaluation.step)
            writer.flush()

    def _open(self) -> Any:
        with warnings.catch_warnings():
            # Users cannot act on the deprecation warnings of TensorBoard and protobuf.
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._writer = SummaryWriter(str(make_folder(self._folder)))
        return self._writer
