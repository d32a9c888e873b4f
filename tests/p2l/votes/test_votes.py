from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from p2l.common.errors import VoteError
from p2l.votes import WINNERS, encode_votes, open_votes, read_columns, read_votes, translate_labels
from p2l.votes.writing import write_votes
from tests.p2l.votes_helpers import ENDINGS, MODELS, save, vote, vote_rows

pytestmark = pytest.mark.filterwarnings("error")


ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


def without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_none(part) for key, part in value.items() if part is not None}


def fails(source: Any, **options: Any) -> str:
    with pytest.raises(VoteError) as caught:
        open_votes(source, **options).close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=vote_rows())
def test_every_format_gives_the_same_votes(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = pa.Table.from_pylist(rows)
    for ending in ENDINGS:
        path = tmp_path / f"votes{ending}"
        assert write_votes(table.to_batches(), table.schema, path) == len(rows)
        with open_votes(path) as store:
            assert store.rows() == rows
            assert store.prompts() == [row["prompt"] for row in rows]
            assert store.weights().tolist() == [row["weight"] for row in rows]
            assert store.tstamps().tolist() == [row["tstamp"] for row in rows]  # type: ignore[union-attr]
            assert store.model_list == sorted({row[side] for row in rows for side in ("model_a", "model_b")})
            for label, row in zip(store.labels().tolist(), rows, strict=True):
                first, second = ("model_b", "model_a") if row["winner"] == "model_b" else ("model_a", "model_b")
                tie = {"tie": 1, "tie (bothbad)": 2}.get(row["winner"], 0)
                assert label == [store.model_list.index(row[first]), store.model_list.index(row[second]), tie]


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_written_by_others_are_read(ending: str, tmp_path: Path) -> None:
    rows = [vote(n, prompt=["one", 'two, "quoted"\nline'], weight=n / 2, tag={"x": n}) for n in range(9)]
    with open_votes(save(tmp_path / f"v{ending}", rows)) as store:
        assert store.rows() == rows
        assert store.has_weights
        assert not store.is_time_sorted
        assert store.tstamps() is None


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_prompt_that_is_text_is_one_turn_and_stays_text_in_rows(ending: str, tmp_path: Path) -> None:
    rows = [vote(n, prompt=f"[{n}] why") for n in range(3)]
    with open_votes(save(tmp_path / f"v{ending}", rows)) as store:
        assert store.prompts([2, 0]) == [["[2] why"], ["[0] why"]]
        assert [row["prompt"] for row in store.rows()] == ["[0] why", "[1] why", "[2] why"]


def test_columns_of_csv_have_the_narrowest_kind_that_all_their_values_have(tmp_path: Path) -> None:
    columns = {
        "id": ["007", "8"],
        "count": ["-3", ""],
        "share": ["1", "2.5e-3"],
        "is_code": ["True", "false"],
        "tags": ['{"a": [1]}', '{"a": []}'],
        "note": ["[1", "2]"],
        "none": ["", ""],
    }
    frame = pd.DataFrame({**pd.DataFrame([vote(0), vote(1)]).drop(columns="prompt"), "prompt": ["p", "q"], **columns})
    frame.to_csv(tmp_path / "v.csv", index=False)
    with open_votes(tmp_path / "v.csv") as store:
        kinds = {name: [row[name] for row in store.rows()] for name in columns}
    assert kinds == {
        "id": ["007", "8"],
        "count": [-3, None],
        "share": [1.0, 0.0025],
        "is_code": [True, False],
        "tags": [{"a": [1]}, {"a": []}],
        "note": ["[1", "2]"],
        "none": [None, None],
    }


def test_lists_in_csv_are_read_as_json_or_as_python_writes_them(tmp_path: Path) -> None:
    frame = pd.DataFrame([vote(0, prompt=["it's", "b"]), vote(1, prompt=["c"])])
    frame["labels"] = ["[0 1 0]", "[ 2 1 0]"]
    frame.to_csv(tmp_path / "v.csv", index=False)
    with open_votes(tmp_path / "v.csv") as store:
        assert store.prompts() == [["it's", "b"], ["c"]]
        assert [row["labels"] for row in store.rows()] == ["[0 1 0]", "[ 2 1 0]"]


def test_rows_come_in_the_order_asked_for_with_repeats_across_batches(tmp_path: Path) -> None:
    rows = [vote(n) for n in range(1000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "v.parquet", row_group_size=70)
    ids = np.random.default_rng(0).integers(0, 1000, 300)
    with open_votes(tmp_path / "v.parquet") as store:
        assert store.rows(ids) == [rows[i] for i in ids]
        assert store.prompts(ids) == [rows[i]["prompt"] for i in ids]
        assert store.prompts([]) == []
        assert store.labels([]).shape == (0, 3)
        assert store.column("question_id").tolist() == [row["question_id"] for row in rows]
        with pytest.raises(IndexError):
            store.labels([1000])


def test_a_table_in_memory_and_a_frame_are_sources() -> None:
    rows = [vote(n) for n in range(5)]
    for table in (pa.Table.from_pylist(rows), pd.DataFrame(rows)):
        with open_votes(table) as store:
            assert store.rows() == rows


@pytest.mark.parametrize("several", [False, True])
def test_a_save_to_disk_folder_is_a_source(several: bool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [vote(n) for n in range(7)]
    data = datasets.Dataset.from_list(rows)
    (datasets.DatasetDict({"train": data}) if several else data).save_to_disk(str(tmp_path / "d"))
    with open_votes(tmp_path / "d") as store:
        assert store.rows() == rows
    if several:
        assert "no split 'val'; splits: train" in fails(tmp_path / "d", split="val")
    assert "save_to_disk" in fails(tmp_path, from_disk=True)


def test_a_hub_id_without_a_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fails("nobody/no-such-votes").startswith("nobody/no-such-votes: no such local file")


def test_json_lines_may_change_their_columns_as_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.votes.json_lines._BLOCK_BYTES", 300)
    extras: list[dict[str, Any]] = [{}, {"x": 1}, {"x": 1.5}, {"x": "text"}, {"tag": {"a": True}}, {"tag": {"b": 1}}]
    rows = [{**vote(n), **extras[n // 5]} for n in range(30)]
    with open_votes(save(tmp_path / "v.jsonl", rows)) as store:
        for row, expected in zip(store.rows(), rows, strict=True):
            assert without_none(row) == expected
        assert store.column("x")[[0, 5, 10, 15]].tolist() == [None, "1", "1.5", "text"]
        path = tmp_path / "again.parquet"
        write_votes((batch for _, batch in store.batches()), store.schema, path)
    assert pq.read_table(path).num_rows == 30


def test_json_lines_hold_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"x": float("nan"), "tag": {"y": [1.5, float("inf")]}}, {"x": 1.0, "tag": None}]
    )
    write_votes([batch], batch.schema, tmp_path / "v.jsonl")
    lines = (tmp_path / "v.jsonl").read_text().splitlines()
    assert lines == ['{"x": null, "tag": {"y": [1.5, null]}}', '{"x": 1.0, "tag": null}']


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_text_formats_hold_bytes_as_base64_and_times_as_text(tmp_path: Path, ending: str) -> None:
    batch = pa.RecordBatch.from_pylist([{"image": b"\xff\xfe", "length": timedelta(days=1)}])
    write_votes([batch], batch.schema, tmp_path / f"v{ending}")
    text = (tmp_path / f"v{ending}").read_text()
    assert "//4=" in text
    assert "1 day" in text or "86400" in text


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    names = ["prompt", "model_a", "model_a", "model_b", "winner"]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 5, names=names), tmp_path / "v.parquet")
    with pytest.raises(VoteError, match="'model_a' occurs twice"):
        open_votes(tmp_path / "v.parquet")


def test_a_parquet_file_with_a_name_of_a_column_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "v.parquet", [vote(0)])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"winner", b"win\x80er"))
    assert f"{path}: the name of a column is not UTF-8 text" in fails(path)


