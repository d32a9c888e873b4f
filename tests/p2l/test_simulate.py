"""The simulated arena: its truth is exact, its files are whole, and a bag of words cannot see what it should not."""

import csv
import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from p2l.common.errors import ConfigError, InputError
from p2l.likelihood import get
from p2l.simulate import load_arena, main, write_arena
from p2l.simulation.arena import Arena, VoteChunk, simulate
from p2l.simulation.config import SimulationConfig
from p2l.simulation.prompts import STRUCTURES, build_vocabulary, topic_weights
from p2l.simulation.summary import ArenaSummary

SMALL = SimulationConfig(votes=9000, validation_votes=500, models=10, topics=5, users=100, seed=3)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return simulate(SMALL)


@pytest.fixture(scope="module")
def chunk(arena: Arena) -> VoteChunk:
    return next(arena.chunks())


@pytest.fixture(scope="module")
def texts(arena: Arena, chunk: VoteChunk) -> list[list[str]]:
    return arena.texts(chunk).to_pylist()


@pytest.fixture(scope="module")
def written(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArenaSummary]:
    folder = tmp_path_factory.mktemp("arena")
    report = write_arena(arena, folder / "votes.parquet", validation=folder / "val.jsonl", truth=folder / "truth")
    return folder, report


def report_of(config: SimulationConfig) -> ArenaSummary:
    arena = simulate(config)
    report = ArenaSummary(arena)
    for chunk in arena.chunks():
        report.add(chunk)
    return report


# Votes


def test_the_same_seed_gives_the_same_votes_and_another_seed_others(chunk: VoteChunk, texts: list[list[str]]) -> None:
    again = simulate(SMALL)
    same = next(again.chunks())
    assert np.array_equal(same.winner, chunk.winner)
    assert np.array_equal(same.truth.coefs, chunk.truth.coefs)
    assert again.texts(same).to_pylist() == texts
    other = next(simulate(replace(SMALL, seed=4)).chunks())
    assert not np.array_equal(other.model_a, chunk.model_a)


def test_all_votes_are_made_in_order_of_time_and_numbered_through(arena: Arena) -> None:
    chunks = list(arena.chunks())
    validation = list(arena.chunks(validation=True))
    ids = np.concatenate([chunk.ids for chunk in chunks + validation])
    tstamps = np.concatenate([chunk.prompts.tstamp for chunk in chunks])
    assert np.array_equal(ids, np.arange(SMALL.votes + SMALL.validation_votes))
    assert (np.diff(tstamps) >= 0).all()
    assert SMALL.start <= tstamps[0] <= tstamps[-1] <= SMALL.start + SMALL.days * 86400


def test_the_vote_rate_grows_as_configured() -> None:
    config = replace(SMALL, votes=20_000, growth=4.0)
    day = np.concatenate([chunk.day for chunk in simulate(config).chunks()])
    first, last = np.histogram(day, bins=20, range=(0, config.days))[0][[0, -1]]
    assert last / first == pytest.approx(4 ** (19 / 20), rel=0.05)


def test_only_models_between_release_and_retirement_are_shown(arena: Arena) -> None:
    models = arena.models
    assert np.isfinite(models.retirement).any()
    for chunk in arena.chunks():
        for shown in (chunk.model_a, chunk.model_b):
            assert (models.release[shown] <= chunk.day).all()
            assert (chunk.day < models.retirement[shown]).all()
        assert (chunk.model_a != chunk.model_b).all()


def test_newer_models_are_shown_more_often(arena: Arena) -> None:
    newest = int(np.argmax(arena.models.release))
    day = arena.models.release[newest] + np.array([0.5, 100.0])
    just_released, settled = arena.models.shown(day)[:, newest]
    assert just_released > 2 * settled > 0


def test_organisations_improve_over_time() -> None:
    models = simulate(replace(SMALL, models=200)).models
    assert np.corrcoef(models.release, models.quality)[0, 1] > 0.5


def test_propensity_is_how_often_a_pair_is_shown(arena: Arena) -> None:
    # All pairs at one moment: the propensities are a distribution, and the draws follow it.
    day = np.full(40_000, 300.0)
    a, b, propensity = arena.models.draw_pairs(day, np.random.default_rng(0))
    pairs = np.minimum(a, b) * 100 + np.maximum(a, b)
    found, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    assert propensity[first].sum() == pytest.approx(1, abs=1e-9)
    assert np.abs(counts / len(day) - propensity[first]).max() < 0.01
    assert len(found) > 1


