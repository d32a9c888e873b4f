"""What a run had in its configuration and a start leaves out: said, and the old configuration is kept."""

from __future__ import annotations

import shutil

from coeval.config.schema import Config
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.records import now
from coeval.storage.snapshot import entries_of, stored_config
from p2l.command import atomic_path

__all__ = ["put_aside"]


def put_aside(config: Config, run: Run, log: Log) -> None:
    """Keep the configuration of the start before where tasks or models of it are gone; one line names them.

    Raises:
        InputError: it cannot be copied.
    """
    stored = stored_config(run)
    names = {"task": {task.name for task in config.tasks}, "model": {model.name for model in config.models}}
    before = {word: [str(entry.get("name")) for entry in entries_of(stored, f"{word}s")] for word in names}
    gone = [f"{word} {name}" for word, there in names.items() for name in before[word] if name not in there]
    if not gone:
        return
    copy = run.folder / "archive" / now().replace(":", "") / run.config.name
    with atomic_path(copy) as temporary:
        shutil.copyfile(run.config, temporary)
    log.warning(
        f"{', '.join(gone)}: in the configuration of the start before, not in {config.path}, so left out from now on; "
        f"what is stored stays, and --config {copy} has them"
    )