def test_lists_of_several_kinds_in_csv_stay_text(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text('prompt,model_a,model_b,winner,x\nhi,a,b,tie,"[[""n"", 1]]"\n', encoding="utf-8")
    with open_votes(tmp_path / "v.csv") as store:
        assert store.rows()[0]["x"] == '[["n", 1]]'


def test_json_lines_keep_text_that_looks_like_a_time_and_mixed_prompts(tmp_path: Path) -> None:
    rows = [vote(0, prompt="a", when="2024-01-02"), vote(1, when="2024-01-02")]
    with open_votes(save(tmp_path / "v.jsonl", rows)) as store:
        assert store.prompts() == [["a"], ["question 1"]]
        assert store.rows()[1]["when"] == "2024-01-02"


@pytest.mark.parametrize(("ending", "place"), [(".parquet", "row 2"), (".jsonl", "line 2"), (".csv", "row 3")])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"winner": "modelb"},
            "unknown winner 'modelb'; it must be one of model_a, model_b, tie, tie (bothbad) (did you",
        ),
        ({"model_a": ""}, "model_a has no name"),
        ({"model_b": "beta"}, "model_a and model_b are both 'beta'"),
        ({"weight": -1.0}, "weight is -1.0; it must be a finite number"),
        ({"weight": float("inf")}, "weight is inf; it must be a finite number"),
        ({"propensity": 0.0}, "propensity is 0.0; it must be a probability"),
    ],
)
def test_a_faulty_row_is_named(ending: str, place: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    rows = [vote(0, weight=1.0, propensity=0.5), vote(1, weight=1.0, propensity=0.5) | changes]
    path = save(tmp_path / f"v{ending}", rows)
    assert fails(path).startswith(f"{path}: {place}: {says}")
    with open_votes(path, drop_bad=True) as store:
        assert len(store) == 1
        assert store.dropped_bad == 1


def test_missing_values_are_named(tmp_path: Path) -> None:
    for column in ("prompt", "model_a", "winner", "weight"):
        rows = [vote(0, weight=1.0), vote(1, weight=1.0) | {column: None}]
        for ending in (".parquet", ".jsonl", ".csv"):
            assert column in fails(save(tmp_path / f"v{ending}", rows)).split(": ", 2)[2]
    assert "no turns" in fails(save(tmp_path / "v.jsonl", [vote(0), vote(1, prompt=[])]))
    assert "turn that is missing" in fails(save(tmp_path / "v.jsonl", [vote(0), vote(1, prompt=["a", None])]))


def test_lines_are_counted_past_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    lines = ["", json.dumps(vote(0)), "  ", "", json.dumps(vote(1)), json.dumps(vote(2, winner="x"))]
    path.write_text("\n".join(lines))
    assert "line 6: unknown winner 'x'" in fails(path)
    path.write_text("\n".join([*lines[:5], "{'a': 1}"]))
    assert "line 6: is not JSON" in fails(path)
    path.write_text("\n".join([*lines[:5], "[]"]))
    assert "line 6: holds a list" in fails(path)


@pytest.mark.parametrize("good", [1, 3000])
def test_text_that_is_no_unicode_is_named(good: int, tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(good)])
    plain = path.read_bytes()
    path.write_bytes(plain + json.dumps(vote(0, prompt=["\ud83d"])).encode())
    assert f"line {good + 1}: prompt holds half of a surrogate pair" in fails(path)
    path.write_bytes(plain + json.dumps({**vote(0), "\udeff": 1}).encode())
    assert f"line {good + 1}: a key holds half of a surrogate pair" in fails(path)
    path.write_bytes(plain + json.dumps({**vote(0), "more": {"\udeff": 1}}).encode())
    assert f"line {good + 1}: more holds half of a surrogate pair" in fails(path)
    path.write_bytes(plain + json.dumps(vote(0, prompt=["?"])).encode().replace(b"?", b"\xff"))
    assert f"line {good + 1}: " in fails(path)
    assert "UTF-8" in fails(path)
    path = save(tmp_path / "v.csv", [vote(n) for n in range(good)])
    path.write_bytes(path.read_bytes() + b'q,"\xff",alpha,beta,tie\n')
    assert f"row {good + 2}: prompt is not UTF-8" in fails(path)


