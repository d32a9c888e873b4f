"""Errors as the libraries raise them when the disk refuses, and errors that are none of the disk."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from p2l.common.errors import CheckpointError, ConfigError
from p2l.common.files import disk_error
from p2l.model.checkpoint import save_weights

WEIGHTS = {"weight": torch.zeros(2)}


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "space"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EACCES, "mode or owner"),
        (errno.EROFS, "mount"),
        (errno.EIO, "see to the disk"),
    ],
)
def test_each_refusal_has_its_own_advice(number: int, advice: str) -> None:
    found = disk_error(OSError(number, os.strerror(number)))
    assert found is not None
    assert found.reason == os.strerror(number)
    assert advice in found.advice


@pytest.mark.parametrize(
    "write",
    [
        lambda file: torch.save(WEIGHTS, file),
        lambda file: save_file(WEIGHTS, file),
        lambda file: Tokenizer(models.BPE()).save(str(file)),
        lambda file: file.write_text(""),
        lambda file: save_weights(WEIGHTS, file.parent),
    ],
    ids=["torch", "safetensors", "tokenizers", "python", "wrapped"],
)
def test_libraries_that_find_no_folder(tmp_path: Path, write: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(Exception, match=r"directory|Directory|File exists") as caught:
        write(tmp_path / "file" / "x.bin")
    found = disk_error(caught.value)
    assert found is not None
    assert found.reason in {os.strerror(number) for number in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)}


def test_torch_does_not_say_why_a_file_was_cut_short() -> None:
    found = disk_error(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"))
    assert found is not None
    assert "space" in found.advice


@pytest.mark.parametrize(
    "error", [KeyError("weight"), RuntimeError("shapes differ"), OSError("no such repository"), ConfigError("key 'x'")]
)
def test_other_errors_are_none_of_the_disk(error: Exception) -> None:
    assert disk_error(error) is None


def test_an_error_raised_while_another_was_handled_is_not_that_one() -> None:
    error = CheckpointError("weights")
    error.__context__ = OSError(errno.ENOSPC, "full")
    assert disk_error(error) is None
