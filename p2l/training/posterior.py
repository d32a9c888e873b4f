"""Fit the posterior of a prompt's coefficients (`p2l.model.posterior`) after the model is trained.

At one leaderboard for all prompts vote n has the score t_n (the slope of its log-likelihood along the difference d of
its two coefficients) and the Fisher information w_n. If prompts differ with covariance v C k(x, x'), then

    E[t_n t_m] = w_n w_m  z_n' C z_m  (v k(x_n, x_m) + u [same prompt]),      z_n = e_a - e_b,      n != m

so that regressing the products of votes on different prompts on the right side estimates v, and those on one prompt
v + u with a prompt's own part u, whatever the model has learned (Haseman and Elston, 1972). That holds for a kernel
that no vote has shaped: hidden states that were trained on the same votes lie apart where their scores do. So k reads
the frozen inputs of a reader, and for any other backbone words and form as a reader would.

Of v the trained model explains the variance of its own differences; what remains is distributed over prompts as the
Gaussian process has it. So the intervals are right on average for prompts like those of the training votes, wider for
stranger ones, and those of the prior for prompts that are like none.

Shapes: N votes, Q prompts, F inputs, K points, M models, R components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from p2l.leaderboard import Leaderboard
from p2l.leaderboard.newton import derivatives, one_blas_thread, shift_invariant
from p2l.likelihood import Likelihood, targets
from p2l.model import backbones
from p2l.model.batching import collate, plan_batches, to_device
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import HeadStart
from p2l.model.kept_votes import MOST_VALUES, VOTES_FILE, KeptVotes
from p2l.model.model import P2LModel
from p2l.model.posterior import POSTERIOR_FILE, Posterior, PromptProcess, determined
from p2l.model.reader import keep_states
from p2l.model.reader_inputs import ReaderTokenizer
from p2l.model.scratch import words_and_form
from p2l.model.tfidf import TfidfTokenizer, WordUsage
from p2l.model.tokenizer import load_tokenizer
from p2l.training import covariates
from p2l.training.forecasts import ListedVotes, marginal_board
from p2l.training.trainer import distinct
from p2l.votes import VoteStore
from p2l.votes.schema import hash_turns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SAMPLE_VOTES = 40_000
SAMPLE_PROMPTS = 12_288
# Fewer, because reading one again costs a pass through a text model.
SAMPLE_PROMPTS_OF_TEXT_MODEL = 2048
# All products of this many votes are computed: N^2 / 2 numbers.
_VOTES_MULTIPLIED = 1500
# Votes on the same prompt that each vote is multiplied with.
_NEIGHBOURS_MULTIPLIED = 8
# One vote a prompt says nothing of its own part u: u / v is then assumed.
_OWN_VARIANCE_RATIO = 1.0
_REMAINING_VARIANCE = 0.02
"""Share of the prior's variance that is left in any prompt."""
# Products shrink where p (1 - p) is concave, by 1 + (pi / 8) times the variance of d, which is undone; not below a
# half, since the correction would grow without bound.
_CONCAVITY = math.pi / 8.0
_SMALLEST_CORRECTION = 0.5
# Precision of the prior of one leaderboard: a model with few votes has a standard deviation of 3.
_BOARD_PRECISION = 0.1
# Share of the usual known words at which a prompt is as good as unread. Usual is what nearly every prompt of the votes
# would have had it alone not been read; where that is hardly a word, known words say nothing.
_UNREAD_SHARE = 0.9
_KNOWN_WORDS_QUANTILE = 0.02
_LEAST_KNOWN_WORDS = 0.2
_TOKENS_PER_PASS = 8192
_ROWS_THAT_TELL_COLUMNS = 500
_VOTES_PER_READ = 4096
# Columns that say what a vote is, not what its prompt is about.
_COLUMNS_OF_A_VOTE = {
    "prompt",
    "model_a",
    "model_b",
    "winner",
    "model_version",
    "voter",
    "user",
    "source",
    "question_id",
}


