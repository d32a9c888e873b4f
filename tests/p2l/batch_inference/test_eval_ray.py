"""Batch inference over Ray Data: the output is that of one process."""

import json
import sys
from pathlib import Path

import pytest

from p2l.common.errors import ConfigError
from p2l.eval import main
from tests.conftest import Command
from tests.p2l.eval_helpers import make_model, prompt_rows, write_jsonl
from tests.p2l.serving.conftest import needs_ray


def flags(model: Path, data: Path, out: Path) -> list[str]:
    return ["--model", str(model), "--dataset", str(data), "--output-dir", str(out), "--device", "cpu", "--quiet"]


@pytest.mark.slow
def test_workers_of_ray_write_what_one_process_writes(tmp_path: Path, command: Command) -> None:
    needs_ray()
    model, data = make_model(tmp_path / "model"), write_jsonl(tmp_path / "prompts.jsonl", prompt_rows(1300))
    main(flags(model, data, tmp_path / "one"))
    words = [*flags(model, data, tmp_path / "ray"), "--ray", "--workers", "2"]
    done = command(sys.executable, "-m", "p2l.eval", *words)  # which Ray starts more of
    assert done.returncode == 0, done.stderr
    one, ray = ((tmp_path / name / "model.json").read_text(encoding="utf-8") for name in ("one", "ray"))
    assert len(json.loads(one)) == 1300
    assert ray == one
    assert not (tmp_path / "ray" / "model.parts").exists()


def test_workers_of_ray_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--workers is of Ray"):
        main([*flags(tmp_path / "m", tmp_path / "d", tmp_path / "o"), "--workers", "2"])
