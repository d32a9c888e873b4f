import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l import P2L
from p2l.batch_inference.output import PartFolder
from p2l.common.cli import run as exit_with
from p2l.common.errors import InputError
from p2l.eval import main
from p2l.votes.writing import write_votes
from tests.p2l.eval_helpers import NAMES, make_model, prompt_rows, write_jsonl

ROWS = prompt_rows(50)


@pytest.fixture(autouse=True)
def in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8 prompts, each saved at once."""
    monkeypatch.setattr("p2l.batch_inference.prompts.ROWS", 8)
    monkeypatch.setattr("p2l.batch_inference.run.SAVE_AFTER_SECONDS", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def bag(folder: Path) -> Path:
    return make_model(folder / "bag")


@pytest.fixture(scope="module")
def reader(folder: Path) -> Path:
    return make_model(folder / "reader", kind="qwen2")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "prompts.jsonl", ROWS)


def run(model: Path, data: Path | str, out: Path, *flags: str) -> Path:
    """The JSON output, or where it would be."""
    main(["--model", str(model), "--dataset", str(data), "--output-dir", str(out), "--device", "cpu", *flags])
    return out / f"{model.name}.json"


def load(path: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def column(rows: list[dict[str, Any]], name: str) -> Any:
    return np.array([row[name] for row in rows])


def same_data(rows: list[dict[str, Any]]) -> bool:
    added = {"coefs", "eta", "gamma", "truncated", "last_hidden_state"}
    return [{key: value for key, value in row.items() if key not in added} for row in rows] == ROWS


def test_json_holds_the_rows_and_what_the_model_says(
    reader: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load(run(reader, data, tmp_path / "out", "--head-type", "rk", "--model-type", "qwen2", "--batch-size", "2"))
    said = P2L.from_pretrained(reader, device="cpu").predict([row["prompt"] for row in ROWS])
    assert same_data(rows)
    np.testing.assert_allclose(column(rows, "coefs"), said.coefs[:, None], atol=1e-5)
    np.testing.assert_allclose(column(rows, "eta"), said.eta[:, None, None], atol=1e-5)
    assert column(rows, "truncated").tolist() == said.truncated.tolist()
    assert 0 < said.truncated.sum() < 50
    assert {row["gamma"] for row in rows} == {None}
    assert "last_hidden_state" not in rows[0]
    assert json.loads((tmp_path / "out" / "model_list.json").read_text()) == NAMES
    info = json.loads((tmp_path / "out" / "reader.info.json").read_text())
    assert info["model_list"] == NAMES
    assert info["revision"] == P2L.from_pretrained(reader, device="cpu").revision
    assert (info["rows"], info["truncated"], info["head_type"]) == (50, int(said.truncated.sum()), "rk")
    assert f"50 prompts, {said.truncated.sum()} of them cut" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model_list.json",
        "reader.info.json",
        "reader.json",
    ]


def test_parquet_holds_the_same_with_plain_lists(bag: Path, data: Path, tmp_path: Path) -> None:
    rows = load(run(bag, data, tmp_path, "--format", "both"))
    table = pq.read_table(tmp_path / "bag.parquet")
    assert same_data(table.to_pylist())
    np.testing.assert_allclose(np.array(table["coefs"].to_pylist()), column(rows, "coefs")[:, 0], rtol=1e-6)
    np.testing.assert_allclose(table["eta"].to_numpy(), column(rows, "eta").ravel(), rtol=1e-6)
    assert table["truncated"].to_pylist() == [row["truncated"] for row in rows]
    info = json.loads(table.schema.metadata[b"p2l"])
    assert info["model_list"] == NAMES
    assert len(info["revision"]) == 12


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl.gz", "folder"])
def test_every_kind_of_data_set_gives_the_same_coefficients(bag: Path, data: Path, tmp_path: Path, ending: str) -> None:
    table = pa.Table.from_pylist(ROWS)
    other = tmp_path / f"prompts{ending}"
    if ending == "folder":
        import datasets

        datasets.Dataset(table).save_to_disk(str(other))
    else:
        write_votes(table.to_batches(), table.schema, other)
    expected, found = (load(run(bag, path, tmp_path / path.suffix)) for path in (data, other))
    assert column(found, "coefs").tolist() == column(expected, "coefs").tolist()
    assert [row["question_id"] for row in found] == [row["question_id"] for row in ROWS]
    if ending != ".csv":  # which holds text where other formats hold lists
        assert same_data(found)


def test_several_turns_are_one_prompt(reader: Path, tmp_path: Path) -> None:
    prompts = [["write a poem", "shorter"], ["write a poem"], ["write a poem", "longer", "no"]]
    data = write_jsonl(tmp_path / "turns.jsonl", [{"prompt": turns} for turns in prompts])
    rows = load(run(reader, data, tmp_path, "--format", "both"))
    said = P2L.from_pretrained(reader, device="cpu").predict(prompts)
    np.testing.assert_allclose(column(rows, "coefs")[:, 0], said.coefs, atol=1e-5)
    assert [row["prompt"] for row in rows] == prompts
    assert pq.read_table(tmp_path / "reader.parquet")["prompt"].to_pylist() == prompts


def test_hidden_states_are_written_when_asked_for(reader: Path, data: Path, tmp_path: Path) -> None:
    rows = load(run(reader, data, tmp_path, "--no-drop-hidden", "--format", "both"))
    hidden = P2L.from_pretrained(reader, device="cpu").predict([row["prompt"] for row in ROWS], hidden=True).hidden
    np.testing.assert_allclose(column(rows, "last_hidden_state"), hidden[:, None], atol=1e-5)
    table = pq.read_table(tmp_path / "reader.parquet")
    np.testing.assert_allclose(np.array(table["last_hidden_state"].to_pylist()), hidden, atol=1e-5)


@pytest.mark.parametrize(("head", "loss"), [("bt", "bt"), ("ba", "ba")])
def test_other_heads_have_other_columns(data: Path, tmp_path: Path, head: str, loss: str) -> None:
    rows = load(run(make_model(tmp_path / head, head=head, loss=loss), data, tmp_path / "out", "--format", "both"))
    assert (rows[0]["eta"] is None) == (rows[0]["gamma"] is None) == (head == "bt")
    assert ("gamma" in pq.read_schema(tmp_path / "out" / f"{head}.parquet").names) == (head == "ba")


def test_every_checkpoint_of_a_folder_is_run(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, names in ((9, NAMES), (10, [*NAMES, "dog"])):
        make_model(tmp_path / "run" / f"checkpoint-{number}", names=names, seed=number)
    (tmp_path / "run" / "notes").mkdir()
    out = tmp_path / "out"
    main(["-t", str(tmp_path / "run"), "-d", str(data), "-od", str(out)])
    files = [out / "checkpoint-9.json", out / "checkpoint-10.json"]
    assert [len(load(path)[0]["coefs"][0]) for path in files] == [3, 4]
    assert json.loads((out / "model_list.json").read_text()) == [*NAMES, "dog"]
    told = capsys.readouterr().out
    assert told.index("checkpoint-9") < told.index("checkpoint-10")
    main(["-t", str(tmp_path / "run"), "-d", str(data), "-od", str(out)])
    assert json.loads((out / "model_list.json").read_text()) == [*NAMES, "dog"]


def test_the_list_of_other_models_is_not_replaced(
    bag: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(bag, data, tmp_path)
    run(make_model(tmp_path / "other", names=["x", "y"]), data, tmp_path)
    assert json.loads((tmp_path / "model_list.json").read_text()) == NAMES
    assert json.loads((tmp_path / "other.info.json").read_text())["model_list"] == ["x", "y"]
    assert "model_list.json: lists other models and stays" in capsys.readouterr().err


class Stopped(BaseException):
    """What ends a run in the middle."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The prompts of each call of the model."""
    calls: list[list[str]] = []
    predict = P2L.predict

    def counted(self: P2L, prompts: Any, **settings: Any) -> Any:
        calls.append([turns[0] for turns in prompts])
        return predict(self, prompts, **settings)

    monkeypatch.setattr(P2L, "predict", counted)
    return calls


