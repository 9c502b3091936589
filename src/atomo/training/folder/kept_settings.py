"""The settings of a run in its folder, so that it can be repeated."""

from pathlib import Path

from atomo.config.file import SETTINGS_FILE, settings_text
from atomo.config.settings import Settings
from atomo.training.folder.run_folder import Staging

__all__ = ["keep_settings"]


def keep_settings(folder: Path, settings: Settings) -> None:
    """Writes what a run was told, resolved; on a resume, what it is told now.

    Raises:
        CheckpointError: it cannot be written.
    """
    with Staging(folder) as staging:
        # A path may have bytes that are no text; whoever repeats the run gives it anew.
        staging.write(SETTINGS_FILE, settings_text(settings).encode(errors="replace"))
        staging.publish()
