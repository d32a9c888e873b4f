"""Flags of the commands that run models over rows: which model it is, and how it computes."""

from __future__ import annotations

import argparse

from p2l.command import positive

__all__ = ["add_model_flags"]


def add_model_flags(group: argparse._ArgumentGroup) -> None:
    """Add them to a group of a parser."""
    group.add_argument(
        "--model-type", "-mt", metavar="TYPE", help="qwen2, llama, ... (default: as the checkpoint says)"
    )
    group.add_argument("--head-type", "-ht", metavar="TYPE", help="bt, rk or ba (default: as the checkpoint says)")
    group.add_argument("--loss-type", "-lt", metavar="TYPE", help="the likelihood (default: as the checkpoint says)")
    group.add_argument(
        "--batch-size", "-bs", type=positive, metavar="N", help="most prompts per forward pass (default: the engine's)"
    )
    group.add_argument(
        "--max-length", type=positive, metavar="N", help="tokens per prompt (default: the length of training)"
    )
    group.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    group.add_argument("--dtype", help="float32 or bfloat16 (default: bfloat16 on a GPU that knows it, else float32)")
