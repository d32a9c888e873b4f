from __future__ import annotations

import os
from multiprocessing import get_context
from pathlib import Path

import pytest

from coeval.errors import RunInputError
from coeval.storage.meta import Meta, create_meta
from coeval.storage.run import Run


def _reserve(folder: Path, calls: int, limit: int) -> int:
    meta = Meta(Run(folder))
    return sum(meta.reserve_call("ant", limit) for _ in range(calls))


def test_a_quota_holds_over_processes_and_starts(tmp_path: Path) -> None:
    create_meta(Run(tmp_path), "one")
    with get_context("spawn").Pool(2) as pool:
        granted = pool.starmap(_reserve, [(tmp_path, 40, 60)] * 2)
    assert sum(granted) == 60
    assert Meta(Run(tmp_path)).quota_used == {"ant": 60}
    assert not Meta(Run(tmp_path)).reserve_call("ant", 60)
    assert Meta(Run(tmp_path)).reserve_call("ant", 61)


def test_calls_of_a_model_are_one_number_however_they_were_counted(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert meta.reserve_call("ant", None)
    meta.flush()
    assert meta.reserve_call("ant", 9)
    meta.change(lambda data: data["quota_used"].update(ant=data["quota_used"]["ant"] + 3))
    assert meta.reserve_call("ant", None)
    other = Meta(Run(tmp_path))
    other.change(lambda data: data["quota_used"].update(ant=data["quota_used"]["ant"] + 3))
    meta.flush()
    assert Meta(Run(tmp_path)).data["quota_used"] == {"ant": 9}
    assert not other.reserve_call("ant", 9)


def test_calls_of_a_process_that_was_killed_stay_counted(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert [meta.reserve_call("ant", 2) for _ in range(3)] == [True, True, False]
    assert all(meta.reserve_call("bee", None) for _ in range(7))
    later = Meta(Run(tmp_path))  # meta.json was not written since
    assert later.quota_used == {"ant": 2, "bee": 7}
    assert not later.reserve_call("ant", 2)
    assert not later.reserve_call("bee", 7)
    later.flush()
    assert later.data["quota_used"] == {"ant": 2, "bee": 7}


class KilledError(BaseException):
    """What a process meets in place of a kill."""


@pytest.mark.parametrize("place", ["coeval.storage.meta.write_json", "coeval.storage.meta.SharedNumber.put"])
@pytest.mark.parametrize("by", [-0.75, 0.75])
def test_a_change_that_a_kill_cut_short_and_that_is_made_again_never_counts_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, by: float
) -> None:
    """As a batch job is charged, or is given back what it did not cost: once, by what the file says of it."""
    create_meta(Run(tmp_path), "one").add_spent(1.0)

    def count(data: dict[str, object]) -> None:
        if not data.get("done"):
            data.update(done=True, spent_usd=data["spent_usd"] + by)

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(place, kill)
        with pytest.raises(KilledError):
            Meta(Run(tmp_path)).change(count)
    assert Meta(Run(tmp_path)).spent_usd >= min(1.0, 1.0 + by)
    Meta(Run(tmp_path)).change(count)
    assert 1.0 + by <= Meta(Run(tmp_path)).spent_usd <= max(1.0, 1.0 + 2 * by)


def test_a_call_of_no_use_does_not_name_its_model(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert not meta.reserve_call("ant", 0)
    meta.flush()
    assert Meta(Run(tmp_path)).data["quota_used"] == {}


def test_calls_without_a_limit_and_dollars_are_counted_too(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert meta.reserve_call("bee", None)
    meta.add_spent(0.25)
    assert (meta.quota_used["bee"], meta.spent_usd) == (1, 0.25)
    meta.flush()
    again = Meta(Run(tmp_path))
    assert (again.quota_used, again.spent_usd) == ({"bee": 1}, 0.25)
    again.add_spent(0.5)
    meta.add_spent(1.0)
    assert again.spent_usd == meta.spent_usd == Meta(Run(tmp_path)).spent_usd == 1.75  # a kill here loses nothing
    again.add_spent(-0.75)
    again.flush()
    assert Meta(Run(tmp_path)).data["spent_usd"] == 1.0


def test_who_only_looks_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = create_meta(Run(tmp_path), "one")
    meta.add_spent(0.25)

    def refuse(path: Path, flags: int, *_: int) -> int:
        assert flags & (os.O_RDWR | os.O_WRONLY) == 0
        return opened(path, flags)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    assert Meta(Run(tmp_path)).spent_usd == 0.25


def test_a_count_that_a_power_cut_wiped_is_that_of_the_file(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert meta.reserve_call("ant", None)
    meta.flush()
    (Run(tmp_path).locks / "calls+ant").write_bytes(bytes(20))
    again = Meta(Run(tmp_path))
    assert again.reserve_call("ant", 2)
    assert again.quota_used == {"ant": 2}


def test_a_new_run_in_the_folder_of_another_begins_to_count(tmp_path: Path) -> None:
    meta = create_meta(Run(tmp_path), "one")
    assert meta.reserve_call("ant", None)
    meta.add_spent(2.0)
    again = create_meta(Run(tmp_path), "two")
    assert (again.quota_used, again.spent_usd) == ({}, 0.0)


def test_marks_of_phases_and_foreign_keys_stay(tmp_path: Path) -> None:
    run = Run(tmp_path)
    meta, other = create_meta(run, "one", "zero"), Meta(run)
    other.update(ingest_log=[{"benchmark": "mmlu"}])
    meta.mark("data_generation", complete=False)
    meta.mark("data_generation", complete=True)
    meta.mark("evaluation", complete=False)
    data = Meta(run).data
    assert (data["phases_completed"], data["phases_in_progress"]) == (["data_generation"], ["evaluation"])
    assert (data["resume_from"], data["ingest_log"]) == ("zero", [{"benchmark": "mmlu"}])


@pytest.mark.parametrize(
    ("text", "why"), [(None, "does not exist"), ("[", "is not a JSON object"), ("[]", "is not a JSON object")]
)
def test_a_folder_without_a_run_is_said(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "meta.json").write_text(text)
    with pytest.raises(RunInputError, match=why):
        Meta(Run(tmp_path))