class KnownPrompts(NamedTuple):
    """Prompts of some votes, with the model's coefficients."""

    inputs: NDArray[np.floating]
    """(Q, F) what tells prompts apart."""
    coefs: NDArray[np.floating]
    """(Q, M)"""
    usage: WordUsage | None = None
    """The words that they use, of a model of words."""
    encoded: bool = False
    """Whether a sentence encoder, which votes have not shaped, reads the prompts."""


class FittedVotes(NamedTuple):
    """What the votes of a trained model leave open, and the votes that this was fitted to."""

    posterior: Posterior
    votes: KeptVotes

    def save(self, folder: Path) -> None:
        """Write both files; a manifest comes after."""
        self.posterior.save(folder)
        self.votes.save(folder)


class PlainVotes(NamedTuple):
    """Some votes, and inputs of their prompts that no vote has shaped."""

    inputs: NDArray[np.floating]
    """(Q, F)"""
    prompt: Ints
    """(N,) of each vote."""
    labels: NDArray[Any]
    """(N, 3)"""
    words: TfidfTokenizer | None = None
    """The vocabulary that `usage` refers to, for a model that does not read words itself."""
    usage: WordUsage | None = None
    shift: Floats | None = None
    """(N, 3) by which covariates move winners, losers and eta."""


@dataclass(frozen=True)
class _Sample:
    """Some votes, with the model's coefficients of their prompts and the scores at one leaderboard."""

    inputs: Floats
    """(Q, F)"""
    coefs: Floats
    """(Q, M)"""
    prompt: Ints
    """(N,) of each vote."""
    pairs: Ints
    """(N, 2) winner and loser."""
    score: Floats
    """(N,) t"""
    fisher: Floats
    """(N,) w"""
    level_fisher: Floats
    """(N,) likewise, along the level of both coefficients."""


def fit_posterior(
    model: P2LModel,
    tokenizer: PromptTokenizer,
    votes: ListedVotes,
    *,
    weighted: bool = False,
    most_prompts: int | None = None,
) -> FittedVotes:
    """Fit the posterior of a trained model, whose `posterior` is not used, to the votes that it was trained on.

    It reads some of the prompts again, by default as many as their reading is cheap, and takes seconds besides.
    """
    most = most_prompts or (SAMPLE_PROMPTS if model.has_frozen_inputs else SAMPLE_PROMPTS_OF_TEXT_MODEL)
    fitted, shift = _one_leaderboard(model, votes, weighted=weighted)
    board = HeadStart(fitted.coefs, fitted.eta, fitted.gamma)
    rng = np.random.default_rng(42)
    held = votes.held() if isinstance(votes, VoteStore) else None
    # Of votes that are spread over nodes, those of this one: prompts are dealt to nodes by chance.
    ids = np.sort(rng.permutation(len(votes) if held is None else np.flatnonzero(held))[:SAMPLE_VOTES])
    prompts, about = distinct(votes.prompts(ids))
    hashes = np.array([hash_turns(list(turns)) for turns in prompts], dtype=np.uint64)
    # By their hashes, which are as good as chance: two models of many votes then keep the same prompts.
    order = np.argsort(hashes)
    known = _read(model, tokenizer, [list(prompts[n]) for n in order[:most]])
    rows, prompt = _among(order[:most], about)
    labels = votes.labels(ids[rows])
    unshaped = None
    if not model.has_frozen_inputs:
        chosen = order[: most_prompts or SAMPLE_PROMPTS]
        turns = [list(prompts[n]) for n in chosen]
        inputs, words = words_and_form(turns)
        usage = None if words is None else words.usage(turns)
        plain_rows, plain_prompt = _among(chosen, about)
        moved = None if shift is None else shift[ids[plain_rows]]
        unshaped = PlainVotes(inputs, plain_prompt, votes.labels(ids[plain_rows]), words, usage, moved)
    moved = None if shift is None else shift[ids[rows]]
    posterior = posterior_of(known, prompt, labels, board, model.likelihood, len(votes), rng, unshaped, moved)
    weights = votes.weights(ids[rows]) if weighted else np.ones(len(rows))
    columns = _columns(votes, ids[rows], prompt) if isinstance(votes, VoteStore) else None
    own_shift = None
    if model.covariates is not None and isinstance(votes, VoteStore):
        own_shift = covariates.shift_of(model.covariates, votes)[ids[rows]]
    kept = KeptVotes.of(
        votes.model_list, hashes[order[:most]], known.inputs, prompt, labels, weights, len(votes), columns, own_shift
    )
    return FittedVotes(posterior, kept)


