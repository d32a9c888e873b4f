"""The same votes in every container: packings, separators, encodings, JSON values, folders, globs, stdin."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import threading
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l.commands.votes import main
from p2l.common.errors import VoteError
from p2l.votes import read_columns
from p2l.votes.importing import import_votes

ROWS = [
    {"prompt": "Caf\u00e9 \u2014 \u201copen\u201d; or not", "model_a": "ant", "model_b": "bee", "winner": "model_b"},
    {"prompt": "Two, please", "model_a": "bee", "model_b": "cat", "winner": "tie (bothbad)"},
]


def separated(mark: str) -> str:
    lines = [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
    return "\n".join(mark.join(f'"{cell}"' for cell in line) for line in lines) + "\n"


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("votes.csv", content)
        archive.writestr("__MACOSX/._votes.csv", b"\0")
    return buffer.getvalue()


PLAIN = separated(",").encode()
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
FILES: dict[str, bytes] = {
    "v.tsv": separated("\t").encode(),
    "semicolons.csv": separated(";").encode(),
    "bars.txt": separated("|").encode(),
    "bom.csv": b"\xef\xbb\xbf" + PLAIN,
    "utf16.csv": separated(",").encode("utf-16"),
    "utf32.csv": separated(",").encode("utf-32"),
    "utf16.tsv": separated("\t").encode("utf-16-le").join([b"\xff\xfe", b""]),
    "windows.csv": separated(",").encode("cp1252"),
    "v.csv.gz": gzip.compress(PLAIN),
    "v.csv.zst": pa.Codec("zstd").compress(PLAIN, asbytes=True),
    "v.csv.bz2": bz2.compress(PLAIN),
    "v.csv.xz": lzma.compress(PLAIN),
    "v.zip": zipped(PLAIN),
    "twice.gz": gzip.compress(gzip.compress(PLAIN)),
    "v.tsv.gz": gzip.compress(separated("\t").encode()),
    "noending": LINES,
    "lines.csv": LINES,
    "table.parquet": PLAIN,
    "unpacked.jsonl.gz": LINES,
    "twice.jsonl.gz": gzip.compress(gzip.compress(LINES)),
    "v.jsonl.zst": pa.Codec("zstd").compress(LINES, asbytes=True),
    "v.json": json.dumps(ROWS, indent=2).encode(),
    "v.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "line.json": json.dumps(ROWS).encode(),
    "wrapped.json": json.dumps({"data": ROWS, "total": 2}).encode(),
    "viewer.json": json.dumps({"rows": [{"row_idx": n, "row": row} for n, row in enumerate(ROWS)]}).encode(),
    "pandas.json": json.dumps({key: {str(n): row[key] for n, row in enumerate(ROWS)} for key in ROWS[0]}).encode(),
    "index.json": json.dumps({str(n): row for n, row in enumerate(ROWS)}).encode(),
    "split.json": json.dumps({"columns": [*ROWS[0]], "data": [[*row.values()] for row in ROWS]}).encode(),
    "lists.json": json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}, indent=1).encode(),
}


def votes_of(path: Path) -> list[dict[str, object]]:
    columns = ["prompt", "model_a", "model_b", "winner"]  # without those that the import adds
    return [{**row, "prompt": row["prompt"][0]} for row in pq.read_table(path, columns=columns).to_pylist()]


@pytest.mark.parametrize("name", FILES)
def test_votes_are_read_from_any_container(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert import_votes([tmp_path / name], tmp_path / "o.parquet").models == 3
    assert votes_of(tmp_path / "o.parquet") == ROWS
    assert read_columns(tmp_path / name, ["model_a"])["model_a"].to_pylist() == ["ant", "bee"]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("semicolons.csv", "columns are separated by semicolons"),
        ("windows.csv", "text is Windows-1252, not UTF-8"),
        ("utf16.csv", "text is UTF-16"),
    ],
)
def test_what_is_not_plain_from_the_name_is_told(
    name: str, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    assert main(["import", str(tmp_path / name), "--output", str(tmp_path / "o.parquet"), "--quiet"]) == 0
    assert note in capsys.readouterr().out


def test_folders_globs_and_several_paths_are_one_import(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.csv").write_bytes(PLAIN)
    (folder / "deeper" / "b.jsonl").write_bytes(LINES)
    (folder / "README.md").write_text("about")
    for paths, votes in (
        ([folder], 4),
        ([folder / "*.csv"], 2),
        ([folder / "**" / "*.*[vl]"], 4),
        ([folder / "a.csv", folder / "deeper" / "b.jsonl", folder], 8),
    ):
        assert import_votes(paths, tmp_path / "o.parquet").rows == votes
    (folder / "deeper" / "c.csv").write_text("prompt,model_a,model_b,winner\nx,ant,ant,tie\n")
    with pytest.raises(Exception, match=r"c.csv: row 2: model_a and model_b are both 'ant'"):
        import_votes([folder], tmp_path / "o.parquet")
    assert import_votes([folder], tmp_path / "o.parquet", drop_bad=True).dropped == 1


def test_a_folder_passes_over_what_is_no_table_and_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_bytes(PLAIN)
    for name in ("LICENSE", "plot.png", ".hidden.csv"):
        (folder / name).write_bytes(b"\x89PNG")
    assert import_votes([folder], tmp_path / "o.parquet").notes == ("passed over what is no table: LICENSE, plot.png",)
    (folder / "a.csv").unlink()
    with pytest.raises(Exception, match=r"holds no file of votes or scores, only LICENSE, plot\.png"):
        import_votes([folder], tmp_path / "o.parquet")


def test_votes_come_from_a_pipe_by_import_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(PLAIN,))
    writer.start()
    import_votes([pipe], tmp_path / "o.parquet")
    writer.join()
    assert votes_of(tmp_path / "o.parquet") == ROWS
    with pytest.raises(Exception, match="pipe: is a pipe, which can be read once only; `p2l votes import` takes it"):
        read_columns(pipe, ["model_a"])


def test_pipes_of_one_name_are_both_read(tmp_path: Path) -> None:
    lines = PLAIN.splitlines(keepends=True)
    parts = {"first": lines, "second": [lines[0], *lines[1:] * 2]}
    pipes = [tmp_path / name / "pipe" for name in parts]
    writers = []
    for pipe, part in zip(pipes, parts.values(), strict=True):
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        writers.append(threading.Thread(target=pipe.write_bytes, args=(b"".join(part),)))
        writers[-1].start()
    import_votes(pipes, tmp_path / "o.parquet")
    for writer in writers:
        writer.join()
    assert votes_of(tmp_path / "o.parquet") == ROWS + ROWS + ROWS


def test_what_a_system_puts_beside_a_file_in_a_zip_is_no_second_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("folder/v.csv", PLAIN)
        archive.writestr("__MACOSX/folder/._v.csv", "x")
        archive.writestr("folder/.DS_Store", "x")
    import_votes([tmp_path / "v.zip"], tmp_path / "o.parquet")
    assert votes_of(tmp_path / "o.parquet") == ROWS


def test_votes_come_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(gzip.compress(separated("\t").encode()))

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert main(["import", "-", "--output", str(tmp_path / "o.parquet"), "--quiet"]) == 0
    assert votes_of(tmp_path / "o.parquet") == ROWS


def test_what_comes_by_stdin_is_called_so_and_names_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"doc_id": 0, "doc": {}, "target": "4", "arguments": {}, "metrics": ["acc"], "acc": 1.0}
    report = {"total_instances": 1, "resolved_ids": ["a"], "submitted_ids": ["a"]}
    for content, says in (
        (b"", "stdin: is empty"),
        (b"prompt,model_a,model_b,winner\nq,ant,ant,tie\n", "stdin: row 2: model_a and model_b are both 'ant'"),
        (f"{json.dumps(answer)}\n".encode(), "stdin: names no model, which its file or folder would"),
        (json.dumps(report).encode(), "stdin: names no model, which its file or folder would"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(VoteError, match=f"^{says}"):
            import_votes(["-"], tmp_path / "o.parquet")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "'': names nothing"),
        ("a\0b.csv", "has a letter that no name of a file has"),
        ("x" * 5000, "cannot be a path: File name too long"),
        ("half\udcff.csv", "is not UTF-8; give the file another name"),
        ("~nobody-is-called-so/v.csv", "cannot be a path: Could not determine home directory"),
        ("https://example.org/v.csv", "is an address of the web; download the file, and name that"),
    ],
    ids=["empty", "nul", "long", "half", "home", "address"],
)
def test_what_can_be_no_path_is_one_line(path: str, says: str, tmp_path: Path) -> None:
    for read in (lambda: import_votes([path], tmp_path / "o.parquet"), lambda: read_columns(path, ["model_a"])):
        with pytest.raises(VoteError, match=says):
            read()


def test_links_that_lead_nowhere_are_told_and_those_that_lead_back_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_bytes(PLAIN)
    (folder / "up").symlink_to("..")
    assert import_votes([folder], tmp_path / "o.parquet").rows == 2
    for name, target in (("itself.csv", "itself.csv"), ("gone.csv", "nothing.csv")):
        (folder / name).symlink_to(target)
        with pytest.raises(VoteError, match=f"{name}: is a link to what is not there"):
            import_votes([folder / name], tmp_path / "o.parquet")
    assert main(["import", str(folder / "a.csv"), "--output", str(tmp_path / "o.parquet"), "--quiet"]) == 0


def test_two_kinds_of_votes_in_a_folder_are_one_import(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    judged = {"model_a": "ant", "model_b": "bee", "winner": "tie", "judge": "gpt-4", "turn": 1}
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_bytes(PLAIN)
    (folder / "b.jsonl").write_text(json.dumps({**judged, "conversation_a": talk, "conversation_b": talk}) + "\n")
    import_votes([folder], tmp_path / "o.parquet")
    rows = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert [(row["source"], row["length_a"]) for row in rows] == [(None, None), (None, None), ("gpt-4", 2)]


def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.votes.containers._SMALL_BYTES", 1 << 16)
    monkeypatch.setattr("p2l.votes.containers._MAX_EXPANSION", 10)
    (tmp_path / "v.csv.xz").write_bytes(lzma.compress(b"x" * (1 << 22)))
    with pytest.raises(Exception, match="unpacks to more than"):
        import_votes([tmp_path / "v.csv.xz"], tmp_path / "o.parquet")


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("v.csv.gz", "utf16.csv", "v.json"):
        (tmp_path / name).write_bytes(FILES[name])
        import_votes([tmp_path / name], tmp_path / "o.parquet")
    assert not list(tmp_path.glob("p2l-votes-*"))
