"""Fitting a posterior: the variance between prompts is estimated, whatever the model has learned."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.testing import assert_array_equal

from p2l.commands.model import posterior_main
from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.likelihood import get
from p2l.model.checkpoint import check_complete, seal
from p2l.model.heads import HeadStart, last_layer
from p2l.model.kept_votes import VOTES_FILE
from p2l.model.model import P2LModel
from p2l.model.posterior import POSTERIOR_FILE, Place, Posterior
from p2l.model.scratch import (
    READER_DEFAULTS,
    TFIDF_DEFAULTS,
    TRANSFORMER_DEFAULTS,
    make_reader,
    make_tfidf,
    make_transformer,
)
from p2l.model.tfidf import fit_vocabulary
from p2l.model.tokenizer import load_tokenizer
from p2l.simulation.arena import Arena, simulate
from p2l.simulation.batches import vote_batch
from p2l.simulation.config import SimulationConfig
from p2l.training.forecasts import marginal_board
from p2l.training.posterior import KnownPrompts, PlainVotes, posterior_of
from p2l.votes import WINNERS, open_votes
from p2l.votes.schema import hash_turns
from tests.conftest import Command, write_votes

REACH = 1.6448536269514722


@pytest.fixture(scope="module")
def arena() -> Arena:
    return simulate(SimulationConfig(votes=1500, validation_votes=300, models=6, topics=4, languages=1, seed=4))


def four_votes_each(arena: Arena, table: pa.Table) -> pa.Table:
    """Four votes on each prompt: with one, how much of a prompt is its own could not be known."""
    rows = np.repeat(np.arange(len(table)), 4)
    rng, truth = np.random.default_rng(0), arena.truth_of(rows)
    pairs = np.stack([rng.permutation(len(arena.model_list))[:2] for _ in rows])
    at = np.arange(len(rows))
    probs = get("grk").probs(truth.coefs[at, pairs[:, 0]], truth.coefs[at, pairs[:, 1]], truth.eta)
    winner = (rng.random((len(rows), 1)) > probs.cumsum(1)[:, :-1]).sum(1)
    names = np.array(arena.model_list, dtype=object)
    columns = {"model_a": names[pairs[:, 0]], "model_b": names[pairs[:, 1]], "winner": np.array(WINNERS)[winner]}
    return pa.table({"prompt": table["prompt"].take(rows), **columns})


@pytest.fixture(scope="module")
def untaught(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that gives every prompt one leaderboard, and the votes that this was fitted to."""
    root = tmp_path_factory.mktemp("untaught")
    table = pa.Table.from_batches([vote_batch(arena, chunk) for chunk in arena.chunks()])
    pq.write_table(four_votes_each(arena, table), root / "votes.parquet")
    backbone, folder = root / "backbone", root / "model"
    backbone.mkdir()
    make_reader(backbone, table["prompt"].to_pylist()[:1000], encoder=None, **READER_DEFAULTS)
    save_one_leaderboard(backbone, folder, "reader", root / "votes.parquet")
    return folder, root / "votes.parquet"


