"""A new model's row in a trained P2L from a few votes or graded answers, and the prompts that are worth asking first.

Rows are fitted by `p2l.newcomers.rows`. Shapes: N observations, M known models, R components of a posterior.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p2l.common.cli import counted
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.inference import P2L
from p2l.model.checkpoint import local_folder, read_object
from p2l.model.kept_votes import VOTES_FILE
from p2l.model.model import P2LModel, write_folder
from p2l.model.posterior import Posterior
from p2l.model.tokenizer import load_tokenizer
from p2l.newcomers.rows import (
    ExpectedScores,
    NewRow,
    RowPrior,
    answers_of_new,
    expected_scores,
    fit_answer_scale,
    fit_row,
    fit_row_prior,
    fit_row_to_labels,
    probes,
)
from p2l.people.voters import organisation_of
from p2l.training.run_records import RECORD_FILE
from p2l.votes.door import read_frame
from p2l.votes.schema import hash_turns
from p2l.votes.sources import file_kind
from p2l.votes.writing import write_votes

Floats = npt.NDArray[np.float64]
_MIN_KNOWN_MODELS = 3
"""Fewest known models that a prior is fitted to."""
SDS_OF_INTERVAL = 1.959964
"""Standard deviations of a 95 % interval."""
_MAX_UNASKED_PROMPTS = 5000  # that known models alone have answered


@dataclass(frozen=True)
class AddedRow:
    """The row of a new model, with the figures that the command prints."""

    row: NewRow
    observations: str
    """Number and kind of the observations that it was fitted to."""
    models: int
    """Models of the larger P2L."""
    coef: float
    lower: float
    upper: float
    """Mean coefficient over the prompts, and its 95 % interval."""
    known_lower: float
    known_upper: float
    """Least and greatest mean coefficient of a known model."""
    prompts: list[list[str]] = field(default_factory=list)
    expected: ExpectedScores | None = None
    """Forecast of its answers to prompts that known models alone have answered, where that was requested."""


def row_of_votes(model: str, name: str, votes: str) -> AddedRow:
    """Fit the row to the votes between a new model and known ones; InputError where there are none."""
    from p2l.votes import open_votes

    p2l = _opened(model, name)
    names = [*p2l.model_list, name]
    with open_votes(votes, model_list=names, drop_unknown=True) as store:
        labels = store.labels()
        ids = np.flatnonzero((labels[:, :2] == len(names) - 1).any(axis=1))
        if not len(ids):
            raise InputError(f"{votes}: holds no vote between {name!r} and a model that {model} knows")
        labels, prompts = labels[ids], store.prompts(ids)
    prediction = p2l.predict(prompts)
    coefs = prediction.coefs.astype(np.float64)
    row = fit_row_to_labels(
        _prior(p2l, coefs, name),
        p2l.likelihood,
        labels,
        model=len(names) - 1,
        known=coefs,
        coefs=coefs,
        eta=prediction.eta,
        gamma=prediction.gamma,
    )
    return _added(row, coefs, counted(len(ids), "vote"))


def row_of_answers(model: str, name: str, answers: str, *, forecasts: bool = False) -> AddedRow:
    """Fit the row to graded answers, and forecast those to the other prompts of the file where `forecasts`."""
    p2l = _opened(model, name)
    prompts, scores = read_answers(answers, [*p2l.model_list, name])
    new_scores = scores[:, -1]
    graded, others = np.flatnonzero(~np.isnan(new_scores)), np.flatnonzero(np.isnan(new_scores))
    if not len(graded):
        raise InputError(f"{answers}: holds no answer of {name!r}; the column 'model' names the models")
    if forecasts and not len(others):
        raise InputError(
            f"{answers}: {name!r} has answered every prompt, so that none is left to forecast; "
            "add known models' answers to other prompts, or leave out --forecasts"
        )
    if not forecasts:
        others = others[:_MAX_UNASKED_PROMPTS]
    rows = np.concatenate([graded, others])
    coefs = p2l.predict([prompts[row] for row in rows]).coefs.astype(np.float64)
    scale, easier = fit_answer_scale(coefs, scores[rows, :-1])
    answered, unasked = slice(len(graded)), slice(len(graded), None)
    observed = answers_of_new(scale, easier[answered], new_scores[graded])
    row = fit_row(_prior(p2l, coefs, name), coefs[answered], observed)
    known = int((~np.isnan(scores[rows, :-1])).sum())
    added = _added(row, coefs, f"{counted(len(graded), 'graded answer')}, beside {known:,} of known models")
    if not forecasts:
        return added
    is_graded = ~np.isnan(scores[others, :-1])
    expected = expected_scores(scale, row, coefs[unasked], easier[unasked], is_graded)
    return replace(added, prompts=[prompts[row] for row in others], expected=expected)


def read_answers(path: str, models: Sequence[str]) -> tuple[list[list[str]], Floats]:
    """Read graded answers: P different prompts, and mean scores (P, M) of these models, NaN where there is none."""
    file = Path(path).expanduser()
    table = read_frame(file, {"prompt", "model", "score"})
    first = 2 if file_kind(file) == ".csv" else 1  # a CSV file's header is row 1
    for column in ("prompt", "model", "score"):
        if column not in table:
            raise InputError(f"{path}: has no column {column!r}; a row has prompt, model and score")
    place = {name: number for number, name in enumerate(models)}
    prompts: dict[int, list[str]] = {}
    cells = []
    for number, (prompt, model, score) in enumerate(
        zip(table["prompt"], table["model"], table["score"], strict=True), first
    ):
        if model not in place:
            continue
        try:
            value = float(score)
        except (TypeError, ValueError):
            value = np.nan
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{path}: row {number}: score must lie between 0 and 1, not {score!r}")
        turns = _turns(prompt, f"{path}: row {number}")
        if not turns:
            raise InputError(f"{path}: row {number}: prompt is missing, or has no turns")
        key = hash_turns(turns)
        prompts.setdefault(key, turns)
        cells.append((key, place[model], value))
    rows = {key: row for row, key in enumerate(prompts)}
    sums, times = np.zeros((len(rows), len(models))), np.zeros((len(rows), len(models)))
    for key, place_of_model, value in cells:
        sums[rows[key], place_of_model] += value
        times[rows[key], place_of_model] += 1
    return list(prompts.values()), np.divide(sums, times, out=np.full_like(sums, np.nan), where=times > 0)


def _turns(prompt: Any, place: str) -> list[str]:
    """Return the turns of a prompt, none where it is missing."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt is None or (isinstance(prompt, float) and math.isnan(prompt)):  # NaN is a missing text in a column
        return []
    if not isinstance(prompt, list | tuple | np.ndarray):
        raise InputError(f"{place}: prompt is {prompt!r:.40}; it must be text, or a list of the user's turns")
    return [str(turn) for turn in prompt]


