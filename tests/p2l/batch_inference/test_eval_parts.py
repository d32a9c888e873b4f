from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.batch_inference.output import InferenceJob, PartFolder, as_batch, discard_parts, open_parts
from p2l.common.errors import InputError
from p2l.inference import Prediction

JOB = InferenceJob("m", "abc", "rk", "float32", [32], False, "d.jsonl", "123")


def said(rows: int, value: float = 0.0) -> Any:
    return as_batch(Prediction(np.full((rows, 2), value, np.float32), None, None, np.zeros(rows, dtype=bool)))


def test_chunks_come_back_whoever_wrote_them(tmp_path: Path) -> None:
    first = open_parts(tmp_path / "parts", JOB)
    second = PartFolder(tmp_path / "parts")
    first.write({0: said(3, 0.5), 2: said(3, 2.5)})
    second.write({1: said(3, 1.5)})
    assert first.saved_rows() == 9
    assert second.refresh() == {0: 3, 1: 3, 2: 3}
    assert [second.read(chunk).column("coefs").to_pylist()[0] for chunk in (1, 0, 2)] == [
        [1.5] * 2,
        [0.5] * 2,
        [2.5] * 2,
    ]
    first.remove()
    assert not (tmp_path / "parts").exists()


def test_the_fuller_of_two_parts_of_a_chunk_counts(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "parts", JOB)
    parts.write({0: said(3), 1: said(1, 1.0)})
    parts.write({1: said(3, 2.0)})
    assert parts.refresh() == {0: 3, 1: 3}
    assert parts.read(1).column("coefs").to_pylist() == [[2.0, 2.0]] * 3
    parts.close()


@pytest.mark.parametrize("damage", [b"", b"ARROW1\0\0 and no more"])
def test_a_damaged_part_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    parts = open_parts(tmp_path / "parts", JOB)
    parts.write({0: said(3)})
    next(parts.folder.glob("part-*")).write_bytes(damage)
    assert parts.refresh() == {}
    parts.close()


def test_what_a_kill_leaves_is_swept_and_whole_parts_stay(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "parts", JOB)
    parts.write({0: said(3)})
    (parts.folder / ".part-00000001-3.arrow.77.tmp").write_bytes(b"half")
    (parts.folder / "output.json").write_bytes(b"half")
    parts.close()
    again = open_parts(tmp_path / "parts", replace(JOB, model="spelled/otherwise"))
    assert sorted(path.name for path in again.folder.iterdir()) == ["job.json", "part-00000000-3.arrow"]
    again.close()


def test_parts_of_another_job_are_neither_mixed_nor_lost(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "parts", JOB)
    parts.write({0: said(3)})
    with pytest.raises(InputError, match="another run is writing"):
        open_parts(tmp_path / "parts", JOB)
    parts.close()
    other = replace(JOB, revision="def")
    with pytest.raises(InputError, match="the model was m at revision abc, now it is m at revision def"):
        open_parts(tmp_path / "parts", other)
    discard_parts(tmp_path / "parts", other)
    assert PartFolder(tmp_path / "parts").refresh() == {0: 3}
    again = open_parts(tmp_path / "parts", other, restart=True)
    assert again.refresh() == {}
    again.close()
    discard_parts(tmp_path / "parts", other)
    discard_parts(tmp_path / "parts", other)
    assert not (tmp_path / "parts").exists()
