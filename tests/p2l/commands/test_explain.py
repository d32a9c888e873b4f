"""Strengths and weaknesses: planted ones are found, noise is not, votes are asked, output can be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from p2l.commands.explain import main
from p2l.common.errors import ConfigError, InputError
from p2l.common.report.images import draw
from p2l.insight import Observed, Rules, explain
from p2l.insight.answers import read_answers, with_votes
from p2l.insight.explain_report import explanation_figure, explanation_report, explanation_text
from p2l.insight.kept_boards import VotesOnPrompts
from p2l.insight.terms import count_terms, explained, fewest, learn_places, terms_of, typical_terms
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.likelihood import get
from p2l.model.kept_votes import KeptVotes
from p2l.simulation.arena import simulate
from p2l.simulation.config import SimulationConfig
from tests.conftest import write_votes
from tests.p2l.eval_helpers import make_model

TOPICS = {"sql": "table join index query", "poetry": "verse rhyme sonnet stanza", "法律": "合同条款 法院判决 侵权责任"}
MODELS = ["ant", "bee", "cat", "dog", "elk"]
PLANTED = {("bee", "sql"): 1.0, ("cat", "poetry"): -0.8, ("dog", "法律"): 0.6}


def arena(count: int = 600, *, noise: float = 0.1, seed: int = 0) -> tuple[np.ndarray, list[list[str]], list[str]]:
    """Coefficients with planted strengths, prompts that show their topic by their words, and the topics."""
    rng = np.random.default_rng(seed)
    topics = [list(TOPICS)[one] for one in rng.integers(3, size=count)]
    coefs = np.linspace(0.5, -0.5, 5) + noise * rng.normal(size=(count, 5))
    for row, topic in enumerate(topics):
        for (model, planted), change in PLANTED.items():
            coefs[row, MODELS.index(model)] += change * (planted == topic)
    texts = [[f"please the of {' '.join(rng.choice(TOPICS[t].split(), 3))} {row}"] for row, t in enumerate(topics)]
    return coefs, texts, topics


@pytest.fixture(scope="module")
def made():
    coefs, texts, _ = arena()
    return explain(coefs, MODELS, likelihood="bt", texts=texts)


def cluster_of(made: Any, word: str) -> str:
    return next(one.name for one in made.clusters if word in one.terms)


def test_planted_strengths_are_found_with_their_sizes(made):
    _, _, topics = arena()
    assert len(made.clusters) == 3
    for (model, topic), change in PLANTED.items():
        word = {"sql": "join", "poetry": "rhyme", "法律": "合同"}[topic]
        cell = next(cell for cell in made.of(model) if cell.cluster == cluster_of(made, word))
        assert cell.verdict == ("better" if change > 0 else "worse")
        share = topics.count(topic) / len(topics)
        # Against the mean of five models, and against the model's own mean over all prompts.
        whole = {one: sum(c for (_, other), c in PLANTED.items() if other == one) / 5 for one in TOPICS}
        mean = sum(whole[one] * topics.count(one) / len(topics) for one in TOPICS)
        expected = POINTS_PER_LOGIT * (change * (1 - share) - (whole[topic] - mean))
        assert cell.lower - 10 < expected < cell.upper + 10
    assert {cell.model for cell in made.found} >= {"bee", "cat", "dog"}


def kept_votes(topics: list[str], coefs: np.ndarray, count: int) -> VotesOnPrompts:
    """Votes on prompts of these topics, whose truth are the coefficients; places tell topics, not without error."""
    rng = np.random.default_rng(7)
    numbers = np.array([list(TOPICS).index(topic) for topic in topics])
    asked = np.eye(3)[numbers] + 0.1 * rng.normal(size=(len(numbers), 3))
    rows = rng.integers(len(numbers), size=count)
    pairs = np.argsort(rng.random((count, len(MODELS))), axis=1)[:, :2]
    odds = coefs[rows, pairs[:, 0]] - coefs[rows, pairs[:, 1]]
    ordered = np.where((rng.random(count) < 1 / (1 + np.exp(-odds)))[:, None], pairs, pairs[:, ::-1])
    labels = np.column_stack([ordered, np.zeros(count, dtype=np.int64)])
    kept = KeptVotes.of(
        MODELS, list(range(count)), np.eye(3)[numbers[rows]] + 0.1 * rng.normal(size=(count, 3)),
        np.arange(count), labels, np.ones(count), count,
    )  # fmt: skip
    return VotesOnPrompts(kept, get("bt"), np.arange(len(numbers), dtype=np.uint64) + 10**6, kept.place(asked))


def test_votes_tell_strengths_in_full_where_the_model_is_shrunk():
    truth, texts, topics = arena(noise=0.0)
    shrunk = truth.mean(axis=0) + 0.2 * (truth - truth.mean(axis=0))
    votes = kept_votes(topics, truth, 9000)
    by_predictions = explain(shrunk, MODELS, likelihood="bt", texts=texts)
    made = explain(shrunk, MODELS, likelihood="bt", texts=texts, votes=votes)
    whole = truth - truth.mean(axis=1, keepdims=True)
    within = []
    for (model, topic), change in PLANTED.items():
        word = {"sql": "join", "poetry": "rhyme", "法律": "合同"}[topic]
        cells = [next(cell for cell in one.of(model) if cell.cluster == cluster_of(one, word))
                 for one in (by_predictions, made)]  # fmt: skip
        rows = np.array([other == topic for other in topics])
        place = MODELS.index(model)
        true = POINTS_PER_LOGIT * (whole[rows, place].mean() - whole[:, place].mean())
        assert abs(cells[0].change) < 0.3 * abs(true)
        within.append(cells[1].lower < true < cells[1].upper)
        assert cells[1].verdict == ("better" if change > 0 else "worse")
        assert abs(cells[1].change - true) < 40
    assert sum(within) >= 2
    assert "9,000 of the 9,000 votes" in " ".join(made.notes)
    assert "which are shrunk" in " ".join(by_predictions.notes)


def test_a_model_without_votes_in_a_cluster_is_not_judged_there():
    truth, texts, topics = arena()
    votes = kept_votes(topics, truth, 3000)
    absent = (votes.kept.labels[:, :2] == MODELS.index("elk")).any(axis=1)
    kept = replace(votes.kept, **{name: getattr(votes.kept, name)[~absent] for name in ("prompt", "labels", "weights")})
    made = explain(truth, MODELS, likelihood="bt", texts=texts, votes=replace(votes, kept=kept))
    assert not any(cell.verdict for cell in made.of("elk"))
    assert all(cell.upper - cell.lower > 1000 for cell in made.of("elk"))
    assert any(cell.verdict for cell in made.of("bee"))


def test_votes_are_measured_beside_the_covariates_of_the_model():
    """Votes on one topic come from a set where the longer answer wins, and one model writes those."""
    truth, texts, topics = arena(noise=0.0)
    leans = np.zeros_like(truth)
    leans[np.array(topics) == "sql", MODELS.index("ant")] = 1.5
    votes = kept_votes(topics, truth + leans, 9000)
    inputs = votes.kept.places @ votes.kept.directions.T + votes.kept.centre
    is_sql = inputs.argmax(axis=1) == list(TOPICS).index("sql")
    shift = np.zeros((len(votes.kept), 3))
    for side in (0, 1):
        shift[:, side] = 1.5 * (is_sql & (votes.kept.labels[:, side] == MODELS.index("ant")))
    beside = replace(votes, kept=replace(votes.kept, shift=shift))
    bare, controlled = (
        explain(truth, MODELS, likelihood="bt", texts=texts, votes=kept, covariates=["length"])
        for kept in (votes, beside)
    )
    changes = [
        next(cell for cell in one.of("ant") if cell.cluster == cluster_of(one, "join")).change
        for one in (bare, controlled)
    ]
    whole = truth - truth.mean(axis=1, keepdims=True)
    rows = np.array([topic == "sql" for topic in topics])
    true = POINTS_PER_LOGIT * (whole[rows, 0].mean() - whole[:, 0].mean())
    assert changes[0] > true + 100
    assert abs(changes[1] - true) < 40
    assert "not controlled for them" in bare.notes[-1]
    assert "(length)" in controlled.notes[-1]
    assert "beside the effects of covariates" in controlled.notes[-1]
    by_predictions = explain(truth, MODELS, likelihood="bt", texts=texts, covariates=["length"])
    assert "of which a prompt has no value" in json.dumps(by_predictions.to_dict()["notes"])


def test_words_that_are_everywhere_name_nothing(made):
    assert not {"please", "the", "of"} & {term for one in made.clusters for term in one.terms}


def test_a_function_word_names_no_cluster_though_it_is_in_every_prompt_of_one_and_of_no_other():
    texts = [["what was it about, as the sea rhymes"], ["join the tables of customers"]] * 20
    first, second = typical_terms(count_terms(texts), np.arange(40) % 2, 2)
    assert set(first) == {"sea", "rhymes"}
    assert set(second) == {"join", "tables", "customers"}


def test_a_change_that_rounds_to_zero_has_no_sign(made):
    cell = replace(
        made.found[0],
        change=-0.3,
        lower=-0.4,
        upper=0.2,
        observed=Observed(votes=30, rate=0.5, rate_elsewhere=0.5, change=-0.1, lower=-5.0, upper=5.0),
    )
    shown = replace(made, strengths=(cell,))
    row = next(line for line in explanation_text(shown).splitlines() if line.startswith(cell.model))
    assert row.endswith("0 (30 votes)")
    assert " 0 to 0 " in row
    assert "-0" not in row
    page = "".join(str(part) for part in explanation_report(shown, "model", "prompts").sections)
    assert "'−0'" not in page
    assert "'+0'" not in page


def test_the_true_topics_of_a_simulated_arena_are_found():
    config = SimulationConfig(votes=3000, models=10, topics=4, languages=1, effect=1.2, drift=0.0, seed=3)
    simulated = simulate(config)
    texts = [turns for chunk in simulated.chunks() for turns in simulated.texts(chunk).to_pylist()]
    truth = simulated.truth_of(np.arange(len(texts)))
    made = explain(truth.coefs, simulated.model_list, eta=truth.eta, texts=texts)
    examples = {topic: simulated.example_prompts(topic, 200) for topic in simulated.topics}
    overall = truth.coefs - truth.coefs.mean(axis=1, keepdims=True)
    right = total = 0
    for found in examples.values():
        place = made.names[int(np.bincount(made.places.place_texts(found.prompts)).argmax())]
        true = found.truth.coefs - found.truth.coefs.mean(axis=1, keepdims=True)
        change = dict(zip(simulated.model_list, true.mean(axis=0) - overall.mean(axis=0), strict=True))
        cells = [cell for cell in made.found if cell.cluster == place and abs(change[cell.model]) > 0.3]
        right += sum((cell.change > 0) == (change[cell.model] > 0) for cell in cells)
        total += len(cells)
    assert total >= 8
    assert right >= 0.9 * total


def test_noise_has_no_strengths_unless_it_is_measured_on_what_made_the_clusters():
    _, texts, _ = arena()
    noise = np.random.default_rng(7).normal(size=(600, 5))
    honest = explain(noise, MODELS, likelihood="bt", texts=texts)
    circular = explain(noise, MODELS, likelihood="bt", texts=texts, by="nearest")
    assert honest.found == []
    assert any("next to nothing" in note for note in honest.notes)
    assert len(circular.found) > 5
    assert any("how the clusters were made" in note for note in circular.notes)


def test_intervals_cover_the_truth():
    covered = []
    for seed in range(20):
        coefs, texts, _ = arena(300, noise=0.3, seed=seed)
        made = explain(coefs, MODELS, likelihood="bt", texts=texts, clusters=3, seed=seed)
        name = cluster_of(made, "rhyme")
        cell = next(cell for cell in made.of("elk") if cell.cluster == name)
        # elk has no strength of its own: its change is the echo of cat's and of the others' in the mean.
        echo = {topic: -sum(c for (_, other), c in PLANTED.items() if other == topic) / 5 for topic in TOPICS}
        expected = POINTS_PER_LOGIT * (echo["poetry"] - sum(echo.values()) / 3)
        covered.append(cell.lower - 3 <= expected <= cell.upper + 3)
    assert sum(covered) >= 17


def test_the_same_seed_gives_the_same_and_order_of_models_does_not_matter(made):
    coefs, texts, _ = arena()
    assert explain(coefs, MODELS, likelihood="bt", texts=texts) == made
    turned = explain(coefs[:, ::-1], MODELS[::-1], likelihood="bt", texts=texts)
    assert turned.models == made.models
    assert_allclose(
        [cell.change for name in MODELS for cell in turned.of(name)],
        [cell.change for name in MODELS for cell in made.of(name)],
        atol=1e-6,
    )


def test_a_prompt_counts_once_however_often_it_comes(made):
    coefs, texts, _ = arena()
    twice = explain(np.tile(coefs, (2, 1)), MODELS, likelihood="bt", texts=texts * 2)
    assert [(cell.prompts, cell.change) for cell in twice.strengths] == [
        (cell.prompts, cell.change) for cell in made.strengths
    ]


def test_embeddings_and_no_words_at_all():
    coefs, texts, topics = arena()
    embeddings = np.eye(3)[[list(TOPICS).index(topic) for topic in topics]] + 0.01
    found = explain(coefs, MODELS, likelihood="bt", texts=texts, embeddings=embeddings, by="nearest")
    assert len(found.clusters) == 3
    assert found.recovered == 1.0
    unnamed = explain(coefs, MODELS, likelihood="bt", clusters=3)
    assert {one.name for one in unnamed.clusters} == {"cluster 1", "cluster 2", "cluster 3"}
    with pytest.raises(InputError, match="need the prompts"):
        explain(coefs, MODELS, likelihood="bt", by="words")


def votes_of(topics: list[str], texts: list[list[str]], count: int) -> list[dict[str, Any]]:
    """Votes drawn from the planted coefficients."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(count):
        row = number % len(texts)
        a, b = rng.choice(5, size=2, replace=False)
        strength = np.linspace(0.5, -0.5, 5)
        for (model, topic), change in PLANTED.items():
            strength[MODELS.index(model)] += change * (topic == topics[row])
        won = rng.random() < 1 / (1 + np.exp(strength[b] - strength[a]))
        side = "model_a" if won else "model_b"
        rows.append({"prompt": texts[row], "model_a": MODELS[a], "model_b": MODELS[b], "winner": side})
    return rows