def _opened(model: str, name: str) -> P2L:
    p2l = P2L.from_pretrained(model)
    if name in p2l.model_list:
        raise InputError(
            f"{model}: knows {name!r} already; train on its votes (p2l online-train), or choose a new name"
        )
    if len(p2l.model_list) < _MIN_KNOWN_MODELS:
        raise InputError(
            f"{model}: knows {len(p2l.model_list)} models; a prior of new ones needs at least {_MIN_KNOWN_MODELS}"
        )
    return p2l


def _prior(p2l: P2L, coefs: Floats, name: str) -> RowPrior:
    return fit_row_prior(coefs, [organisation_of(known) for known in p2l.model_list], organisation_of(name))


def _added(row: NewRow, coefs: Floats, observations: str) -> AddedRow:
    mean_design = row.prior.design(coefs).mean(axis=0)
    error = SDS_OF_INTERVAL * float(np.sqrt(mean_design @ row.covariance @ mean_design))
    coef, known = float(row.coefs(coefs).mean()), coefs.mean(axis=0)
    count = coefs.shape[1] + 1
    return AddedRow(row, observations, count, coef, coef - error, coef + error, float(known.min()), float(known.max()))


def add_model(model: str, name: str, added: AddedRow, output: Path) -> None:
    """Write the folder of a model with a row more; a sorted model list stays sorted."""
    folder = local_folder(model)
    dtype = read_object(folder / "config.json").get("dtype") or "float32"
    # A trained model has no weights for tokens that its tokenizer lacks, so none may be added here.
    tokenizer = load_tokenizer(folder, cls_token_if_none=None, pad_token_if_none=None)
    larger = P2LModel.from_pretrained(folder, dtype=dtype)
    known = list(larger.model_list)
    # The head gets a last row that is the mixture of the known ones, with a shift: that can be written into any head.
    mixture, shift = added.row.prior.combination(added.row.theta)
    larger.widen(len(known) + 1)
    weight, bias = (larger.get_parameter(parameter) for parameter in larger.row_names)
    weights = torch.tensor(mixture)
    with torch.no_grad():
        weight[-1] = (weights @ weight[:-1].double()).to(weight.dtype)
        bias[-1] = (weights @ bias[:-1].double() + shift).to(bias.dtype)
    larger.model_list = [*known, name]
    names = sorted(larger.model_list) if known == sorted(known) else larger.model_list

    def add_files(unfinished: Path) -> None:
        if larger.posterior is not None:
            order = [larger.model_list.index(model_name) for model_name in names]
            _with_row(larger.posterior, added.row, order).save(unfinished)
        for file in (RECORD_FILE, VOTES_FILE):
            if (folder / file).is_file():
                shutil.copyfile(folder / file, unfinished / file)

    with atomic_path(output, directory=True) as unfinished:
        write_folder(unfinished, larger, tokenizer, model_list=names, add_files=add_files)


