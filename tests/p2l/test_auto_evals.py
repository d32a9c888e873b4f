from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l import auto_evals
from p2l.auto_evals import build_parser, main
from p2l.common.errors import ConfigError, InputError, P2LError
from tests.p2l.evaluation.evaluation_helpers import (
    BATTLES,
    FEW,
    NAMES,
    as_checkpoint,
    rows,
    run_auto,
    write_json,
    write_lines,
)
from tests.p2l.worked_votes import COEFS, ETA, LABELS

TIES = {0: "model_a", 1: "tie", 2: "tie (bothbad)"}
SIMPLE = ("Loss", "BCELoss", "MSELoss", "Accuracy", "Tie_Loss", "Tie_Accuracy", "Tie_bb_Loss", "Tie_bb_Accuracy")
WORKED = {
    "bt": (0.7011, 0.7011, 0.2553, 0.6667, -1, -1, -1, -1),
    "bt_tie": (0.7486, 0.7011, 0.2526, 0.5833, -1, -1, -1, -1),
    "rk": (1.1014, 0.7011, 0.4104, 0.1667, 0.7016, 0.5, -1, -1),
    "rk-reparam": (1.2209, 0.7011, 0.4562, 0.1667, -1, -1, -1, -1),
    "bag": (1.5452, 0.7011, 0.5711, 0.3333, 0.8313, 0.5, 0.4532, 0.8333),
    "grk": (1.5452, 0.7011, 0.5711, 0.3333, 0.8313, 0.5, 0.4532, 0.8333),
}
SPREADS = (0.0875, 0.6689, 2.5, 1.6333, 0.7333, 0.7003)
FITTED = {
    "bt": ([0.5832, 0.0395, -0.6227], 0.6134),
    "bt-tie": ([0.4415, 0.0193, -0.4608], 0.6467),
    "rk": ([0.4748, 0.0142, -0.4891], 1.0144),
    "rk-reparam": ([0.5206, 0.0338, -0.5544], 1.0133),
    "bag": ([1.9445, 1.4664, 0.9282], 1.1761),
}


def vote(names, label):
    winner, loser, tie = (int(part) for part in label)
    return {"model_a": names[winner], "model_b": names[loser], "winner": TIES[tie]}


def worked_rows(*, named=True):
    names = sorted(NAMES)
    answers = zip(COEFS.tolist(), ETA.tolist(), LABELS.tolist(), strict=True)
    return [
        {"prompt": f"p{n}", "betas": betas, "eta": eta, "labels": label} | (vote(names, label) if named else {})
        for n, (betas, eta, label) in enumerate(answers)
    ]


def battle_rows():
    return [vote(NAMES, label) for label, count in BATTLES.items() for _ in range(count)]


@pytest.mark.parametrize("likelihood", WORKED)
def test_worked_simple_metrics(tmp_path, likelihood):
    path = write_lines(tmp_path / "eval.jsonl", worked_rows())
    found = run_auto(tmp_path, "--eval_path", path, "--metrics_to_inc", "simple", likelihood=likelihood)
    values = found["models"]["p2l-all"]["simple_metrics"]
    assert tuple(values[name] for name in SIMPLE) == WORKED[likelihood]
    if likelihood != "bt":
        assert tuple(values[name] for name in auto_evals.SIMPLE_METRICS[8:]) == SPREADS


@pytest.mark.parametrize("likelihood", FITTED)
def test_worked_marginal_fit(tmp_path, likelihood):
    """The leaderboard is fitted without regularisation: its coefficients and loss are known to four decimals."""
    path = write_lines(tmp_path / "votes.jsonl", battle_rows())
    words = ("--eval_path", path, "--model_type", "marginal-gt", "--metrics_to_inc", "simple", "category")
    found = run_auto(tmp_path, *words, likelihood=likelihood)["models"]["marginal-gt-all"]
    coefs, loss = FITTED[likelihood]
    listed = dict(line.split(": ") for line in found["category_metrics"]["Leaderboard"]["ground-truth"])
    fitted = np.array([float(listed[name]) for name in NAMES[:3]])
    fitted -= 0.0 if likelihood == "bag" else fitted.mean()
    np.testing.assert_allclose(fitted, coefs, atol=1.5e-4)
    assert found["category_metrics"]["Aggr_Loss"] == {"ground-truth": loss, "model-aggr": loss}
    assert found["simple_metrics"]["Loss"] == loss
    assert found["category_metrics"]["Top-k-fraction"] == {"1": 1.0, "3": 1.0, "5": 1.0, "10": 1.0}


