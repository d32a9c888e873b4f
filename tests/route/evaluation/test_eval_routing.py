"""A P2L made of graded answers, and the command that measures it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.common.report.reports import report_page
from p2l.inference import P2L
from p2l.metrics import Interval
from p2l.model.scratch import make_transformer
from route.evaluation.command import main
from route.evaluation.cost_curves import Worth, worth_on
from route.evaluation.features import Encoder, Form, Words, votes_between
from route.evaluation.gaussian import held_out
from route.evaluation.groups import PARTITIONS, Reader, categories_of, clusters_of
from route.evaluation.measuring import across, explained_share, within
from route.evaluation.policies import Setup, category_scores, clusters, learn, nearest, nearest_scores
from route.evaluation.report import routing_report, routing_text, write_results
from route.evaluation.table import parts_of
from route.evaluation.training import Given, best_groups, fit_graded, known_models, save, train, width_of_ties
from route.routing.optimizers import grounded_scores
from tests.p2l.evaluation.evaluation_results import EVIL
from tests.p2l.evaluation.test_evaluation_report import Page
from tests.route.evaluation.routing_tables import answers, known_table, random_table


def test_known_coefficients_are_found_and_a_strong_prior_leaves_mean_scores() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((4000, 3))
    features -= features.mean(axis=0)
    weights, bias = rng.standard_normal((2, 3)), np.array([0.5, -0.5])
    scores = grounded_scores(features @ weights.T + bias)  # fractional scores: the chances themselves
    fit = fit_graded(features, scores, 1e-6)
    np.testing.assert_allclose(fit.weights, weights, atol=5e-3)
    np.testing.assert_allclose(fit.bias, bias, atol=5e-3)
    stiff = fit_graded(features, scores, 1e9)
    np.testing.assert_allclose(grounded_scores(stiff.coefs(features)), np.tile(scores.mean(0), (4000, 1)), atol=1e-3)


def test_means_of_categories_and_neighbours_are_shrunk() -> None:
    scores = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(
        category_scores(scores, list("xxy"), ["x", "new"], 0.0), [[1.0, 0.0], scores.mean(axis=0)]
    )
    np.testing.assert_allclose(category_scores(scores, list("xxy"), ["y"], 1.0), [[1 / 3, 2 / 3]])
    near = nearest(np.eye(3), np.array([[0.1, 0.2, 1.0]]), 99)
    assert near.rows.tolist() == [[2, 1, 0]]
    np.testing.assert_allclose(nearest_scores(scores, near, 1, 0.0), [[0.0, 1.0]])
    np.testing.assert_allclose(nearest_scores(scores, near, 99, 0.0), [scores.mean(axis=0)])


def test_explained_share_is_of_what_is_left_after_means_of_model_and_prompt() -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal((200, 4))
    own -= own.mean(axis=0) + own.mean(axis=1, keepdims=True) - own.mean()
    level = rng.standard_normal((200, 1)) + np.arange(4.0)
    counts = np.ones((2, 200))
    assert explained_share(own + 3.0 * level, own + level, counts).estimate == pytest.approx(1.0)
    assert explained_share(level, own + level, counts).estimate == pytest.approx(0.0)
    assert explained_share(0.5 * own, own + level, counts).estimate == pytest.approx(0.75)
    assert explained_share(-own, own, counts).estimate == pytest.approx(-3.0)


def test_clusters_are_of_directions_and_their_means_are_shrunk() -> None:
    points = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
    own, others = clusters(points, np.array([[9.0, 1.0], [0.0, 0.5]]), 2)
    assert own[0] == own[1] == others[0] != own[2] == own[3] == others[1]
    assert len(set(clusters(np.ones((5, 2)), np.zeros((1, 2)))[0])) == 1  # no more clusters than directions


def test_the_router_learns_who_can_do_what() -> None:
    results, _ = within(known_table(200), Setup("words"), share=0.3, folds=1, seed=0)
    lines = results.policies
    assert lines["p2l"].accuracy.estimate > 0.97
    assert lines["category"].accuracy.estimate == pytest.approx(1.0)
    assert lines["clusters"].accuracy.estimate > 0.9
    area = {name: line.area.estimate for name, line in lines.items() if line.area is not None}
    assert area["single"] < area["p2l"] <= area["category"] + 1e-9
    shares = {name: line.explained for name, line in lines.items()}
    assert shares["random"] is None
    assert shares["single"].estimate == pytest.approx(0.0, abs=1e-9)
    assert shares["category"].estimate > 0.9
    assert shares["category"].lower <= shares["category"].estimate <= shares["category"].upper
    assert lines["single"].gains["area"].lower > 0.1
    assert lines["cheapest"].accuracy.estimate == pytest.approx(results.model_points["small"][1])


def test_where_prompts_say_nothing_the_router_does_as_the_best_single_model() -> None:
    table = random_table(120)
    results, _ = within(table, Setup("words"), share=0.4, folds=2, seed=0)
    assert results.questions == 120
    assert results.policies["single"].gains["area"].upper >= 0.0


def test_one_price_has_accuracy_alone_and_another_table_is_out_of_distribution() -> None:
    table = known_table(80)
    flat = replace(table, costs=np.ones_like(table.costs), one_price=True)
    first, second = flat.take(np.arange(60)), flat.take(np.arange(20, 80))
    results, _ = across(first, second, Setup("words"), seed=0)
    assert results.questions == 20
    assert results.policies["p2l"].area is None
    with pytest.raises(InputError, match="every prompt occurs in"):
        across(flat, first, Setup("words"), seed=0)
    with pytest.raises(InputError, match="no prompt of 80 is on the"):
        within(replace(flat, prompts=("same",) * 80), Setup("words"), share=0.5, folds=1, seed=0)


def test_of_equally_good_models_the_cheapest_is_the_best_single_one() -> None:
    table = known_table(40)
    table = replace(table, scores=np.full_like(table.scores, 0.5))
    results, outcome = within(table, Setup("words", on_average=True), share=0.4, folds=1, seed=0)
    assert outcome.settings["single"] == "best of all: small"
    for name in ("p2l", "single", "random"):
        ratio = results.policies[name].cost_ratio
        assert ratio is not None
        assert tuple(ratio[:2]) == pytest.approx((1.0, 1.0))  # not 1/4, nor never


@pytest.mark.parametrize("questions", [1, 2, 8])
def test_the_fewest_questions_are_enough_to_train_on(questions: int) -> None:
    table = known_table(20)
    few = table.take(np.arange(questions))
    learned = learn(few, table, Setup("words", on_average=True), worth_on(few, on_average=True))
    assert learned.expected.shape == table.scores.shape
    assert np.isfinite(learned.expected).all()


@pytest.mark.parametrize("questions", [3, 60])
def test_prompts_that_share_no_word_are_told_in_words_of_a_table_of_scores(tmp_path: Path, questions: int) -> None:
    rows = answers(questions)
    rows["prompt"] = rows["question_id"].str.translate(str.maketrans("0123456789", "abcdefghij"))
    files = [str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]
    rows.to_parquet(files[0])
    answers(8).to_parquet(files[1])
    with pytest.raises(InputError) as caught:
        main(["--train", files[0], "--test", files[1], "--recipe", "words", "--no-figure", "--quiet"])
    told = f"no word is in 3 of the {questions} training prompts; bring a table of scores with answers to more prompts"
    assert str(caught.value) == told


def tiny_encoder(folder: Path) -> Encoder:
    prompts = [[prompt] for prompt in known_table().prompts]
    sizes = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32}
    make_transformer(folder, prompts, model_type="bert", seed=0, max_positions=64, **sizes)  # type: ignore[arg-type]
    return Encoder(folder, folder.parent / "cache", max_tokens=64)


@pytest.mark.parametrize(
    ("names", "bases"),
    [
        (("encoder", "words", "form", "clusters"), ("encoder",)),
        (("encoder", "words", "form", "clusters"), ("encoder", "words", "form")),
        (("words", "form", "clusters"), ("words", "form")),
        (("encoder", "words", "form", "categories"), ("encoder", "words", "form")),
        (("encoder", "words", "categories"), ("encoder", "words")),
    ],
)
def test_the_saved_folder_says_what_the_fit_does(
    tmp_path: Path, names: tuple[str, ...], bases: tuple[str, ...]
) -> None:
    table = known_table()
    encoder, words = tiny_encoder(tmp_path / "encoder"), Words.of(table.prompts, rank=8)
    parts: dict[str, Encoder | Words | Form] = {"encoder": encoder, "words": words, "form": Form.of(table.prompts)}
    backbones: dict[str, Reader] = {name: parts[name] for name in names if name in parts}
    states = {name: backbone.states(table.prompts) for name, backbone in backbones.items()}
    if "clusters" in names:
        groups = clusters_of({name: parts[name] for name in bases}, states, table.prompts, 8)
        backbones["groups"], states["groups"] = groups, groups.shares(states)
        np.testing.assert_allclose(groups.states(table.prompts), states["groups"])
    if "categories" in names:
        readers = {name: parts[name] for name in bases}
        backbones["groups"], states["groups"] = categories_of(
            readers, states, table.categories, parts_of(table.prompts)
        )
    trained = train(table, states, worth_on(table))
    save(trained, backbones, width_of_ties(table.scores), tmp_path / "p2l")
    said = P2L.from_pretrained(tmp_path / "p2l", device="cpu")
    assert said.likelihood.name == "grk"
    assert said.model.record.model_type == "reader"
    read = {name: backbone.states(table.prompts) for name, backbone in backbones.items()}
    np.testing.assert_allclose(said.predict(list(table.prompts)).coefs, trained.coefs(read), atol=5e-3)
    assert known_models(tmp_path / "p2l", table) == table.models
    again = Encoder(encoder.folder, encoder.cache, max_tokens=64).states(table.prompts)  # from the cache
    np.testing.assert_allclose(again, encoder.states(table.prompts), atol=1e-6)
    with pytest.raises(InputError, match=r"exists; choose another"):
        save(trained, backbones, 0.0, tmp_path / "p2l")
    with pytest.raises(InputError, match="knows 0 of the table's 5 models"):
        known_models(tmp_path / "p2l", random_table())


def test_strange_prompts_get_the_mean_scores_and_the_saved_folder_says_so_too(tmp_path: Path) -> None:
    table = known_table(200)
    strange = replace(
        table, prompts=tuple("zyx wvu " * (1 + number) for number in range(200)), scores=1.0 - table.scores
    )
    learned = learn(table, strange, Setup(recipe="words"), worth_on(table))
    np.testing.assert_allclose(learned.expected, np.tile(table.scores.mean(axis=0), (200, 1)), atol=2e-3)
    assert learned.trained is not None
    assert learned.backbones is not None
    save(learned.trained, learned.backbones, width_of_ties(table.scores), tmp_path / "p2l")
    np.testing.assert_allclose(Given(tmp_path / "p2l").expected(strange), learned.expected, atol=1e-4)
    known = learn(table, table, Setup(recipe="words"), worth_on(table))
    np.testing.assert_allclose(Given(tmp_path / "p2l").expected(table), known.expected, atol=1e-3)
    assert known.expected.std(axis=0).max() > 0.05


def test_answers_are_in_one_vote_at_most() -> None:
    scores = np.random.default_rng(0).choice([0.0, 0.3, 1.0], (50, 5))
    prompt, labels = votes_between(scores, np.random.default_rng(1))
    assert len(prompt) == 100
    winner, loser, tie = labels.T
    taken = [*zip(prompt, winner, strict=True), *zip(prompt, loser, strict=True)]
    assert len(set(taken)) == len(taken)
    assert (scores[prompt, winner] >= scores[prompt, loser]).all()
    assert set(scores[prompt, winner][tie == 1]) == {1.0}
    assert set(scores[prompt, winner][tie == 2]) <= {0.0, 0.3}
    assert (scores[prompt, winner] > scores[prompt, loser])[tie == 0].all()


def test_shares_of_clusters_add_up_to_one_for_each_partition() -> None:
    table = known_table()
    words = Words.of(table.prompts, rank=8)
    clusters = clusters_of({"words": words}, {"words": words.states(table.prompts)}, table.prompts, 8)
    shares = clusters.states(table.prompts).reshape(len(table.prompts), PARTITIONS, -1)
    np.testing.assert_allclose(shares.sum(axis=2), PARTITIONS**-0.5)
    assert (shares.max(axis=2) > 0.5 * PARTITIONS**-0.5).mean() > 0.5


def test_form_tells_who_can_do_what_words_alone_do_not() -> None:
    rng = np.random.default_rng(0)
    names = [chr(97 + one % 26) + "word" + chr(97 + one // 26) for one in range(60)]
    words, lined = rng.choice(names, (300, 12)), rng.random(300) < 0.5
    prompts = tuple(("\n" if new else " ").join(row) for row, new in zip(words, lined, strict=True))
    scores = np.stack([lined, ~lined], axis=1).astype(float)
    table = replace(known_table(300), prompts=prompts, scores=scores)
    readers = {"words": Words.of(prompts, rank=8), "form": Form.of(prompts)}
    states = {name: reader.states(prompts) for name, reader in readers.items()}

    def right(*names: str) -> float:
        bases = {name: readers[name] for name in names}
        shares = clusters_of(bases, states, prompts, 8).shares(states)
        told = held_out(shares, table.scores, parts_of(prompts))
        return float((told.argmax(axis=1) == table.scores.argmax(axis=1)).mean())

    assert right("words", "form") > 0.95
    assert right("words") < 0.7


def test_as_many_groups_are_taken_as_pay() -> None:
    table = known_table(200)
    rng = np.random.default_rng(0)
    noise = np.eye(40)[rng.integers(0, 40, 200)]
    kinds = np.eye(2)[(table.scores[:, 0] > 0.5).astype(int)]
    worth = worth_on(table)
    both = np.concatenate([kinds, noise], axis=1)
    assert best_groups([noise, kinds, both], table, worth, categories=False) == 1
    assert best_groups([kinds, kinds], table, worth, categories=False) == 0
    assert best_groups([noise, kinds, both], table, worth, categories=True) == 1  # categories that say nothing


def test_categories_give_way_only_to_clusters_that_are_better_beyond_noise() -> None:
    table = known_table(200)
    more = np.where(np.arange(200) % 2, 1.0, -1.0)  # on average nothing, with a standard error of 0.07
    for gain, taken in ((0.1, 0), (0.2, 1)):
        worths = iter([Worth(0.0, np.zeros(200)), Worth(gain, more)])
        shares = [np.eye(200)[:, :2]] * 2
        assert best_groups(shares, table, lambda _, found=worths: next(found), categories=True) == taken


def test_what_prompts_say_beyond_their_groups_is_read_where_budgets_are_averages(tmp_path: Path) -> None:
    """The category tells what the small model can do, and one word of each prompt what the large one can."""
    rng = np.random.default_rng(0)
    sums, hard = rng.random((2, 300)) < 0.5
    fillers = rng.choice([f"word{chr(97 + one)}" for one in range(20)], (300, 6))
    prompts = tuple(
        " ".join(["add" if is_sum else "write", *row, "briefly" if is_hard else "fully"])
        for is_sum, is_hard, row in zip(sums, hard, fillers, strict=True)
    )
    categories = tuple("sum" if is_sum else "poem" for is_sum in sums)
    scores = np.stack([~hard, sums], axis=1).astype(float)
    table = replace(known_table(300), prompts=prompts, categories=categories, scores=scores)
    readers = {"words": Words.of(prompts, rank=30), "form": Form.of(prompts)}
    states = {name: reader.states(prompts) for name, reader in readers.items()}
    groups, states["groups"] = categories_of(readers, states, categories, parts_of(prompts))
    worth = worth_on(table, on_average=True)
    assert train(table, states, worth).settings.startswith("reads 2 groups of prompts; ")
    trained = train(table, states, worth, beyond_groups=True)
    assert "features of words" in trained.settings
    save(trained, {**readers, "groups": groups}, width_of_ties(table.scores), tmp_path / "p2l")
    asked = ["add wordb wordc briefly", "add wordb wordc fully", "write wordb wordc fully"]
    large, small = grounded_scores(P2L.from_pretrained(tmp_path / "p2l").predict(asked).coefs.astype(float)).T
    assert large[0] < large[1]
    assert small[1] > small[2]


def test_categories_are_recognised_and_no_prompt_says_so_of_itself() -> None:
    table = known_table(200)
    readers = {"words": Words.of(table.prompts, rank=8)}
    states = {"words": readers["words"].states(table.prompts)}
    parts = parts_of(table.prompts)
    groups, shares = categories_of(readers, states, table.categories, parts)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    sums = np.array([name == "sum" for name in table.categories])
    assert ((shares[:, 1] > 0.5) == sums).all()
    assert groups.states(["add 7 and 1000", "write a poem on thing"]).argmax(axis=1).tolist() == [1, 0]
    drawn = np.random.default_rng(0).permutation(table.categories)
    _, held = categories_of(readers, states, drawn.tolist(), parts)
    assert (held.argmax(axis=1) == (drawn == "sum")).mean() < 0.65


def test_where_groups_say_nothing_the_prompts_do_not_tell_models_apart() -> None:
    table = random_table(200)
    states = {"groups": np.eye(8)[np.random.default_rng(1).integers(0, 8, 200)]}
    trained = train(table, states, worth_on(table))
    assert trained.settings == "reads 8 groups of prompts; none of the differences between models count"
    np.testing.assert_allclose(trained.expected(states), np.tile(table.scores.mean(axis=0), (200, 1)), atol=1e-3)


def test_the_command_measures_writes_and_takes_the_model_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.parquet"
    answers(100).to_parquet(file)
    saved = ["--save-model", str(tmp_path / "p2l"), "--output", str(tmp_path / "out"), "--no-figure"]
    encoder = ["--encoder", str(tiny_encoder(tmp_path / "encoder").folder)]
    page = tmp_path / "routing.html"
    saved += ["--report", str(page)]
    main(["--table", str(file), "--recipe", "words", "--share", "0.4", "--quiet", *encoder, *saved])
    shown = capsys.readouterr().out
    assert "score at equal cost" in shown
    assert shown.startswith("Routing pays: ")
    assert f"{tmp_path / 'out' / 'results.md'} has all columns" in shown
    assert "|" not in shown
    assert "| router on P2L |" in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    written = page.read_text(encoding="utf-8")
    assert "Routing pays: " in written
    assert "of what an oracle would gain" in written
    for mark in ("on scores.parquet", 'id="figure-1"', "<h2>Policies</h2>", "<h2>Metrics</h2>", "<h2>Calibration</h2>"):
        assert mark in written
    assert not Page(written).wrong
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    p2l = results["policies"]["p2l"]
    assert p2l["area"]["lower"] <= p2l["area"]["estimate"] <= p2l["area"]["upper"]
    assert results["policies"]["cheapest"]["cost_ratio"] is not None
    assert math.isclose(sum(results["calibration"]["all"]["mass"]), 1.0)
    assert results["budget"] == "request"
    assert "Budgets are spent on each request." in written
    assert "fewer than 30 answers are joined" in written
    average = ["--budget", "average", "--output", str(tmp_path / "average"), "--report", str(tmp_path / "average.html")]
    main(["--table", str(file), "--recipe", "words", "--share", "0.4", "--no-figure", "--quiet", *encoder, *average])
    assert "; budgets are averages over all requests" in capsys.readouterr().out
    assert json.loads((tmp_path / "average" / "results.json").read_text(encoding="utf-8"))["budget"] == "average"
    assert "Budgets are spent as averages over all requests." in (tmp_path / "average.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="--budget average needs costs; leave out --one-price"):
        main(["--table", str(file), "--one-price", "--budget", "average"])
    again = ["--output", str(tmp_path / "again"), "--no-figure", "--quiet", *encoder]
    main(["--table", str(file), "--model", str(tmp_path / "p2l"), "--share", "0.4", *again])
    loaded = json.loads((tmp_path / "again" / "results.json").read_text(encoding="utf-8"))
    assert loaded["policies"]["p2l"]["area"]["estimate"] == pytest.approx(p2l["area"]["estimate"], abs=1e-3)
    assert "% of the differences between models count" in loaded["policies"]["p2l"]["settings"][0]


def test_no_report_has_a_negative_zero_or_an_interval_of_never(tmp_path: Path) -> None:
    results, _ = within(known_table(40), Setup(recipe="words"), share=0.4, folds=1, seed=0)
    never, nothing = Interval(math.inf, math.inf, math.inf, 0.0), Interval(-1e-6, -2e-6, 3e-6, 0.0)
    random = results.policies["random"]
    gains = dict.fromkeys(random.gains, nothing)
    tied = replace(random, cost_ratio=never, explained=nothing, gains=gains)
    results = replace(results, policies={**results.policies, "random": tied}, notes=("left out: ant<b>",))
    write_results(results, tmp_path, has_figures=False)
    report = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert r"- left out: ant\<b\>" in report
    row = next(line for line in report.splitlines() if line.startswith("| random |"))
    assert "| never |" in row
    assert "| 0.0000 (0.0000 to 0.0000) | 0.0% (0.0% to 0.0%) |" in row
    shown = routing_text(results, None)
    line = next(line for line in shown.splitlines() if line.startswith("random"))
    assert line.endswith("  0.0 (0.0 to 0.0)")
    assert "note: left out: ant" in shown
    assert "--output DIR writes all columns" in shown
    assert "never to never" not in report_page(routing_report(results, "p2l", "scores"))


def test_the_page_of_one_price_has_bars_and_names_are_text() -> None:
    table = replace(random_table(60, 3), models=("ant", EVIL, "中文"), one_price=True)
    results, _ = within(table, Setup(recipe="words"), share=0.4, folds=1, seed=0)
    page = report_page(routing_report(results, EVIL, EVIL))
    assert "Mean score of each policy" in page
    assert "over all budgets" not in page
    assert "<script>alert" not in page
    assert not Page(page).wrong
    shown = routing_text(results, None)
    assert "score, with 95% interval" in shown
    assert "equal cost" not in shown.lower()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --table, or --train and --test"),
        (["--table", "a.csv", "--train", "b.csv", "--test", "c.csv"], "give --table, or --train and --test"),
        (["--train", "b.csv"], "--train and --test go together"),
        (["--table", "a.csv", "--prices", "p.yaml", "--one-price"], "--prices and --one-price exclude"),
        (["--table", "no.csv"], "no.csv: no such file"),
        (["--table", "a.csv", "--write", "router.yaml"], "--write and --router-config go together"),
        (["--table", "a.csv", "--model", "m", "--save-model", "n"], "leave out --model"),
        (["--table", "a.csv", "--report", "page.pdf"], "must be .html"),
    ],
)
def test_flags_that_do_not_go_together(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main(words)
