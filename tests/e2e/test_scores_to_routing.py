"""The three commands of docs/start/scores.md, as printed, on logs that lm-eval and Inspect wrote."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command

PAGE = (ROOT / "docs" / "start" / "scores.md").read_text(encoding="utf-8")
LOGS = ROOT / "tests" / "p2l" / "votes" / "logs"


@pytest.mark.parametrize(
    ("tool", "kind"), [("lm_eval", "lm-eval samples"), pytest.param("inspect", "Inspect logs", marks=pytest.mark.slow)]
)
def test_three_commands_lead_from_logs_to_a_routing_verdict(
    command: Command, tmp_path: Path, tool: str, kind: str
) -> None:
    shutil.copytree(LOGS / tool, tmp_path / "eval_logs")
    block = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    board, train, routing = (shlex.split(line)[1:] for line in block[1].strip().splitlines())
    said = [command("python", "-m", "p2l.cli", *words, cwd=tmp_path) for words in (board, train, routing)]
    assert [done.returncode for done in said] == [0, 0, 0], [done.stderr for done in said]
    assert all(f"read as {kind}" in done.stderr for done in said)
    tasks = re.findall(r"category = (\w+):.*?\n\n.*?\n.*?\n +1 +(?:mockllm/)?(\w+)", said[0].stdout, re.DOTALL)
    assert tasks == [("products", "delta"), ("sums", "alpha")]
    assert (tmp_path / "outputs" / "scores").is_dir()
    assert json.loads((tmp_path / "routing" / "results.json").read_text(encoding="utf-8"))
    assert "router on P2L" in said[2].stdout