def test_labels_alone_are_positions_in_the_model_list(tmp_path):
    path = write_lines(tmp_path / "eval.jsonl", worked_rows(named=False))
    found = run_auto(tmp_path, "--eval_path", path, "--metrics_to_inc", "simple", "--categories", "all")
    assert found["models"]["p2l-all"]["simple_metrics"]["Loss"] == WORKED["bag"][0]


def test_every_input_gives_the_same(tmp_path):
    """JSON lines, a JSON array (whose coefficients follow the list of training), Parquet."""
    made = rows(160)
    shuffled = ["dog", "ant", "unseen", "cat", "bee"]
    order = [NAMES.index(name) if name in NAMES else 0 for name in shuffled]
    moved = as_checkpoint([row | {"betas": [row["betas"][place] for place in order]} for row in made])
    array = write_json(tmp_path / "checkpoint.json", moved)
    table = pa.Table.from_pylist([row | {"coefs": row["coefs"][0], "eta": row["eta"][0][0]} for row in moved])
    pq.write_table(table.drop_columns(["gamma"]), tmp_path / "checkpoint.parquet")
    lines = run_auto(tmp_path, "--eval_path", write_lines(tmp_path / "eval.jsonl", made), *FEW)
    assert list(lines["models"]) == [f"p2l-{name}" for name in auto_evals.CATEGORIES if name != "creative_writing"]
    write_json(tmp_path / "model_list.json", shuffled)
    for path in (array, tmp_path / "checkpoint.parquet"):
        assert run_auto(tmp_path, "--checkpoint_path", path, *FEW)["models"] == lines["models"]
    assert not any("last_hidden_state" in row for row in json.loads(array.read_text()))


def test_schema_of_the_output(tmp_path):
    path = write_lines(tmp_path / "eval.jsonl", rows(160))
    found = run_auto(tmp_path, "--eval-path", path, "--categories", "all", *FEW, "--seed", "3")
    assert list(found) == ["params", "models", "notes", "details"]
    assert found["params"]["eval_path"] == str(path)
    assert (found["params"]["seed"], found["params"]["output_file_name"]) == (3, "eval_metrics")
    blocks = found["models"]["p2l-all"]
    assert list(blocks) == ["simple_metrics", "category_metrics", "random_subsets", "aggr_scale"]
    assert tuple(blocks["simple_metrics"]) == auto_evals.SIMPLE_METRICS
    assert tuple(blocks["category_metrics"]) == auto_evals.CATEGORY_METRICS
    assert list(blocks["random_subsets"]) == ["50", "100"]
    assert tuple(blocks["aggr_scale"]["20"]) == auto_evals.SUBSET_METRICS
    details = found["details"]["p2l-all"]
    assert {"RPS", "Brier", "ECE"} <= set(details["metrics"])
    assert details["intervals"]["Loss"]["lower"] < details["metrics"]["Loss"] < details["intervals"]["Loss"]["upper"]
    assert details["skill"]["over"] == "validation"
    assert [one["model"] for one in details["by_model"]] == [
        one["model"] for one in details["leaderboards"]["ground-truth"]["models"]
    ]
    assert any("k = 4" in note for note in details["notes"])
    assert (details["votes"], details["prompts"]) == (160, 80)


