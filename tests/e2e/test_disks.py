"""Disks that are full, read-only or another user's, beneath each command: one line, and what was there stays whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from p2l.inference import P2L
from p2l.online_training.publishing import published
from p2l.training.run_folder import newest_checkpoint
from tests.coeval.helpers import STATIC_TASK, ids, model, run_of, write_config
from tests.conftest import ROOT, Command, Configure
from tests.e2e.test_faults import small_disk
from tests.e2e.test_live_run import MODULE
from tests.e2e.test_live_run import write_config as write_live_config
from tests.e2e.test_router import SMALL, a_process
from tests.e2e.test_router import write as write_router_config
from tests.p2l.online_training.live_helpers import add, line

ALL = ("teacher", "student", "judge")


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes of a disk."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - left)))
    return filler


def said_in_one_line(done: subprocess.CompletedProcess[str], *, code: int) -> str:
    """What a command said that could not go on."""
    assert done.returncode == code, (done.returncode, done.stderr[-3000:])
    assert "Traceback" not in done.stderr
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


@pytest.mark.slow
def test_a_full_disk_ends_training_and_it_goes_on_where_there_is_room(
    command: Command, configure: Configure, tmp_path: Path
) -> None:
    settings = {"num_train_epochs": 4, "shuffle": True, "lr_schedule": "cosine"}
    flags = ("--no-eval", "--quiet", "--save-steps", "2")
    whole = command("python", "-m", "p2l.train", "--config", configure(**settings), *flags)
    assert whole.returncode == 0, whole.stderr
    with small_disk(tmp_path / "disk", megabytes=64) as disk:
        config = configure("small.yaml", output_dir=str(disk), **settings)
        filler = fill(disk, 1_500_000)
        told = said_in_one_line(command("python", "-m", "p2l.train", "--config", config, *flags), code=2)
        assert "space" in told
        assert str(disk) in told
        filler.unlink()
        kept = newest_checkpoint(disk / "run")
        resume = ("--checkpoint", disk / "run") if kept else ()
        again = command("python", "-m", "p2l.train", "--config", config, *flags, *resume)
        assert again.returncode == 0, again.stderr
        trained = Path(again.stdout.strip().splitlines()[-1].removeprefix("trained model: "))
        weights = tmp_path / "out" / "run" / "model.safetensors"
        assert (trained / "model.safetensors").read_bytes() == weights.read_bytes()


@pytest.mark.slow
def test_a_full_disk_publishes_no_part_of_a_model(command: Command, tmp_path: Path) -> None:
    config = write_live_config(tmp_path)
    votes = add(tmp_path / "votes.jsonl", [line(number) for number in range(240)])
    flags = ["--config", config, "--no-eval", "--quiet", "--follow", votes, "--stop-when-idle", "0.1"]
    with small_disk(tmp_path / "disk", megabytes=64) as disk:
        publish = ["--publish", disk / "served", "--publish-votes", "60"]
        assert command("python", "-m", MODULE, *flags, *publish).returncode == 0
        before = {path.name for path in published(disk / "served")}
        assert before
        fill(disk, 8_192)
        add(votes, [line(number) for number in range(240, 480)])
        resume = ["--checkpoint", newest_checkpoint(tmp_path / "out" / "run") or ""]
        told = said_in_one_line(command("python", "-m", MODULE, *flags, *publish, *resume), code=2)
        assert "No space left" in told
        assert {path.name for path in published(disk / "served")} == before
        for path in published(disk / "served"):
            assert P2L.from_pretrained(path).predict(["a prompt"]).coefs.shape[0] == 1


def test_a_router_on_a_full_disk_answers_and_takes_no_vote_that_it_cannot_keep(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        keys = [{"key": "k", "name": "app"}]
        config = write_router_config(disk, {"small": SMALL, "other": SMALL}, keys=keys, database="route.sqlite")
        flags = ("--router-type", "random", "--host", "127.0.0.1")
        headers = {"authorization": "Bearer k"}
        body = {"model": "-", "messages": [{"role": "user", "content": "hello"}], "compare": True}
        with a_process(config, *flags) as (url, process), httpx2.Client(headers=headers, timeout=60) as http:

            def ask() -> str:
                reply = http.post(f"{url}/v1/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
                return str(reply.json()["id"])

            def vote(request_id: str) -> int:
                return http.post(f"{url}/v1/feedback", json={"request_id": request_id, "better": 0}).status_code

            first = ask()
            assert vote(first) == 200
            filler = fill(disk, 0)
            refused = ""
            for _ in range(500):  # until what the database had in reserve is used up
                refused = ask()
                if vote(refused) == 503:
                    break
            else:
                pytest.fail("the disk was never full")
            assert ask()
            filler.unlink()
            while vote(refused) != 200:  # it is told to come again, and its answer was kept in memory
                pass
            process.kill()
            process.communicate(timeout=60)
        with a_process(config, *flags) as (url, _), httpx2.Client(headers=headers, timeout=60) as http:
            again = http.post(f"{url}/v1/feedback", json={"request_id": refused, "better": 0})
            assert again.status_code == 200, again.text


@pytest.mark.slow
def test_a_full_disk_ends_a_run_of_coeval_and_it_goes_on_where_there_is_room(command: Command, tmp_path: Path) -> None:
    models = [model("ant", roles=ALL), model("bee")]
    tasks = [{**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 40}}]
    calm = write_config(tmp_path, models, tasks, name="calm.yaml")
    assert command("python", "-m", "coeval", "run", "--config", calm).returncode == 0
    kinds = ("data_generation", "response_collection", "evaluation")
    with small_disk(tmp_path / "disk", megabytes=16) as disk:
        config = write_config(disk, models, tasks)
        filler = fill(disk, 60_000)
        done = command("python", "-m", "coeval", "run", "--config", config)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "No space left" in done.stderr
        filler.unlink()
        again = command("python", "-m", "coeval", "run", "--config", config, "--continue")
        assert again.returncode == 0, again.stderr
        for kind in kinds:
            assert ids(run_of(disk), kind) == ids(run_of(tmp_path), kind), kind


WRITERS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "votes import": lambda votes, disk: ["p2l", "votes", "import", votes, "--output", disk / "new.parquet"],
    "votes lake": lambda votes, disk: ["p2l", "votes", "lake", votes, "--output", disk / "lake"],
    "leaderboard --html": lambda votes, disk: ["p2l", "leaderboard", "--votes", votes, "--html", disk / "page.html"],
    "leaderboard --output": lambda votes, disk: ["p2l", "leaderboard", "--votes", votes, "--output", disk / "b.csv"],
    "simulate": lambda _, disk: ["p2l", "simulate", "--votes", "100", "--output", disk / "s.parquet", "--models", "4"],
    "train": lambda votes, disk: ["p2l", "train", "--votes", votes, "--size", "tiny", "--output", disk / "run"],
    "coeval run": lambda _, disk: ["coeval", "run", "--config", disk / "run.yaml"],
    "coeval analyze": lambda _, disk: ["coeval", "analyze", "all", "--run", disk / "runs" / "one", "--out", disk / "r"],
    "coeval describe": lambda _, disk: ["coeval", "describe", "--config", disk / "run.yaml", "--no-open"],
    "router": lambda _, disk: [
        "python",
        "-m",
        "route.openai_server",
        "-c",
        disk / "router.yaml",
        "--router-type",
        "random",
    ],
    "keys": lambda _, disk: ["p2l-route", "keys", "add", "new", "--config", disk / "router.yaml"],
}
"""What writes, and where to."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, votes_file: Path) -> Iterator[Path]:
    """A disk with all that the commands read, which nobody can write to any more."""
    folder = tmp_path_factory.mktemp("disks")
    with small_disk(folder / "disk", megabytes=16) as disk:
        (disk / "votes.jsonl").write_bytes(votes_file.read_bytes())
        write_router_config(disk, {"small": SMALL}, database="route.sqlite", keys=[{"key": "k", "name": "app"}])
        config = write_config(disk, [model("ant", roles=ALL)])
        done = subprocess.run(
            [sys.executable, "-m", "coeval", "run", "--config", str(config)], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"experiment": {
            **yaml.safe_load(config.read_text())["experiment"], "id": "two"}}))  # fmt: skip
        yield disk