def test_votes_bear_out_what_is_true(made, tmp_path):
    _, texts, topics = arena(400, seed=9)
    path = write_votes(tmp_path / "votes.jsonl", votes_of(topics, texts, 4000))
    checked = with_votes(made, path)
    assert checked.agreement.votes == 4000
    assert checked.agreement.correlation > 0.8
    assert checked.agreement.same_sign >= 0.8 * checked.agreement.found
    cell = next(cell for cell in checked.of("bee") if cell.cluster == cluster_of(made, "join"))
    assert cell.observed.rate > cell.observed.rate_elsewhere
    assert cell.observed.lower < cell.observed.change < cell.observed.upper
    assert "points by the votes" in explanation_text(checked)


def test_votes_that_bear_out_are_fitted_beside_covariates_that_they_have(made, tmp_path):
    """Longer answers win, and one model writes them on one topic: that is no strength of the model."""
    _, texts, topics = arena(400, seed=9)
    rng, rows = np.random.default_rng(6), votes_of(topics, texts, 4000)
    for number, row in enumerate(rows):
        is_sql = topics[number % len(texts)] == "sql"
        longer = [(is_sql and row[side] == "ant") or rng.random() < 0.3 for side in ("model_a", "model_b")]
        row |= {f"length_{end}": 300 if is_longer else 100 for end, is_longer in zip("ab", longer, strict=True)}
        if longer[0] != longer[1] and rng.random() < 0.7:
            row["winner"] = "model_a" if longer[0] else "model_b"
    path = write_votes(tmp_path / "votes.jsonl", rows)
    bare, controlled = with_votes(made, path), with_votes(made, path, control=["length,side", "judge"])
    cells = [
        next(cell for cell in one.of("ant") if cell.cluster == cluster_of(made, "join")).observed
        for one in (bare, controlled)
    ]
    assert cells[0].lower > 30
    assert cells[1].upper < cells[0].lower
    assert cells[1].change < 0  # as others are better there
    assert "What votes show is fitted together with length, side." in controlled.notes
    assert "The votes have no values of judge: what they show is not controlled for that." in controlled.notes
    assert controlled.notes[-2:] == tuple(json.loads(json.dumps(controlled.to_dict()))["notes"][-2:])
    assert len(bare.notes) == len(made.notes)


