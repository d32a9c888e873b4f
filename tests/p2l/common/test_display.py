"""What terminals and logs show of texts of others."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Sequence

import pytest

from p2l.common.cli import print_note, run
from p2l.common.display import printable
from p2l.common.errors import InputError
from p2l.common.text_table import text_table
from p2l.serving.server import LineFormatter

EVIL = "a\x1b[31mb\x1b]0;title\x07\x9b2J\u202ec\u2066d\u200b\ufeffe\x00\x7f\u200ff"
SHOWN = "a[31mb]0;title2Jcdef"


def test_what_moves_hides_or_turns_text_is_removed() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("one\ntwo\rthree\tfour\u2028five\x85six") == "one two three four five six"
    assert printable("a\nb\x1b", keep="\n") == "a\nb"


def test_letters_of_every_script_stay() -> None:
    for text in ["שלום עולם", "مرحبا بالعالم", "हिन्दी", "ภาษาไทย", "Tiếng Việt", "日本語", "é", "🐝", "a b"]:
        assert printable(text) == text


def test_a_table_keeps_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    header, rule, row = text_table(["name", "n"], [[EVIL + "\nforged  1", "2"]])
    assert row == f"{SHOWN} forged  1  2"
    assert len(header) <= len(rule) == len(row)
    print_note(f"note: {EVIL}\nforged")
    assert capsys.readouterr().err == f"note: {SHOWN} forged\n"


def test_a_command_prints_no_escape_sequence_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    def main(_: Sequence[str] | None) -> int:
        print(f"model: {EVIL}")
        print("two\nlines\tof it", file=sys.stderr)
        raise InputError(f"votes.csv: row 2: {EVIL}\nerror: forged")

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == f"model: {SHOWN}\n"
    assert err == f"two\nlines\tof it\nerror: votes.csv: row 2: {SHOWN} error: forged\n"
    assert not isinstance(sys.stdout, io.StringIO)
    print(EVIL)  # the streams are as they were
    assert capsys.readouterr().out == f"{EVIL}\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_text_of_others_is_written_over_a_line(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    def main(_: Sequence[str] | None) -> int:
        file = getattr(sys, stream)
        print("error: row 1\rall is well", file=file)
        print("\x1b[A" if stream == "stdout" else "a\x1b[A", file=file)
        print("a,b\r\nc,d\r\n", end="", file=file)
        return 0

    with contextlib.suppress(SystemExit):
        run(main)
    written = getattr(capsys.readouterr(), "out" if stream == "stdout" else "err")
    assert written.splitlines()[0] == "error: row 1 all is well"
    assert "\x1b" not in written
    assert written.endswith("a,b\r\nc,d\r\n")


def test_progress_bars_below_each_other_stay_in_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    def main(_: Sequence[str] | None) -> None:
        for _ in tqdm(range(2), desc="outer"):
            list(tqdm(range(2), desc=f"inner{EVIL}", leave=False))

    with pytest.raises(SystemExit):
        run(main)
    shown = capsys.readouterr().err
    assert "\x1b[A" in shown
    assert "\x1b" not in shown.replace("\x1b[A", "")
    assert "[A" not in shown.replace("\x1b[A", "")


def test_a_line_of_a_log_is_one_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    log = logging.Logger("trial")
    log.addHandler(handler)
    log.warning("loaded %s", f"{EVIL}\nERROR forged")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        log.exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[0] == f"WARNING loaded {SHOWN} ERROR forged"
    assert lines[1:3] == ["ERROR failed", "Traceback (most recent call last):"]
    assert "\x1b" not in stream.getvalue()
