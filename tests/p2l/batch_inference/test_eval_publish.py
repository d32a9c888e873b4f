from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2l.batch_inference.output import check_can_push
from p2l.common.errors import InputError
from p2l.eval import main
from tests.p2l.eval_helpers import make_model, prompt_rows, write_jsonl


class Hub:
    """What of the hub's client is used, with the repositories in a dictionary: name to whether it is private."""

    repositories: dict[str, bool] = {}  # noqa: RUF012
    uploaded: list[str] = []  # noqa: RUF012

    def whoami(self) -> dict[str, str]:
        return {"name": "me"}

    def repo_exists(self, repo_id: str, *, repo_type: str) -> bool:
        assert repo_type == "dataset"
        return repo_id in self.repositories

    def dataset_info(self, repo_id: str) -> Any:
        return SimpleNamespace(private=self.repositories[repo_id])

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert (repo_type, exist_ok) == ("dataset", True)
        self.repositories.setdefault(repo_id, private)

    def upload_file(self, *, path_or_fileobj: str, path_in_repo: str, repo_id: str, repo_type: str) -> None:
        assert (Path(path_or_fileobj).is_file(), repo_id, repo_type) == (True, "me/said", "dataset")
        self.uploaded.append(path_in_repo)


def test_the_output_is_pushed_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    data = write_jsonl(tmp_path / "rows.jsonl", prompt_rows(3))
    words = ["-m", str(make_model(tmp_path / "bag")), "-d", str(data), "-od", str(tmp_path / "out"), "--device", "cpu"]
    main([*words, "-oh", "me/said", "--format", "both"])
    assert Hub.repositories == {"me/said": True}
    assert sorted(Hub.uploaded) == ["bag.info.json", "bag.json", "bag.parquet", "model_list.json"]
    main([*words, "-oh", "me/said"])  # complete already: pushed again
    assert len(Hub.uploaded) == 7
    Hub.repositories["me/open"] = False
    with pytest.raises(InputError, match="me/open: is a public data set"):
        main([*words, "-oh", "me/open"])


def test_a_hub_that_does_not_answer_is_told_before_the_work() -> None:
    with pytest.raises(InputError, match="--output-hf-path me/said: the hub does not answer for you"):
        check_can_push("me/said")
