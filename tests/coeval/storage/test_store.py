from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coeval.errors import RunInputError
from coeval.storage.meta import adding, claimed_work, main_process, replacing
from coeval.storage.records import RecordIndex, read_records
from coeval.storage.run import Run
from coeval.storage.store import Store


def test_what_is_appended_is_in_the_file_at_once_and_counted_when_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "x" / "a.jsonl"
    with Store(Run(tmp_path)) as store:
        store.append(path, {"id": "1"})
        assert list(read_records(path)) == [{"id": "1"}]
        store.append(path, {"id": "2"})
        store.flush()
        assert (store.appended, store.stored) == (2, 2)
    assert list(read_records(path)) == [{"id": "1"}, {"id": "2"}]


def test_many_files_are_not_open_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in range(150)]
    with Store(Run(tmp_path)) as store:
        for turn in range(2):
            for path in paths:
                store.append(path, {"turn": turn})
    assert all([record["turn"] for record in read_records(path)] == [0, 1] for path in paths)


def test_errors_are_noted_and_counted_by_what_they_should_have_made(tmp_path: Path) -> None:
    with Store(Run(tmp_path)) as store:
        store.error("evaluation", "no level", id="x", task="mail", model="ant")
        store.error("evaluation", "no level", id="x")
        store.error("data_generation", "no item", id="x")
        assert store.failures("evaluation") == {"x": 2}
    first = next(read_records(Run(tmp_path).errors))
    assert (first["status"], first["error"], first["model"]) == ("failed", "no level", "ant")


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Store(Run(tmp_path)) as store, pytest.raises(OSError, match="file"):
        store.append(tmp_path / "file" / "x.jsonl", {})


def test_an_index_gives_the_last_valid_record_of_an_id(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    lines = '{"id": "1", "v": 1}\n{"id": "2", "v": 2, "status": "failed"}\n\nno\n{"id": "1", "v": 3}\n{"id": "3"}\n'
    paths[0].write_text(lines)
    paths[1].write_text('{"id": "4", "v": "é"}\n{"id": "5", "v": 5}')
    bad: list[int] = []
    index = RecordIndex(paths, lambda record: "v" in record, lambda _, line, _why: bad.append(line))
    assert list(index) == ["1", "4", "5"]
    assert [index.get(one) for one in ("1", "4", "9")] == [{"id": "1", "v": 3}, {"id": "4", "v": "é"}, None]
    assert ("2" in index, len(index), bad) == (False, 3, [4])


def test_work_is_had_by_one_at_a_time(tmp_path: Path) -> None:
    run, order = Run(tmp_path), []

    async def work(name: str) -> None:
        async with claimed_work(run, "evaluation", "ant", on_wait=lambda: order.append(f"{name} waits")):
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(name)

    async def both() -> None:
        await asyncio.gather(work("first"), work("second"))

    asyncio.run(both())
    assert order == ["first", "second waits", "first", "second", "second"]


def test_no_file_is_replaced_while_a_process_adds_to_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with adding(run), adding(run), pytest.raises(RunInputError, match="another process"), replacing(run):
        pass
    with replacing(run):
        pass


def test_there_is_one_main_process(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with main_process(run), pytest.raises(RunInputError, match="another process"), main_process(run):
        pass
    with main_process(run):
        pass
