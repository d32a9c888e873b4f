"""Kinds of prompts that nobody named, and what models are better and worse at, from predictions for many prompts.

Different prompts count once and are split in halves. On the first, clusters are formed, their number chosen, their
names given and the words of each learned. On the second, prompts are put into these clusters by their words alone and
the models are measured there. So what is measured has had no influence on borders, names or the prompts averaged over:
coefficients that are mere noise show no strengths, which they would in clusters that were made of the same
coefficients. The price: what words do not tell is diluted.

Shapes: N prompts, M models, D dimensions of an embedding, K clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.cli import counted
from p2l.common.errors import InputError
from p2l.common.text_table import cut
from p2l.insight import terms as kinds
from p2l.insight.kept_boards import VotesOnPrompts
from p2l.insight.strengths import Cluster, Explanation, PromptAnswers, Rules, centred, measure
from p2l.insight.terms import Places, Terms, count_terms, learn_places, typical_terms
from p2l.likelihood import Likelihood
from p2l.votes.schema import hash_turns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Texts = Sequence[Sequence[str]]
_TERMS_OF_A_NAME = 3
_EXAMPLES_OF_A_CLUSTER = 3
_EXAMPLE_LENGTH = 160  # characters


@dataclass(frozen=True)
class _Clustering:
    """Clusters of the first half: centres (K, c) of points (n, c), the cluster (n,) of each, and its words."""

    centres: Floats
    cluster: Ints
    places: Places | None


@dataclass(frozen=True)
class _DifferentPrompts:
    """N different prompts: predictions, points (N, c) to cluster, texts and words."""

    answers: PromptAnswers
    points: Floats
    texts: list[list[str]] | None
    terms: Terms | None

    def along_principal(self, rows: Ints) -> _DifferentPrompts:
        """Return the prompts with their points along the principal directions of some rows."""
        mean, directions = kinds.principal(self.points[rows])
        return replace(self, points=(self.points - mean) @ directions)

    def cut(self, rows: Ints, centres: Floats) -> _Clustering:
        """Assign rows to the nearest centres, and learn the words of each cluster."""
        cluster = kinds.nearest(self.points[rows], centres)
        places = None if self.terms is None else learn_places(self.terms.of(rows), cluster, len(centres))
        return _Clustering(centres, cluster, places)

    def place(self, clustering: _Clustering, rows: Ints, by: str) -> Ints:
        """Return the cluster of each row, by `words` or by `nearest` centre."""
        if by != "words":
            return kinds.nearest(self.points[rows], clustering.centres)
        if clustering.places is None or self.terms is None:
            raise InputError("clusters by words need the prompts; give them, or choose by nearest centre")
        return clustering.places.place(self.terms.table[rows])


def explain(
    coefs: npt.ArrayLike,
    models: Sequence[str],
    *,
    likelihood: str = "grk",
    eta: npt.ArrayLike | None = None,
    gamma: npt.ArrayLike | None = None,
    texts: Texts | None = None,
    embeddings: npt.ArrayLike | None = None,
    clusters: int | None = None,
    by: str | None = None,
    rules: Rules | None = None,
    votes: VotesOnPrompts | None = None,
    covariates: Sequence[str] = (),
    seed: int = 0,
) -> Explanation:
    """Find kinds of prompts, and how much better or worse each model is on them than overall.

    Args:
        coefs, eta, gamma: (N, M) and (N,) of each prompt, as the likelihood needs them.
        models: M names.
        likelihood: of the coefficients.
        texts: the N prompts as lists of turns; without them clusters have numbers for names.
        embeddings: (N, D) to cluster in the place of the coefficients.
        clusters: their number; by default as `p2l.insight.terms` says.
        by: how measured prompts come into clusters: `words` (the default with texts), or `nearest` centre.
        rules: when a change counts.
        votes: those that the model keeps, with the N prompts: what strengths are measured by.
        covariates: of votes that the model was trained with, for the notes.
        seed: of the halves, the sample that is clustered, and the bootstrap.
    """
    rules, rng, likely = rules or Rules(), np.random.default_rng(seed), likelihoods.get(likelihood)
    by = by or ("nearest" if texts is None else "words")
    prompts = _different(replace(_checked(coefs, eta, gamma, models, likely), votes=votes), texts, embeddings)
    _check_number(len(prompts.points), clusters, rules.least_prompts)
    first, second = _halves(len(prompts.points), rng)
    prompts = prompts.along_principal(first)
    clustering = _find(prompts, first, clusters, by, rules.least_prompts, rng)
    cluster = prompts.place(clustering, second, by)
    names, terms = _names(prompts.terms, first, clustering)
    best_first = np.argsort(-centred(prompts.answers.coefs).mean(axis=0), kind="stable")
    explanation = Explanation(
        models=tuple(models[place] for place in best_first.tolist()),
        clusters=tuple(_clusters(prompts, clustering, second, cluster, names, terms)),
        strengths=tuple(measure(prompts.answers.of(second), cluster, names, models, likely, rules, rng)),
        likelihood=likely.name,
        prompts=len(second),
        chosen_from=len(first),
        by=by,
        explained=kinds.explained(centred(prompts.answers.coefs[second]), cluster),
        recovered=_recovered(prompts, clustering, second),
        level=rules.level,
        fdr=rules.fdr,
        least_change=rules.least_change,
        seed=seed,
        names=tuple(names),
        places=clustering.places,
        known=_known(prompts, second, cluster),
    )
    return replace(explanation, notes=(*_notes(explanation, rules), *_source_notes(votes, covariates)))


def _halves(number: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the rows of two random halves, each in order."""
    order = rng.permutation(number)
    return np.sort(order[: number // 2]), np.sort(order[number // 2 :])


def _recovered(prompts: _DifferentPrompts, clustering: _Clustering, rows: Ints) -> float | None:
    """Return the share of the prompts that their words place as their coefficients do."""
    if clustering.places is None:
        return None
    return float((prompts.place(clustering, rows, "words") == prompts.place(clustering, rows, "nearest")).mean())


def _known(prompts: _DifferentPrompts, rows: Ints, cluster: Ints) -> dict[int, int]:
    """Return the cluster of each row by the hash of its prompt; without texts, none can be recognised."""
    if prompts.texts is None:
        return {}
    return {hash_turns(prompts.texts[row]): k for row, k in zip(rows, cluster.tolist(), strict=True)}


def _check_number(number: int, clusters: int | None, least: int) -> None:
    """Refuse too few different prompts, or more clusters than they allow."""
    if number < 4 * least:
        raise InputError(
            f"{counted(number, 'different prompt')} {'is' if number == 1 else 'are'} too few to explain; "
            f"{4 * least:,} are needed with at least {least:,} a cluster"
        )
    most = number // 2 // least
    if clusters is not None and not 2 <= clusters <= most:
        raise InputError(
            f"{clusters} clusters of {number} different prompts: choose 2 to {most}, so that each can have {least} of "
            "the half that is clustered"
        )


def _checked(coefs: Any, eta: Any, gamma: Any, models: Sequence[str], likely: Likelihood) -> PromptAnswers:
    values = np.asarray(coefs, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(models):
        raise InputError(f"coefficients have shape {values.shape}; (prompts, {len(models)} models) is needed")
    if len(models) < 2:
        raise InputError("strengths are against other models; at least two models are needed")
    sides: dict[str, Floats | None] = {}
    for name, column in (("eta", eta), ("gamma", gamma)):
        is_needed = name in likely.parameters
        if is_needed and column is None:
            raise InputError(f"likelihood {likely.name} needs {name}, which the outputs lack")
        sides[name] = np.asarray(column, dtype=np.float64).reshape(-1) if is_needed else None
    for name, numbers in (("coefs", values), *sides.items()):
        if numbers is not None and (len(numbers) != len(values) or not np.isfinite(numbers).all()):
            raise InputError(f"{name}: one finite value for each prompt is needed")
    return PromptAnswers(values, sides["eta"], sides["gamma"])


def _different(answers: PromptAnswers, texts: Texts | None, embeddings: Any) -> _DifferentPrompts:
    """Keep every different prompt once."""
    if embeddings is None:
        features = centred(answers.coefs)
    else:
        features = np.asarray(embeddings, dtype=np.float64)
        if features.ndim != 2 or not np.isfinite(features).all():
            raise InputError("embeddings: one list of finite numbers, of the same length, is needed for each prompt")
        # Directions tell what a prompt is about, lengths do not.
        features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    if len(features) != len(answers.coefs) or (texts is not None and len(texts) != len(answers.coefs)):
        raise InputError("coefficients, prompts and embeddings must be of the same prompts")
    if texts is None:
        return _DifferentPrompts(answers, features, None, None)
    hashes = np.array([hash_turns(list(turns)) for turns in texts], dtype=np.uint64)
    rows = np.sort(np.unique(hashes, return_index=True)[1])
    texts_used = [list(texts[row]) for row in rows]
    return _DifferentPrompts(answers.of(rows), features[rows], texts_used, count_terms(texts_used))


def _find(
    prompts: _DifferentPrompts, first: Ints, clusters: int | None, by: str, least: int, rng: np.random.Generator
) -> _Clustering:
    cut = kinds.tree(prompts.points[first], rng)
    if clusters is not None:
        return prompts.cut(first, cut(clusters))
    # Rows are in the order of the file, which may have changed its subject half-way.
    learn, test = first[::2], first[1::2]
    target = centred(prompts.answers.coefs)[test]
    numbers = kinds.candidates(len(first), least)
    clusterings = (prompts.cut(learn, cut(number)) for number in numbers)
    shares = [kinds.explained(target, prompts.place(clustering, test, by)) for clustering in clusterings]
    return prompts.cut(first, cut(kinds.fewest(numbers, shares)))


def _names(terms: Terms | None, first: Ints, clustering: _Clustering) -> tuple[list[str], list[list[str]]]:
    """Return a name for each cluster, all different, and its terms."""
    number = len(clustering.centres)
    if terms is None:
        return [f"cluster {k + 1}" for k in range(number)], [[] for _ in range(number)]
    typical = typical_terms(terms.of(first), clustering.cluster, number)
    names: list[str] = []
    for place, words in enumerate(typical):
        name = ", ".join(words[:_TERMS_OF_A_NAME]) or f"cluster {place + 1}"
        names.append(name if name not in names else f"{name} ({place + 1})")
    return names, typical


def _clusters(
    prompts: _DifferentPrompts,
    clustering: _Clustering,
    rows: Ints,
    cluster: Ints,
    names: Sequence[str],
    terms: Sequence[list[str]],
) -> Iterator[Cluster]:
    """Yield the clusters (of `rows`) that hold a prompt, the largest first."""
    sizes = np.bincount(cluster, minlength=len(names))
    for k in np.argsort(-sizes, kind="stable"):
        if sizes[k]:
            yield Cluster(
                name=names[k],
                terms=tuple(terms[k]),
                prompts=int(sizes[k]),
                share=float(sizes[k] / len(rows)),
                examples=_examples(prompts, rows[cluster == k], clustering.centres[k]),
            )


def _examples(prompts: _DifferentPrompts, rows: Ints, centre: Floats) -> tuple[str, ...]:
    """Return the beginnings of the prompts nearest to the centre."""
    if prompts.texts is None:
        return ()
    distances = ((prompts.points[rows] - centre) ** 2).sum(axis=1)
    examples = []
    for row in rows[np.argsort(distances, kind="stable")[:_EXAMPLES_OF_A_CLUSTER]]:
        # A pasted document need not be split whole for its beginning, which indentation may thin out.
        examples.append(cut(" / ".join(prompts.texts[row])[: 4 * _EXAMPLE_LENGTH], _EXAMPLE_LENGTH))
    return tuple(examples)


def _notes(explanation: Explanation, rules: Rules) -> list[str]:
    notes = []
    small = sum(cluster.prompts < rules.least_prompts for cluster in explanation.clusters)
    small += len(explanation.names) - len(explanation.clusters)
    if small:
        notes.append(f"Clusters with fewer than {rules.least_prompts} of the prompts measured are not judged: {small}.")
    if explanation.explained < kinds.SAYS_LITTLE:
        subject = "The words of a prompt" if explanation.by == "words" else "Clusters"
        notes.append(
            f"{subject} tell next to nothing of the coefficients ({max(explanation.explained, 0.0):.1%} of variance)."
        )
    if explanation.by == "nearest":
        notes.append(
            "Prompts came into clusters by what is said of them: a change is then in part how the clusters were made."
        )
    return notes


def _source_notes(votes: VotesOnPrompts | None, covariates: Sequence[str]) -> Iterator[str]:
    """Yield what changes and intervals come from, and how covariates count in them."""
    if votes is None:
        yield (
            "Intervals are over prompts; the model's coefficients, which are shrunk, are taken as exact: changes are "
            "too small, and only votes can test them."
        )
    else:
        number = f"{len(votes.kept):,} of the {counted(votes.kept.total, 'vote')}"
        yield (
            f"Changes and intervals are those that {number} of the model's training show; clusters are by its "
            "predictions."
        )
    if covariates:
        yield _note_on_covariates(votes, ", ".join(covariates))


def _note_on_covariates(votes: VotesOnPrompts | None, names: str) -> str:
    """Say how covariates that the model was trained with count in changes."""
    if votes is None:
        return (
            f"The model was trained with covariates ({names}), of which a prompt has no value: its predictions are of "
            "votes in which they are zero."
        )
    if votes.kept.shift is None:
        return (
            f"The votes kept have no values of the covariates that the model was trained with ({names}): changes are "
            "not controlled for them; `p2l posterior` keeps them anew."
        )
    return f"The votes are fitted beside the effects of covariates in the model ({names})."