def test_a_stop_at_any_write_leaves_the_old_or_the_new(
    bag: Path, data: Path, tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rename of a file is a step: the run that stops before it goes on to the same output."""
    import os

    flags = ("--format", "both", "--limit", "20")
    expected = run(bag, data, tmp_path / "whole", *flags).read_bytes()
    replace, steps, stops = os.replace, [0], [10**9]

    def stepped(source: Any, target: Any) -> None:
        steps[0] += 1
        if steps[0] == stops[0]:
            raise Stopped
        replace(source, target)

    monkeypatch.setattr(os, "replace", stepped)
    run(bag, data, tmp_path / "counted", *flags)
    total = steps[0]
    assert total >= 8  # the job, three parts, two files made and put in place, their description
    for stop in range(1, total + 1):
        steps[0], stops[0] = 0, stop
        out = tmp_path / f"out{stop}"
        with pytest.raises(Stopped):
            run(bag, data, out, *flags)
        saved = sum(PartFolder(out / "bag.parts").refresh().values()) if (out / "bag.parts").is_dir() else 0
        stops[0] = 10**9
        asked.clear()
        assert run(bag, data, out, *flags).read_bytes() == expected
        assert sum(map(len, asked)) == 20 - saved or not (out / "bag.parts").exists()
        assert sorted(path.name for path in out.iterdir()) == [
            "bag.info.json",
            "bag.json",
            "bag.parquet",
            "model_list.json",
        ]


def test_a_complete_run_is_not_run_again(
    bag: Path, data: Path, tmp_path: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(bag, data, tmp_path)
    before = out.stat().st_mtime_ns
    asked.clear()
    run(bag, data, tmp_path)
    assert asked == []
    assert out.stat().st_mtime_ns == before
    assert "complete already; --restart runs the model again" in capsys.readouterr().err
    run(bag, data, tmp_path, "--restart", "--quiet")
    assert sum(map(len, asked)) == 50
    other = write_jsonl(tmp_path / "others.jsonl", ROWS[:9])  # another data set replaces what is complete
    assert len(load(run(bag, other, tmp_path))) == 9


def test_the_description_names_the_files_that_it_is_of(
    bag: Path, data: Path, tmp_path: Path, asked: list[list[str]]
) -> None:
    def described() -> Any:
        return json.loads((tmp_path / "bag.info.json").read_text())["files"]

    run(bag, data, tmp_path)
    run(bag, data, tmp_path, "--format", "parquet")
    assert described() == ["bag.json", "bag.parquet"]
    asked.clear()
    run(bag, data, tmp_path, "--format", "both")
    assert asked == []
    run(bag, write_jsonl(tmp_path / "others.jsonl", ROWS[:9]), tmp_path, "--format", "parquet")
    assert described() == ["bag.parquet"]  # bag.json is of the other data set


def unfinished(model: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """A run that has saved everything but not joined it."""
    with monkeypatch.context() as patch:

        def stop(*_: Any) -> None:
            raise Stopped

        patch.setattr("p2l.batch_inference.run.write_output", stop)
        with pytest.raises(Stopped):
            run(model, data, out, *flags)


@pytest.mark.parametrize("change", ["data", "model", "length", "hidden"])
def test_parts_of_something_else_are_refused_or_thrown_away(
    bag: Path, data: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(bag, data, tmp_path / "out", monkeypatch)
    model, flags, reason = bag, [], ""
    if change == "data":
        write_jsonl(data, ROWS[1:])
        reason = "the data set was"
    elif change == "model":
        model, reason = make_model(tmp_path / "bag", seed=5), "the model was"
    elif change == "length":
        flags, reason = ["--max-length", "7"], "--max-length was"
    else:
        flags, reason = ["--no-drop-hidden"], "hidden states"
    with pytest.raises(
        InputError, match=rf"bag\.parts: holds an unfinished run of something else: {reason}.*--restart"
    ):
        run(model, data, tmp_path / "out", *flags)
    rows = load(run(model, data, tmp_path / "out", "--restart", *flags))
    assert column(rows, "coefs").tolist() == column(load(run(model, data, tmp_path / "new", *flags)), "coefs").tolist()


def test_a_limit_may_change_from_run_to_run(
    bag: Path, data: Path, tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(bag, data, tmp_path, monkeypatch, "--limit", "20")
    asked.clear()
    assert same_data(load(run(bag, data, tmp_path)))
    assert sum(map(len, asked)) == 50 - 16  # two chunks were whole
    assert len(load(run(bag, data, tmp_path, "--limit", "3"))) == 3


def test_two_runs_do_not_write_the_same_output(
    bag: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from p2l.common.files import try_lock

    unfinished(bag, data, tmp_path, monkeypatch)
    other = os.open(tmp_path / "bag.parts", os.O_RDONLY)
    assert try_lock(other)
    with pytest.raises(InputError, match="another run is writing there"):
        run(bag, data, tmp_path)
    os.close(other)
    assert same_data(load(run(bag, data, tmp_path)))


def test_files_of_others_are_left_alone(bag: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "bag.parts").mkdir()
    (tmp_path / "bag.parts" / "thesis.txt").write_text("mine")
    run(bag, data, tmp_path)
    assert [path.name for path in (tmp_path / "bag.parts").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"text": "a"}], r"no column 'prompt' \(the one column that is needed\)"),
        ([{"prompt": "a"}, {"prompt": None}], "line 2: prompt is missing"),
        ([{"prompt": ["a"]}, {"prompt": []}], "line 2: prompt has no turns"),
        ([{"prompt": [{"role": "user", "content": "a"}]}], "column 'prompt' holds chat messages; it must hold a text"),
        ([{"prompt": 3}], "column 'prompt' holds int64; it must hold text"),
        ([{"prompt": "a", "coefs": [1]}], "has a column 'coefs', which the model writes; rename or drop it"),
    ],
)
def test_rows_that_are_no_prompts_are_named(bag: Path, tmp_path: Path, rows: list[Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run(bag, write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out")


def test_other_mistakes_are_told_in_one_line(
    bag: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for changed, reason in (
        ({"model": tmp_path / "none"}, "none: no such folder"),
        ({"data": tmp_path / "none.csv"}, "none.csv: no such file"),
        ({"out": blocked}, "file"),
        ({"flags": ("--head-type", "bt")}, "head_type is 'rk' in this checkpoint"),
        ({"flags": ("--device", "gpu")}, "device 'gpu' is unknown"),
    ):
        told: dict[str, Any] = {"model": bag, "data": data, "out": tmp_path / "out", "flags": ()} | changed
        with pytest.raises(InputError, match=reason):
            run(told["model"], told["data"], told["out"], *told["flags"])
    with pytest.raises(SystemExit, match="2"):
        exit_with(main, ["-m", str(bag), "-d", str(data), "-od", str(tmp_path / "out"), "--head-type", "bt"])
    assert (
        capsys.readouterr().err == f"error: {bag}: head_type is 'rk' in this checkpoint, not 'bt'; leave the flag out\n"
    )
    with pytest.raises(InputError, match=r"holds no checkpoints.*evaluate it by --model"):
        main(["-t", str(bag), "-d", str(data)])
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"prompt": "a", "tag": {}}\n')
    with pytest.raises(InputError, match="Parquet cannot hold its columns"):
        run(bag, odd, tmp_path / "out", "--format", "parquet")
    assert load(run(bag, odd, tmp_path / "out"))[0]["tag"] == {}


def test_a_name_is_the_last_part_of_the_path(
    bag: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bag, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    main(["-m", ".", "-d", str(data), "-od", str(tmp_path / "out")])
    main(["-m", f"{bag}/", "-d", str(data), "-od", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").glob("*[a-z].json")} >= {"here.json", "bag.json"}
