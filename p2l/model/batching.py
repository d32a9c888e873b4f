"""Collate encoded prompts into tensors, and plan which prompts share a batch.

Prompts are packed end to end without padding, or padded to the longest for backbones that need it.

Shapes: B prompts, T tokens (of the longest prompt when padded, of all when packed), F features of all prompts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from p2l.model.encoding import Encoding


Batch: TypeAlias = "dict[str, Tensor]"


def collate(encodings: Sequence[Encoding], pad_token_id: int, *, packed: bool = False) -> Batch:
    """Collate encoded prompts into the tensors of one batch.

    Packed token ids become `input_ids` (1, T), `position_ids` (1, T) from 0 in each prompt, and `lengths` (B,); padded
    ones `input_ids` (B, T), filled on the right, and `attention_mask` (B, T). Weighted features become flat `input_ids`
    (F,), `values` (F,) float32 and `offsets` (B,), where each prompt starts. Features beside tokens become
    `features`, a row for each prompt.
    """
    import torch

    ids = [encoding.ids for encoding in encodings]
    if encodings and encodings[0].values is not None:
        starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])[:-1]]).astype(np.int64)
        values = [encoding.values for encoding in encodings if encoding.values is not None]
        return {
            "input_ids": torch.from_numpy(np.concatenate(ids)),
            "values": torch.from_numpy(np.concatenate(values)),
            "offsets": torch.from_numpy(starts),
        }
    if packed:
        batch = {
            "input_ids": torch.from_numpy(np.concatenate(ids))[None],
            "position_ids": torch.from_numpy(np.concatenate([np.arange(len(row)) for row in ids]))[None],
            "lengths": torch.tensor([len(row) for row in ids]),
        }
    else:
        longest = max((len(row) for row in ids), default=0)
        padded = np.full((len(ids), longest), pad_token_id, dtype=np.int64)
        mask = np.zeros((len(ids), longest), dtype=np.int64)
        for number, row in enumerate(ids):
            padded[number, : len(row)] = row
            mask[number, : len(row)] = 1
        batch = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
    features = [encoding.features for encoding in encodings if encoding.features is not None]
    return {**batch, "features": torch.from_numpy(np.stack(features))} if features else batch


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Move a batch to `device`; `lengths`, which Python reads, stay on the CPU."""
    return {
        name: tensor if name == "lengths" else tensor.to(device, non_blocking=True) for name, tensor in batch.items()
    }


def plan_batches(
    lengths: Sequence[int], *, max_tokens: int, max_rows: int | None = None, packed: bool = False
) -> list[list[int]]:
    """Return row numbers by batch: longest first, at most `max_rows` rows and `max_tokens` tokens, padding included."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    most = len(lengths) if max_rows is None else max_rows
    # Rows of equal length keep their order, and one that is longer than `max_tokens` gets a batch of its own.
    return (_first_fit if packed else _fill)(order, lengths, max_tokens, most)


def _first_fit(order: list[int], lengths: Sequence[int], max_tokens: int, max_rows: int) -> list[list[int]]:
    """Put each row into the first batch that has room for it."""
    batches: list[list[int]] = []
    room: list[int] = []
    for row in order:
        fits = (n for n, left in enumerate(room) if left >= lengths[row] and len(batches[n]) < max_rows)
        chosen = next(fits, len(batches))
        if chosen == len(batches):
            batches.append([])
            room.append(max_tokens)
        batches[chosen].append(row)
        room[chosen] -= lengths[row]
    return batches


def _fill(order: list[int], lengths: Sequence[int], max_tokens: int, max_rows: int) -> list[list[int]]:
    """Fill one batch after the other; its first row, the longest, decides its width."""
    batches: list[list[int]] = []
    width = 0
    for row in order:
        if not batches or len(batches[-1]) >= max_rows or (len(batches[-1]) + 1) * width > max_tokens:
            batches.append([])
            width = lengths[row]
        batches[-1].append(row)
    return batches