def test_the_same_seed_gives_the_same_file(tmp_path):
    words = ("--eval_path", write_lines(tmp_path / "eval.jsonl", rows(120)), "--categories", "all", *FEW)
    first, again = (run_auto(tmp_path, *words, "--seed", "5") for _ in range(2))
    other = run_auto(tmp_path, *words, "--seed", "6")
    assert first == again
    assert first["models"]["p2l-all"]["aggr_scale"] != other["models"]["p2l-all"]["aggr_scale"]


@pytest.mark.parametrize("likelihood", ["bt", "bt-tie", "rk", "rk-reparam", "grk", "ba"])
def test_every_likelihood_and_model_type(tmp_path, likelihood):
    made = [row | {"gamma": 0.0} for row in rows(120)]
    path, train = (write_lines(tmp_path / name, made) for name in ("eval.jsonl", "train.jsonl"))
    ratings = [f"{name},full,{rating},False" for name, rating in zip(NAMES, (1100, 1050, 1000, 950), strict=True)]
    (tmp_path / "arena.csv").write_text("\n".join(["model_name,category,rating,style_control", *ratings]))
    words = ["--eval_path", path, "--train_path", train, "--arena_path", tmp_path / "arena.csv", *FEW]
    for model_type in auto_evals.MODEL_TYPES:
        found = run_auto(tmp_path, *words, "--categories", "all", "--model_type", model_type, likelihood=likelihood)
        blocks = found["models"][f"{model_type}-all"]
        assert all(0 <= value["L1-Dist-Prob"] < 0.5 for value in blocks["aggr_scale"].values())
        assert blocks["simple_metrics"]["Loss"] > 0
        if model_type in ("marginal", "marginal-gt"):
            assert blocks["category_metrics"]["Aggr_Loss"]["ground-truth"] == pytest.approx(
                blocks["category_metrics"]["Aggr_Loss"]["model-aggr"], abs=1e-4
            )
            assert blocks["aggr_scale"]["1"] == blocks["aggr_scale"]["20"]