def test_the_only_pair_there_is_has_propensity_one() -> None:
    few = simulate(SimulationConfig(votes=700, models=6, topics=3, languages=1, seed=2))
    propensity = np.concatenate([chunk.propensity for chunk in few.chunks()])
    assert propensity.max() == 1.0


def test_the_side_of_a_model_is_a_fair_coin(arena: Arena) -> None:
    a, b, _ = arena.models.draw_pairs(np.full(20_000, 300.0), np.random.default_rng(0))
    assert np.mean(a < b) == pytest.approx(0.5, abs=0.015)


# Truth


def test_outcomes_follow_the_true_probabilities_of_grk(arena: Arena) -> None:
    chunks = list(arena.chunks())
    probs = np.concatenate([chunk.probs for chunk in chunks])
    winner = np.concatenate([chunk.winner for chunk in chunks])
    seen = np.bincount(winner, minlength=4) / len(winner)
    assert np.abs(seen - probs.mean(axis=0)).max() < 4 * np.sqrt(0.25 / len(winner))
    assert probs.sum(axis=1) == pytest.approx(1, abs=1e-12)
    one = chunks[0]
    rows = np.arange(len(one))
    coefs = one.truth.coefs
    expected = get("grk").probs(coefs[rows, one.model_a], coefs[rows, one.model_b], one.truth.eta)
    assert np.array_equal(one.probs, expected)


def test_the_realised_bayes_loss_is_near_its_expectation_and_below_that_of_any_other_guess(arena: Arena) -> None:
    report = report_of(SMALL)
    probs = np.concatenate([chunk.probs for chunk in arena.chunks()])
    entropy = -(probs * np.log(probs)).sum(axis=1).mean()
    bayes = report.train.bayes()
    assert bayes["grk"] == pytest.approx(entropy, abs=0.03)
    assert bayes["grk"] < report.train.bag() < report.marginal_loss()
    assert bayes["bt"] < bayes["bt-tie"] < bayes["rk"] < bayes["grk"]


def test_truth_of_any_prompt_can_be_asked_for_alone(arena: Arena) -> None:
    ids = np.array([8999, 0, 8192, 9499, 8191, 9000, 0])
    truth = arena.truth_of(ids)
    everything = [*arena.chunks(), *arena.chunks(validation=True)]
    coefs = np.concatenate([chunk.truth.coefs for chunk in everything])
    eta = np.concatenate([chunk.truth.eta for chunk in everything])
    assert np.array_equal(truth.coefs, coefs[ids])
    assert np.array_equal(truth.eta, eta[ids])
    with pytest.raises(ConfigError, match="between 0 and 9499"):
        arena.truth_of([9500])


def test_without_a_prompt_effect_every_leaderboard_differs_by_a_shift_only() -> None:
    arena = simulate(replace(SMALL, effect=0.0))
    coefs = next(arena.chunks()).truth.coefs
    assert np.allclose(coefs - coefs.mean(axis=1, keepdims=True), (coefs - coefs.mean(axis=1, keepdims=True))[0])


def test_skills_drift_when_models_are_updated() -> None:
    def drift_of(config: SimulationConfig) -> float:
        arena = simulate(config)
        chunk = next(arena.chunks())
        one = chunk.prompts.take(np.zeros(2, np.int64))
        early, late = arena.models.prompt_effect(one, np.array([0.0, 600.0])).total()[0]
        return float(np.abs(early - late).max())

    assert drift_of(replace(SMALL, drift=0.0)) == 0
    assert drift_of(replace(SMALL, drift=0.5)) > 0.05


def test_topics_come_into_fashion_and_go_out_of_it() -> None:
    def shares(fashion: float) -> tuple[float, float]:
        chunks = [*simulate(replace(SMALL, votes=20_000, fashion=fashion)).chunks()]
        first, last = (np.bincount(c.prompts.topics.ravel(), minlength=5) for c in (chunks[0], chunks[-1]))
        return first[0] / first.sum(), last[0] / last.sum()

    early, late = shares(3.0)
    assert early > 2 * late
    early, late = shares(0.0)
    assert early < 2 * late


