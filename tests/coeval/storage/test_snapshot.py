from __future__ import annotations

from pathlib import Path

import pytest

from coeval.schema import DEFAULT, scale_in, scale_of
from coeval.storage.run import Run, entries_of, stored_config, stored_meta


@pytest.mark.parametrize("text", [b"", b"[]", b"a: [", b"a: 2026-13-45", b"\xff"])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: bytes) -> None:
    run = Run(tmp_path)
    run.config.write_bytes(text)
    run.meta.write_bytes(text)
    assert (stored_config(run), stored_meta(run)) == ({}, None)


def test_tasks_are_read_one_by_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.config.write_text("tasks: [{name: a, scale: 1-5}, {name: b, scale: [{}]}, {name: c, scale: 5-1}, odd, {}]")
    assert [scale_in(task) for task in entries_of(stored_config(run), "tasks")] == [scale_of("1-5"), *[DEFAULT] * 3]
    assert entries_of(stored_config(run), "models") == []