def run_alone(words: list[str | Path], *before: str) -> subprocess.CompletedProcess[str]:
    """What a command said, that stands in the folder of no checkout; `before` is what starts it."""
    binaries = Path(sys.executable).parent
    line = [*before, str(binaries / str(words[0])), *map(str, words[1:])]
    environment = {**os.environ, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd="/", env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_cannot_be_written_is_told_in_one_line(prepared: Path, name: str) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(prepared)], check=True)
    try:
        done = run_alone(WRITERS[name](prepared / "votes.jsonl", prepared))
        assert str(prepared) in said_in_one_line(done, code=1 if name.startswith("coeval") else 2)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(prepared)], check=True)


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_nobody_may_change_is_told_in_one_line(prepared: Path, name: str) -> None:
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may change any folder, and there is no setpriv to take that right away")
    before = sorted(path.name for path in prepared.iterdir())
    places = [path for path in (prepared, *prepared.rglob("*")) if path.is_dir()]
    try:
        for place in places:
            place.chmod(0o555)
        rights = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()
        done = run_alone(WRITERS[name](prepared / "votes.jsonl", prepared), *rights)
        assert str(prepared) in said_in_one_line(done, code=1 if name.startswith("coeval") else 2)
        assert sorted(path.name for path in prepared.iterdir()) == before
    finally:
        for place in places:
            place.chmod(0o755)
