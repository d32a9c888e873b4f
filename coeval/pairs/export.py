"""Preferences as votes that P2L trains on: a train and a validation part, and the list of models."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from coeval.analysis.records import Skipped
from coeval.analysis.units import codes_of
from coeval.analysis.verdicts import MAJORITY, Preference
from coeval.errors import RunInputError
from coeval.pairs.preferences import PreferenceSet
from coeval.phases.pairwise import draw
from coeval.storage.records import is_failed, read_json, write_json
from coeval.storage.run import Run, entries_of, stored_config
from p2l.common.errors import InputError
from p2l.common.files import atomic_path, sync_tree

Format = Literal["jsonl", "parquet", "hf"]
_NOTES = ("model_list.json", "export.json")
_FILES = tuple(f"{name}.{kind}" for name in ("train", "val") for kind in ("jsonl", "parquet"))
_PARTS = ("dataset_dict.json", "train", "val")
_TIES = {"model_a": 0, "model_b": 0, "tie": 1, "tie (bothbad)": 2}
_CODE = re.compile(r"```|\bdef \w+\(|#include\s*<|\bpublic static void\b")
_SELECT, _FROM = re.compile(r"\bSELECT\b"), re.compile(r"\bFROM\b")


@dataclass(frozen=True)
class Exported:
    """Counts of an export; also in `export.json`."""

    train: int
    validation: int
    prompts: int
    models: tuple[str, ...]
    without_prompt: int  # votes left out because their item has no prompt
    one_order: int  # verdicts of judges that saw the answers in one order
    self_judged: int  # votes left out because the judge is one of the two
    flagged: Mapping[str, str]  # judge whose votes are left out -> why
    skipped: tuple[Skipped, ...]  # records of the run that are unusable


def export(run: Run, gathered: PreferenceSet, folder: Path, kind: Format, val_share: float) -> Exported:
    """Write votes to a folder: `train.*`, `val.*` (or a data set of these splits), `model_list.json`, `export.json`.

    An earlier export is replaced, whatever its format; `hf` is a `save_to_disk` folder. `val_share` is the share of the
    prompts held out. Raise RunInputError if no vote has a prompt, InputError if the folder cannot be written.
    """
    rows = vote_rows(run, gathered.preferences)
    if not rows:
        raise RunInputError(f"{run.folder}: none of the {len(gathered.preferences)} preferences has its item's prompt")
    from p2l.votes.schema import hash_turns

    # Split by a hash of the prompt: all votes on a prompt are in one part, and stay there when the run grows.
    hashes = [hash_turns(_turns(row["prompt"])) for row in rows]
    # The lowest hashes are held out: at least one where the share is above 0, never all.
    ordered = sorted({*hashes})
    validation = {key for key in ordered if key < val_share * 2**64}
    if val_share and len(ordered) > 1:
        validation = (validation | {ordered[0]}) - {ordered[-1]}
    parts = {
        "train": [row for row, key in zip(rows, hashes, strict=True) if key not in validation],
        "val": [row for row, key in zip(rows, hashes, strict=True) if key in validation],
    }
    done = Exported(
        train=len(parts["train"]),
        validation=len(parts["val"]),
        prompts=len(ordered),
        models=tuple(sorted({name for row in rows for name in (row["model_a"], row["model_b"])})),
        without_prompt=len(gathered.preferences) - len(rows),
        one_order=sum(row["one_order"] is not None for row in rows),
        self_judged=gathered.self_judged,
        flagged=dict(gathered.flagged),
        skipped=gathered.skipped,
    )
    write = _write_data_set if kind == "hf" else _write_files
    write({name: part for name, part in parts.items() if part}, done, folder, kind)
    return done


def vote_rows(run: Run, preferences: Iterable[Preference]) -> list[dict[str, Any]]:
    """Return votes in the schema of P2L, of the preferences whose items have a prompt.

    Their order is drawn, always alike, so that a trainer which takes them as they come does not see task after task.
    """
    items = {}
    for record in run.read("data_generation"):
        prompt = _prompt(record.get("prompt"))
        if prompt and not is_failed(record):
            items[str(record.get("id"))] = {**record, "prompt": prompt}
    votes = [vote for vote in preferences if vote.datapoint in items]
    places = codes_of(sorted({name for vote in votes for name in (vote.model_a, vote.model_b)}))
    tasks = sorted({vote.task for vote in votes})
    configured = entries_of(stored_config(run), "tasks")
    categories = {str(task.get("name")): str(task.get("category") or "") for task in configured}
    rows = [_row(vote, items[vote.datapoint], places, tasks, categories.get(vote.task, "")) for vote in votes]
    if any(isinstance(row["prompt"], list) for row in rows):  # a column has one type
        rows = [{**row, "prompt": _turns(row["prompt"])} for row in rows]
    return sorted(rows, key=lambda row: draw("row", row["question_id"]))


def _prompt(stored: object) -> str | list[str]:
    """Return a prompt as P2L reads it, text or the user's turns; empty where it is neither."""
    if isinstance(stored, str):
        return stored if stored.strip() else ""
    if not isinstance(stored, list):
        return ""
    contents = [turn.get("content") for turn in stored if isinstance(turn, dict) and turn.get("role") == "user"]
    turns = contents if any(isinstance(turn, dict) for turn in stored) else stored
    return [str(turn) for turn in turns] if all(isinstance(turn, str) and turn.strip() for turn in turns) else ""


