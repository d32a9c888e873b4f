"""The three commands of docs/start/scores.md, as printed, on logs that lm-eval wrote."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

from tests.conftest import ROOT, Command

PAGE = (ROOT / "docs" / "start" / "scores.md").read_text(encoding="utf-8")
LOGS = ROOT / "tests" / "p2l" / "votes" / "logs"


def test_three_commands_lead_from_logs_to_a_routing_verdict(command: Command, tmp_path: Path) -> None:
    shutil.copytree(LOGS / "lm_eval", tmp_path / "eval_logs")
    block = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    board, train, routing = (shlex.split(line)[1:] for line in block[1].strip().splitlines())
    said = [command("python", "-m", "p2l.cli", *words, cwd=tmp_path) for words in (board, train, routing)]
    assert [done.returncode for done in said] == [0, 0, 0], [done.stderr for done in said]
    assert all("read as lm-eval samples" in done.stderr for done in said)
    tasks = re.findall(r"category = (\w+):.*?\n\n.*?\n.*?\n +1 +(\w+)", said[0].stdout, re.DOTALL)
    assert tasks == [("products", "delta"), ("sums", "alpha")]
    assert (tmp_path / "outputs" / "scores").is_dir()
    assert json.loads((tmp_path / "routing" / "results.json").read_text(encoding="utf-8"))
    assert "router on P2L" in said[2].stdout
