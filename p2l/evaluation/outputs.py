"""Predictions and their votes, read from a file of batch inference or of training into one form.

Coefficients are in the order of the model list; those of a checkpoint's output are put in the order of the sorted
models that its rows hold.

Shapes: N votes, M models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from p2l.batch_inference.json_arrays import HIDDEN, open_json_array
from p2l.common.errors import InputError, VoteError
from p2l.evaluation.categories import Category, readable_tags
from p2l.leaderboard.groups import ClusteredVotes
from p2l.likelihood import Likelihood
from p2l.votes.reading import model_codes, read_votes
from p2l.votes.rows import RawBatch, Source
from p2l.votes.schema import WINNERS, Labels, parse_labels
from p2l.votes.sources import open_source

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
_COEFS = ("coefs", "betas")
_NO_CATEGORY = {
    *(*_COEFS, "eta", "gamma", "truncated", "familiarity"),
    *("prompt", "labels", "shift", "question_id", "weight", "tstamp"),
}
_NAMED_MODELS = 5  # in a note
_TIE_OF_WINNER = np.array([0, 0, 1, 2])  # third entry of labels, by the code in `p2l.votes.schema.WINNERS`


@dataclass(frozen=True)
class EvaluatedOutput:
    """Votes and their predictions.

    Attributes:
        source: path or repository.
        models: M names.
        labels: (N, 3) `[winner, loser, tie]`.
        prompts: (N,) codes; votes on one prompt share one.
        texts: (N,) Arrow lists of turns, or None.
        table: the columns that categories may refer to.
        coefs: (N, M) float32, or None where the rows have none; so eta and gamma (N,).
        shift: (N, 3) what covariates add to winner, loser and eta of each vote, or None where the rows have none.
        notes: about votes left out.
    """

    source: str
    models: tuple[str, ...]
    labels: Ints
    prompts: Ints
    texts: Any
    table: Any
    coefs: Floats | None
    eta: Floats | None
    gamma: Floats | None
    shift: npt.NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


def open_votes_source(path: str) -> Source:
    """Open rows of any kind, a JSON array too, without hidden states; VoteError where there is no such source."""
    file = Path(path).expanduser()
    if file.suffix.lower() == ".json":
        return open_json_array(file)
    source = open_source(path)
    if HIDDEN not in source.columns:
        return source
    columns = [name for name in source.columns if name != HIDDEN]

    def stream(names: Sequence[str] | None, size: int) -> Iterator[RawBatch]:
        return source.stream(columns if names is None else names, size)

    return replace(source, columns=columns, read=stream)


def read_output(
    path: str,
    model_list: Sequence[str],
    likelihood: Likelihood,
    categories: Sequence[Category],
    *,
    sort_models: bool,
    need_coefs: bool,
) -> EvaluatedOutput:
    """Read one output; raise InputError, which names the row or column, where it cannot be used.

    Args:
        path: of the file.
        model_list: names of the coefficients in their order, and of labels where rows name no models.
        likelihood: its parameters must be among the columns.
        categories: which columns to keep.
        sort_models: put the coefficients in the order of the sorted models of the rows, as for checkpoints' outputs.
        need_coefs: whether rows without coefficients are refused.
    """
    source = open_votes_source(path)
    if need_coefs and not any(name in source.columns for name in _COEFS):
        raise VoteError(
            f"{source.name}: no column 'coefs' or 'betas': these are votes without a model's answers; run p2l eval on "
            "them first"
        )
    for name in likelihood.parameters if need_coefs else ():
        if name not in source.columns:
            raise _missing_parameter(source.name, likelihood, name)
    batches = _Batches(model_list, categories, need_coefs=need_coefs)
    try:
        for batch in read_votes(source, need_prompt=False, label_list=model_list, batch_size=8192):
            batches.add(batch.batch, batch.place)
    except VoteError as error:
        hint = "; is the model list that of the model?" if "labels" in str(error) and "list" in str(error) else ""
        raise VoteError(f"{error}{hint}") from error
    return batches.joined(source.name, likelihood, sort_models=sort_models)


def _missing_parameter(source: str, likelihood: Likelihood, name: str) -> VoteError:
    return VoteError(
        f"{source}: the rows have no {name}, which likelihood {likelihood.name} needs; use the output of p2l eval or "
        "of p2l train, which have it, or --loss-type bt"
    )


class _Batches:
    """Batches of rows, to be joined at the end."""

    def __init__(self, model_list: Sequence[str], categories: Sequence[Category], *, need_coefs: bool) -> None:
        self.model_list = list(model_list)
        self.categories = categories
        self.need_coefs = need_coefs
        self.codes = {name: code for code, name in enumerate(model_list)}
        self.clusters = ClusteredVotes("prompt")
        self.labels: list[Ints] = []
        self.prompts: list[Any] = []
        self.texts: list[Any] = []
        self.tables: list[Any] = []
        self.answers: dict[str, list[Floats]] = {"coefs": [], "eta": [], "gamma": [], "shift": []}

    def add(self, batch: Any, place: Any) -> None:
        names = batch.schema.names
        # Where rows name models and winner, these decide, and labels of the file are only compared with them.
        labels = labels_of(batch, self.codes)
        self.labels.append(labels)
        prompt_column = next((name for name in ("prompt", "question_id") if name in names), None)
        prompts = pa.nulls(len(batch)) if prompt_column is None else batch.column(prompt_column)
        self.prompts.append(self.clusters.number(prompts))
        self.tables.append(category_table(batch, self.categories))
        if "prompt" in names:
            self.texts.append(batch.column("prompt"))
        if "shift" in names and batch.column("shift").null_count < len(batch):
            self.answers["shift"].append(_matrix(batch.column("shift"), "shift", 3, place))
        if not self.need_coefs:
            return
        if {"betas", "labels"} <= {*names}:
            self._check_labels(parse_labels(batch.column("labels")), labels, place)
        coefs = next(name for name in _COEFS if name in names)
        self.answers["coefs"].append(_matrix(batch.column(coefs), coefs, len(self.model_list), place))
        for name in ("eta", "gamma"):
            if name in names and batch.column(name).null_count < len(batch):
                self.answers[name].append(_matrix(batch.column(name), name, 1, place)[:, 0])

    def _check_labels(self, recorded: Labels, labels: Ints, place: Any) -> None:
        """Refuse rows of training whose labels, and so their coefficients, are of models in another order."""
        recorded_pair, pair = recorded.triples[:, :2], labels[:, :2]
        is_tie = labels[:, 2:] > 0  # a tie has no order
        recorded_pair, pair = (np.where(is_tie, np.sort(models, axis=1), models) for models in (recorded_pair, pair))
        is_listed = (pair < len(self.model_list)).all(axis=1)
        wrong = recorded.valid & is_listed & (recorded_pair != pair).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"{place(row)}: labels place the two models at {recorded_pair[row].tolist()}, the model list at "
                f"{pair[row].tolist()}; give the list of the model that wrote this file (--model-list-path)"
            )

    def joined(self, source: str, likelihood: Likelihood, *, sort_models: bool) -> EvaluatedOutput:
        size = len(self.model_list)
        labels = np.concatenate(self.labels)
        rows = np.flatnonzero((labels[:, :2] < size).all(axis=1))
        # A column that some batches lack is as good as none.
        answers = {
            name: np.concatenate(blocks)[rows] if sum(map(len, blocks)) == len(labels) else None
            for name, blocks in self.answers.items()
        }
        for name in likelihood.parameters if self.need_coefs else ():
            if answers[name] is None:
                raise _missing_parameter(source, likelihood, name)
        if not len(rows):
            raise InputError(f"{source}: no vote is between models of the model list of {size} names")
        try:
            table = readable_tags(pa.concat_tables(self.tables, promote_options="permissive"))
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise VoteError(f"columns for categories change their kind between rows: {reason}") from error
        notes: tuple[str, ...] = ()
        if len(rows) < len(labels):
            unknown = list(self.codes)[size:]
            more = f" and {len(unknown) - _NAMED_MODELS} more" if len(unknown) > _NAMED_MODELS else ""
            left_out = f"{len(labels) - len(rows):,} votes were left out"
            notes = (f"{left_out}: the model list lacks {', '.join(unknown[:_NAMED_MODELS])}{more}.",)
        taken = pa.array(rows)
        output = EvaluatedOutput(
            source=source,
            models=tuple(self.model_list),
            labels=labels[rows],
            prompts=np.concatenate(self.prompts)[rows],
            texts=pa.chunked_array(self.texts).combine_chunks().take(taken) if self.texts else None,
            table=table.take(taken),
            coefs=answers["coefs"],
            eta=answers["eta"],
            gamma=answers["gamma"],
            shift=None if answers["shift"] is None else answers["shift"].astype(np.float64),
            notes=notes,
        )
        return _sorted(output) if sort_models else output


def _sorted(output: EvaluatedOutput) -> EvaluatedOutput:
    """Return the output over the sorted models that the votes hold."""
    present = np.unique(output.labels[:, :2])
    order = np.array(sorted(present.tolist(), key=lambda code: output.models[code]), dtype=np.int64)
    place = np.full(len(output.models), -1, dtype=np.int32)
    place[order] = np.arange(len(order))
    labels = output.labels.copy()
    labels[:, :2] = place[labels[:, :2]]
    coefs = None if output.coefs is None else np.ascontiguousarray(output.coefs[:, order])
    return replace(output, models=tuple(output.models[code] for code in order), labels=labels, coefs=coefs)


def labels_of(batch: Any, codes: dict[str, int]) -> Ints:
    """Return labels (N, 3) of a batch in the schema's form; models that `codes` lacks are added to it."""
    a, b = (model_codes(batch.column(name), codes) for name in ("model_a", "model_b"))
    winner = pc.index_in(batch.column("winner"), pa.array(WINNERS)).to_numpy(zero_copy_only=False)
    second = winner == 1
    return np.stack([np.where(second, b, a), np.where(second, a, b), _TIE_OF_WINNER[winner]], axis=1).astype(np.int32)