def _row(
    vote: Preference, item: Mapping[str, Any], places: Mapping[str, int], tasks: Sequence[str], category: str
) -> dict[str, Any]:
    winner, loser = (vote.model_b, vote.model_a) if vote.winner == "model_b" else (vote.model_a, vote.model_b)
    # The language that the item was made with, if any: nothing is guessed from its text.
    made_with = (item.get(key) for key in ("sampled_target_attributes", "sampled_nuanced_attributes"))
    languages = [entry["language"] for entry in made_with if isinstance(entry, dict) and "language" in entry]
    text = "\n".join(_turns(item["prompt"]))
    query = _SELECT.search(text)
    is_query = query is not None and _FROM.search(text, query.end() + 1) is not None
    return {
        "question_id": f"{vote.datapoint}__{vote.model_a}__vs__{vote.model_b}__{vote.judge}",
        "prompt": item["prompt"],
        "model_a": vote.model_a,
        "model_b": vote.model_b,
        "winner": vote.winner,
        "labels": [places[winner], places[loser], _TIES[vote.winner]],
        "tstamp": vote.at or math.nan,
        "language": next((name for name in languages if isinstance(name, str)), "unknown"),
        "is_code": category.lower() in ("code", "coding") or is_query or _CODE.search(text) is not None,
        "category_tag": {"task": {task: task == vote.task for task in tasks}},
        "weight": vote.weight,
        "judge": vote.judge,
        "source": vote.judge,  # where people's votes are beside these, training fits what each judge leans to
        "task": vote.task,
        "teacher": vote.teacher,
        "datapoint_id": vote.datapoint,
        "kind": vote.source,
        "margin": vote.margin,
        "order_consistent": vote.order_consistent,
        "one_order": _judge_of_one_order(vote),
    }


def _judge_of_one_order(vote: Preference) -> str | None:
    """Return the judge of a verdict in one order, model_a's answer shown first; None of all other votes."""
    return vote.judge if vote.source == "native" and len(vote.verdicts) == 1 and vote.judge != MAJORITY else None


def _turns(prompt: str | list[str]) -> list[str]:
    return prompt if isinstance(prompt, list) else [prompt]


def _write_notes(done: Exported, folder: Path) -> None:
    write_json(folder / "model_list.json", list(done.models))
    write_json(folder / "export.json", asdict(done))


def _schema(parts: Mapping[str, list[dict[str, Any]]]) -> Any:
    """Return one schema for all parts, in which columns that may be empty have their type all the same."""
    import pyarrow as pa

    schema = pa.Table.from_pylist([row for rows in parts.values() for row in rows]).schema
    for name, kind in (("margin", pa.float64()), ("order_consistent", pa.bool_()), ("one_order", pa.string())):
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    return schema


def _write_files(parts: Mapping[str, list[dict[str, Any]]], done: Exported, folder: Path, kind: Format) -> None:
    """Write all beside the earlier files, then put it in their place."""
    import pyarrow as pa

    from p2l.votes.writing import write_votes

    schema = _schema(parts)
    with _staging(folder) as temporary:
        for name, rows in parts.items():
            table = pa.Table.from_pylist(rows, schema=schema)
            write_votes(table.to_batches(), schema, temporary / f"{name}.{kind}")
        _write_notes(done, temporary)
        earlier = (*_FILES, *(_PARTS if _is_data_set(folder) else ())) if _is_export(folder) else ()
        # A kill leaves whole files, never parts of two exports: the note that all is there goes first, and comes last.
        for path in (folder / name for name in ("export.json", f"val.{kind}", *reversed(earlier))):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != f"train.{kind}":
                path.unlink(missing_ok=True)
        for name in ("model_list.json", f"train.{kind}", f"val.{kind}", "export.json"):
            if (temporary / name).exists():
                os.replace(temporary / name, folder / name)


def _is_export(folder: Path) -> bool:
    """Return whether a folder has an export, or what a kill left of one."""
    return any((folder / name).exists() for name in _NOTES)


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Create a folder for unfinished files, and remove it at the end."""
    temporary = folder / f".export.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_data_set(parts: Mapping[str, list[dict[str, Any]]], done: Exported, folder: Path, _kind: Format) -> None:
    """Write a folder that `datasets.load_from_disk` reads; it may replace a whole earlier one."""
    try:
        from datasets import Dataset, DatasetDict, Features
    except ImportError:
        raise RunInputError("--format hf needs the package datasets; `pip install datasets`, or use parquet") from None
    # Replaced only if it is empty, a data set, or has files of an export and no others: --out may be a wrong folder.
    names = (
        {path.name for path in folder.iterdir() if not path.name.startswith(".export.")} if folder.is_dir() else set()
    )
    is_export = _is_export(folder) and names <= {*_NOTES, *_FILES}
    if folder.is_file() or (names and not is_export and not _is_data_set(folder)):
        raise RunInputError(f"{folder}: holds other files; choose an empty or a new folder for --format hf")
    earlier = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    features = Features.from_arrow_schema(_schema(parts))
    splits = {name: Dataset.from_list(rows, features=features) for name, rows in parts.items()}
    with atomic_path(folder, directory=True) as temporary:
        with _no_bars():
            DatasetDict(splits).save_to_disk(str(temporary))
        _write_notes(done, temporary)
        sync_tree(temporary)
        if folder.exists():
            os.replace(folder, earlier)
    shutil.rmtree(earlier, ignore_errors=True)


def _is_data_set(folder: Path) -> bool:
    return read_json(folder / "dataset_dict.json") is not None


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Turn off the progress bars of `datasets`."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_on = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if were_on:
            enable_progress_bars()
