"""Folders that appear whole, for one process at a time."""

import threading
from pathlib import Path

import pytest

from p2l.common.errors import InputError
from p2l.common.files import claimed


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with claimed(folder) as hidden:
        assert hidden is not None
        (hidden / "note").write_text("1")
        assert not folder.exists()
    assert (folder / "note").read_text() == "1"
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:

    def fill() -> None:
        with claimed(tmp_path / "run") as hidden:
            assert hidden is not None
            (hidden / "note").write_text("1")
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"run: cannot be written: No space left"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_of_two_at_once_one_gets_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claimed(folder) as first:
        assert first is not None
        with claimed(folder) as second:
            assert second is None
        (first / "note").write_text("1")
    with claimed(folder) as third:
        assert third is None
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    old = tmp_path / ".run.unfinished"
    (old / "backbone").mkdir(parents=True)
    (old / "train.parquet").write_text("half")
    with claimed(tmp_path / "run") as hidden:
        assert hidden == old
        assert list(hidden.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_many_at_once_make_one_folder(tmp_path: Path) -> None:
    winners = []
    start = threading.Barrier(8)

    def claim(number: int) -> None:
        start.wait()
        with claimed(tmp_path / "run") as hidden:
            if hidden is not None:
                (hidden / "owner").write_text(str(number))
                winners.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(tmp_path / "run" / "owner").read_text()] == [str(winner) for winner in winners]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