def test_plain_data_is_json_without_nan(made):
    text = json.dumps(made.to_dict(), allow_nan=False)
    assert {cell["verdict"] for cell in json.loads(text)["strengths"]} == {"", "better", "worse"}


def test_pictures_of_many_models_and_of_one(made):
    many = explain(
        np.random.default_rng(0).normal(size=(300, 80)), [f"m{i} $x$" for i in range(80)], likelihood="bt",
        texts=arena(300)[1], by="nearest",
    )  # fmt: skip
    assert len(draw(explanation_figure(many)).axes[0].get_yticklabels()) == 60
    assert len(draw(explanation_figure(made, ["bee"])).axes[0].get_yticklabels()) == len(made.clusters)


@pytest.mark.parametrize(
    ("coefs", "models", "options", "said"),
    [
        (np.zeros((30, 2)), ["a", "b"], {}, "30 different prompts are too few to explain"),
        (np.zeros((1, 2)), ["a", "b"], {}, "1 different prompt is too few to explain; 80 are needed"),
        (np.zeros((100, 3)), ["a", "b"], {}, "shape"),
        (np.zeros((100, 1)), ["a"], {}, "at least two models"),
        (np.full((100, 2), np.nan), ["a", "b"], {}, "finite"),
        (np.zeros((100, 2)), ["a", "b"], {"likelihood": "grk"}, "needs eta"),
        (np.zeros((100, 2)), ["a", "b"], {"texts": [["x"]]}, "same prompts"),
        (np.zeros((100, 2)), ["a", "b"], {"clusters": 3}, "choose 2 to 2"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_line(coefs, models, options, said):
    with pytest.raises(InputError, match=said):
        explain(coefs, models, **{"likelihood": "bt", **options})


def test_models_that_are_the_same_everywhere_have_no_strengths():
    made = explain(
        np.tile([1.0, 0.0], (100, 1)), ["a", "b"], likelihood="bt", texts=[[f"word {i}"] for i in range(100)]
    )
    assert made.found == []
    assert "(as overall everywhere)" in explanation_text(made)


def test_terms_of_any_script():
    assert terms_of(["Proof of 17, isn't it?", "合同法"]) == {"proof", "of", "isn't", "it", "合同", "同法"}


@given(st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=2), max_size=12))
def test_any_text_can_be_counted_named_and_placed(texts):
    terms = count_terms(texts)
    cluster = np.arange(len(texts)) % 2
    assert terms.table.shape == (len(texts), len(terms.words))
    assert len(typical_terms(terms, cluster, 2)) == 2
    assert set(learn_places(terms, cluster, 2).place_texts(texts)) <= {0, 1}


def test_variance_between_clusters():
    values = np.array([[0.0], [0.1], [5.0], [5.1]] * 5)
    assert explained(values, np.array([0, 0, 1, 1] * 5)) > 0.99
    assert abs(explained(values, np.array([0, 1, 0, 1] * 5))) < 0.1
    assert fewest([2, 3, 4], [0.5, 0.79, 0.8]) == 3
    assert fewest([2, 3, 4], [-0.1, 0.001, 0.01]) == 2


def answers_file(folder: Path, kind: str) -> Path:
    coefs, texts, _ = arena(200)
    rows = [
        {"prompt": text, "coefs": [row.tolist()] if kind == "json" else row.tolist(), "vector": row[:2].tolist()}
        for row, text in zip(coefs, texts, strict=True)
    ]
    path = folder / f"answers.{kind}"
    if kind == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        pd.DataFrame(rows).to_parquet(path)
    (folder / "answers.info.json").write_text(json.dumps({"model_list": MODELS, "loss_type": "bt"}), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_the_command_reads_what_eval_wrote(kind, tmp_path, capsys):
    path = answers_file(tmp_path, kind)
    output, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ["--min-prompts", "10", "--quiet", "--output", str(output), "--plot", str(plot), "--embeddings", "vector"]
    main(["--answers", str(path), *flags])
    assert "typical words" in capsys.readouterr().out
    assert json.loads(output.read_text(encoding="utf-8"))["models"][0] == "bee"
    assert plot.stat().st_size


def test_the_command_asks_a_model(tmp_path, capsys):
    model = make_model(tmp_path / "model", names=MODELS)
    words = ["bees", "poem", "what", "plus"]
    prompts = write_votes(tmp_path / "prompts.jsonl", [{"prompt": f"{words[n % 4]} {n}"} for n in range(60)])
    flags = ["--min-prompts", "5", "--quiet", "--clusters", "2", "--embeddings", "last_hidden_state", "--models", "ant"]
    main(["--model", str(model), "--prompts", str(prompts), *flags, "--plot", str(tmp_path / "one.png")])
    assert "30 prompts measured" in capsys.readouterr().out
    write_votes(prompts, [{"prompt": "bees 1"}, {"prompt": None}])
    with pytest.raises(InputError, match=r"prompts\.jsonl: line 2: prompt is missing"):
        main(["--model", str(model), "--prompts", str(prompts), "--quiet"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "x"], "go together"),
        (["--answers", "x", "--prompts", "y"], "go together"),
        (["--answers", "x", "--limit", "3"], "--limit goes with --model"),
        (["--answers", "x", "--level", "2"], "between 0 and 1"),
        (["--answers", "x", "--clusters", "1"], "at least 2"),
        (["--answers", "none.json"], "no such file"),
    ],
)
def test_wrong_flags_are_one_line(flags, said):
    with pytest.raises(InputError, match=said):
        main(flags)