def test_what_is_not_a_source_of_votes_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "votes.jsonl", [vote(0)])
    assert f"(did you mean '{path}'?)" in fails(tmp_path / "vote.jsonl")
    assert f"(did you mean '{path}'?)" in fails(tmp_path / "votes.json")
    for unlike in ("nosuch.jsonl", "v2.jsonl"):
        assert fails(tmp_path / unlike).endswith(f"{unlike}: no such file")
    (tmp_path / "v.txt").write_bytes(b"\0\1\2" * 100)
    assert "neither text nor a file that is known" in fails(tmp_path / "v.txt")
    assert "not a folder" in fails(tmp_path, from_disk=True)
    (tmp_path / "nothing").mkdir()
    assert "is an empty folder" in fails(tmp_path / "nothing")
    for name in ("e.jsonl", "e.csv", "e.parquet", "e.jsonl.gz"):
        (tmp_path / name).write_bytes(b"")
        assert str(tmp_path / name) in fails(tmp_path / name)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
    assert "cannot be read" in fails(tmp_path / "t.jsonl.gz")
    (tmp_path / "h.csv").write_text("prompt,model_a,model_b,winner\n")
    assert "holds no votes" in fails(tmp_path / "h.csv")
    (tmp_path / "r.csv").write_text("prompt,model_a,model_b,winner\na,b\n")
    assert "Expected 4 columns" in fails(tmp_path / "r.csv")


