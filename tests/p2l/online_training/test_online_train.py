"""Online training as a user runs it: real DeepSpeed, one process on a CPU; bad input is refused before it starts."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.common.files import try_lock
from p2l.newcomers.online import LARGEST_FACTOR, YOUNG_STEPS
from p2l.online_training.online_train import main
from p2l.training.run_folder import read_state
from tests.conftest import Command, Configure, make_configure, write_votes
from tests.e2e.test_planted import Planted
from tests.e2e.test_train import largest_difference, lines, weights
from tests.p2l.online_training.online_helpers import ORDER, STAGE_1, online, run_all, stream_rows, write_stream


@pytest.fixture(scope="module")
def runs(command: Command, tmp_path_factory: pytest.TempPathFactory, validation_file: Path, backbone: Path) -> Path:
    """The folder of runs on the same votes: little room, much room, rows that take larger and equal steps, rates of
    nothing, a narrow head, averages."""
    folder = tmp_path_factory.mktemp("online")
    votes = write_stream(folder / "stream.jsonl")
    configure = make_configure(folder, votes, validation_file, backbone)
    small = online(configure, votes, "small", model_capacity=2, val_data_path=str(validation_file))
    roomy = online(configure, votes, "roomy", model_capacity=64, shuffle=True)  # of offline training: passed over
    still = online(configure, votes, "still", model_capacity=3, learning_rate=1e-12, weight_decay=0.0)
    narrow = {"linear_head_downsize_factor": 2, "model_capacity": 4, "new_models": "random"}
    drawn = online(configure, votes, "drawn", **narrow)
    mean = online(configure, votes, "mean", model_capacity=2, average_steps=50, val_data_path=str(validation_file))
    replay = {"type": "replay", "epsilon": 0.3, "min_batches": 0}
    larger = online(configure, votes, "larger", model_capacity=2, buffer=replay)
    equal = online(configure, votes, "equal", model_capacity=64, buffer=replay, new_models="mean")
    run_all(
        command,
        folder / "plan",
        [
            ["online", "--config", small, "--save-steps", "2", "--eval-steps", "3", "--keep", "4"],
            ["online", "--config", roomy, "--no-eval"],
            ["online", "--config", larger, "--no-eval", "--save-steps", "1"],
            ["online", "--config", equal, "--no-eval", "--save-steps", "1"],
            ["online", "--config", still, "--no-eval", "--save-steps", "1"],
            ["online", "--config", drawn, "--no-eval"],
            ["online", "--config", mean],
        ],
    )
    return folder


def list_of(folder: Path) -> list[str]:
    found = json.loads((folder / "model_list.json").read_text(encoding="utf-8"))
    assert weights(folder)["head.head.weight"].shape[0] == len(found)
    assert weights(folder)["head.head.bias"].shape == (len(found),)
    return [str(name) for name in found]


def test_models_join_in_order_of_first_appearance(runs: Path) -> None:
    small = runs / "out" / "small"
    assert list_of(small) == sorted(ORDER)
    assert list_of(small / "checkpoint-8") == list(ORDER)
    for name in ("head.head.weight", "head.head.bias"):
        rows = weights(small / "checkpoint-8")[name]
        np.testing.assert_array_equal(weights(small)[name], rows[[ORDER.index(model) for model in sorted(ORDER)]])
    log = [line for line in lines(small / "metrics.jsonl") if "loss" in line]
    for step in (2, 4, 6, 8):
        assert list_of(small / f"checkpoint-{step}") == list(ORDER[: int(log[step - 1]["models"])])
    assert [line["models"] for line in log] == sorted(line["models"] for line in log)
    assert log[0]["models"] == 2
    assert log[-1]["models"] == 4


def test_every_vote_is_trained_on_and_what_waits_is_told(runs: Path) -> None:
    log = [line for line in lines(runs / "out" / "small" / "metrics.jsonl") if "loss" in line]
    assert sum(line["votes"] for line in log) == 120
    assert log[-1]["arrived"] == 120
    assert log[-1]["waiting"] == 0
    assert max(line["waiting"] for line in log) > 0
    assert log[-1]["lag/votes"] == 120


def test_validation_holds_only_votes_between_known_models(runs: Path) -> None:
    small = runs / "out" / "small"
    found = [line["step"] for line in lines(small / "metrics.jsonl") if "validation/Loss" in line]
    assert found == [3, 6]
    assert json.loads((small / "eval_results.json").read_text())["votes"] == 40


def test_a_head_that_had_to_grow_learns_what_a_roomy_one_does(runs: Path) -> None:
    assert largest_difference(runs / "out" / "small", runs / "out" / "roomy") < 1e-5
    assert not (runs / "out" / "small" / ".growing").exists()


def test_a_new_model_starts_at_the_mean_of_those_before_it(runs: Path) -> None:
    for name in ("head.head.weight", "head.head.bias"):
        rows = weights(runs / "out" / "still")[name][[sorted(ORDER).index(model) for model in ORDER]]
        for joined in (2, 3):
            np.testing.assert_allclose(rows[joined], rows[:joined].mean(axis=0), atol=1e-7)


def test_rows_that_have_just_joined_take_larger_steps(runs: Path) -> None:
    larger, equal, before = (weights(runs / "out" / name / "checkpoint-1") for name in ("larger", "equal", "still"))
    log = lines(runs / "out" / "larger" / "metrics.jsonl")[0]
    share = log["arrived"] / log["votes"] / YOUNG_STEPS
    for name, start in before.items():
        own, others = larger[name] - start, equal[name] - start
        factor = LARGEST_FACTOR - (LARGEST_FACTOR - 1) * share if name.startswith("head.head.") else 1.0
        np.testing.assert_allclose(own, factor * others, atol=1e-6)
        assert np.abs(own).max() > 1e-4


def test_a_narrow_head_keeps_its_width(runs: Path) -> None:
    from p2l import P2L

    drawn = runs / "out" / "drawn"
    assert weights(drawn)["head.head.1.weight"].shape == (4, 2)
    answer = P2L.from_pretrained(drawn).predict([["what is 1 plus 1"]])
    assert answer.coefs.shape == (1, 4)
    assert len(np.unique(answer.coefs.round(4))) == 4


def test_averaged_weights_are_what_is_published_and_validated(runs: Path) -> None:
    from p2l import P2L

    mean = runs / "out" / "mean"
    assert list_of(mean) == sorted(ORDER)
    small = runs / "out" / "small"
    assert largest_difference(mean, small) > 1e-4
    tables = [weights(folder)["model.embed_tokens.weight"] for folder in (mean, small)]
    np.testing.assert_array_equal(*tables)  # rows of words are not averaged
    rows = lines(mean / "eval_output.jsonl")
    said = P2L.from_pretrained(mean).predict([row["prompt"] for row in rows])
    np.testing.assert_allclose(said.coefs, [row["betas"] for row in rows], atol=1e-4)
    # Training itself does not see the mean.
    logs = [
        [line["loss"] for line in lines(runs / "out" / name / "metrics.jsonl") if "loss" in line]
        for name in ("small", "mean")
    ]
    assert logs[0] == logs[1]


def test_old_checkpoints_are_removed(runs: Path) -> None:
    names = {path.name for path in (runs / "out" / "small").glob("checkpoint-*")}
    assert names == {"checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"}
    assert {path.name for path in (runs / "out" / "roomy").glob("checkpoint-*")} == {"checkpoint-8"}


def test_a_checkpoint_continues_with_the_votes_that_came_since(
    runs: Path, command: Command, validation_file: Path, backbone: Path, tmp_path: Path
) -> None:
    """Also: plain weights, whose list is taken over; without a buffer that is offline training in time order."""
    configure = make_configure(tmp_path, runs / "stream.jsonl", validation_file, backbone)
    more = write_votes(tmp_path / "more.jsonl", [*stream_rows(120), *later_rows()])
    shutil.copytree(runs / "out" / "roomy" / "checkpoint-8", tmp_path / "going-on" / "checkpoint-8")
    plain = tmp_path / "plain"
    shutil.copytree(runs / "out" / "roomy", plain, ignore=shutil.ignore_patterns("checkpoint-*", "metrics.jsonl"))
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps(dict.fromkeys(ORDER, 50)), encoding="utf-8")
    rows = [row for row in stream_rows(120) if "dog" not in row.values()]
    some = write_votes(tmp_path / "some.jsonl", rows)
    going_on = online(configure, more, "roomy", model_capacity=64)
    naive = online(configure, some, "naive", buffer="absent", weight_decay=0.0)
    counted = online(configure, some, "counted", weight_decay=0.0)
    of_file = {"train_data_path": str(some), "val_data_path": None}
    offline = configure("offline.yaml", proj_name="offline", zero=STAGE_1, **of_file)
    flags = ["--no-eval", "--checkpoint"]
    run_all(
        command,
        tmp_path / "plan",
        [
            ["online", "--config", going_on, *flags, tmp_path / "going-on"],
            ["online", "--config", naive, *flags, plain],
            ["online", "--config", counted, *flags, plain, "--initial-counts", counts],
            ["train", "--config", offline, *flags, plain],
        ],
    )
    assert list_of(tmp_path / "going-on") == sorted([*ORDER, "emu"])
    assert list_of(tmp_path / "going-on" / "checkpoint-10") == [*ORDER, "emu"]
    log = lines(tmp_path / "going-on" / "metrics.jsonl")
    assert [line["step"] for line in log] == [9, 10]
    assert sum(line["votes"] for line in log) == 20
    assert read_state(tmp_path / "going-on" / "checkpoint-10").num_votes == 140
    out = tmp_path / "out"
    assert list_of(out / "naive") == sorted(ORDER)
    assert largest_difference(out / "naive", out / "offline") < 1e-5
    # Models that were seen often wait: with counts of zero most votes of so short a stream are trained on at once.
    waiting = [[line["waiting"] for line in lines(out / name / "metrics.jsonl")] for name in ("naive", "counted")]
    assert max(waiting[0]) < max(waiting[1])


def later_rows() -> list[dict[str, object]]:
    """Twenty votes after the stream, on a model that is new."""
    return [row | {"model_a": "emu", "tstamp": 5000.0 + number} for number, row in enumerate(stream_rows(20))]


def refused(config: Path, *flags: str | Path) -> str:
    """The one line of a run that is refused before it starts."""
    with pytest.raises(InputError) as caught:
        main(["--config", str(config), "--no-eval", "--quiet", *map(str, flags)])
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"buffer": {"type": "geometric", "gamma": 1.5}}, ["buffer.gamma", "1.5"]),
        ({"buffer": {"type": "geometric", "epsilon": 0}}, ["buffer.epsilon", "0"]),
        ({"buffer": {"type": "geometrc"}}, ["geometrc", "geometric"]),
        ({"experience_replay": {"limit": 10, "ratio": 0.5}}, ["experience_replay", "buffer"]),
        ({"num_train_epochs": 2}, ["num_train_epochs"]),
        ({"init_type": "marginal"}, ["init_type"]),
        ({"model_capacity": 0}, ["model_capacity"]),
        ({"new_model": "mean"}, ["new_model", "new_models"]),
    ],
)
def test_settings_that_cannot_be_are_one_line(
    configure: Configure, tmp_path: Path, changes: dict[str, object], words: list[str]
) -> None:
    message = refused(online(configure, write_stream(tmp_path / "s.jsonl", 20), "bad", **changes))
    assert all(word in message for word in words), message
    assert not (tmp_path / "out").exists()


def test_votes_out_of_order_or_without_time_are_named(configure: Configure, tmp_path: Path) -> None:
    rows = stream_rows(20)
    rows[4], rows[5] = rows[5], rows[4]
    mixed = write_votes(tmp_path / "mixed.jsonl", rows)
    message = refused(online(configure, mixed, "bad"))
    assert "mixed.jsonl" in message
    assert "vote 6" in message
    assert "--sort" in message
    rows = stream_rows(20)
    rows[6]["tstamp"] = None
    assert "vote 7" in refused(online(configure, write_votes(tmp_path / "one.jsonl", rows), "bad"))
    bare = [{key: value for key, value in row.items() if key != "tstamp"} for row in stream_rows(20)]
    message = refused(online(configure, write_votes(tmp_path / "bare.jsonl", bare), "bad"))
    assert "tstamp" in message
    assert "vote_order: given" in message


def test_a_checkpoint_of_something_else_is_refused(runs: Path, tmp_path: Path, configure: Configure) -> None:
    one = runs / "out" / "small" / "checkpoint-4"
    room = {"model_capacity": 2}
    config = online(configure, runs / "stream.jsonl", "same", **room)
    other = write_votes(tmp_path / "other.jsonl", stream_rows(120, seed=1))
    assert "other votes" in refused(online(configure, other, "small", **room), "--checkpoint", one)
    short = write_votes(tmp_path / "short.jsonl", stream_rows(20))
    assert "holds 20" in refused(online(configure, short, "small", **room), "--checkpoint", one)
    buffer = {"type": "geometric", "gamma": 0.8, "epsilon": 0.3}
    message = refused(online(configure, runs / "stream.jsonl", "small", buffer=buffer, **room), "--checkpoint", one)
    assert "buffer.gamma = 0.98" in message
    message = refused(online(configure, runs / "stream.jsonl", "small", batch_size=3, **room), "--checkpoint", one)
    assert "checkpoint-4: buffer state: saved with batch_size" in message
    (tmp_path / "killed_early").mkdir()
    assert "without --checkpoint" in refused(config, "--checkpoint", tmp_path / "killed_early")
    renamed = tmp_path / "renamed" / "checkpoint-4"
    shutil.copytree(one, renamed)
    names = json.loads((renamed / "model_list.json").read_text())
    (renamed / "model_list.json").write_text(json.dumps([*names[:-1], "gnu"]))
    assert "model_list.json" in refused(config, "--checkpoint", renamed)
    cut = tmp_path / "cut" / "checkpoint-4"
    shutil.copytree(one, cut)
    (cut / "stream_state.npz").write_bytes((one / "stream_state.npz").read_bytes()[:200])
    assert "stream_state.npz" in refused(config, "--checkpoint", cut)
    with (cut / "stream_state.npz").open("wb") as file:
        np.savez(file, step=np.array([Planted(tmp_path / "mark")], dtype=object))
    assert "stream_state.npz" in refused(config, "--checkpoint", cut)
    assert not (tmp_path / "mark").exists()
    (cut / "stream_state.npz").unlink()
    assert "offline" in refused(config, "--checkpoint", cut)


def test_a_folder_that_another_run_trains_in_is_refused(command: Command, runs: Path, configure: Configure) -> None:
    folder = runs / "out" / "small"
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        assert try_lock(descriptor)
        config = online(configure, runs / "stream.jsonl", "small", model_capacity=2)
        line = ["python", "-m", "p2l.online_training.online_train", "--config", config, "--checkpoint", folder]
        ended = command(*line, "--no-eval", "--quiet")
        assert ended.returncode == 2
        assert f"{folder}: another process is training in it" in ended.stderr
    finally:
        os.close(descriptor)


def test_initial_counts_are_checked(runs: Path, tmp_path: Path, configure: Configure) -> None:
    plain = runs / "out" / "roomy"
    shutil.copytree(plain, tmp_path / "plain", ignore=shutil.ignore_patterns("checkpoint-*"))
    config = online(configure, runs / "stream.jsonl", "counted")
    counts = tmp_path / "counts.json"
    for content, word in (({"gnu": 1}, "gnu"), ({"ant": -1}, "ant"), ([1], "object")):
        counts.write_text(json.dumps(content), encoding="utf-8")
        message = refused(config, "--checkpoint", tmp_path / "plain", "--initial-counts", counts)
        assert "counts.json" in message
        assert word in message
    counts.unlink()
    assert "counts.json: no such file" in refused(
        config, "--checkpoint", tmp_path / "plain", "--initial-counts", counts
    )
    counts.write_text("{}", encoding="utf-8")
    assert "--initial-counts" in refused(config, "--initial-counts", counts)


def test_the_command_itself_answers_bad_input_with_one_line(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    from p2l.cli import dispatch
    from p2l.common.cli import run

    config = configure("bad.yaml", buffer={"type": "replay", "epsilon": 2})
    with pytest.raises(SystemExit) as ended:
        run(dispatch, ["online-train", "--config", str(config), "--no-eval"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "buffer.epsilon" in said.err