def test_words_go_out_of_use_with_turnover_and_not_without() -> None:
    def common(of: Arena) -> list[float]:
        prompts = [of.texts(chunk).to_pylist()[:500] for chunk in of.chunks()]
        sets = [{word for turns in texts for turn in turns for word in turn.split()} for texts in prompts]
        return [len(words & sets[-1]) / len(words) for words in sets]

    assert min(common(simulate(replace(SMALL, votes=20_000, languages=1)))) > 0.9
    assert common(simulate(replace(SMALL, votes=20_000, languages=1, turnover=0.5)))[0] < 0.8


def test_a_shorter_lifetime_retires_more_models() -> None:
    retired = [np.isfinite(simulate(replace(SMALL, lifetime=days)).models.retirement).sum() for days in (100.0, 2000.0)]
    assert retired[0] > retired[1]


# What a bag of words can see


def test_at_least_a_third_of_the_prompt_effect_is_hidden_from_a_bag_of_words() -> None:
    shares = [report_of(replace(SMALL, seed=seed)).hidden_share for seed in range(3)]
    assert min(shares) > 1 / 3
    assert report_of(replace(SMALL, structures=(1.0, 0.0, 0.0, 0.0))).hidden_share == pytest.approx(0, abs=1e-12)


def test_dealing_the_topics_the_other_way_keeps_what_is_known_and_flips_what_is_hidden(chunk: VoteChunk) -> None:
    # Both ways to deal are equally likely, so the hidden part has mean zero given the words: exactly.
    prompts = chunk.prompts
    flipped = replace(prompts, topics=prompts.topics[:, ::-1])
    weights, known = topic_weights(prompts, SMALL.topics)
    other_weights, other_known = topic_weights(flipped, SMALL.topics)
    assert np.array_equal(known, other_known)
    assert np.allclose(weights - known, -(other_weights - other_known))
    assert np.allclose(weights.sum(axis=1)[prompts.structure == STRUCTURES.index("order")], 1)


def test_the_best_bag_of_words_is_as_good_as_the_truth_only_where_structure_does_not_matter() -> None:
    for seed in range(2):
        plain = report_of(replace(SMALL, votes=4000, seed=seed, structures=(1.0, 0.0, 0.0, 0.0))).train
        assert plain.bag() == pytest.approx(plain.bayes()["grk"], abs=1e-12)
        negated = report_of(replace(SMALL, votes=4000, seed=seed, structures=(0.0, 0.0, 1.0, 0.0))).train
        assert negated.bag() > negated.bayes()["grk"] + 0.03


def held_out_r2(features: list[Counter[str]], target: np.ndarray) -> float:
    """Ridge regression on the 400 commonest features, fitted on two thirds."""
    common = [name for name, _ in sum_of(features).most_common(400)]
    column = {name: i for i, name in enumerate(common)}
    design = np.zeros((len(features), len(common)))
    for row, counts in enumerate(features):
        for name, count in counts.items():
            if name in column:
                design[row, column[name]] = count
    cut = 2 * len(features) // 3
    mean = target[:cut].mean(axis=0)
    gram = design[:cut].T @ design[:cut] + 20 * np.eye(len(common))
    fitted = design[cut:] @ np.linalg.solve(gram, design[:cut].T @ (target[:cut] - mean))
    rest = target[cut:] - mean
    return float(1 - ((rest - fitted) ** 2).sum() / (rest**2).sum())