def test_a_wrong_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [{**vote(0, winner=None), "winer": "tie"}])
    assert "no column 'winner' (did you mean 'winer'?); columns: question_id, prompt," in fails(path)
    assert "no column 'prompt'" in fails(save(tmp_path / "v.csv", [vote(0, prompt=None)]))
    (tmp_path / "n.csv").write_text('prompt,model_a,model_b,"of\r\ntwo lines"\nhi,a,b,tie\n', encoding="utf-8")
    assert "columns: prompt, model_a, model_b, of  two lines" in fails(tmp_path / "n.csv")
    with open_votes(tmp_path / "v.csv", need_prompt=False) as store:
        assert len(store) == 1
    with pytest.raises(VoteError, match="no column 'langage'"):
        read_votes(path, columns=["langage"])
    assert "holds int64; it must hold text" in fails(save(tmp_path / "i.jsonl", [vote(0, model_a=3)]))


def test_labels_translate_to_another_list_and_unknown_models_are_an_error_or_dropped() -> None:
    rows = [vote(n) for n in range(8)]
    other = ["delta", "unused", "alpha", "beta"]
    said = fails(pa.Table.from_pylist(rows), model_list=other)
    assert "1 of its 4 models are not in the model list of 4: 'gamma'" in said
    with open_votes(pa.Table.from_pylist(rows), model_list=other, drop_unknown=True) as store:
        kept = [row for row in rows if "gamma" not in (row["model_a"], row["model_b"])]
        assert store.rows() == kept
        assert store.dropped == 4
        assert len(store) == 4
        named = [[other[i], other[j]] for i, j, _ in store.labels()]
        assert named == [["alpha", "beta"], ["delta", "alpha"]] * 2
        assert store.column("question_id").tolist() == [row["question_id"] for row in kept]
        assert [row for _, batch in store.batches() for row in batch.to_pylist()] == kept
    assert "no vote is left" in fails(pa.Table.from_pylist(rows), model_list=["x", "y"], drop_unknown=True)
    moved = translate_labels(np.array([[0, 1, 0], [2, 3, 1]]), MODELS, other)
    assert moved.tolist() == [[2, 3, 0], [-1, 0, 1]]
    with pytest.raises(VoteError, match="row 1: labels"):
        translate_labels(np.array([[0, 4, 0]]), MODELS, other)


def labelled(*labels: Any, **changes: Any) -> pa.Table:
    return pa.Table.from_pylist([vote(n, labels=label, **changes) for n, label in enumerate(labels)])


