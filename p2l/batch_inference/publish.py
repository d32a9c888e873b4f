"""Push the files of `p2l eval` to a private data set on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p2l.errors import InputError

__all__ = ["check_can_push", "push"]


def check_can_push(repo_id: str) -> None:
    """Look, before hours of work, whether the result can be pushed at their end.

    Raises:
        InputError: the hub does not know the user, or the data set exists and is public: rows hold what users wrote.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
        there = HfApi().repo_exists(repo_id, repo_type="dataset")
        public = there and not HfApi().dataset_info(repo_id).private
    except Exception as error:  # the hub's client raises its HTTP library's errors too
        raise InputError(
            f"--output-hf-path {repo_id}: the hub does not answer for you ({type(error).__name__}); log in first"
        ) from error
    if public:
        raise InputError(f"--output-hf-path {repo_id}: is a public data set; make it private or choose another name")


def push(files: Sequence[Path], repo_id: str) -> None:
    """Upload files to a data set, which is made, private, when it is not there.

    Raises:
        InputError: the upload failed; the files are whole on disk.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repo_id, repo_type="dataset", private=True, exist_ok=True)
        for file in files:
            HfApi().upload_file(path_or_fileobj=str(file), path_in_repo=file.name, repo_id=repo_id, repo_type="dataset")
    except Exception as error:
        raise InputError(
            f"pushing {files[0]} to {repo_id} failed: {type(error).__name__}; the files are on disk, run it again"
        ) from error