def test_first_votes_alone(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", rows(200, seed=1))
    words = ("--eval_path", write_lines(tmp_path / "eval.jsonl", rows(120)), "--train_path", train)
    more = ("--categories", "all", "--train_checkpoints", "1", "4", "--checkpoint_size", "50")
    found = run_auto(tmp_path, *words, *more, "--model_type", "marginal", "--metrics_to_inc", "simple")["models"]
    assert list(found) == ["marginal-all", "marginal-all-checkpoint-1", "marginal-all-checkpoint-4"]
    assert found["marginal-all"] == found["marginal-all-checkpoint-4"]
    assert found["marginal-all"] != found["marginal-all-checkpoint-1"]


def printed(folder, capsys, *words):
    write_json(folder / "model_list.json", NAMES)
    fixed = ["--model_list_path", folder / "model_list.json", "--output_dir", folder / "out", "--loss_type", "grk"]
    main([str(word) for word in (*fixed, *words, *FEW)])
    return capsys.readouterr().out


def test_what_is_printed_says_what_leaderboards_are_compared_with(tmp_path, capsys):
    path = write_lines(tmp_path / "eval.jsonl", rows(120))
    assert "L1 to the votes' leaderboard" in printed(tmp_path, capsys, "--eval_path", path)
    ratings = [f"{name},full,{rating},False" for name, rating in zip(NAMES, (1100, 1050, 1000, 950), strict=True)]
    (tmp_path / "arena.csv").write_text("\n".join(["model_name,category,rating,style_control", *ratings]))
    arena = ("--ground_truth", "arena", "--arena_path", tmp_path / "arena.csv")
    assert "L1 to the arena's leaderboard" in printed(tmp_path, capsys, "--eval_path", path, *arena)


def test_what_is_printed_has_no_note_on_categories_and_metrics_that_nobody_asked_for(tmp_path, capsys):
    plain = [{key: row[key] for key in row if key not in ("language", "category_tag")} for row in rows(120)]
    path = write_lines(tmp_path / "eval.jsonl", plain)
    shown = printed(tmp_path, capsys, "--eval_path", path)
    assert "note:" not in shown
    assert "is_code" in shown  # the one default category that these votes have
    details = json.loads((tmp_path / "out" / "eval_metrics.json").read_text(encoding="utf-8"))["details"]
    assert details["p2l-math"]["problem"]
    assert any("top-k metrics take k = 4" in note for note in details["p2l-all"]["notes"])
    named = printed(tmp_path, capsys, "--eval_path", path, "--categories", "all", "model_a=zebra")
    assert "note: model_a=zebra left out: " in named


def test_ground_truth_of_an_arena_file(tmp_path):
    ratings = [f"{name},full,{rating},False" for name, rating in zip(NAMES, (1100, 1050, 1000, 950), strict=True)]
    styled = [f"{name},full,1,True" for name in NAMES]
    (tmp_path / "arena.csv").write_text("\n".join(["model_name,category,rating,style_control", *ratings, *styled]))
    words = ("--eval_path", write_lines(tmp_path / "eval.jsonl", rows(120)), "--aggr_scale_gt", "arena")
    found = run_auto(tmp_path, *words, "--arena_path", tmp_path / "arena.csv", *FEW)
    board = found["models"]["p2l-all"]["category_metrics"]["Leaderboard"]["ground-truth"]
    assert board[0] == f"ant: {100 * np.log(10) / 400:.4f}"
    assert "has no category 'chinese'" in found["details"]["p2l-language=Chinese"]["problem"]


def test_a_bad_output_does_not_stop_the_others(tmp_path):
    made = as_checkpoint(rows(60))
    good, bad = write_json(tmp_path / "good.json", made), write_json(tmp_path / "bad.json", [{"prompt": "x"}])
    with pytest.raises(P2LError, match=r"1 of 2 outputs.*bad\.json") as failure:
        run_auto(tmp_path, "--checkpoint_path", bad, good, "--metrics_to_inc", "simple", "--bootstrap", "0")
    assert not isinstance(failure.value, InputError)
    assert (tmp_path / "out" / "good.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--simple_metrics", "Los"], "did you mean 'Loss'"),
        (["--category_metrics", "Spearman"], "did you mean 'Spearman-lbs'"),
        (["--categories", "maths"], "did you mean 'math'"),
        (["--categories", "language"], "needs a value"),
        (["--aggr_scale_metrics", "Leaderboard"], "no mean over subsets"),
        (["--rand_subset_sizes", "1", "2"], "2 numbers and --rand-num-samples 4"),
        (["--output_file_name", "a", "b"], "1 --eval-path, 2 --output-file-name"),
        (["--output_file_name", "../a"], "--output-file-name ../a: no folders here"),
        (["--model_type", "marginal"], "--train-path"),
        (["--model_type", "arena"], "--arena-path"),
        (["--train_checkpoints", "1"], "--train-path"),
        (["--level", "2"], "not a coverage"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path, words, said):
    path = write_lines(tmp_path / "eval.jsonl", rows(40))
    with pytest.raises(InputError) as failure:
        run_auto(tmp_path, "--eval_path", path, *words)
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


def test_tie_likelihood_without_eta(tmp_path):
    made = [{key: value for key, value in row.items() if key != "eta"} for row in rows(40)]
    path = write_lines(tmp_path / "eval.jsonl", made)
    with pytest.raises(InputError, match="have no eta, which likelihood grk needs"):
        run_auto(tmp_path, "--eval_path", path)
    run_auto(tmp_path, "--eval_path", path, "--metrics_to_inc", "simple", likelihood="bt")


def test_model_list_of_another_model(tmp_path):
    write_json(tmp_path / "model_list.json", [*NAMES, "eel"])
    path = write_lines(tmp_path / "eval.jsonl", rows(40))
    with pytest.raises(InputError, match="4 numbers for 5 models"):
        run_auto(tmp_path, "--eval_path", path)


