"""Votes watched as they come: alarms, their webhook, and clusters that stand in for labels."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.commands.drift import main
from p2l.common.errors import ConfigError, InputError
from p2l.insight.drift_follow import DriftSettings
from tests.conftest import write_votes
from tests.p2l.commands.test_drift import MODELS, TOPICS, vote_rows
from tests.p2l.eval_helpers import make_model


def steady_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Return votes of models of different strength, which do not change."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        a, b = rng.choice(4, size=2, replace=False).tolist()
        chance = 1 / (1 + np.exp(0.4 * (b - a)))
        winner = "model_a" if rng.random() < chance else "model_b"
        row = {"prompt": f"question {seed} {number}", "model_a": MODELS[a], "model_b": MODELS[b], "winner": winner}
        rows.append(row | {"topic": TOPICS[number % 3], "category_tag": {"hard": number % 2 == 0}})
    return rows


def follow(path: Path, *words: object) -> int | None:
    flags = ["--follow", path, "--window", 300, "--stop-when-idle", 0, "--quiet", *words]
    return main([str(word) for word in flags])


@pytest.fixture
def fall(tmp_path: Path) -> Path:
    """Six windows of votes, and six more in which cat is worse at SQL."""
    return write_votes(tmp_path / "votes.jsonl", vote_rows(3600, drop=2.0))


def test_a_fall_ends_the_watch_with_exit_code_one(
    fall: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(fall, "--by", "topic", "--alarm", "--json", tmp_path / "drift.json") == 1
    report = json.loads((tmp_path / "drift.json").read_text(encoding="utf-8"))
    assert report["after"] == "the 300 up to vote 2,100"
    assert ("fell", "cat", "sql") in {(cell["verdict"], cell["model"], cell["category"]) for cell in report["cells"]}
    assert "changed: 0" in capsys.readouterr().out  # the fifth window against the four before it


def test_votes_that_do_not_change_end_without_an_alarm(tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", steady_rows(3600, seed=1))
    assert follow(votes, "--by", "topic", "--by", "category_tag.hard", "--alarm") is None


def test_the_looks_of_a_run_share_the_rate_of_false_alarms() -> None:
    watch = DriftSettings(fdr=0.05)
    shares = [watch.share(look) for look in range(1, 2000)]
    assert shares == sorted(shares, reverse=True)
    assert 0.0499 < sum(shares) < 0.05


def test_so_many_comparisons_share_it_evenly(tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", steady_rows(2100, seed=1))
    follow(votes, "--by", "topic", "--comparisons", 4, "--json", tmp_path / "drift.json")
    assert json.loads((tmp_path / "drift.json").read_text(encoding="utf-8"))["fdr"] == pytest.approx(0.0125)
    with pytest.raises(ConfigError, match="--comparisons and --stop-when-idle go with --follow"):
        main(["--votes", str(votes), "--before", "1", "--after", "2", "--comparisons", "4"])


class Hook(HTTPServer):
    """A server that refuses the first request and records the others."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests += 1
        self.send_response(503 if self.server.requests == 1 else 204)
        self.end_headers()
        if self.server.requests > 1:
            self.server.bodies.append(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_hears_of_each_change_once_and_the_watch_goes_on(fall: Path, hook: Hook) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/drift"
    assert follow(fall, "--by", "topic", "--alarm", url) is None
    (body,) = hook.bodies
    assert hook.requests == 2  # the first was refused
    assert body["event"] == "drift"
    changed = {(cell["verdict"], cell["model"], cell["title"]) for cell in body["changed"]}
    assert ("fell", "cat", "topic = sql") in changed


def test_an_unreachable_webhook_is_a_warning_that_does_not_repeat_the_address(
    fall: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert follow(fall, "--by", "topic", "--alarm", "http://127.0.0.1:9/secret-token") is None
    err = capsys.readouterr().err
    assert "warning: the alarm could not be delivered" in err
    assert "secret-token" not in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--follow", "votes.jsonl", "--before", "2024-01-01"], "watches one stream"),
        (["--follow", "votes.jsonl", "--alarm", "ftp://host"], "http or https"),
        (["--votes", "votes.jsonl", "--before", "2024-01-01", "--alarm"], "go with --follow"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        main(words)


def test_clusters_of_a_model_stand_in_for_labels(tmp_path: Path) -> None:
    kinds = {"sql": "what is {} plus {}, the sum of numbers", "poetry": "write a poem about spring {} and love {}"}
    rows = [row for row in vote_rows(3600, drop=3.0) if row["topic"] in kinds]
    for number, row in enumerate(rows):
        row["prompt"] = kinds[row["topic"]].format(number, number % 7)
    votes, model = write_votes(tmp_path / "votes.jsonl", rows), make_model(tmp_path / "model", seed=1)
    report = tmp_path / "drift.json"
    assert follow(votes, "--clusters", model, "--alarm", "--json", report) == 1
    watched = json.loads(report.read_text(encoding="utf-8"))["cells"]
    assert ("cluster", "cat", "fell") in {(cell["by"], cell["model"], cell["verdict"]) for cell in watched}
    main(["--votes", str(votes), "--before", "1700001800", "--clusters", str(model), "--quiet", "--json", str(report)])
    cells = json.loads(report.read_text(encoding="utf-8"))["cells"]
    fell = {cell["category"] for cell in cells if cell["by"] == "cluster" and cell["verdict"] == "fell"}
    assert fell < {cell["category"] for cell in cells if cell["by"] == "cluster"}


def test_a_watch_that_compared_nothing_says_so(fall: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = write_votes(tmp_path / "few.jsonl", steady_rows(700, seed=1))
    words = ["--window", "300", "--stop-when-idle", "0"]
    assert main(["--follow", str(few), *words]) is None
    assert "700 of the 1,500 votes that the first comparison needs" in capsys.readouterr().err
    assert main(["--follow", str(fall), "--model", "eel", *words]) is None
    said = capsys.readouterr()
    assert said.out == ""
    assert "1,500 votes: none of --model has enough of them" in said.err


def test_a_category_that_the_votes_lack_is_named(fall: Path) -> None:
    with pytest.raises(InputError, match="no column 'language'"):
        follow(fall, "--by", "language")
