from __future__ import annotations

import json

import pytest

from p2l.batch_inference import json_arrays
from p2l.batch_inference.json_arrays import open_json_array, remove_hidden
from p2l.common.errors import VoteError

RECORDS = [{"prompt": f"é {n}", "coefs": [[n / 7, -1.5e-3]], "last_hidden_state": [[0.1]]} for n in range(9)]


def read(path):
    return [row for raw in open_json_array(path).stream(None, 4) for row in raw.batch.to_pylist()]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_records_are_read_wherever_the_chunks_end(tmp_path, monkeypatch, indent, chunk):
    monkeypatch.setattr(json_arrays, "_CHARACTERS_PER_READ", chunk)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(RECORDS, indent=indent), encoding="utf-8")
    assert read(path) == [{"prompt": row["prompt"], "coefs": row["coefs"]} for row in RECORDS]


def test_hidden_states_are_taken_out_once(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(RECORDS), encoding="utf-8")
    assert remove_hidden(path)
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"prompt": row["prompt"], "coefs": row["coefs"]} for row in RECORDS
    ]
    assert not remove_hidden(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no record"),
        (r'[{"prompt": "\ud800"}]', "half of a surrogate pair"),
        ('{"a": 1}', "not a JSON array"),
        ('[{"a": 1}, {"a": ]', "record 2 is not JSON"),
        ("[1]", "record 1 is a int"),
    ],
)
def test_what_is_no_array_of_records_is_refused(tmp_path, text, said):
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(VoteError, match=said):
        read(path)
