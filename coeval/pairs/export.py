"""Preferences as votes that P2L trains on: a train and a validation part, and the list of models.

The parts are split by a hash of the prompt: all votes on a prompt are in one of them, and a prompt stays in its part
when the run grows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from coeval.errors import RunInputError
from coeval.pairs.preference import Preference
from coeval.storage.jsonl import read_json, read_records, write_json
from coeval.storage.layout import Run
from coeval.storage.records import is_failed
from p2l.command import atomic_path

__all__ = ["Exported", "Format", "export", "vote_rows"]

Format = Literal["jsonl", "parquet", "hf"]
_TIES = {"model_a": 0, "model_b": 0, "tie": 1, "tie (bothbad)": 2}
_CODE = re.compile(r"```|\bdef \w+\(|#include\s*<|\bpublic static void\b|\bSELECT\b.+\bFROM\b", re.DOTALL)


@dataclass(frozen=True)
class Exported:
    """What was written; also in `export.json`."""

    train: int
    validation: int
    prompts: int
    models: tuple[str, ...]
    without_prompt: int
    """Votes left out because their item is not in the run."""


def export(run: Run, preferences: Sequence[Preference], folder: Path, kind: Format, val_share: float) -> Exported:
    """Write votes to a folder: `train.*`, `val.*` (or a data set of these splits), `model_list.json`, `export.json`.

    Args:
        run: where the prompts are.
        preferences: the votes.
        folder: where to write; files of an earlier export are replaced.
        kind: `jsonl`, `parquet` or `hf` (a `save_to_disk` folder).
        val_share: share of the prompts in the validation part; 0: there is none.

    Raises:
        RunInputError: no vote has a prompt.
        InputError: the folder cannot be written.
    """
    rows = vote_rows(run, preferences)
    if not rows:
        raise RunInputError(f"{run.folder}: none of the {len(preferences)} preferences has its item in the run")
    validation = _validation_prompts([row["prompt"] for row in rows], val_share)
    parts = {
        "train": [row for row in rows if _text(row["prompt"]) not in validation],
        "val": [row for row in rows if _text(row["prompt"]) in validation],
    }
    if not parts["val"]:
        del parts["val"]
    _write(parts, folder, kind)
    models = _models(preferences)
    write_json(folder / "model_list.json", list(models))
    prompts = len({_text(row["prompt"]) for row in rows})
    validated = len(parts.get("val", ()))
    done = Exported(len(parts["train"]), validated, prompts, models, len(preferences) - len(rows))
    write_json(folder / "export.json", asdict(done))
    return done


def vote_rows(run: Run, preferences: Iterable[Preference]) -> list[dict[str, Any]]:
    """Votes in the schema of P2L, of the preferences whose items are in the run."""
    preferences = list(preferences)
    items = _items(run)
    places = {name: place for place, name in enumerate(_models(preferences))}
    tasks = sorted({one.task for one in preferences})
    categories = _categories(run)
    known = (one for one in preferences if one.datapoint in items)
    return [_row(one, items[one.datapoint], places, tasks, categories.get(one.task, "")) for one in known]


def _models(preferences: Iterable[Preference]) -> tuple[str, ...]:
    return tuple(sorted({name for one in preferences for name in (one.model_a, one.model_b)}))


def _items(run: Run) -> dict[str, dict[str, Any]]:
    return {
        str(record.get("id")): record
        for path in run.datapoint_files()
        for record in read_records(path)
        if not is_failed(record) and record.get("prompt")
    }


def _categories(run: Run) -> dict[str, str]:
    """Task -> `category` of the configuration that the run holds."""
    import yaml

    try:
        raw = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    return {str(task.get("name")): str(task.get("category") or "") for task in tasks or () if isinstance(task, dict)}


def _row(
    one: Preference, item: Mapping[str, Any], places: Mapping[str, int], tasks: Sequence[str], category: str
) -> dict[str, Any]:
    winner, loser = (one.model_b, one.model_a) if one.winner == "model_b" else (one.model_a, one.model_b)
    prompt = item["prompt"]
    return {
        "question_id": f"{one.datapoint}__{one.model_a}__vs__{one.model_b}__{one.judge}",
        "prompt": prompt if isinstance(prompt, list) else str(prompt),
        "model_a": one.model_a,
        "model_b": one.model_b,
        "winner": one.winner,
        "labels": [places[winner], places[loser], _TIES[one.winner]],
        "tstamp": one.at,
        "language": _language(item),
        "is_code": category.lower() in ("code", "coding") or _CODE.search(_text(prompt)) is not None,
        "category_tag": {"task": {task: task == one.task for task in tasks}},
        "weight": 1.0,
        "judge": one.judge,
        "task": one.task,
        "teacher": one.teacher,
        "datapoint_id": one.datapoint,
        "source": one.source,
        "margin": one.margin,
        "order_consistent": one.order_consistent,
    }


def _language(item: Mapping[str, Any]) -> str:
    """The attribute `language` that the item was made with; nothing is guessed from its text."""
    for key in ("sampled_target_attributes", "sampled_nuanced_attributes"):
        attributes = item.get(key)
        if isinstance(attributes, dict) and isinstance(attributes.get("language"), str):
            return str(attributes["language"])
    return "unknown"


def _text(prompt: object) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def _validation_prompts(prompts: Iterable[Any], share: float) -> set[str]:
    """The prompts held out: those with the lowest hashes; one at least where a share is wanted, never all."""
    from p2l.votes.splitting import hash_turns

    hashes = {_text(prompt): hash_turns(prompt if isinstance(prompt, list) else [prompt]) for prompt in prompts}
    ordered = sorted(hashes, key=lambda text: (hashes[text], text))
    chosen = {text for text in ordered if hashes[text] < share * 2**64}
    if share and len(ordered) > 1:
        chosen = (chosen | {ordered[0]}) - {ordered[-1]}
    return chosen


def _write(parts: Mapping[str, list[dict[str, Any]]], folder: Path, kind: Format) -> None:
    if kind == "hf":
        _write_data_set(parts, folder)
        return
    import pyarrow as pa

    from p2l.votes.writer import write_votes

    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.Table.from_pylist([row for rows in parts.values() for row in rows])
    for name in ("train", "val"):
        path = folder / f"{name}.{kind}"
        if name in parts:
            table = pa.Table.from_pylist(parts[name], schema=whole.schema)
            write_votes(table.to_batches(), whole.schema, path)
        else:
            path.unlink(missing_ok=True)


def _write_data_set(parts: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    """A folder as `datasets.load_from_disk` reads it; it replaces a whole earlier one, so it has to be one."""
    try:
        from datasets import Dataset, DatasetDict
    except ImportError:
        raise RunInputError("--format hf needs the package datasets; `pip install datasets`, or use parquet") from None
    if folder.exists() and any(folder.iterdir()):
        if read_json(folder / "dataset_dict.json") is None:
            raise RunInputError(f"{folder}: holds other files; choose an empty or a new folder for --format hf")
        _remove_earlier(folder)
    elif folder.exists():
        folder.rmdir()
    with atomic_path(folder, directory=True) as temporary:
        DatasetDict({name: Dataset.from_list(rows) for name, rows in parts.items()}).save_to_disk(str(temporary))


def _remove_earlier(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)