def test_a_list_that_contradicts_the_one_beside_the_output_is_refused(tmp_path):
    """A sorted list for coefficients in order of appearance gives numbers, and wrong ones."""
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "model_list.json", [NAMES[1], NAMES[0], *NAMES[2:]])
    made = write_lines(tmp_path / "run" / "eval_output.jsonl", rows(40))
    with pytest.raises(InputError, match=r"coefficient 1 is of 'bee' by .*model_list.json, and of 'ant' by"):
        run_auto(tmp_path, "--eval_path", made)
    # What p2l eval records of this very file counts more than a list of the folder.
    answers = write_json(tmp_path / "run" / "answers.json", as_checkpoint(rows(40)))
    write_json(tmp_path / "run" / "answers.info.json", {"model_list": NAMES})
    run_auto(tmp_path, "--checkpoint_path", answers, "--metrics_to_inc", "simple")
    write_json(tmp_path / "run" / "answers.info.json", {"model_list": NAMES[::-1]})
    with pytest.raises(InputError, match=r"coefficient 1 is of 'dog' by .*answers.info.json"):
        run_auto(tmp_path, "--checkpoint_path", answers)


def test_a_list_that_contradicts_the_labels_of_training_is_refused(tmp_path):
    """Without a list beside the file its labels still tell in which order its coefficients are."""
    made = [
        row | {"labels": [0, 1, 0], "model_a": NAMES[0], "model_b": NAMES[1], "winner": "model_a"} for row in rows(9)
    ]
    path = write_lines(tmp_path / "eval.jsonl", made)
    run_auto(tmp_path, "--eval_path", path, "--metrics_to_inc", "simple")
    write_json(tmp_path / "model_list.json", NAMES[::-1])
    with pytest.raises(
        InputError, match=r"line 1: labels place the two models at \[0, 1\], the model list at \[3, 2\]"
    ):
        run_auto(tmp_path, "--eval_path", path)


def test_no_intervals_are_announced_where_none_were_asked_for(tmp_path, capsys):
    path = write_lines(tmp_path / "eval.jsonl", rows(40))
    write_json(tmp_path / "model_list.json", NAMES)
    words = ["--eval_path", path, "--model_list_path", tmp_path / "model_list.json", "--output_dir", tmp_path / "out"]
    main([str(word) for word in (*words, "--metrics_to_inc", "simple", "--bootstrap", "0", "--loss_type", "grk")])
    assert "likelihood grk, no intervals" in capsys.readouterr().out


def test_votes_of_unknown_models_are_left_out_and_counted(tmp_path):
    made = rows(60)
    made[0]["model_a"] = "stranger"
    path = write_lines(tmp_path / "eval.jsonl", made)
    found = run_auto(tmp_path, "--eval_path", path, "--categories", "all", "--metrics_to_inc", "simple")
    assert found["details"]["p2l-all"]["votes"] == 59
    assert "stranger" in found["notes"][0]


def test_a_run_folder_is_enough(tmp_path):
    write_json(tmp_path / "model_list.json", NAMES)
    write_lines(tmp_path / "eval_output.jsonl", rows(60))
    words = ["--model_repo", tmp_path, "--output_dir", tmp_path / "out", "--loss_type", "grk", "--bootstrap", "0"]
    main([str(word) for word in (*words, "--metrics_to_inc", "simple", "--quiet")])
    assert (tmp_path / "out" / "eval_metrics.json").exists()


def test_the_likelihood_that_is_recorded_beside_an_output(tmp_path):
    """It is the default; to read answers as another likelihood is possible, and said."""
    path = write_json(tmp_path / "answers.json", as_checkpoint(rows(60)))
    write_json(tmp_path / "model_list.json", NAMES)
    write_json(tmp_path / "answers.info.json", {"loss_type": "bag"})
    words = ["--model_list_path", tmp_path / "model_list.json", "--checkpoint_path", path, "--output_dir", tmp_path]
    main([str(word) for word in (*words, "--metrics_to_inc", "simple", "--categories", "all", "--quiet")])
    found = json.loads((tmp_path / "eval_metrics.json").read_text())
    assert (found["params"]["loss_type"], found["notes"]) == ("grk", [])
    said = run_auto(tmp_path, "--checkpoint_path", path, "--metrics_to_inc", "simple", likelihood="rk")
    assert "read as rk" in said["notes"][0]


