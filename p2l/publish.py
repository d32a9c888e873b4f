"""Push a trained model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from p2l.errors import ConfigError, InputError

__all__ = ["check_can_push", "push"]

# Validation rows hold what users wrote.
_KEPT_AT_HOME = ["checkpoint-*", ".*", "eval_output.jsonl"]


def check_can_push(repo_id: str | None) -> None:
    """Look, before training starts, whether the result can be pushed at its end.

    Raises:
        ConfigError: no `repo_id`, or it exists.
        InputError: the hub cannot be asked, or does not know the user.
    """
    if not repo_id:
        raise ConfigError("--push-to-hf needs the key 'repo_id' in the configuration; add it")
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
        exists = HfApi().repo_exists(repo_id)
    except Exception as error:  # the hub client raises its HTTP library's errors too
        raise InputError(
            f"--push-to-hf: the hub does not answer for you ({type(error).__name__}); log in first"
        ) from error
    if exists:
        raise ConfigError(f"key 'repo_id': {repo_id} exists on the hub; choose another name")


def push(folder: Path, repo_id: str | None) -> None:
    """Upload the model of a run, without its checkpoints and validation rows, to a new private repository.

    Raises:
        InputError: the upload failed; the folder is whole.
    """
    assert repo_id is not None
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repo_id, private=True, exist_ok=False)
        HfApi().upload_folder(repo_id=repo_id, folder_path=folder, ignore_patterns=_KEPT_AT_HOME)
    except Exception as error:
        raise InputError(
            f"pushing {folder} to {repo_id} failed: {type(error).__name__}; the model is on disk"
        ) from error