def category_table(batch: Any, categories: Iterable[Category]) -> Any:
    """Return the columns of a batch that categories may refer to: those they name, flags and nested ones.

    Of other columns only the names stay, for messages.
    """
    keys = [f"{category.key}." for category in categories]
    named = {name for name in batch.schema.names if any(key.startswith(f"{name}.") for key in keys)}
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        nested = pa.types.is_boolean(field.type) or pa.types.is_struct(field.type)
        if field.name in named or field.name == "category_tag" or nested:
            columns[field.name] = column
        elif field.name not in _NO_CATEGORY:
            columns[field.name] = pa.nulls(len(batch))
    return pa.table(columns) if columns else pa.table({"all": pa.nulls(len(batch))})


def _matrix(column: Any, name: str, width: int, place: Any) -> Floats:
    """Return a column of numbers, or of lists of them however nested, as (N, width)."""
    values, rows = column, len(column)
    while _is_list(values.type):
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        expected = width if not _is_list(values.type.value_type) else 1
        wrong = np.flatnonzero(lengths != expected)
        if len(wrong):
            of_what = "value" if width == 1 else "values"
            if name in _COEFS:
                of_what = "models of the model list; is it that of the model?"
            raise VoteError(f"{place(int(wrong[0]))}: {name} holds {lengths[wrong[0]]} numbers for {width} {of_what}")
        values = values.flatten()
    if len(values) != rows * width or not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise VoteError(f"{place(0)}: {name} must be {width} numbers in every row, not {column.type}")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float32).reshape(rows, width)
    wrong = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(wrong):
        raise VoteError(f"{place(int(wrong[0]))}: {name} holds what is not a finite number")
    return numbers


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
