"""`p2l leaderboard` as a user meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from p2l.commands.leaderboard import build_parser, main
from p2l.common.errors import InputError
from p2l.leaderboard import fit
from p2l.likelihood import get
from p2l.votes import WINNERS, encode_votes

MODELS = ["ant", "bee", "cat", "dog"]


def make_votes(number=600, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 4, number)
    b = (a + rng.integers(1, 4, number)) % 4
    strength = np.array([1.0, 0.4, -0.4, -1.0])
    won = np.where(rng.random(number) < 1 / (1 + np.exp(strength[b] - strength[a])), 0, 1)
    won = np.where(rng.random(number) < 0.2, rng.integers(2, 4, number), won)
    math = rng.random(number) < 0.3
    return pd.DataFrame(
        {
            "prompt": [f"prompt {index}" for index in range(number)],
            "model_a": np.array(MODELS)[a],
            "model_b": np.array(MODELS)[b],
            "winner": np.array(WINNERS)[won],
            "language": np.array(["English", "German", "Greek"])[np.minimum(rng.geometric(0.6, number) - 1, 2)],
            "is_code": rng.random(number) < 0.4,
            "tags": [["math", "long"] if flag else ["short"] for flag in math],
            "category_tag": [{"math_v0.1": {"math": bool(flag)}, "other": {"x": True}} for flag in math],
            "weight": rng.integers(0, 3, number).astype(float),
        }
    )


@pytest.fixture(scope="module")
def votes_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("votes") / "votes.parquet"
    make_votes().to_parquet(path)
    return path


def written(path, by="", group="all"):
    frame = pd.read_csv(path, keep_default_na=False)
    return frame[(frame["by"] == by) & (frame["group"] == group)]


def test_the_table_of_a_file_is_that_of_a_fit(votes_file, tmp_path, capsys):
    main(["--votes", str(votes_file), "--likelihood", "grk", "--output", str(tmp_path / "out.csv"), "--quiet"])
    votes = make_votes()
    codes = encode_votes(votes["model_a"], votes["model_b"], votes["winner"])
    board = fit(*codes[1:], models=codes.models, likelihood="grk")
    frame = written(tmp_path / "out.csv")
    np.testing.assert_allclose(frame["coef"], board.to_frame()["coef"], atol=1e-9)
    np.testing.assert_allclose(frame["coef_upper"], board.to_frame()["coef_upper"], atol=1e-9)
    printed = capsys.readouterr().out
    assert "600 votes, 4 models\n" in printed
    assert [
        line.split()[1] for line in printed.splitlines() if line.strip()[:1].isdigit() and "votes" not in line
    ] == list(frame["model"])


def test_votes_count_by_weight_only_when_asked(votes_file, tmp_path):
    out = tmp_path / "out.csv"
    main(["--votes", str(votes_file), "--weighted", "--output", str(out), "--quiet"])
    votes = make_votes()
    codes = encode_votes(votes["model_a"], votes["model_b"], votes["winner"])
    board = fit(*codes[1:], models=codes.models, weights=votes["weight"])
    np.testing.assert_allclose(written(out)["coef"], board.to_frame()["coef"], atol=1e-9)


@pytest.mark.parametrize(
    ("column", "groups"),
    [
        ("language", {"English", "German", "Greek"}),
        ("is_code", {"true", "false"}),
        ("tags", {"math", "long", "short"}),
        ("category_tag.math_v0.1.math", {"true", "false"}),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_groups_by_any_kind_of_column(column, groups, ending, tmp_path):
    votes, source, out = make_votes(200), tmp_path / f"votes.{ending}", tmp_path / "out.csv"
    if ending == "parquet":
        votes.to_parquet(source)
    elif ending == "jsonl":
        votes.to_json(source, orient="records", lines=True)
    else:
        if column == "tags":
            pytest.skip("a CSV file has no lists but prompts")
        votes["category_tag"] = votes["category_tag"].map(json.dumps)
        votes.drop(columns="tags").to_csv(source, index=False)
    main(["--votes", str(source), "--by", column, "--output", str(out), "--quiet"])
    frame = pd.read_csv(out, keep_default_na=False)
    assert {name.lower() for name in frame.loc[frame["by"] == column, "group"]} == {name.lower() for name in groups}


def test_a_group_without_shrinkage_is_the_fit_of_its_votes_and_small_groups_are_pulled(votes_file, tmp_path):
    free, held = tmp_path / "free.csv", tmp_path / "held.csv"
    main(["--votes", str(votes_file), "--by", "language", "--shrink", "inf", "--output", str(free), "--quiet"])
    main(["--votes", str(votes_file), "--by", "language", "--output", str(held), "--quiet"])
    votes = make_votes()
    votes = votes[votes["language"] == "Greek"]
    codes = encode_votes(votes["model_a"], votes["model_b"], votes["winner"])
    board = fit(*codes[1:], models=codes.models)
    own = written(free, "language", "Greek").set_index("model")["coef"]
    np.testing.assert_allclose(own[board.models], board.coefs, atol=1e-9)
    whole = written(held).set_index("model")["coef"]
    pulled = written(held, "language", "Greek").set_index("model")["coef"][whole.index]
    assert np.abs(pulled - whole).sum() < np.abs(own[whole.index] - whole).sum()


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_files_by_their_ending(ending, votes_file, tmp_path):
    out = tmp_path / f"out.{ending}"
    main(["--votes", str(votes_file), "--by", "is_code", "--intervals", "none", "--output", str(out), "--quiet"])
    if ending == "json":
        boards = json.loads(out.read_text())
        assert [board["group"] for board in boards] == ["all", "false", "true"]
        assert boards[0]["models"][0]["model"] == "ant"
        assert boards[0]["models"][0]["coef_upper"] is None
    else:
        frame = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
        assert len(frame) == 12
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_drawn(ending, votes_file, tmp_path):
    out = tmp_path / f"board.{ending}"
    main(["--votes", str(votes_file), "--by", "language", "--plot", str(out), "--top", "3", "--quiet"])
    start = out.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if ending == "png" else start.startswith(b"<?xml")


def test_top_and_min_votes_shorten_the_table(votes_file, capsys):
    main(["--votes", str(votes_file), "--top", "2", "--quiet"])
    assert "... and 2 more" in capsys.readouterr().out
    main(["--votes", str(votes_file), "--min-votes", "100000", "--quiet"])
    assert "ant" not in capsys.readouterr().out


def test_components_are_said_and_shown(tmp_path, capsys):
    votes = make_votes(300)
    apart = votes.assign(model_a=votes["model_a"] + "2", model_b=votes["model_b"] + "2")
    pd.concat([votes, apart]).to_parquet(tmp_path / "votes.parquet")
    main(["--votes", str(tmp_path / "votes.parquet"), "--quiet"])
    printed = capsys.readouterr().out
    assert "2 components" in printed
    assert "component" in printed.splitlines()[2]


def test_rows_that_are_no_votes_are_refused_or_dropped_and_counted(tmp_path, capsys):
    votes = make_votes(100)
    votes.loc[7, "winner"] = "nobody"
    source = tmp_path / "votes.parquet"
    votes.to_parquet(source)
    with pytest.raises(InputError, match=r"row 8.*--drop-bad"):
        main(["--votes", str(source), "--quiet"])
    main(["--votes", str(source), "--drop-bad", "--quiet"])
    assert "1 row that is not a vote was left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--votes", "{votes}", "--over", "month", "--level", "2"],
            "--level must lie between 0 and 1, such as 0.95, not 2.0",
        ),
        (["--votes", "{votes}", "--by", "languag"], r"no column 'languag' \(did you mean 'language'\?\)"),
        (["--votes", "{votes}", "--by", "category_tag.math_v0.1.maths"], "leads nowhere"),
        (["--votes", "{votes}", "--by", "category_tag"], "name one, as in 'category_tag"),
        (["--votes", "{votes}", "--likelihood", "elo"], "unknown likelihood"),
        (["--votes", "{votes}", "--output", "board.txt"], "ending"),
        (["--votes", "{votes}", "--format", "md"], "--format goes with --output"),
        (["--votes", "{votes}", "--plot", "board.doc"], "ending"),
        (["--votes", "{votes}", "--level", "95"], "--level must lie between 0 and 1"),
        (["--votes", "{votes}", "--shrink", "0"], "--shrink"),
        (["--votes", "missing.parquet"], "no such file"),
        (["--votes", "{votes}", "a prompt"], "goes with --model"),
        (["--model", "somewhere"], "needs a prompt"),
        (["--model", "somewhere", "a prompt", "--likelihood", "bt"], "of its own"),
        (["--model", "somewhere", "a prompt", "--by", "language"], "needs a file"),
    ],
)
def test_what_a_user_gets_wrong_is_said_in_one_line(flags, message, votes_file):
    with pytest.raises(InputError, match=message) as caught:
        main([flag.format(votes=votes_file) for flag in [*flags, "--quiet"]])
    assert "\n" not in str(caught.value)


def test_a_file_of_one_pair_that_only_ties_is_refused(tmp_path):
    path = tmp_path / "ties.csv"
    pd.DataFrame({"model_a": ["x"], "model_b": ["y"], "winner": ["tie"]}).to_csv(path, index=False)
    with pytest.raises(InputError, match="all are ties"):
        main(["--votes", str(path), "--likelihood", "bt", "--quiet"])


def test_the_exit_code_of_bad_input_is_two_and_no_torch_is_imported(tmp_path):
    code = (
        "import sys; from p2l.common.cli import run; from p2l.commands.leaderboard import main\n"
        "try:\n run(main, ['--votes', 'nothing.csv'])\n"
        "except SystemExit as end:\n assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules; raise\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: nothing.csv: no such file")


def test_every_flag_is_explained():
    for action in build_parser()._actions:
        assert action.help


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    pytest.importorskip("torch")
    from p2l.model.model import P2LModel
    from p2l.model.scratch import make_tfidf
    from p2l.model.tokenizer import load_tokenizer

    backbone, saved = (tmp_path_factory.mktemp(name) for name in ("backbone", "saved"))
    texts = [[f"prompt {index}"] for index in range(50)]
    make_tfidf(backbone, texts, hidden_size=4, ngrams=(1, 1), max_features=50, min_df=1)
    tokenizer = load_tokenizer(backbone, max_length=48)
    model = P2LModel.create(
        backbone, model_type="tfidf", head_type="rk", loss_type="grk", model_list=MODELS, tokenizer=tokenizer
    )
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


def test_a_model_says_the_leaderboard_of_each_prompt(model_folder, tmp_path, capsys):
    from p2l.inference import P2L

    out, model = tmp_path / "out.csv", P2L.from_pretrained(model_folder)
    prompts = ["prompt 7", "prompt 11"]
    main(["--model", str(model_folder), *prompts, "--output", str(out), "--quiet"])
    printed = capsys.readouterr().out
    assert "interval" not in printed
    for prompt in prompts:
        said = model.leaderboard(prompt).set_index("model")
        frame = written(out, "prompt", prompt).set_index("model")
        assert sorted(frame.index) == MODELS
        np.testing.assert_allclose(frame["coef"], said["coef"][frame.index], atol=1e-6)
        np.testing.assert_allclose(frame["win_rate"], said["win_rate"][frame.index], atol=1e-6)
        assert f'"{prompt}": 4 models\n' in printed


def test_a_model_says_the_leaderboards_of_a_file_of_prompts_and_its_groups(model_folder, votes_file, tmp_path, capsys):
    from p2l.inference import P2L
    from p2l.leaderboard import aggregate

    out = tmp_path / "out.csv"
    flags = ["--prompts", str(votes_file), "--by", "language", "--by", "tags", "--output", str(out), "--quiet"]
    main(["--model", str(model_folder), *flags])
    votes = make_votes()
    prompts = votes.loc[votes["language"] == "German", "prompt"].tolist()
    said = P2L.from_pretrained(model_folder).predict(prompts)
    board = aggregate(said.coefs, said.eta, models=MODELS)
    frame = written(out, "language", "German")
    np.testing.assert_allclose(frame["coef"], board.to_frame()["coef"], atol=1e-5)
    np.testing.assert_allclose(frame["coef_lower"], board.to_frame()["coef_lower"], atol=1e-5)
    assert f"language = German: {len(prompts)} prompts" in capsys.readouterr().out


def test_votes_of_one_cluster_are_one_observation(tmp_path):
    frame = pd.concat([make_votes(300)] * 2, ignore_index=True)  # each prompt twice, with the same outcome
    frame["turns"] = [[prompt, "and more"] for prompt in frame["prompt"]]
    frame.to_parquet(tmp_path / "votes.parquet")
    widths = {}
    for cluster in (None, "prompt", "turns"):
        flags = ["--votes", str(tmp_path / "votes.parquet"), "--by", "is_code", "--output", str(tmp_path / "out.csv")]
        main([*flags, "--quiet", *([] if cluster is None else ["--cluster", cluster])])
        table = written(tmp_path / "out.csv")
        widths[cluster] = (table["upper"] - table["lower"]).to_numpy()
    np.testing.assert_allclose(widths["prompt"], widths[None] * 2**0.5, rtol=0.05)
    np.testing.assert_allclose(widths["prompt"], widths["turns"], rtol=1e-12)
    votes = encode_votes(frame["model_a"], frame["model_b"], frame["winner"])
    board = fit(*votes[1:], models=votes.models, clusters=frame["prompt"]).to_frame()
    np.testing.assert_allclose(widths["prompt"], board["upper"] - board["lower"], rtol=1e-9)
    with pytest.raises(InputError, match="cannot name clusters"):
        main(["--votes", str(tmp_path / "votes.parquet"), "--cluster", "category_tag", "--quiet"])
    with pytest.raises(InputError, match="no column 'usr'"):
        main(["--votes", str(tmp_path / "votes.parquet"), "--cluster", "usr", "--quiet"])


def test_a_model_that_nothing_joins_to_the_others_has_no_interval(tmp_path, capsys):
    rows = ["model_a,model_b,winner", "ant,bee,model_a", "bee,ant,model_a", "ant,cat,tie", "dog,cat,tie"]
    (tmp_path / "votes.csv").write_text("\n".join(rows), encoding="utf-8")
    main(["--votes", str(tmp_path / "votes.csv"), "--likelihood", "bt", "--min-votes", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines if line.split()[1:2] in (["cat"], ["dog"])] == ["none", "none"]


def with_times(number=600):
    votes = make_votes(number)
    seconds = 1_735_689_600 + np.arange(number) * 86_400 * 90 // number  # January to March 2025
    return votes.assign(tstamp=seconds, month=pd.to_datetime(seconds, unit="s").strftime("%Y-%m"))


@pytest.fixture(scope="module")
def timed_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("timed") / "votes.parquet"
    with_times().to_parquet(path)
    return path


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_the_history_of_a_file_ends_with_its_leaderboard(ending, tmp_path, capsys):
    votes, source = with_times().drop(columns=["tags", "category_tag"]), tmp_path / f"votes.{ending}"
    if ending == "parquet":
        votes.to_parquet(source)
    elif ending == "csv":
        votes.to_csv(source, index=False)
    else:
        votes.to_json(source, orient="records", lines=True)
    history, whole = tmp_path / "history.csv", tmp_path / "whole.csv"
    plain = ["--votes", str(source), "--likelihood", "bt", "--quiet"]
    main([*plain, "--over", "month", "--output", str(history)])
    printed = capsys.readouterr().out
    main([*plain, "--output", str(whole)])
    rows = pd.read_csv(history)
    assert list(rows.columns[:2]) == ["period", "model"]
    assert list(dict.fromkeys(rows["period"])) == ["2025-01", "2025-02", "2025-03"]
    last = rows[rows["period"] == "2025-03"].set_index("model")
    board = written(whole).set_index("model")
    for column in ("coef", "score", "lower", "upper", "votes"):
        np.testing.assert_allclose(last[column], board.loc[last.index, column], atol=1e-4)
    assert "over month (cumulative), 2025-01 to 2025-03: 3 periods with votes, 600 votes" in printed
    assert "Held: the mean score" in printed


def test_grouped_text_says_the_same_as_seconds_and_files_take_every_ending(timed_file, tmp_path):
    found = {}
    for name, ending in (("tstamp", "parquet"), ("month", "json")):
        out = tmp_path / f"{name}.{ending}"
        flags = ["--over", "month", "--periods", "alone", "--time-column", name, "--output", str(out), "--quiet"]
        main(["--votes", str(timed_file), "--likelihood", "grk", *flags])
        found[name] = out
    frame = pd.read_parquet(found["tstamp"])
    history = json.loads(found["month"].read_text())
    assert (history["over"], history["mode"], history["likelihood"]) == ("month", "alone", "grk")
    coefs = [row["coef"] for period in history["periods"] for row in period["models"]]
    np.testing.assert_allclose(coefs, frame["coef"], atol=1e-9)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_history_is_drawn_with_a_name_at_each_line(ending, timed_file, tmp_path):
    out = tmp_path / f"history.{ending}"
    main(["--votes", str(timed_file), "--over", "2weeks", "--plot", str(out), "--top", "2", "--quiet"])
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"ant" in content
        assert b"dog" not in content


def test_votes_without_a_time_are_refused_or_left_out_and_counted(tmp_path, capsys):
    votes = with_times(100)
    votes["tstamp"] = votes["tstamp"].astype(float)
    votes.loc[[4, 9], "tstamp"] = np.nan
    source = tmp_path / "votes.parquet"
    votes.to_parquet(source)
    with pytest.raises(InputError, match=r"row 5: tstamp .* is not a time.*--drop-bad"):
        main(["--votes", str(source), "--over", "week", "--quiet"])
    main(["--votes", str(source), "--over", "week", "--drop-bad", "--quiet"])
    assert "2 votes without a time were left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--over", "fortnight"], "no period"),
        (["--over", "month", "--time-column", "mont"], r"no column 'mont' \(did you mean 'month'\?\)"),
        (["--over", "week", "--time-column", "month"], "months already; use --over month"),
        (["--over", "month", "--by", "language", "--output", "a.csv"], "csv holds one table, not those of --over and"),
        (["--over", "month", "--cluster", "prompt"], "--over does not go with --cluster"),
        (["--periods", "alone"], "go with --over"),
        (["--over", "month", "--likelihood", "elo"], "unknown likelihood"),
        (["--over", "month", "--plot", "board.doc"], "ending"),
        (["--over", "month", "--time-column", "language"], "row 1: language .* is not a time"),
    ],
)
def test_what_a_user_gets_wrong_about_a_history_is_said_in_one_line(flags, message, timed_file):
    with pytest.raises(InputError, match=message) as caught:
        main(["--votes", str(timed_file), *flags, "--quiet"])
    assert "\n" not in str(caught.value)


def test_a_model_has_no_history():
    with pytest.raises(InputError, match="a model has no history"):
        main(["--model", "somewhere", "a prompt", "--over", "month"])


def test_a_negative_seed_is_refused(votes_file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--votes", str(votes_file), "--intervals", "bootstrap", "--seed", "-1"])
    assert "--seed: must be a whole number of at least 0" in capsys.readouterr().err


def controlled_votes(number=6_000):
    """Votes that side, length and a judge who ties more and leans to the first answer decide with the models."""
    rng = np.random.default_rng(11)
    votes = make_votes(number, seed=11).drop(columns=["tags", "category_tag"])
    lengths = rng.integers(0, 900, (number, 2))
    judge = rng.choice(["ann", "bob"], number, p=[0.6, 0.4])
    difference = (lengths[:, 0] - lengths[:, 1]) / lengths.sum(axis=1)
    strength = dict(zip(MODELS, [1.0, 0.4, -0.4, -1.0], strict=True))
    gap = votes["model_a"].map(strength) - votes["model_b"].map(strength)
    lead = gap.to_numpy() + 0.3 + difference + 0.5 * (judge == "bob")
    probs = get("rk").probs(lead, np.zeros(number), -6.0 + 7.0 * (judge == "bob"))
    winner = np.array(WINNERS)[(rng.random(number)[:, None] > probs.cumsum(axis=1)).sum(axis=1)]
    return votes.assign(winner=winner, length_a=lengths[:, 0], length_b=lengths[:, 1], judge=judge)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_controls_are_fitted_and_printed_with_intervals(ending, tmp_path, capsys):
    source, out = tmp_path / f"votes.{ending}", tmp_path / "out.json"
    votes = controlled_votes()
    votes.to_parquet(source) if ending == "parquet" else votes.to_csv(source, index=False)
    flags = ["--votes", str(source), "--control", "side,length", "--control", "judge", "--by", "language", "--quiet"]
    main([*flags, "--cluster", "prompt", "--level", "0.999", "--output", str(out)])
    boards = json.loads(out.read_text())
    assert [board["group"] for board in boards] == ["all", "English", "German", "Greek"]
    effects = {(effect["name"], effect["role"]): effect for effect in boards[0]["effects"]}
    planted = {("side", "difference"): 0.3, ("length", "difference"): 1.0, ("judge = bob", "difference"): 0.5}
    planted["judge = bob", "ties"] = 7.0
    assert set(effects) == set(planted)
    for key, truth in planted.items():
        assert effects[key]["lower"] < truth < effects[key]["upper"]
    printed = capsys.readouterr().out
    assert "covariate" in printed
    assert any(line.startswith("judge = bob  ties") for line in printed.splitlines())
    main(["--votes", str(source), "--control", "judge", "--likelihood", "bt", "--output", str(out), "--quiet"])
    names = [effect["name"] for effect in json.loads(out.read_text())[0]["effects"]]
    assert sorted(names) == ["judge = ann", "judge = bob"]
    left_out = int((votes["winner"] == "tie").sum())
    assert f"6,000 votes, 4 models ({left_out:,} ties left out)" in capsys.readouterr().out


def test_controls_that_cannot_be_are_refused_in_one_line(tmp_path, votes_file):
    with pytest.raises(InputError, match="--control lenght needs columns lenght_a and lenght_b"):
        main(["--votes", str(votes_file), "--control", "lenght", "--quiet"])
    with pytest.raises(InputError, match="--control format needs columns headers_a and headers_b"):
        main(["--votes", str(votes_file), "--control", "format", "--quiet"])
    path = tmp_path / "votes.csv"
    path.write_text("model_a,model_b,winner,length_a,length_b\nant,bee,model_a,5,long\n", encoding="utf-8")
    with pytest.raises(InputError, match="control length needs numbers, not 'long'"):
        main(["--votes", str(path), "--control", "length", "--quiet"])


def test_periods_have_effects_of_their_own(tmp_path, capsys):
    """In the first month being shown first is worth 0.3, in the second, whose sides are drawn again, nothing."""
    votes = controlled_votes()
    late = np.arange(len(votes)) >= 3_000
    turned = late & (np.random.default_rng(4).random(len(votes)) < 0.5)
    for one, other in (("model_a", "model_b"), ("length_a", "length_b")):
        votes[one], votes[other] = np.where(turned, (votes[other], votes[one]), (votes[one], votes[other]))
    swapped = votes["winner"].replace({"model_a": "model_b", "model_b": "model_a"})
    votes["winner"] = np.where(turned, swapped, votes["winner"])
    votes["tstamp"] = np.where(late, "2025-02-03", "2025-01-05")
    votes.to_parquet(tmp_path / "votes.parquet")
    flags = ["--votes", str(tmp_path / "votes.parquet"), "--over", "month", "--control", "side,length,judge", "--quiet"]
    boards = {}
    for mode in ("cumulative", "alone"):
        out = tmp_path / f"{mode}.json"
        main([*flags, "--periods", mode, "--shrink", "inf", "--level", "0.999", "--output", str(out)])
        periods = json.loads(out.read_text())["periods"]
        boards[mode] = [{effect["name"]: effect for effect in period["effects"]} for period in periods]
        assert any(line.startswith("length       difference") for line in capsys.readouterr().out.splitlines())
    first, alone = boards["alone"]
    assert boards["cumulative"][0]["side"]["coef"] == pytest.approx(first["side"]["coef"], abs=0.02)
    assert first["side"]["lower"] < 0.3 < first["side"]["upper"]
    assert alone["side"]["lower"] < 0.0 < alone["side"]["upper"]
    assert first["side"]["coef"] > boards["cumulative"][1]["side"]["coef"] > alone["side"]["coef"]
    for period in (first, alone, *boards["cumulative"]):
        assert period["length"]["lower"] < 1.0 < period["length"]["upper"]


def test_missing_values_of_a_control_count_as_zero_with_a_note(tmp_path, capsys):
    votes = controlled_votes(300)
    votes["length_a"] = votes["length_a"].where(np.arange(300) >= 7)
    votes.to_parquet(tmp_path / "votes.parquet")
    main(["--votes", str(tmp_path / "votes.parquet"), "--control", "length", "--quiet"])
    assert "7 votes without a value of length count as zero" in capsys.readouterr().out


def test_what_was_fitted_is_printed_on_request_and_a_note_of_all_groups_once(votes_file, capsys):
    line = ["--votes", str(votes_file), "--by", "language", "--quiet"]
    main(line)
    printed = capsys.readouterr().out
    assert "likelihood" not in printed
    assert "eta" not in printed.split("note:")[0]
    assert printed.count("language = ") > 1
    assert printed.count("Shrunk towards the leaderboard of all votes") == 1
    assert "note: Each group: Shrunk towards" in printed
    main([*line, "--verbose"])
    assert re.search(
        r"^language = \w+: \d+ votes, \d models, likelihood \w+, loss \d\.\d+", capsys.readouterr().out, re.M
    )