def sum_of(features: list[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in features:
        total.update(counts)
    return total


def words_of(turns: list[str], size: int) -> Counter[str]:
    words = " ".join(turns).split()
    return Counter(" ".join(words[i : i + size]) for i in range(len(words) - size + 1))


def test_words_and_word_pairs_predict_the_seen_part_and_not_the_hidden_one() -> None:
    arena = simulate(replace(SMALL, topics=2, languages=1, votes=8192))
    chunk = next(arena.chunks())
    effect = chunk.effect
    texts = arena.texts(chunk).to_pylist()
    words = [words_of(turns, 1) for turns in texts]
    pairs = [words_of(turns, 2) for turns in texts]
    assert held_out_r2(words, effect.seen) > 0.5
    assert held_out_r2(words, effect.hidden) < 0.02
    assert held_out_r2(pairs, effect.hidden) < 0.05


def test_prompts_come_in_one_or_two_turns_on_one_or_two_topics_in_several_languages(
    chunk: VoteChunk, texts: list[list[str]]
) -> None:
    assert [len(turns) for turns in texts] == (1 + chunk.prompts.two_turns).tolist()
    assert set(np.unique(chunk.prompts.language)) == set(range(5))
    assert {len(set(pair)) for pair in chunk.prompts.topics.tolist()} == {1, 2}
    assert all(turn == turn.strip() and turn for turns in texts for turn in turns)


def test_users_keep_to_their_language_and_prefer_a_topic(arena: Arena, chunk: VoteChunk) -> None:
    user, counts = np.unique(chunk.prompts.user, return_counts=True)
    busiest = chunk.prompts.user == user[np.argmax(counts)]
    assert len(np.unique(chunk.prompts.language[busiest])) == 1
    mentions = np.bincount(chunk.prompts.topics[busiest].ravel(), minlength=SMALL.topics)
    overall = np.bincount(chunk.prompts.topics.ravel(), minlength=SMALL.topics)
    favourite = arena.source.user_topic[user[np.argmax(counts)]]
    assert mentions[favourite] / mentions.sum() > 1.3 * overall[favourite] / overall.sum()


# Examples


def test_examples_of_two_kinds_that_differ_in_word_order_have_the_same_topics_and_other_leaders(arena: Arena) -> None:
    one = arena.example_prompts("poetry into code", 20, seed=1)
    other = arena.example_prompts("code into poetry", 20, seed=1)
    plain = arena.example_prompts("code", 20, seed=1)
    assert len(one.prompts) == 20
    assert one.truth.coefs.shape == (20, SMALL.models)
    assert np.argmax(one.truth.coefs.mean(axis=0)) == np.argmax(plain.truth.coefs.mean(axis=0))
    gap = one.truth.coefs.mean(axis=0) - other.truth.coefs.mean(axis=0)
    assert np.abs(gap).max() > 0.5


def test_examples_of_a_negation_and_of_turns(arena: Arena) -> None:
    for turns in arena.example_prompts("code without poetry", 10).prompts:
        assert len(turns) == 1
    for turns in arena.example_prompts("poetry then code", 10).prompts:
        assert len(turns) == 2
    with pytest.raises(ConfigError, match="did you mean 'code'"):
        arena.example_prompts("poetry into coode", 1)


# Files and the command


def test_votes_are_written_with_every_column_and_can_be_read(arena: Arena, written: tuple[Path, ArenaSummary]) -> None:
    from p2l.votes import WINNERS, open_votes

    folder, _ = written
    table = pq.read_table(folder / "votes.parquet")
    assert table.num_rows == SMALL.votes
    row = table.slice(0, 1).to_pylist()[0]
    assert row["winner"] in WINNERS
    assert set(row["category_tag"]) == {"creative_writing_v0.1", "criteria_v0.1", "if_v0.1", "math_v0.1"}
    assert len(row["category_tag"]["criteria_v0.1"]) == 7
    assert {"question_id", "tstamp", "weight", "propensity", "model_version", "language", "is_code", "user"} <= set(row)
    assert row["topic"] in row["mentioned"]
    with open_votes(folder / "val.jsonl", model_list=arena.model_list) as votes:
        assert len(votes) == SMALL.validation_votes
        assert votes.model_list == arena.model_list


def test_about_one_prompt_in_six_or_more_is_hard(written: tuple[Path, ArenaSummary]) -> None:
    tags = pq.read_table(written[0] / "votes.parquet", columns=["category_tag"])["category_tag"].to_pylist()
    hard = np.mean([sum(tag["criteria_v0.1"].values()) >= 6 for tag in tags])
    assert 0.1 < hard < 0.4


def test_the_written_truth_is_the_truth(arena: Arena, written: tuple[Path, ArenaSummary]) -> None:
    folder, report = written
    truth = pq.read_table(folder / "truth" / "truth.parquet")
    assert truth.num_rows == SMALL.votes + SMALL.validation_votes
    coefs = np.array(truth["coefs"].to_pylist())
    assert np.allclose(coefs, arena.truth_of(np.arange(truth.num_rows)).coefs, atol=1e-5)
    training = np.array(truth["split"].to_pylist()) == "train"
    assert np.array(truth["loss"])[training].mean() == pytest.approx(report.train.bayes()["grk"], abs=1e-12)
    with (folder / "truth" / "models.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == arena.model_list
    again = load_arena(folder / "truth")
    assert again.config == arena.config
    assert again.model_list == json.loads((folder / "truth" / "arena.json").read_text())["model_list"]


def test_every_format_holds_the_same_votes(tmp_path: Path) -> None:
    arena = simulate(SimulationConfig(votes=50, models=3, topics=2))
    for name in ("votes.parquet", "votes.jsonl", "votes.jsonl.gz", "votes.csv"):
        write_arena(arena, tmp_path / name)
    rows = pq.read_table(tmp_path / "votes.parquet").to_pylist()
    assert [json.loads(line) for line in (tmp_path / "votes.jsonl").read_text().splitlines()] == rows
    assert gzip.decompress((tmp_path / "votes.jsonl.gz").read_bytes()) == (tmp_path / "votes.jsonl").read_bytes()
    with (tmp_path / "votes.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [json.loads(row["prompt"]) for row in table] == [row["prompt"] for row in rows]
    assert [row["winner"] for row in table] == [row["winner"] for row in rows]


def test_the_command_writes_and_sums_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--votes", "3000", "--val", "500", "--models", "6", "--topics", "3", "--seed", "1"]
    files = [
        "--output",
        f"{tmp_path}/a.parquet",
        "--val-output",
        f"{tmp_path}/b.parquet",
        "--truth",
        f"{tmp_path}/truth",
    ]
    main([*flags, *files])
    text = capsys.readouterr().out
    for line in ("gap to close", "Bayes optimum", "single leaderboard", "hidden", "outcomes"):
        assert line in text
    first = (tmp_path / "a.parquet").read_bytes()
    main([*flags, *files, "--quiet"])
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a.parquet").read_bytes() == first


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--votes 0", "votes: must be at least 1"),
        ("--models 1", "models: 1 asked for; at least 2"),
        ("--topics 1", "topics: 1 asked for; at least 2"),
        ("--languages 9", "languages: 9 asked for; between 1 and 5"),
        ("--effect nan", "effect: must be at least 0"),
        ("--growth 0", "growth: must be more than 0"),
        ("--val 10", "--val and --val-output go together"),
    ],
)
def test_a_wrong_flag_gets_one_clear_line(flags: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        main([*flags.split(), "--output", str(tmp_path / "votes.parquet")])
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_ending_or_an_unreadable_truth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind of file"):
        main(["--output", str(tmp_path / "votes.xlsx")])
    with pytest.raises(ConfigError, match="describes no arena"):
        load_arena(tmp_path)


def spoken(sentences: bool) -> Arena:
    return simulate(
        SimulationConfig(votes=400, models=6, topics=4, languages=1, effect=1.5, seed=5, sentences=sentences)
    )


def test_sentences_say_what_the_plain_words_say() -> None:
    """The same votes and truth, and in each prompt the same nouns; a person can read it."""
    plain, readable = (next(spoken(flag).chunks()) for flag in (False, True))
    np.testing.assert_array_equal(plain.truth.coefs, readable.truth.coefs)
    np.testing.assert_array_equal(plain.winner, readable.winner)
    before, after = (spoken(flag).texts(chunk).to_pylist() for flag, chunk in ((False, plain), (True, readable)))
    vocabulary = build_vocabulary(4, 1)
    nouns = set(vocabulary.words[vocabulary.topic_start :])
    for words, sentences in zip(before, after, strict=True):
        assert len(words) == len(sentences)
        for turn, sentence in zip(words, sentences, strict=True):
            assert re.fullmatch(r"[A-Z][a-z]+( [a-z]+|, [a-z]+)+\.", sentence), sentence
            assert set(turn.split()) & nouns == set(re.findall(r"\w+", sentence.lower())) & nouns


def test_sentences_are_english() -> None:
    with pytest.raises(ConfigError, match="sentences: are English; choose 1 language, not 5"):
        SimulationConfig(sentences=True)