def test_names_decide_and_labels_are_checked_against_them() -> None:
    # Rows: alpha beats beta; gamma beats beta (model_b); gamma ties delta.
    with open_votes(labelled([0, 1, 0], [2, 1, 0], [2, 3, 1])) as store:
        assert store.model_list == ["alpha", "beta", "delta", "gamma"]
        assert store.labels().tolist() == [[0, 1, 0], [3, 1, 0], [3, 2, 1]]
    assert "row 2: labels '[2 1 1]' contradict winner 'model_b'" in fails(labelled("[0 1 0]", "[2 1 1]"))
    assert "row 2: labels [1, 2, 0] place 'gamma' at 1" in fails(labelled([0, 1, 0], [1, 2, 0]))
    for wrong in ([0, 1], [0, 0, 0], [0, 1, 3], [-1, 1, 0]):
        assert "row 1: labels" in fails(labelled(wrong))
    assert "row 1: labels '[0 1]'" in fails(labelled("[0 1]"))


def test_labels_alone_need_a_stated_list() -> None:
    table = pa.table({"prompt": ["p", "q", "r"], "labels": ["[ 1 2 0]", "[0, 2, 1]", "[2 0 2]"]})
    assert "positions in a model list that is not stated" in fails(table)
    with open_votes(table, label_list=["c", "b", "a"]) as store:
        assert store.model_list == ["a", "b", "c"]
        assert store.labels().tolist() == [[1, 0, 0], [2, 0, 1], [0, 2, 2]]
    assert "row 1: labels '[ 1 2 0]' are not" in fails(table, label_list=["c", "b"])


def test_labels_beside_a_winner_say_who_was_model_b() -> None:
    table = pa.table({"prompt": ["p", "q"], "labels": [[0, 1, 0], [2, 1, 0]], "winner": ["model_a", "model_b"]})
    with open_votes(table, label_list=["a", "b", "c"]) as store:
        assert [(row["model_a"], row["model_b"]) for row in store.rows()] == [("a", "b"), ("b", "c")]
        assert store.labels().tolist() == [[0, 1, 0], [2, 1, 0]]


def test_a_winner_can_come_from_labels_with_names() -> None:
    rows = [vote(n, winner=None, labels=label) for n, label in enumerate([[1, 0, 0], [1, 2, 0], [2, 3, 2]])]
    with open_votes(pa.Table.from_pylist(rows), label_list=MODELS) as store:
        assert [row["winner"] for row in store.rows()] == ["model_b", "model_a", "tie (bothbad)"]
    rows[2]["labels"] = [0, 3, 2]
    assert "row 3: labels mean 'alpha' and 'delta'" in fails(pa.Table.from_pylist(rows), label_list=MODELS)


def test_times_are_seconds_whatever_they_are_written_as() -> None:
    for times in ([1.5, 2.5, 2.5], ["1.5", "2.5", "2.5"], pd.to_datetime([1.5, 2.5, 2.5], unit="s")):
        frame = pd.DataFrame([vote(n) for n in range(3)]).assign(tstamp=times)
        with open_votes(frame) as store:
            assert store.tstamps().tolist() == [1.5, 2.5, 2.5]  # type: ignore[union-attr]
            assert store.is_time_sorted
    frame = pd.DataFrame([vote(0), vote(1)]).assign(tstamp=["2024-01-01T00:00:00", "2023-01-01T00:00:00"])
    with open_votes(frame) as store:
        assert store.tstamps().tolist() == [1704067200.0, 1672531200.0]  # type: ignore[union-attr]
        assert not store.is_time_sorted
    assert "tstamp is 'soon'" in fails(frame.assign(tstamp=["1", "soon"]))
    # A date that is none spoils no other, nor does one with a zone beside one without.
    mixed = frame.assign(tstamp=["2024-01-01", "2024-13-01"])
    assert "row 2: tstamp is '2024-13-01'" in fails(mixed)
    assert [len(batch) for batch in read_votes(mixed, drop_bad=True)] == [1]
    with open_votes(frame.assign(tstamp=["2024-01-01", "2024-01-01T02:00:00+02:00"])) as store:
        assert store.tstamps().tolist() == [1704067200.0, 1704067200.0]  # type: ignore[union-attr]