def save_one_leaderboard(backbone: Path, folder: Path, model_type: str, file: Path) -> None:
    """Write a model that gives every prompt the leaderboard of these votes."""
    tokenizer = load_tokenizer(backbone)
    with open_votes(file) as votes:
        board = marginal_board(votes, "grk")
        model = P2LModel.create(
            backbone,
            model_type=model_type,
            head_type="rk",
            loss_type="grk",
            model_list=votes.model_list,
            tokenizer=tokenizer,
            init_type="marginal",
            head_start=HeadStart(board.coefs, board.eta, None),
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seal(folder)


@pytest.fixture(scope="module")
def fitted(untaught: tuple[Path, Path]) -> P2L:
    folder, votes = untaught
    assert P2L.from_pretrained(folder, device="cpu").basis is None
    posterior_main([str(folder), "--votes", str(votes), "--device", "cpu"])
    check_complete(folder)
    return P2L.from_pretrained(folder, device="cpu")


def test_votes_are_kept_with_the_topic_of_each_prompt_and_no_text(untaught: tuple[Path, Path], tmp_path: Path) -> None:
    """Prompts come back among others, and are kept in the order of their hashes."""
    folder = Path(shutil.copytree(untaught[0], tmp_path / "model"))
    names = P2L.from_pretrained(folder, device="cpu").model_list
    rng = np.random.default_rng(0)
    topics = {f"question {number}": ("sql", "law", "poetry")[number % 3] for number in range(20)}
    rows: list[dict[str, object]] = []
    for number, prompt in enumerate(rng.permutation([*topics, *topics]).tolist()):
        first, second = rng.permutation(names)[:2].tolist()
        vote = {"prompt": prompt, "model_a": first, "model_b": second, "winner": "model_a"}
        rows.append(vote | {"topic": topics[prompt], "answer": f"secret {number}"})
    votes = write_votes(tmp_path / "votes.jsonl", rows)
    posterior_main([str(folder), "--votes", str(votes), "--device", "cpu"])
    kept = P2L.from_pretrained(folder, device="cpu").kept_votes
    assert kept is not None
    topic_of = {hash_turns([prompt]): topic for prompt, topic in topics.items()}
    for topic in ("sql", "law", "poetry"):
        assert_array_equal(kept.of_category("topic", topic), [topic_of[key] == topic for key in kept.hashes.tolist()])
    assert list(kept.values) == ["topic"]
    assert b"secret" not in (folder / VOTES_FILE).read_bytes()


def test_intervals_of_a_model_that_learned_nothing_hold_what_prompts_differ_by(arena: Arena, fitted: P2L) -> None:
    chunk = next(arena.chunks(validation=True))
    prediction = fitted.predict(arena.texts(chunk).to_pylist())
    columns = [arena.model_list.index(name) for name in fitted.model_list]
    truth = chunk.truth.coefs[:, columns]
    first, second = np.triu_indices(len(columns), 1)
    true = truth[:, first] - truth[:, second]
    said = prediction.coefs[:, first] - prediction.coefs[:, second]
    covered = np.abs(true - said) < REACH * prediction.difference_sd(first, second)
    assert 0.8 < covered.mean() < 0.98


def test_the_covariance_gives_both_kinds_of_deviations(fitted: P2L) -> None:
    prediction = fitted.predict(["tell me about algebra", "once more"])
    assert prediction.basis is not None
    assert prediction.variances is not None
    for row, variances in enumerate(prediction.variances):
        covariance = prediction.basis @ np.diag(variances) @ prediction.basis.T
        assert np.allclose(prediction.sd()[row], np.sqrt(covariance.diagonal()), rtol=1e-4)
        between = np.sqrt(covariance[0, 0] + covariance[2, 2] - 2 * covariance[0, 2])
        assert np.allclose(prediction.difference_sd([0], [2])[row], between, rtol=1e-3)


@contextmanager
def above_the_board(model: P2L) -> Iterator[Posterior]:
    """Let every prompt's coefficients lie 1 above the leaderboard; yield the posterior, which shrinks them back."""
    posterior, bias = model.model.posterior, last_layer(model.model.head).bias
    assert posterior is not None
    with torch.no_grad():
        bias.add_(1.0)
        yield posterior
        bias.sub_(1.0)


def test_a_strange_prompt_is_less_certain_and_gets_the_one_leaderboard(arena: Arena, fitted: P2L) -> None:
    usual = arena.texts(next(arena.chunks(validation=True))).to_pylist()[:50]
    strange = "ключ " * 2000 + "=" * 9000
    with above_the_board(fitted) as posterior:
        prediction = fitted.predict([*usual, strange])
    sizes = prediction.sd().mean(1)
    assert sizes[-1] > sizes[:-1].max() * 0.999
    distance = np.abs(prediction.coefs - posterior.coefs.numpy()).mean(1)
    assert distance[-1] < 0.05
    assert np.median(distance[:-1]) > 0.9


@pytest.mark.parametrize(
    ("own", "least", "most"), [(0, 0.0, 0.2), (3, 0.95, 1.0)], ids=["of a few words", "of any words"]
)
def test_an_unknown_word_is_strange_where_training_knew_every_word(own: int, least: float, most: float) -> None:
    """Prompts of ten common words, and of as many `own` ones that no other prompt has."""
    rng, count = np.random.default_rng(0), 600
    words = ["".join(letters) for letters in product("abcdefghijklm", repeat=4)]
    common = [" ".join(rng.permutation(words[:40])[:10]) for _ in range(count)]
    rare = iter(words[40:])
    prompts = [[" ".join([text, *islice(rare, own)])] for text in common]
    tokenizer = fit_vocabulary(prompts)
    pairs = np.stack([rng.permutation(4)[:2] for _ in prompts])
    labels = np.column_stack([pairs, np.zeros(count, dtype=np.int64)])
    known = KnownPrompts(rng.standard_normal((count, 8)), np.zeros((count, 4)), tokenizer.usage(prompts))
    board = HeadStart(np.zeros(4), None, None)
    posterior = posterior_of(known, np.arange(count), labels, board, get("bt"), count, rng)

    def trust(texts: list[list[str]]) -> float:
        shares = torch.tensor([encoding.known for encoding in tokenizer.encode(texts)])
        near = Place(torch.zeros(len(texts), len(posterior.share)), torch.zeros(len(texts)))  # so that words decide
        return float(posterior.trust(near, shares).mean())

    assert trust(prompts) > 0.95
    assert least <= trust([[f"{text} zyxwvut"] for text in common]) <= most
    assert trust([["zyxw vutsr qponm lkjih"]]) == 0.0


@pytest.mark.parametrize("kind", ["tfidf", "qwen2"])
def test_a_model_that_reads_no_words_by_itself_knows_strange_ones_too(
    arena: Arena, untaught: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    prompts = arena.texts(next(arena.chunks())).to_pylist()
    if kind == "tfidf":
        make_tfidf(tmp_path, prompts, **TFIDF_DEFAULTS)
    else:
        sizes = {**TRANSFORMER_DEFAULTS, "hidden_size": 16, "vocab_size": 600, "heads": 2, "max_positions": 128}
        make_transformer(tmp_path, prompts, model_type=kind, seed=0, **sizes)
    folder = tmp_path / "model"
    save_one_leaderboard(tmp_path, folder, kind, untaught[1])
    posterior_main([str(folder), "--votes", str(untaught[1]), "--device", "cpu"])
    model = P2L.from_pretrained(folder, device="cpu")
    usual = arena.texts(next(arena.chunks(validation=True))).to_pylist()[:50]
    with above_the_board(model) as posterior:
        assert posterior.vocabulary is not None
        coefs = model.predict([*usual, " ".join(f"zyxw{number}vut" for number in range(20))]).coefs
        distance = np.abs(coefs - posterior.coefs.numpy()).mean(1)
    assert distance[-1] < 0.05
    assert np.median(distance[:-1]) > 0.9


def test_states_that_votes_have_shaped_do_not_make_prompts_differ() -> None:
    """All prompts are alike, but those with one outcome have learned states that lie together."""
    rng, count, models = np.random.default_rng(0), 1500, 6
    pairs = np.stack([rng.permutation(models)[:2] for _ in range(count)])
    labels = np.column_stack([pairs, np.zeros(count, dtype=np.int64)])
    outcome = np.eye(models)[pairs[:, 0]] - np.eye(models)[pairs[:, 1]]
    learned = outcome + 0.1 * rng.standard_normal((count, models))
    prompts = KnownPrompts(learned, np.zeros((count, models)))
    plain = PlainVotes(rng.standard_normal((count, 8)), np.arange(count), labels)

    def variance(unshaped: PlainVotes | None) -> float:
        board, bt = HeadStart(np.zeros(models), None, None), get("bt")
        own = np.random.default_rng(1)
        posterior = posterior_of(prompts, np.arange(count), labels, board, bt, count, own, unshaped)
        place = posterior.place(torch.from_numpy(learned))
        components = posterior.variances(place, torch.ones(count)).mean(0)
        return float(components @ (posterior.basis[0] - posterior.basis[1]) ** 2)

    assert variance(plain) < 0.2
    assert variance(None) > 2 * variance(plain)


def test_a_folder_without_posterior_says_how_to_get_one(untaught: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = untaught
    for file in folder.iterdir():
        if file.name != POSTERIOR_FILE:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    prediction = P2L.from_pretrained(tmp_path, device="cpu").predict(["hello"])
    with pytest.raises(InputError, match="p2l posterior"):
        prediction.sd()


def test_the_command_names_a_folder_that_is_not_there(command: Command, tmp_path: Path) -> None:
    done = command("python", "-m", "p2l.cli", "posterior", tmp_path / "none", "--votes", tmp_path / "votes.parquet")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no such folder" in done.stderr


def test_strange_prompts_go_towards_a_leaderboard_beside_which_covariates_stand(
    command: Command, tmp_path: Path
) -> None:
    """Ten equal models; in hall A, where five of them were asked, every other answer is bad, in hall B none is."""
    rng = np.random.default_rng(0)
    halls = {"A": [f"m{n}" for n in range(6)], "B": [f"m{n}" for n in range(5, 10)]}
    votes = []
    for number in range(900):
        hall = "AB"[number % 2]
        a, b = rng.choice(halls[hall], 2, replace=False)
        bad = hall == "A" and rng.random() < 0.5
        winner = "tie (bothbad)" if bad else str(rng.choice(["model_a", "model_b", "tie"]))
        votes.append({"prompt": f"question {number % 150}", "model_a": a, "model_b": b, "winner": winner, "hall": hall})
    file, bag = write_votes(tmp_path / "votes.jsonl", votes), tmp_path / "bag"
    words = ("--quiet", "--votes", file)
    for line in (
        ("init", *words, "--model-type", "tfidf", "--output", bag, "--min-df", "1"),
        ("train", *words, "--backbone", bag, "--control", "hall", "--output", tmp_path / "model"),
    ):
        done = command("python", "-m", "p2l.cli", *line)
        assert done.returncode == 0, done.stderr
    posterior = Posterior.load(tmp_path / "model", 10)
    assert posterior is not None
    of_hall = posterior.coefs.numpy()
    assert abs(of_hall[:5].mean() - of_hall[6:].mean()) < 0.5
    with open_votes(file) as store:
        uncontrolled = marginal_board(store, "grk").coefs
    assert uncontrolled[6:].mean() - uncontrolled[:5].mean() > 1.0