def _one_leaderboard(model: P2LModel, votes: ListedVotes, *, weighted: bool) -> tuple[Leaderboard, Floats | None]:
    """Return one leaderboard of all votes, and by how much the model's covariates move each vote (N, 3) beside it."""
    if model.covariates is None or not isinstance(votes, VoteStore):
        return marginal_board(votes, model.likelihood.name, weighted=weighted), None
    design, likelihood = model.covariates.design, model.likelihood.name
    board = covariates.board_beside(design, votes, likelihood, weighted=weighted)
    return board, covariates.shift_of(model.covariates, votes, board)


def _columns(votes: VoteStore, ids: Ints, prompt: Ints) -> dict[str, list[str | None]]:
    """Return the value of each prompt (Q,) in columns of text that have few values, by the first vote on it."""
    first = ids[np.unique(prompt, return_index=True)[1]]
    sample = votes.take(first[:_ROWS_THAT_TELL_COLUMNS]).to_pydict()
    names = [
        name
        for name, texts in sample.items()
        if name not in _COLUMNS_OF_A_VOTE
        and all(text is None or isinstance(text, str) for text in texts)
        # Of few votes the answers, or names of people, are few too: categories recur.
        and 1 < len(set(texts)) <= min(MOST_VALUES, len(texts) // 2)
    ]
    columns: dict[str, list[str | None]] = {name: [] for name in names}
    for start in range(0, len(first) if names else 0, _VOTES_PER_READ):
        batch = votes.take(first[start : start + _VOTES_PER_READ])
        for name in names:
            columns[name] += batch.column(name).to_pylist()
    return columns


def _among(prompts: Ints, about: Ints) -> tuple[Ints, Ints]:
    """Return the rows of votes on some prompts, and which of these each is on; `about` are the prompts of all votes."""
    place = np.full(int(about.max(initial=0)) + 1, -1)
    place[prompts] = np.arange(len(prompts))
    rows = np.flatnonzero(place[about] >= 0)
    return rows, place[about[rows]]


def posterior_of(
    prompts: KnownPrompts,
    prompt: Ints,
    labels: NDArray[Any],
    board: HeadStart,
    likelihood: Likelihood,
    num_votes: int,
    rng: np.random.Generator,
    unshaped: PlainVotes | None = None,
    shift: Floats | None = None,
) -> Posterior:
    """Fit the posterior to a sample of `num_votes` votes: labels (N, 3), each on one of Q prompts, by `prompt` (N,).

    `board` is the one leaderboard of all votes, towards which strange prompts are shrunk, and `shift` (N, 3) is by how
    much covariates move winner, loser and eta beside it. `unshaped` are votes whose inputs were not trained on them,
    where those of `prompts` were.
    """
    with one_blas_thread():
        sample = _sample(prompts, prompt, labels, board, likelihood, shift)
        process = PromptProcess.of(sample.inputs, _information(sample), rng)
        if unshaped is None:
            prior = _estimate(sample, sample, process, rng)
        else:
            level = KnownPrompts(unshaped.inputs, np.tile(board.coefs, (len(unshaped.inputs), 1)))
            plain = _sample(level, unshaped.prompt, unshaped.labels, board, likelihood, unshaped.shift)
            plain_process = PromptProcess.of(plain.inputs, _information(plain), rng)
            prior = _estimate(plain, sample, plain_process, rng)
        tensors = _components(sample, prior, process, num_votes, grounded=not shift_invariant(likelihood))
    coefs = board.coefs
    if shift_invariant(likelihood):
        coefs = coefs + sample.coefs.mean() - coefs.mean()
    scalars = [math.nan if value is None else float(value) for value in (board.eta, board.gamma)]
    limits = _words(prompts.usage if unshaped is None else unshaped.usage)
    tensors |= {
        "words": limits,
        "encoded": np.float64(prompts.encoded),
        "coefs": coefs,
        "eta": np.float64(scalars[0]),
        "gamma": np.float64(scalars[1]),
    }
    vocabulary = None if unshaped is None or limits[1] < 0 else unshaped.words
    return Posterior({name: torch.tensor(value, dtype=torch.float32) for name, value in tensors.items()}, vocabulary)


def write_posterior(folder: Path, votes: VoteStore, device: torch.device, *, weighted: bool = False) -> None:
    """Write the posterior of the model in `folder`, fitted on `device`, and its votes; a manifest comes after."""
    for name in (POSTERIOR_FILE, VOTES_FILE):  # those of an older version could not even be loaded
        (folder / name).unlink(missing_ok=True)
    model = P2LModel.from_pretrained(folder).to(device)
    tokenizer = load_tokenizer(folder, cls_token_if_none=None, pad_token_if_none=None)
    tokenizer.limit(model.num_embeddings, folder)
    fit_posterior(model, tokenizer, votes, weighted=weighted).save(folder)


def _sample(
    prompts: KnownPrompts,
    prompt: Ints,
    labels: NDArray[Any],
    board: HeadStart,
    likelihood: Likelihood,
    shift: Floats | None,
) -> _Sample:
    labels = labels.astype(np.int64)
    moved = np.zeros((len(labels), 3)) if shift is None else shift
    winner, loser = (board.coefs[labels[:, side]] + moved[:, side] for side in (0, 1))
    eta = None if board.eta is None else board.eta + moved[:, 2]
    logs, slopes, _ = derivatives(likelihood, winner, loser, eta, board.gamma)
    slopes = slopes[..., :2]
    score = np.einsum("nk,nkp->np", np.asarray(targets(likelihood, labels[:, 2]), dtype=np.float64), slopes)
    fisher = np.einsum("nk,nkp,nkq->npq", np.exp(logs), slopes, slopes)
    cross = 2.0 * fisher[:, 0, 1]
    diagonal = fisher[:, 0, 0] + fisher[:, 1, 1]
    return _Sample(
        inputs=prompts.inputs.astype(np.float64),
        coefs=prompts.coefs.astype(np.float64),
        prompt=prompt,
        pairs=labels[:, :2],
        score=(score[:, 0] - score[:, 1]) / 2.0,
        fisher=(diagonal - cross) / 4.0,
        level_fisher=(diagonal + cross) / 4.0,
    )


def _read(model: P2LModel, tokenizer: PromptTokenizer, prompts: list[list[str]]) -> KnownPrompts:
    keep_states(model.model)
    packed, device = backbones.get(model.record.model_type).packs, next(model.parameters()).device
    encodings = tokenizer.encode(prompts)
    inputs: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(prompts)
    coefs = np.zeros((len(prompts), len(model.model_list)), np.float32)
    for rows in plan_batches([len(encoding.ids) for encoding in encodings], max_tokens=_TOKENS_PER_PASS, packed=packed):
        batch = to_device(collate([encodings[row] for row in rows], tokenizer.pad_token_id, packed=packed), device)
        with torch.inference_mode():
            hidden, read = model.read(batch)
            coefs[rows] = model.head(hidden).coefs.float().cpu().numpy()[:, : coefs.shape[1]]
        for row, values in zip(rows, read.float().cpu().numpy(), strict=True):
            inputs[row] = values
    usage = tokenizer.words.usage(prompts) if isinstance(tokenizer, ReaderTokenizer) else None
    encoded = model.has_frozen_inputs and getattr(model.model, "encoder", None) is not None
    return KnownPrompts(np.stack(inputs), coefs, usage, encoded)


def _information(sample: _Sample) -> Floats:
    """Return the Fisher information (Q,) of the votes on each prompt."""
    return np.bincount(sample.prompt, weights=sample.fisher, minlength=len(sample.inputs)).astype(np.float64)


# The variance of prompts: products of scores regressed on their expectations under each part of the covariance.


class _Prior(NamedTuple):
    """Prior covariance of coefficients between prompts."""

    models: Floats
    """(M, M) covariance C of the smooth part; z' C z is 1 on average over the votes."""
    variance: float
    """v"""
    own: float
    """u"""
    level: float
    """Variance of the level of all coefficients."""


def _estimate(sample: _Sample, trained: _Sample, process: PromptProcess, rng: np.random.Generator) -> _Prior:
    """Estimate how prompts differ from `sample` and its process; `trained` has the coefficients of the model."""
    count = sample.coefs.shape[1]
    # Models vary alike, with differences of variance 1 on average over the votes.
    alike = np.eye(count) - 1.0 / count
    models = np.asarray(alike / float(_differences(alike, sample.pairs).mean()))
    weights = _information(sample)
    mean = weights @ process.features / weights.sum()
    unit = _from_products(sample, process.features - mean, models, rng)
    # Prompts differ by the kernel's variance at a prompt, less that of the mean that all share.
    raw, own = _on_one_prompt(sample, models, max(unit * (1.0 - float(mean @ mean)), 1e-6))
    # Slopes are less where differences are large, so that products are smaller than the variance makes them.
    curved = max(1.0 - _CONCAVITY * (raw + own), _SMALLEST_CORRECTION)
    return _Prior(
        models, max(raw / curved, _explained(trained), 1e-6), own / curved, float(trained.coefs.mean(1).var())
    )


def _from_products(sample: _Sample, features: Floats, models: Floats, rng: np.random.Generator) -> float:
    """Return the variance of a unit kernel by least squares over pairs of votes on different prompts.

    Products are summed over all pairs, through the features; the squares that they are divided by, which vary little,
    over some.
    """
    winner, loser = sample.pairs.T
    scores = np.zeros((len(features), len(models)))
    weighted = sample.score * sample.fisher
    np.add.at(scores, (sample.prompt, winner), weighted)
    np.add.at(scores, (sample.prompt, loser), -weighted)
    sums, sizes = features.T @ scores, (features**2).sum(1)
    products = ((sums @ models) * sums).sum() - sizes @ ((scores @ models) * scores).sum(1)
    rows = rng.permutation(len(winner))[:_VOTES_MULTIPLIED]
    prompt = sample.prompt[rows]
    first, second = np.triu_indices(len(rows), 1)
    differ = prompt[first] != prompt[second]
    first, second = first[differ], second[differ]
    column = (features[prompt] @ features[prompt].T)[first, second]
    column *= sample.fisher[rows[first]] * sample.fisher[rows[second]]
    column *= _across(models, sample.pairs[rows[first]], sample.pairs[rows[second]])
    squares = 2.0 * float(column @ column) * (len(winner) / len(rows)) ** 2
    return max(float(products) / squares, 0.0) if squares > 0 else 0.0


def _on_one_prompt(sample: _Sample, models: Floats, raw: float) -> tuple[float, float]:
    """Return v and u: their sum is what pairs of votes on one prompt say, or, as far as they say little, assumed."""
    order = np.argsort(sample.prompt, kind="stable")
    # Each vote with the next ones in the order of prompts; most of these are on the same prompt.
    steps = range(1, _NEIGHBOURS_MULTIPLIED + 1)
    first = np.concatenate([order[: max(len(order) - step, 0)] for step in steps])
    second = np.concatenate([order[step:] for step in steps])
    same = sample.prompt[first] == sample.prompt[second]
    first, second = first[same], second[same]
    columns = sample.fisher[first] * sample.fisher[second] * _across(models, sample.pairs[first], sample.pairs[second])
    products = sample.score[first] * sample.score[second]
    usual, squares = (1.0 + _OWN_VARIANCE_RATIO) * raw, float(columns @ columns)
    if not squares > 0:
        return raw, usual - raw
    weight = usual**2 * squares / max(float((products**2).mean()), 1e-300)
    total = (usual + weight * max(float(columns @ products) / squares, 0.0)) / (1.0 + weight)
    return min(raw, total), max(total - raw, 0.0)


def _differences(matrix: Floats, pairs: Ints) -> Floats:
    """Return z' C z (N,) of each vote."""
    a, b = pairs.T
    return np.asarray(matrix[a, a] + matrix[b, b] - 2.0 * matrix[a, b])


def _across(matrix: Floats, pairs: Ints, others: Ints) -> Floats:
    """Return z_n' C z_m (N,) of pairs and others, one by one."""
    (a, b), (c, d) = pairs.T, others.T
    return np.asarray(matrix[a, c] - matrix[a, d] - matrix[b, c] + matrix[b, d])


def _explained(sample: _Sample) -> float:
    """Return the variance over prompts of the model's own differences, mean over the votes."""
    centred = sample.coefs - sample.coefs.mean(0)
    return float(_differences(centred.T @ centred / len(centred), sample.pairs).mean())


# The process given the votes.


def _components(
    sample: _Sample, prior: _Prior, process: PromptProcess, num_votes: int, *, grounded: bool
) -> dict[str, Floats]:
    """Return the tensors of the posterior, but for the leaderboard."""
    count = sample.coefs.shape[1]
    weight = float(sample.fisher.mean())
    graph = np.zeros((count, count))
    a, b = sample.pairs.T
    for rows, columns, sign in ((a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0)):
        np.add.at(graph, (rows, columns), sign * sample.fisher)
    graph *= num_votes / len(a)
    # A prompt's own part is noise to the smooth one.
    information = graph / (1.0 + weight * prior.own)
    values, vectors = np.linalg.eigh(prior.variance * prior.models)
    held = values > values.max() * 1e-6
    root = vectors[:, held] * np.sqrt(values[held])
    known, turn = np.linalg.eigh(root.T @ information @ root)
    basis, known = root @ turn, known.clip(0.0)
    energy = np.asarray(((basis[a] - basis[b]) ** 2).mean(0))  # of each component's differences over the votes
    kept = determined(known, process.seen)
    share = energy @ kept / energy.sum()
    fresh = process.fresh
    own = prior.own / prior.variance
    parts = [
        (basis, _matched(kept, share, fresh, _explained(sample) / prior.variance), 1.0 + own, own + _REMAINING_VARIANCE)
    ]
    if grounded and prior.level > 1e-9:
        votes = num_votes * float(sample.level_fisher.mean()) * prior.level
        level = determined(np.array([votes]), process.seen)
        share_of = float(sample.coefs.mean(1).var()) / prior.level
        column = np.full((count, 1), math.sqrt(prior.level))
        parts.append((column, _matched(level, level[0], fresh, share_of), 1.0 + own, own + _REMAINING_VARIANCE))
    spread, axes = np.linalg.eigh(information + _BOARD_PRECISION * np.eye(count))
    parts.append((axes / np.sqrt(spread), np.zeros((count, len(process.seen))), 1.0, 1.0))
    return process.tensors(share) | {
        "kept": np.concatenate([kept for _, kept, _, _ in parts]),
        "offset": np.concatenate([np.full(part.shape[1], offset) for part, _, offset, _ in parts]),
        "least": np.concatenate([np.full(part.shape[1], least) for part, _, _, least in parts]),
        "basis": np.concatenate([part for part, _, _, _ in parts], axis=1),
    }


def _words(usage: WordUsage | None) -> Floats:
    """Return the share of known words at which coefficients are those of one leaderboard, and from which their own.

    Nearly every prompt of the votes would reach the upper share had it alone not been read. How few words are known of
    a topic that was not read is not in the votes: topics share most words, and those of its own are the rare ones.
    """
    high = 0.0 if usage is None else float(np.quantile(usage.known_alone(), _KNOWN_WORDS_QUANTILE))
    return np.array([_UNREAD_SHARE * high, high] if high >= _LEAST_KNOWN_WORDS else [-2.0, -1.0])


def _matched(kept: Floats, share: Floats, fresh: Floats, explained: float) -> Floats:
    """Return the shares times what makes their mean over new prompts the one that the trained model explains."""
    mean = float((fresh @ share).mean())
    return kept * (min(max(explained, 0.0), 1.0 - _REMAINING_VARIANCE) / mean) if mean > 1e-9 else kept