def test_names_of_models_and_of_an_output_folder_are_needed():
    with pytest.raises(ConfigError, match="names of the models"):
        main(["--eval_path", "x.jsonl", "--output_dir", "out"])
    with pytest.raises(InputError, match="where the results go"):
        main(["--eval_path", "x.jsonl", "--model_list_path", "list.json"])


def test_every_flag_may_be_written_with_underscores_as_published():
    flags = [flag for action in build_parser()._actions for flag in action.option_strings if flag.startswith("--")]
    assert [flag for flag in flags if "_" in flag] == []
    for flag in flags:
        assert build_parser()._with_hyphens(flag.replace("-", "_").replace("__", "--", 1)) == flag
    words = "--model_repo run --loss_type grk --output_dir out --report pages --aggr_scale_subset_metrics L1-Dist-Prob"
    parsed = build_parser().parse_args(words.split())
    hyphens = words.replace("_", "-").replace("--model-repo", "--model").replace("--report", "--html").split()
    assert build_parser().parse_args(hyphens) == parsed
    assert (parsed.model_repo, parsed.html, parsed.aggr_scale_metrics) == ("run", "pages", ["L1-Dist-Prob"])


@pytest.mark.parametrize("value", ["nan", "inf", ""])
def test_a_rating_that_is_no_number_is_named(tmp_path, value):
    votes, ratings = write_lines(tmp_path / "votes.jsonl", rows(40)), tmp_path / "arena.csv"
    ratings.write_text(f"model_name,category,rating\nant,full,1100\nbee,full,{value}\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 3: rating"):
        run_auto(tmp_path, "--eval_path", votes, "--arena_path", ratings, "--model_type", "arena")


def test_results_do_not_replace_the_model_list(tmp_path):
    votes, names = write_lines(tmp_path / "votes.jsonl", rows(40)), write_json(tmp_path / "model_list.json", NAMES)
    with pytest.raises(InputError, match="is an input too"):
        run_auto(tmp_path, "--eval_path", votes, "--output_dir", tmp_path, "--output_file_name", "model_list")
    assert json.loads(names.read_text(encoding="utf-8")) == NAMES


def test_a_report_that_cannot_be_written_stops_the_run_at_its_start(tmp_path):
    votes = write_lines(tmp_path / "votes.jsonl", rows(40))
    with pytest.raises(InputError, match="cannot be made"):
        run_auto(tmp_path, "--eval_path", votes, "--report", votes)
    assert not (tmp_path / "out" / "eval_metrics.json").exists()


def test_first_votes_asked_for_twice_count_once(tmp_path):
    votes = write_lines(tmp_path / "votes.jsonl", rows(60))
    words = ["--eval_path", votes, "--train_path", votes, "--categories", "all", "--checkpoint_size", "30", *FEW]
    once, twice = (run_auto(tmp_path, *words, "--train_checkpoints", *ks) for ks in (["1"], ["1", "1"]))
    assert once["details"] == twice["details"]


def test_an_empty_name_of_an_output_is_refused(tmp_path):
    votes = write_lines(tmp_path / "votes.jsonl", rows(40))
    with pytest.raises(InputError, match="a name is empty"):
        run_auto(tmp_path, "--eval_path", votes, "--output_file_name", "")


TRUTH = {"plain": 0.5, "wordy": 0.1, "old": -0.6}
LONGER = {"plain": 0.0, "wordy": 1.0, "old": 0.0}
"""Length of their answers; voters like it by 1.2 log-odds a unit."""


