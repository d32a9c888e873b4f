"""The folder of a run: the paths of its files, reading them without checks, copying and archiving them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from coeval.schema import Mode, Phase
from coeval.storage.records import OnBad, now, read_json, read_records
from p2l.common.files import atomic_path

AttributeKind = Literal["target", "nuanced"]
RECORD_FOLDERS = {
    "data_generation": ("phase3_datapoints", "datapoints"),
    "response_collection": ("phase4_responses", "responses"),
    "evaluation": ("phase5_evaluations", "evaluations"),
    "pairwise": ("phase5_pairwise", "pairwise"),
}
"""Kind of record -> its folder and the word in its files' names."""
# Kind of record -> what the names of its files begin with.
_NAMES = {
    "data_generation": ("task_id", "teacher_model_id"),
    "response_collection": ("task_id", "student_model_id"),
    "evaluation": ("task_id", "teacher_model_id", "judge_model_id"),
    "pairwise": ("task_id", "teacher_model_id", "judge_model_id"),
}
_MAX_LETTERS_OF_MODELS = 40


class Run:
    """The paths of a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = folder / "meta.json"  # its state
        self.config = folder / "config.yaml"  # of the last start, without keys
        self.probe = folder / "probe_results.json"
        self.estimate = folder / "cost_estimate.json"
        self.pending = folder / "pending_batches.json"  # batch jobs with answers that are not stored yet
        self.errors = folder / "run_errors.jsonl"  # one line for each piece of work that failed
        self.repeats = folder / "run_repeats.jsonl"  # one line for each item that was refused as it repeats another
        self.waiting = folder / ".parts"  # replies that wait for others of their record
        self.locks = folder / ".locks"  # and counters

    def log(self, only: Collection[str] | None = None) -> Path:
        """Return the path of the log, which has its own name for a process that runs only some models."""
        # Cut: a dozen models would make a longer name than file systems take.
        name = "run" if only is None else f"run_{'_'.join(sorted(only))[:_MAX_LETTERS_OF_MODELS]}"
        return self.folder / f"{name}.log"

    def attributes(self, task: str, kind: AttributeKind) -> Path:
        """Return the path of a task's attributes."""
        return self.folder / "phase1_attributes" / f"{task}_{kind}_attrs.json"

    def rubric(self, task: str) -> Path:
        """Return the path of a task's rubric."""
        return self.folder / "phase2_rubric" / f"{task}.rubric.json"

    def base_rubric(self, task: str) -> Path:
        """Return the path of the rubric that `rubric: extend` starts with."""
        return self.folder / "phase2_rubric" / f".{task}.base.json"

    def records(self, kind: str, *names: str) -> Path:
        """Return the path of a kind of record, by the names in `_NAMES`: task, teacher or student, judge."""
        folder, word = RECORD_FOLDERS[kind]
        return self.folder / folder / f"{'.'.join(names)}.{word}.jsonl"

    def find_attributes(self, task: str, kind: AttributeKind) -> Path | None:
        """Return the attributes file of a task in either form; None if there is none."""
        # The manual says `{task}_target_attrs.json`, which is written; earlier runs have a dot in place of the `_`.
        written = self.attributes(task, kind)
        paths = (written, written.with_name(f"{task}.{kind}_attrs.json"))
        return next((path for path in paths if path.is_file()), None)

    def record_files(self, kind: str, task: str | None = None, model: str | None = None) -> list[Path]:
        """Return the files of one kind of record, sorted by name; those of a model may hold records of others, too."""
        folder, word = RECORD_FOLDERS[kind]
        # Responses are `{task}.{student}` in the manual and `{task}.{teacher}.{student}` in earlier runs. A task's name
        # has no dot, a model's may: so the file's name tells the task, and only the record tells who wrote it.
        ending = f".{word}.jsonl" if model is None else f".{model}.{word}.jsonl"
        paths = sorted(path for path in (self.folder / folder).glob(f"*.{word}.jsonl") if path.name.endswith(ending))
        return [path for path in paths if task is None or path.name.partition(".")[0] == task]

    def read(
        self, kind: str, task: str | None = None, model: str | None = None, on_bad: OnBad | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the records of one kind, one in memory at a time, in the order of `record_files`."""
        return (record for path in self.record_files(kind, task, model) for record in read_records(path, on_bad))

    def path_of(self, kind: str, record: Mapping[str, Any]) -> Path:
        """Return the path of the file that a record belongs to."""
        return self.records(kind, *(record[name] for name in _NAMES[kind]))


def stored_config(run: Run) -> dict[str, Any]:
    """Return the configuration stored in a run, unchecked; empty if it cannot be read."""
    import yaml

    from p2l.common.config import parse_yaml, read_limited
    from p2l.common.errors import ConfigError

    try:
        config, _ = parse_yaml(read_limited(run.config).decode("utf-8"))
    except (OSError, ValueError, ConfigError, yaml.YAMLError):  # UnicodeDecodeError too, and a date that is none
        return {}
    return config if isinstance(config, dict) else {}


def entries_of(config: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    """Return the `models` or `tasks` of a configuration, those that are maps."""
    entries = config.get(part)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def stored_meta(run: Run) -> dict[str, Any] | None:
    """Return the content of `meta.json`; None if it cannot be read."""
    meta = read_json(run.meta)
    return meta if isinstance(meta, dict) else None


# A run that resumes an earlier one copies what it keeps, so that the earlier run never changes.

KINDS_OF: Mapping[Phase, tuple[str, ...]] = {
    "data_generation": ("data_generation",),
    "response_collection": ("response_collection",),
    "evaluation": ("evaluation", "pairwise"),
}
"""Phase -> the kinds of its records."""


def copy_run(
    source: Run, run: Run, tasks: Sequence[str], modes: Mapping[Phase, Mode], extended: Collection[str] = ()
) -> int:
    """Copy attributes, rubrics, and the records of phases that are not made anew; return the number of files.

    Records of models that the new run lacks are copied, too, for comparison; the rubrics of `extended` tasks become
    the base of theirs.
    """
    copies: dict[Path, Path] = {}
    for task in tasks:
        for kind in get_args(AttributeKind):
            attributes = source.find_attributes(task, kind)
            if attributes is not None and modes["attribute_mapping"] != "New":
                copies[attributes] = run.attributes(task, kind)
        rubric = source.rubric(task)
        if rubric.is_file() and task in extended:
            copies[rubric] = run.base_rubric(task)
        elif rubric.is_file() and modes["rubric_mapping"] != "New":
            copies[rubric] = run.rubric(task)
        for phase, kinds in KINDS_OF.items():
            if phase not in renewed_phases(modes):
                for path in (path for kind in kinds for path in source.record_files(kind, task)):
                    copies[path] = run.folder / path.relative_to(source.folder)
    for path, copy in copies.items():
        with atomic_path(copy) as temporary:
            shutil.copyfile(path, temporary)
    return len(copies)


def renewed_phases(modes: Mapping[Phase, Mode]) -> list[Phase]:
    """Return the phases with records that start empty: those in mode `New`, and all that build on them."""
    phases = list(KINDS_OF)
    first = next((number for number, phase in enumerate(phases) if modes[phase] == "New"), len(phases))
    return phases[first:]


def archive(run: Run, phases: Sequence[Phase]) -> Path | None:
    """Move the files of phases to the archive; return the folder they are in now, None if there were none."""
    if phases:
        shutil.rmtree(run.waiting, ignore_errors=True)  # their records are moved
    folder = run.folder / "archive" / now().replace(":", "")
    names: dict[Phase, list[str]] = {
        "attribute_mapping": ["phase1_attributes"],
        "rubric_mapping": ["phase2_rubric"],
        **{phase: [RECORD_FOLDERS[kind][0] for kind in kinds] for phase, kinds in KINDS_OF.items()},
    }
    moved = False
    for path in (run.folder / name for phase in phases for name in names[phase]):
        if path.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            path.rename(folder / path.name)
            moved = True
    return folder if moved else None
