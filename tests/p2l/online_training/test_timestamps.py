"""When training batches ended."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import InputError, VoteError
from p2l.online_training.reorder import EndTimes
from p2l.online_training.timestamps import build_parser, main
from tests.p2l.votes_helpers import save, vote

times = st.lists(st.floats(0, 1e9), min_size=1, max_size=40)


@given(times, st.integers(1, 9), st.integers(1, 12))
def test_a_batch_ends_with_the_newest_vote_so_far(of: list[float], size: int, piece: int) -> None:
    ends = EndTimes(size)
    for start in range(0, len(of), piece):
        ends.add(np.array(of[start : start + piece]))
    expected = [max(of[: start + size]) for start in range(0, len(of), size)]
    assert ends.by_batch() == {str(batch): {"end_tstamp": end} for batch, end in enumerate(expected)}


def write(folder: Path, rows: list[dict[str, object]], ending: str = ".parquet") -> Path:
    return save(folder / f"votes{ending}", rows)


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv"])
def test_the_command_reads_the_column(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    votes = write(tmp_path, [vote(n, tstamp=[5.0, 1.0, 7.0, 6.0, 9.0][n]) for n in range(5)], ending)
    output = tmp_path / "new" / "times.json"
    line = ["--chrono-train-data", str(votes), "--batch-size", "2", "--output-file", str(output)]
    assert main(line) == 0
    assert capsys.readouterr().out == f"{output}: 3 batches of 2 votes\n"
    ends = {"0": {"end_tstamp": 5.0}, "1": {"end_tstamp": 7.0}, "2": {"end_tstamp": 9.0}}
    assert json.loads(output.read_text()) == ends


def test_times_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    votes = write(tmp_path, [vote(n) for n in range(3)])
    lines = [{"question_id": f"q{n}", "tstamp": 10 * n, "more": None} for n in (2, 0, 1)]
    known = tmp_path / "times.jsonl"
    known.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    output = tmp_path / "out.json"
    main(["--chrono-train-data", str(votes), "--tstamp-file", str(known), "--output-file", str(output)])
    assert json.loads(output.read_text()) == {"0": {"end_tstamp": 20.0}}


def test_the_command_does_not_replace_what_it_reads(tmp_path: Path) -> None:
    votes = write(tmp_path, [vote(0, tstamp=1.0)])
    known = tmp_path / "times.jsonl"
    known.write_text('{"question_id": "q0", "tstamp": 1}\n')
    for output in (votes, known):
        before = output.read_bytes()
        with pytest.raises(InputError, match=f"{output.name}: is an input too; choose another output"):
            main(
                [
                    "--chrono-train-data",
                    str(votes),
                    "--tstamp-file",
                    str(known),
                    "--output-file",
                    f"{tmp_path}/./{output.name}",
                ]
            )
        assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("rows", "lines", "message"),
    [
        ([vote(0)], None, "no column 'tstamp'.*give --tstamp-file"),
        ([vote(0, tstamp=1.0), vote(1)], None, "row 2: has no tstamp"),
        ([vote(0, question_id=None)], '{"question_id": 1, "tstamp": 2}', "no column 'question_id'"),
        ([vote(0), vote(1)], '{"question_id": "q0", "tstamp": 2}', r"row 2: has no tstamp in .*times\.jsonl"),
        ([vote(0)], '{"question_id": "q0"}', r"times\.jsonl: line 1: must be an object with question_id and tstamp"),
        ([vote(0)], "7", "line 1: must be an object"),
        ([vote(0)], '{"question_id": "q0", "tstamp": 2}\n{', "line 2: must be an object"),
    ],
)
def test_what_has_no_time_is_refused(
    tmp_path: Path, rows: list[dict[str, object]], lines: str | None, message: str
) -> None:
    words = ["--chrono-train-data", str(write(tmp_path, rows)), "--output-file", str(tmp_path / "out.json")]
    if lines is not None:
        (tmp_path / "times.jsonl").write_text(lines)
        words += ["--tstamp-file", str(tmp_path / "times.jsonl")]
    with pytest.raises(VoteError, match=message):
        main(words)
    assert not (tmp_path / "out.json").exists()


def test_a_times_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    votes = write(tmp_path, [vote(0)])
    with pytest.raises(InputError, match=r"nothing\.jsonl: cannot be read"):
        main(
            ["--chrono-train-data", str(votes), "--tstamp-file", "nothing.jsonl", "--output-file", str(tmp_path / "o")]
        )


def test_the_published_flags_hold() -> None:
    args = build_parser().parse_args(["--chrono-train-data", "a", "--output-file", "b"])
    assert (args.tstamp_file, args.batch_size) == (None, 512)
