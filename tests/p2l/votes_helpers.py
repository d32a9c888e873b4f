from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

MODELS = ["alpha", "beta", "gamma", "delta"]
ENDINGS = [".parquet", ".jsonl", ".jsonl.gz", ".csv"]
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


def vote(n: int = 0, **changes: Any) -> dict[str, Any]:
    """A vote that differs with n; a change to None leaves the column out."""
    row = {
        "question_id": f"q{n}",
        "prompt": [f"question {n}"],
        "model_a": MODELS[n % 4],
        "model_b": MODELS[(n + 1) % 4],
        "winner": ["model_a", "model_b", "tie", "tie (bothbad)"][n % 4],
    }
    row.update(changes)
    return {key: value for key, value in row.items() if value is not None}


def save(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as a user would, without the code under test."""
    if path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.name.endswith(".csv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(
                file, list(rows[0]), quoting=csv.QUOTE_NOTNULL if hasattr(csv, "QUOTE_NOTNULL") else 0
            )
            writer.writeheader()
            writer.writerows(
                {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in r.items()} for r in rows
            )
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.name.endswith(".gz") else lines)
    return path


@st.composite
def vote_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    def one(n: int) -> dict[str, Any]:
        a, b = draw(st.permutations(MODELS))[:2]
        return {
            "question_id": f"q{n}",
            "prompt": draw(st.lists(text, min_size=1, max_size=3)),
            "model_a": a,
            "model_b": b,
            "winner": draw(st.sampled_from(["model_a", "model_b", "tie", "tie (bothbad)"])),
            "weight": draw(st.floats(0, 100)),
            "tstamp": draw(st.floats(0, 2e9)),
            "is_code": draw(st.booleans()),
            "note": "n" + draw(text),
            "category_tag": {"math_v0.1": {"math": draw(st.booleans())}},
        }

    return [one(n) for n in range(draw(st.integers(1, 12)))]
