"""A model's predictions for prompts, computed now or read as `p2l eval` wrote them; and votes to compare them with.

Shapes: N prompts, M models, D dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.batch_inference.json_arrays import HIDDEN, records_of
from p2l.common.cli import counted, listed, nearest, progress
from p2l.common.errors import InputError, VoteError
from p2l.insight.kept_boards import VotesOnPrompts
from p2l.insight.strengths import Explanation, Observed, Strength, VoteAgreement
from p2l.leaderboard.board import POINTS_PER_LOGIT, Leaderboard
from p2l.leaderboard.controls import Controls
from p2l.leaderboard.covariates import able
from p2l.leaderboard.fitting import fit_labels
from p2l.leaderboard.newton import Prior
from p2l.leaderboard.pair_tables import Covariates
from p2l.likelihood import Likelihood
from p2l.model.checkpoint import MODEL_LIST_FILE, read_json
from p2l.model.kept_votes import KeptVotes
from p2l.training.run_records import recorded_covariates
from p2l.votes.reading import open_vote_source
from p2l.votes.rows import RawBatch, Source
from p2l.votes.schema import hash_turns
from p2l.votes.sources import open_source
from p2l.votes.store import VoteStore, open_votes

Floats = npt.NDArray[np.float64]
CLUSTER = "cluster"
"""The column of the clusters that stand in for labels."""
_ROWS_PER_BATCH = 4096
_MAX_CLUSTERED_PROMPTS = 20_000  # prompts that clusters are formed of


@dataclass(frozen=True)
class LabelledAnswers:
    """Predictions for N prompts: coefs (N, M), eta and gamma (N,) or None, prompts as turns, embeddings or None."""

    models: list[str]
    likelihood: str
    coefs: Floats
    eta: Floats | None
    gamma: Floats | None
    texts: list[list[str]]
    embeddings: Floats | None = None
    votes: VotesOnPrompts | None = None
    """Votes that the model keeps, with these prompts."""
    covariates: tuple[str, ...] = ()
    """Of votes that the model was trained with."""


def ask(
    model: str, prompts: str, *, embeddings: str | None = None, limit: int | None = None, quiet: bool = True
) -> LabelledAnswers:
    """Run a model over the column `prompt` of a source; InputError where one of them cannot be read.

    `embeddings` is a column of the source that holds a list of numbers, or `last_hidden_state`: what the head reads.
    """
    from p2l.batch_inference.prompts import as_turns, open_prompts
    from p2l.inference import P2L

    data, p2l = open_prompts(prompts, limit=limit), P2L.from_pretrained(model)
    p2l.keep_states()  # prompts are read twice: for coefficients, and for their places among the votes'
    kept, places = p2l.kept_votes, list[Floats]()
    # A file that p2l eval wrote may hold hidden states already, perhaps of another model.
    asks_for_hidden = embeddings == HIDDEN and HIDDEN not in data.source.columns
    column = None if asks_for_hidden else embeddings
    if column is not None:
        _check_column(column, data.source.columns, prompts)
    predictions, texts, vectors = [], list[list[str]](), list[Any]()
    with progress(total=data.source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for _, rows in data.tables():
            turns = as_turns(rows.column("prompt")).to_pylist()
            predictions.append(p2l.predict(turns, hidden=asks_for_hidden))
            places += [] if kept is None else [kept.place(p2l.inputs(turns)).astype(np.float64)]
            texts += turns
            vectors += [] if column is None else rows.column(column).to_pylist()
            bar.update(len(turns))
    if not predictions:
        raise InputError(f"{prompts}: holds no prompts")

    def joined(name: str) -> Floats | None:
        blocks = [getattr(prediction, name) for prediction in predictions]
        return None if blocks[0] is None else np.concatenate(blocks).astype(np.float64)

    return LabelledAnswers(
        models=p2l.model_list,
        likelihood=p2l.likelihood.name,
        coefs=np.asarray(joined("coefs")),
        eta=joined("eta"),
        gamma=joined("gamma"),
        texts=texts,
        embeddings=_matrix(vectors, f"{prompts}: column {column!r}") if vectors else joined("hidden"),
        votes=_votes_on(kept, p2l.likelihood, texts, places),
        covariates=p2l.covariates,
    )


def _votes_on(
    kept: KeptVotes | None, likelihood: Likelihood, texts: Sequence[list[str]], places: Sequence[Floats]
) -> VotesOnPrompts | None:
    """Return the votes that a model keeps with the prompts asked about, by their places; None where it keeps none."""
    if kept is None or not len(kept):
        return None
    hashes = np.array([hash_turns(turns) for turns in texts], dtype=np.uint64)
    return VotesOnPrompts(kept, likelihood, hashes, np.concatenate(places))


def kinds_of_prompts(model: str, texts: Sequence[list[str]]) -> Callable[[Sequence[list[str]]], list[str]]:
    """Find the clusters of prompts that `p2l explain` finds for a model; return what names the cluster of each prompt.

    Prompts come into clusters by their words. InputError for fewer than 80 different prompts.
    """
    from p2l.inference import P2L
    from p2l.insight.explanation import explain

    p2l = P2L.from_pretrained(model)
    prediction = p2l.predict(list(texts))
    explanation = explain(
        prediction.coefs,
        p2l.model_list,
        likelihood=p2l.likelihood.name,
        eta=prediction.eta,
        gamma=prediction.gamma,
        texts=texts,
    )
    places = explanation.places
    assert places is not None
    return lambda prompts: [explanation.names[cluster] for cluster in places.place_texts(prompts)]


def with_clusters(votes: Any, model: str) -> Source:
    """Return a source with one more column, CLUSTER: that of each prompt, as `kinds_of_prompts` names it.

    Clusters are formed of the first 20,000 prompts. InputError where they cannot be, or the source has such a column.
    """
    import pyarrow as pa

    from p2l.batch_inference.prompts import as_turns

    source = open_vote_source(votes)
    if CLUSTER in source.columns:
        raise InputError(f"{source.name}: has a column {CLUSTER!r} already; name it with --by, without --clusters")
    _check_column("prompt", source.columns, source.name)
    texts: list[list[str]] = []
    for raw in source.stream(["prompt"], _ROWS_PER_BATCH):
        texts += as_turns(raw.batch.column("prompt")).to_pylist()
        if len(texts) >= _MAX_CLUSTERED_PROMPTS:
            break
    kinds = kinds_of_prompts(model, texts[:_MAX_CLUSTERED_PROMPTS])

    def stream(columns: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        if columns is not None and CLUSTER not in columns:
            yield from source.stream(columns, batch_size)
            return
        others = None if columns is None else [name for name in source.columns if name in {*columns, "prompt"}]
        for raw in source.stream(others, batch_size):
            turns = as_turns(raw.batch.column("prompt")).to_pylist()
            yield RawBatch(raw.batch.append_column(CLUSTER, pa.array(kinds(turns), pa.string())), raw.first_row)

    return replace(source, columns=[*source.columns, CLUSTER], read=stream)


def read_answers(
    path: str, *, likelihood: str | None = None, model_list: str | None = None, embeddings: str | None = None
) -> LabelledAnswers:
    """Read what `p2l eval` wrote, as JSON or Parquet, or the `eval_output.jsonl` of a training run.

    `likelihood`, and `model_list`, a JSON file of the M names in the order of the coefficients, precede `.info.json`
    and `model_list.json` beside it. `embeddings` is a column that holds a list of numbers. Raise InputError, which says
    what is missing, where the file cannot be used.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"{path}: no such file; give what p2l eval wrote, or ask with --model DIR --prompts FILE")
    records: Iterator[dict[str, Any]]
    if file.suffix == ".json":
        records = records_of(file)
    else:
        source = open_source(str(file))
        if embeddings is not None:
            _check_column(embeddings, source.columns, str(file))
        names = [name for name in ("prompt", "coefs", "betas", "eta", "gamma", embeddings) if name in source.columns]
        records = (row for raw in source.stream(names, _ROWS_PER_BATCH) for row in raw.batch.to_pylist())
    rows = [_row(record, number, str(file), embeddings) for number, record in enumerate(records, 1)]
    if not rows:
        raise InputError(f"{path}: holds no rows")
    coefs = _matrix([row.coefs for row in rows], f"{path}: coefs")
    wrong = np.flatnonzero(~np.isfinite(coefs).all(axis=1))
    if len(wrong):
        raise InputError(f"{path}: row {wrong[0] + 1} has coefficients that are not numbers; leave such rows out")
    info = read_json(file.with_suffix(".info.json"), missing={})
    models = _models(file, model_list, info, coefs.shape[1])
    likelihood = likelihood or info.get("loss_type")
    if likelihood is None:
        raise InputError(f"{path}: nothing beside it says its likelihood; give --likelihood (bt, rk, grk, ...)")
    return LabelledAnswers(
        models=models,
        likelihood=likelihood,
        coefs=coefs,
        eta=_optional_column([row.eta for row in rows], f"{path}: eta"),
        gamma=_optional_column([row.gamma for row in rows], f"{path}: gamma"),
        texts=[row.turns for row in rows],
        embeddings=_matrix([row.embedding for row in rows], f"{path}: column {embeddings!r}") if embeddings else None,
        covariates=recorded_covariates(file),
    )


