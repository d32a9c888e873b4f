import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from p2l.common.access import port
from p2l.common.cli import above_zero, amount, nearest, parser, positive, run, whole
from p2l.common.errors import ConvergenceError, InputError
from p2l.common.files import atomic_path, check_can_write
from tests.conftest import Command


def exit_code(main: object) -> int:
    with pytest.raises(SystemExit) as caught:
        run(main)  # type: ignore[arg-type]
    return int(caught.value.code or 0)


def raising(error: Exception) -> object:
    def main(_: object) -> None:
        raise error

    return main


def test_a_users_mistake_is_one_line_and_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(raising(InputError("votes.csv: row 3: no winner; add one"))) == 2
    assert capsys.readouterr() == ("", "error: votes.csv: row 3: no winner; add one\n")


def test_other_outcomes_have_codes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda _: None) == 0
    assert exit_code(lambda _: 7) == 7
    assert exit_code(raising(ConvergenceError("no optimum"))) == 1
    assert exit_code(raising(KeyboardInterrupt())) == 130  # type: ignore[arg-type]
    assert "no optimum" in capsys.readouterr().err


def test_a_programming_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))  # type: ignore[arg-type]


def test_output_that_the_disk_or_the_terminal_cannot_take_is_no_traceback() -> None:
    command = [sys.executable, "-c", "from p2l.common.cli import run; run(lambda _: print('r\\u00f4le'))"]
    plain = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "r\\xf4le\n", "")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (1, "error: the output: No space left on device\n")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "table.csv"
    with atomic_path(target) as temporary:
        temporary.write_text("old", encoding="utf-8")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in target.parent.iterdir()] == ["table.csv"]


def test_a_whole_folder_can_be_written_at_once(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "model", directory=True) as temporary:
        (temporary / "config.json").write_text("{}", encoding="utf-8")
        assert not (tmp_path / "model").exists()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="file"), atomic_path(tmp_path / "file" / "table.csv"):
        pass
    with pytest.raises(InputError, match="file"):
        check_can_write(tmp_path / "file" / "table.csv")
    with pytest.raises(InputError, match=str(tmp_path)):
        check_can_write(tmp_path)


def test_an_input_is_never_the_target(tmp_path: Path) -> None:
    (tmp_path / "votes.csv").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"votes\.csv: is an input too; choose another output"):
        check_can_write(tmp_path / "new" / ".." / "votes.csv", None, "owner/name", tmp_path / "votes.csv")
    assert check_can_write(tmp_path / "table.csv", tmp_path / "votes.csv") == tmp_path / "table.csv"


def test_help_names_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    flags = parser("p2l test", "Test.")
    flags.add_argument("--steps", type=positive, default=60, help="how many")
    flags.add_argument("--quiet", action="store_true", help="no bar")
    with pytest.raises(SystemExit):
        flags.parse_args(["--help"])
    text = capsys.readouterr().out
    assert "how many (default: 60)" in text
    assert "False" not in text
    with pytest.raises(SystemExit) as caught:
        flags.parse_args(["--step", "3"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (positive, ("x", "0", "1.5"), "a whole number of at least 1"),
        (whole, ("x", "-1", ""), "a whole number of at least 0"),
        (amount, ("x", "-1", "nan", "inf"), "a number of at least 0"),
        (above_zero, ("x", "0", "nan", "inf"), "a number above 0"),
        (port, ("x", "0", "65536"), "a whole number from 1 to 65535"),
        (int, ("x", "1.5"), "a whole number"),
        (float, ("x", ""), "a number"),
    ],
)
def test_a_number_that_a_flag_cannot_take_is_told_what_it_takes(
    capsys: pytest.CaptureFixture[str], kind: Callable[[str], float], values: Sequence[str], expected: str
) -> None:
    flags = parser("p2l test", "Test.")
    flags.add_argument("--number", type=kind)
    for value in values:
        with pytest.raises(SystemExit) as caught:
            flags.parse_args([f"--number={value}"])
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert error == f"error: argument --number: must be {expected}, got {value!r}; see p2l test --help\n"


def test_near_words_are_suggested() -> None:
    assert "learning_rate" in nearest("learning_rat", ["learning_rate", "seed"])
    assert nearest("zzz", ["learning_rate"]) == ""


def test_a_package_that_is_not_installed_is_named_with_its_extra(command: Command) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from p2l.cli import main; main()"
    done = command("python", "-c", code, "votes", "check", "votes.csv")
    assert done.returncode == 2
    install = "pip install 'p2l[data]' (with the constraints of docs/start/install.md)"
    assert done.stderr.strip() == f"error: this needs pyarrow, which is not installed; {install}"