def test_columns_encode_to_the_same_codes_from_every_kind_of_array(tmp_path: Path) -> None:
    rows = [vote(n) for n in range(10)]
    columns = read_columns(save(tmp_path / "v.jsonl", rows), ["model_a", "model_b", "winner"])
    frame = pd.DataFrame(rows)[["model_a", "model_b", "winner"]]
    kinds = [
        columns,
        frame,
        frame.astype(object),
        frame.astype("category"),
        {name: frame[name].to_numpy(dtype=object) for name in frame},
        {name: frame[name].to_numpy(dtype="U") for name in frame},
        {name: frame[name].tolist() for name in frame},
    ]
    for kind in kinds:
        codes = encode_votes(kind["model_a"], kind["model_b"], kind["winner"])
        assert codes.models == sorted(MODELS)
        assert [codes.models[code] for code in codes.model_a] == [row["model_a"] for row in rows]
        assert [WINNERS[code] for code in codes.winner] == [row["winner"] for row in rows]
        assert (codes.model_a.dtype, codes.winner.dtype) == (np.int32, np.int8)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ((["a", "b"], ["b", "a"], ["tie", "win"]), "row 2: unknown winner 'win'"),
        ((["a", None], ["b", "a"], ["tie", "tie"]), "row 2: model_a has no name"),
        ((["a", "a"], ["b", "a"], ["tie", "tie"]), "row 2: model_a and model_b are both 'a'"),
        ((["a"], ["b", "a"], ["tie"]), "differ in length"),
        (([], [], []), "there are no votes"),
        (([1], [2], ["tie"]), "must hold text"),
    ],
)
def test_columns_that_are_no_votes_are_refused(columns: tuple[Any, Any, Any], says: str) -> None:
    with pytest.raises(VoteError, match=says):
        encode_votes(*columns)


def test_nothing_is_left_in_tmpdir_even_after_a_kill(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(50)])
    spool = tmp_path / "spool"
    spool.mkdir()
    code = f"""
import os, signal, tempfile
from p2l.votes import open_votes
store = open_votes({str(path)!r})
assert tempfile.gettempdir() == {str(spool)!r}
assert store.prompts([3]) == [["question 3"]]
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**ENV, "TMPDIR": str(spool)}, check=False)
    assert done.returncode == -9
    assert list(spool.iterdir()) == []


def test_no_folder_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "v.jsonl", [vote(0)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(VoteError, match=r"gone: votes cannot be spooled there.*TMPDIR"):
        open_votes(str(path))


def test_a_full_disk_is_one_line_that_says_where(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n, prompt=["x" * 100]) for n in range(3000)])
    # A limit on file size fails as a full disk does: in the middle of writing.
    for limit in (100_000, 20_000, 60_000):
        code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from p2l.commands.votes import main
from p2l.common.cli import run
run(main, ["split", {str(path)!r}, "--by", "prompt", "--val", "9", "--train-output", "t.csv", "--val-output", "v.csv"])
"""
        # No bytecode: a file of it that is cut short is taken for whole later.
        env = {**ENV, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {tmp_path}: votes cannot be spooled there: File too large; set TMPDIR")
        assert done.stderr.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.jsonl"]


def test_reading_votes_imports_neither_torch_nor_datasets(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(0)])
    code = f"import sys; from p2l.votes import open_votes; open_votes({str(path)!r})\nprint(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENV
    ).stdout.split()
    assert not {"torch", "datasets", "transformers"} & set(modules)


def test_a_fingerprint_is_that_of_the_votes_not_of_the_file(tmp_path: Path) -> None:
    def fingerprint(name: str, rows: list[dict[str, Any]]) -> str:
        with open_votes(save(tmp_path / name, rows)) as store:
            return store.fingerprint

    rows = [vote(n) for n in range(3000)]
    mine = fingerprint("v.jsonl", rows)
    assert fingerprint("v.parquet", rows) == mine
    swapped = {"model_a": rows[7]["model_b"], "model_b": rows[7]["model_a"]}
    changed = [rows[:-1], rows[1:], [*rows[:7], rows[7] | swapped, *rows[8:]]]
    changed.append([row | {"prompt": ["another"]} for row in rows])
    assert len({mine, *(fingerprint(f"{n}.jsonl", other) for n, other in enumerate(changed))}) == 5