def test_files_that_lack_something_say_what(tmp_path):
    path = answers_file(tmp_path, "json")
    with pytest.raises(ConfigError, match="did you mean 'bee'"):
        main(["--answers", str(path), "--models", "been"])
    with pytest.raises(InputError, match="no column 'vectr'"):
        read_answers(str(path), embeddings="vectr")
    (tmp_path / "answers.info.json").unlink()
    with pytest.raises(InputError, match="names its models"):
        read_answers(str(path))
    (tmp_path / "model_list.json").write_text(json.dumps(MODELS), encoding="utf-8")
    with pytest.raises(InputError, match="give --likelihood"):
        read_answers(str(path))
    assert read_answers(str(path), likelihood="bt").models == MODELS
    path.write_text('[{"prompt": "x", "coefs": [[1.0, null, 0.0, 0.0, 0.0]]}]', encoding="utf-8")
    with pytest.raises(InputError, match="row 1 has coefficients that are not numbers"):
        read_answers(str(path), likelihood="bt")
    path.write_text('[{"prompt": "x"}]', encoding="utf-8")
    with pytest.raises(InputError, match="no 'coefs'"):
        read_answers(str(path), likelihood="bt")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"prompt": None}, "row 2: prompt must be text"),
        ({"prompt": [5]}, "row 2: prompt must be text"),
        ({"prompt": "\ud800"}, "row 2: prompt holds half of a surrogate pair"),
        ({"coefs": ["x"]}, "row 2: coefs must be a list of numbers"),
        ({"coefs": [[1.0], [1.0, 2.0]]}, "row 2: coefs must be a list of numbers"),
        ({"eta": "x"}, "row 2: eta must be a number"),
        ({"eta": [1, 2]}, "row 2: eta must be a number"),
        ({"vector": "x"}, "row 2: vector must be a list of numbers"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, broken, said):
    path, row = tmp_path / "answers.json", {"prompt": "x", "coefs": [[1.0, 0.0]], "eta": [[0.5]], "vector": [1.0]}
    path.write_text(json.dumps([row, row | broken]), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_answers(str(path), embeddings="vector")


def test_output_and_plot_are_different_files(tmp_path):
    path, both = answers_file(tmp_path, "json"), str(tmp_path / "both.svg")
    with pytest.raises(ConfigError, match="same file"):
        main(["--answers", str(path), "--output", both, "--plot", both])


def test_rules_decide_what_counts(made):
    coefs, texts, _ = arena()
    strict = explain(coefs, MODELS, likelihood="bt", texts=texts, rules=Rules(least_change=1000.0))
    assert strict.found == []
    assert len(strict.strengths) == len(made.strengths)
