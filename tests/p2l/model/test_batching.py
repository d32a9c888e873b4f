import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2l.model.batching import collate, plan_batches, to_device
from p2l.model.encoding import Encoding


def tokens(*ids):
    return Encoding(np.array(ids, dtype=np.int64), None, False)


def test_tokens_are_padded_on_the_right():
    batch = collate([tokens(5, 6, 7), tokens(8)], pad_token_id=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_features_lie_flat_with_offsets():
    features = [
        Encoding(np.array([3, 1]), np.array([0.6, 0.8], dtype=np.float32), False),
        Encoding(np.array([], dtype=np.int64), np.array([], dtype=np.float32), False),
        Encoding(np.array([2]), np.array([1.0], dtype=np.float32), False),
    ]
    batch = to_device(collate(features, 0), "cpu")
    assert batch["input_ids"].tolist() == [3, 1, 2]
    assert batch["offsets"].tolist() == [0, 2, 2]
    assert batch["values"].dtype == torch.float32


def test_packed_tokens_lie_end_to_end():
    batch = collate([tokens(5, 6, 7), tokens(8)], pad_token_id=9, packed=True)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0]]
    assert batch["lengths"].tolist() == [3, 1]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.none() | st.integers(1, 8), st.booleans())
def test_every_row_is_planned_once_within_the_budget(lengths, max_tokens, max_rows, packed):
    batches = plan_batches(lengths, max_tokens=max_tokens, max_rows=max_rows, packed=packed)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[row] for row in batch]
        assert max_rows is None or len(batch) <= max_rows
        assert len(batch) == 1 or (sum(sizes) if packed else len(sizes) * max(sizes)) <= max_tokens


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_packed_batches_are_at_least_half_full(lengths):
    batches = plan_batches(lengths, max_tokens=50, packed=True)
    assert len(batches) <= 2 * -(-sum(lengths) // 50)