class _Row(NamedTuple):
    """The prediction for one prompt."""

    coefs: npt.NDArray[np.float32]
    eta: float | None
    gamma: float | None
    turns: list[str]
    embedding: npt.NDArray[np.float32] | None


def _row(record: dict[str, Any], number: int, path: str, embeddings: str | None) -> _Row:
    """Return what a record says; InputError if it lacks something that is needed."""
    place, coefs = f"{path}: row {number}", record.get("coefs", record.get("betas"))
    if coefs is None or "prompt" not in record:
        raise InputError(f"{place} has no {'coefs' if coefs is None else 'prompt'!r}; p2l eval writes it")
    prompt = record["prompt"]
    turns = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError(f"{place}: prompt must be text or a list of turns")
    # JSON can spell half of a character, which no other format can hold.
    if any("\ud800" <= letter <= "\udfff" for turn in turns for letter in turn):
        raise InputError(f"{place}: prompt holds half of a surrogate pair, which is not text")
    if embeddings is not None:
        _check_column(embeddings, list(record), path)
    return _Row(
        coefs=_flat_numbers(coefs, f"{place}: coefs"),
        eta=_flat_number(record.get("eta"), f"{place}: eta"),
        gamma=_flat_number(record.get("gamma"), f"{place}: gamma"),
        turns=turns,
        embedding=None if embeddings is None else _flat_numbers(record[embeddings], f"{place}: {embeddings}"),
    )