def _with_row(posterior: Posterior, row: NewRow, order: Sequence[int]) -> Posterior:
    """Return the posterior of M + 1 models: a new one deviates as its mixture does, and by what its row leaves open."""
    mixture, shift = row.prior.combination(row.theta)
    weights = torch.tensor(mixture, dtype=torch.float32)
    # The offset is the greater part of the uncertainty, and the same for all prompts; components add their mean square.
    variance = float(np.diag(row.covariance).sum()) + row.prior.own_variance
    tensors: dict[str, Any] = posterior.tensors()
    component = torch.cat([torch.zeros(len(posterior.coefs)), torch.tensor([variance**0.5])])
    basis = torch.cat([posterior.basis, (weights @ posterior.basis)[None]])
    tensors["basis"] = torch.cat([basis, component[:, None]], dim=1)[list(order)]
    tensors["coefs"] = torch.cat([posterior.coefs, (weights @ posterior.coefs + shift)[None]])[list(order)]
    tensors["kept"] = torch.cat([posterior.kept, torch.zeros_like(posterior.kept[:1])])
    for key in ("offset", "least"):
        tensors[key] = torch.cat([tensors[key], torch.ones(1)])
    if posterior.tried is not None:  # what a newcomer's mixture says of a prompt holds as far as it does of its models
        tensors["tried"] = torch.cat([posterior.tried, (weights @ posterior.tried)[None].clip(0.0, 1.0)])[list(order)]
    return Posterior(tensors, posterior.vocabulary)


def choose_probes(model: str, prompts: str, count: int, *, limit: int = 5000, seed: int = 0) -> list[list[str]]:
    """Choose prompts of a file that say most about a new model, from a sample of `limit` different ones."""
    p2l = P2L.from_pretrained(model)
    texts, scores = _prompts_of(prompts, p2l.model_list)
    if len(texts) > limit:
        rows = np.sort(np.random.default_rng(seed).choice(len(texts), limit, replace=False))
        texts, scores = [texts[row] for row in rows], scores[rows]
    coefs = p2l.predict(texts).coefs.astype(np.float64)
    # Graded answers of known models, where the file has them, say how hard each prompt is.
    scale, easier = fit_answer_scale(coefs, scores)
    information = scale.information(coefs.mean(axis=1), easier)
    return [texts[row] for row in probes(fit_row_prior(coefs), coefs, information, count)]


def _prompts_of(path: str, models: Sequence[str]) -> tuple[list[list[str]], Floats]:
    """Return the different prompts (P) of a file, and its scores (P, M) of known models, NaN where there are none."""
    table = read_frame(Path(path).expanduser(), {"prompt", "model", "score"})
    if "prompt" not in table or not len(table):
        raise InputError(f"{path}: holds no prompts; a column 'prompt' is needed")
    if {"model", "score"} <= {*table}:
        texts, scores = read_answers(path, models)
        if texts:
            return texts, scores
    different: dict[int, list[str]] = {}
    for number, entry in enumerate(table["prompt"], 1):
        turns = _turns(entry, f"{path}: row {number}")
        if turns:
            different.setdefault(hash_turns(turns), turns)
    if not different:
        raise InputError(f"{path}: holds no prompts; every prompt is missing or has no turns")
    return list(different.values()), np.full((len(different), len(models)), np.nan)


def write_rows(columns: dict[str, Any], output: str) -> None:
    """Write columns in the format that the ending names."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_pydict(columns)
    write_votes([batch], batch.schema, Path(output).expanduser())