def rows_with_lengths(count: int) -> list[dict[str, object]]:
    """Rows of training whose forecasts are the truth, and whose votes the length of answers decides too."""
    rng, names = np.random.default_rng(4), list(TRUTH)
    out: list[dict[str, object]] = []
    for number in range(count):
        a, b = (int(code) for code in rng.permutation(3)[:2])
        lean = 1.2 * (LONGER[names[a]] - LONGER[names[b]] + 0.3 * rng.standard_normal())
        won = bool(rng.random() < 1 / (1 + np.exp(TRUTH[names[b]] - TRUTH[names[a]] - lean)))
        tie = number % 10 == 0
        from_a = tie or won
        label, half = ([a, b] if from_a else [b, a]), lean / 2 if from_a else -lean / 2
        winner = "tie" if tie else "model_a" if won else "model_b"
        row = {"prompt": f"p{number}", "model_a": names[a], "model_b": names[b], "winner": winner}
        out.append(row | {"labels": [*label, int(tie)], "betas": list(TRUTH.values()), "shift": [half, -half, 0.0]})
    return out


def evaluated_folder(folder, made, names=("length",)):
    """Evaluate the rows as those that a training run left in a folder."""
    folder.mkdir()
    write_json(folder / "model_list.json", list(TRUTH))
    if names:
        write_json(folder / "covariates.json", {"names": list(names)})
    path = write_lines(folder / "eval_output.jsonl", made)
    words = ["--model_list_path", folder / "model_list.json", "--eval_path", path, "--output_dir", folder / "out"]
    words += ["--loss_type", "bt-tie", "--categories", "all", "--metrics_to_inc", "simple", "category", "--quiet"]
    main([str(word) for word in words])
    return json.loads((folder / "out" / "eval_metrics.json").read_text())


def test_covariates_count_in_forecasts_and_are_left_out_of_the_leaderboard_of_the_votes(tmp_path):
    """By the votes alone the wordy model leads; beside what length adds to each vote the plain one does."""
    made = rows_with_lengths(3000)
    found = evaluated_folder(tmp_path / "known", made)
    bare_rows = [{name: value for name, value in row.items() if name != "shift"} for row in made]
    bare = evaluated_folder(tmp_path / "bare", bare_rows)
    boards = [one["details"]["p2l-all"]["leaderboards"]["ground-truth"]["models"] for one in (found, bare)]
    assert [row["model"] for row in boards[0]] == ["plain", "wordy", "old"]
    assert [row["model"] for row in boards[1]] == ["wordy", "plain", "old"]
    for row in boards[0]:
        assert row["coef_lower"] < row["coef"] < row["coef_upper"]
        assert row["coef"] == pytest.approx(TRUTH[row["model"]], abs=0.2)
    losses = [one["details"]["p2l-all"]["metrics"]["Loss"] for one in (found, bare)]
    chances = [1 / (1 + np.exp(-(TRUTH[r["model_a"]] - TRUTH[r["model_b"]] + _lean(r)))) for r in made]
    won = [0.5 if r["winner"] == "tie" else float(r["winner"] == "model_a") for r in made]
    by_hand = -np.mean([w * np.log(p) + (1 - w) * np.log1p(-p) for w, p in zip(won, chances, strict=True)])
    assert losses[0] == pytest.approx(by_hand, abs=1e-4)
    assert losses[1] > losses[0] + 0.02
    assert "(length) are counted in forecasts" in found["notes"][0]
    assert "(length), of which these rows have no values" in bare["notes"][0]


def _lean(row):
    """What length adds to the lead of the model shown first."""
    first = list(TRUTH).index(row["model_a"]) == row["labels"][0]
    return 2.0 * row["shift"][0 if first else 1]


def test_a_shift_of_two_numbers_is_named(tmp_path):
    made = rows_with_lengths(40)
    made[6]["shift"] = [0.1, 0.2]
    with pytest.raises(InputError, match=r"line 7: shift holds 2 numbers for 3 values"):
        evaluated_folder(tmp_path / "short", made)