def _flat_numbers(values: Any, name: str) -> npt.NDArray[np.float32]:
    """Return numbers, however nested, one after the other."""
    try:
        # The model computed them in float32; so all rows at once take half the memory.
        return np.asarray(values, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be a list of numbers") from error


def _flat_number(value: Any, name: str) -> float | None:
    """Return a number, which JSON files have as [[x]]."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is not None and not isinstance(value, int | float):
        raise InputError(f"{name} must be a number")
    return None if value is None else float(value)


def _models(file: Path, model_list: str | None, info: dict[str, Any], number: int) -> list[str]:
    source = Path(model_list) if model_list else file.with_name(MODEL_LIST_FILE)
    names = info.get("model_list") if model_list is None and "model_list" in info else read_json(source, missing={})
    if not isinstance(names, list):
        raise InputError(f"{file}: nothing beside it names its models; give --model-list FILE")
    if len(names) != number:
        raise InputError(f"{file}: has {number} coefficients a row, and the model list {counted(len(names), 'model')}")
    return [str(name) for name in names]


def _check_column(name: str, columns: Sequence[str], source: str) -> None:
    if name not in columns:
        raise InputError(f"{source}: no column {name!r}{nearest(name, columns)}; columns: {listed(columns)}")


def _matrix(rows: Sequence[Any], name: str) -> Floats:
    if any(row is None for row in rows) or len({len(row) for row in rows}) != 1:
        raise InputError(f"{name}: each row must hold as many numbers")
    return np.asarray(rows, dtype=np.float64)


def _optional_column(values: Sequence[float | None], name: str) -> Floats | None:
    numbers = [value for value in values if value is not None]
    if numbers and len(numbers) != len(values):
        raise InputError(f"{name}: some rows have it and some have not")
    return np.asarray(numbers, dtype=np.float64) if numbers else None


# Whether votes confirm strengths. A vote's prompt comes into a cluster by its words, or as it did when it was measured.
# One leaderboard is fitted to all votes, and one to those of each cluster, pulled towards the first as groups of
# `p2l leaderboard --by` are. Votes that the model was trained on prove little: use others.
#
# Shapes: N votes, M models, K clusters.

Ints = npt.NDArray[np.int64]
_LIKELIHOOD = "bt-tie"
_PRIOR_SD = 0.5
_MIN_VOTES = 20
_VOTES_PER_READ = 4096


def with_votes(
    explanation: Explanation,
    votes: Any,
    *,
    least: int = _MIN_VOTES,
    control: Sequence[str] = (),
    quiet: bool = True,
) -> Explanation:
    """Return the explanation with what votes show in each cell that has at least `least` of them.

    Covariates that `control` names are fitted beside, as far as the votes have them; a note says so. Models that the
    explanation lacks are left out. Raise InputError where the votes, which need prompts, cannot be read or none can be
    placed.
    """
    models = sorted(explanation.models)
    with open_votes(votes, model_list=models, drop_unknown=True, quiet=quiet) as store:
        blocks = []
        for start in range(0, len(store), _VOTES_PER_READ):
            texts = store.prompts(range(start, min(start + _VOTES_PER_READ, len(store))))
            if explanation.by == "words" and explanation.places is not None:
                blocks.append(explanation.places.place_texts(texts))
            else:
                known = [explanation.known.get(hash_turns(turns), -1) for turns in texts]
                blocks.append(np.array(known, dtype=np.int64))
        cluster, labels = np.concatenate(blocks), store.labels()
        covariates, notes = _covariates_of(store, labels, control)
    placed = cluster >= 0
    if not placed.any():
        raise InputError(f"{votes}: no vote is on a prompt of a cluster; use --by words, or votes on the prompts asked")
    cluster, votes_used = cluster[placed], _Votes(labels, covariates).of(placed)
    whole = votes_used.board(models, intervals=None)
    seen = {
        (name, model): observed
        for place, name in enumerate(explanation.names)
        if (cluster == place).any()
        for model, observed in _observed(votes_used, cluster == place, models, whole, explanation.level, least).items()
    }
    cells = tuple(replace(cell, observed=seen.get((cell.cluster, cell.model))) for cell in explanation.strengths)
    agreement = _agreement(cells, len(votes_used.labels))
    return replace(explanation, strengths=cells, agreement=agreement, notes=(*explanation.notes, *notes))


@dataclass(frozen=True)
class _Votes:
    """Votes by their labels (N, 3), with covariates seen from the winner, if any."""

    labels: Ints
    covariates: Covariates | None

    def of(self, rows: npt.NDArray[np.bool_]) -> _Votes:
        """Return some of the votes."""
        covariates = self.covariates
        if covariates is not None:
            covariates = replace(covariates, values=covariates.values[rows])
        return _Votes(self.labels[rows], covariates)

    def board(self, models: Sequence[str], **options: Any) -> Leaderboard:
        """Fit a leaderboard with the covariates."""
        return fit_labels(self.labels, models=models, likelihood=_LIKELIHOOD, covariates=self.covariates, **options)


def _covariates_of(store: VoteStore, labels: Ints, control: Sequence[str]) -> tuple[Covariates | None, list[str]]:
    """Return the covariates of votes, as far as they have those named, and notes on both kinds."""
    names, absent, notes = list[str](), list[str](), list[str]()
    for name in dict.fromkeys(name.strip() for text in control for name in text.split(",")):
        try:
            Controls([name], store.columns, store.name)
        except VoteError:
            absent.append(name)
        else:
            names.append(name)
    if absent:
        notes.append(f"The votes have no values of {listed(absent)}: what they show is not controlled for that.")
    if not names:
        return None, notes
    controls = Controls(names, store.columns, store.name)
    for _, batch in store.batches():
        controls.add(batch)
    covariates = controls.covariates()
    covariates = covariates.pick([role in able(likelihoods.get(_LIKELIHOOD)) for role in covariates.roles])
    notes.append(f"What votes show is fitted together with {listed(names)}.")
    swapped = labels[:, 0] != store.pairs()[:, 0]  # those that can be told here are differences
    return replace(covariates, values=np.where(swapped[:, None], -covariates.values, covariates.values)), notes


def _observed(
    votes: _Votes, inside: npt.NDArray[np.bool_], models: Sequence[str], whole: Leaderboard, level: float, least: int
) -> dict[str, Observed]:
    """Return what the votes of one cluster show of each model that has enough of them there."""
    points_here, votes_here = _points(votes.labels[inside], len(models))
    points_elsewhere, votes_elsewhere = _points(votes.labels[~inside], len(models))
    used = np.flatnonzero(votes_here >= least).tolist()
    if not used:
        return {}
    effects = {(effect.name, effect.role): effect.coef for effect in whole.effects}
    prior = Prior(sd=_PRIOR_SD, coefs=whole.coefs, effects=effects)
    board = votes.of(inside).board(models, prior=prior, level=level)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate, rate_elsewhere = points_here / votes_here, points_elsewhere / votes_elsewhere
    return {
        models[m]: Observed(
            votes=int(votes_here[m]),
            rate=float(rate[m]),
            rate_elsewhere=float(rate_elsewhere[m]),
            change=float(POINTS_PER_LOGIT * (board.coefs[m] - whole.coefs[m])),
            lower=float(POINTS_PER_LOGIT * (board.lower[m] - whole.coefs[m])),
            upper=float(POINTS_PER_LOGIT * (board.upper[m] - whole.coefs[m])),
        )
        for m in used
    }


def _points(labels: Ints, models: int) -> tuple[Floats, Floats]:
    """Return points (M,), half of one for a tie, and votes (M,) of each model."""
    won = np.where(labels[:, 2] == 0, 1.0, 0.5)
    points = np.bincount(labels[:, 0], won, models) + np.bincount(labels[:, 1], 1.0 - won, models)
    return points.astype(np.float64), np.bincount(labels[:, :2].ravel(), minlength=models).astype(np.float64)


def _agreement(cells: Sequence[Strength], votes: int) -> VoteAgreement:
    compared = [(cell, cell.observed) for cell in cells if cell.observed is not None]
    correlation = None
    if len(compared) >= 3:  # two points lie on a line whatever they are
        predicted = np.array([cell.change for cell, _ in compared])
        changes = np.array([observed.change for _, observed in compared])
        covariance = np.cov(predicted, changes, aweights=np.array([float(seen.votes) for _, seen in compared]))
        scale = float(np.sqrt(covariance[0, 0] * covariance[1, 1]))
        correlation = float(covariance[0, 1] / scale) if scale > 0 else None
    verdicts = [(cell, observed) for cell, observed in compared if cell.verdict]
    same_sign = sum((cell.change > 0) == (observed.change > 0) for cell, observed in verdicts)
    return VoteAgreement(
        votes=votes, cells=len(compared), correlation=correlation, found=len(verdicts), same_sign=same_sign
    )
