"""The settings of a run in its folder, so that the run can be repeated."""

from pathlib import Path

from atomo.config.file import SETTINGS_FILE, settings_text
from atomo.config.settings import Settings
from atomo.training.folder.run_folder import Staging

__all__ = ["keep_settings"]


def keep_settings(folder: Path, settings: Settings) -> None:
    """Writes the resolved settings of a run; on a resume, the settings of the resumed run.

    Raises:
        CheckpointError: the file cannot be written.
    """
    with Staging(folder) as staging:
        # A path may have bytes that are not UTF-8; the user repeats the run with the path.
        staging.write(SETTINGS_FILE, settings_text(settings).encode(errors="replace"))
        staging.publish()
