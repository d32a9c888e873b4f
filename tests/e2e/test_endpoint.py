"""The endpoint as a user starts it: a process with flags, stopped by a signal."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from p2l.common.errors import InputError
from p2l.endpoint import main
from tests.conftest import Command, free_port
from tests.p2l.serving.conftest import NAMES, make_model
from tests.serving_process import answers, half_open, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("one"), seed=1)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), seed=2)


def endpoint(*flags: str | Path) -> contextlib.AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """A running endpoint: its URL and its process."""
    return serving("p2l.endpoint", "--no-cuda", *flags, probe="/health")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_stops_when_told(folder: Path, sign: signal.Signals) -> None:
    with endpoint("-m", folder, "-mt", "qwen2", "-ht", "rk", "-a", "k", "--host", "127.0.0.1") as (url, process):
        said = httpx2.post(f"{url}/predict", json={"prompt": ["hello"]}, headers={"api-key": "k"}, timeout=60)
        assert len(said.json()["coefs"]) == len(NAMES)
        assert httpx2.get(f"{url}/models", timeout=60).status_code == 403
        process.send_signal(sign)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "Traceback" not in err
        assert out == ""


def test_without_a_key_a_random_one_is_printed_once(folder: Path) -> None:
    with endpoint("-m", folder) as (url, process):
        assert httpx2.get(f"{url}/models", timeout=60).status_code == 403
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    (key,) = re.findall(r"api-key: (\S{40,})$", out, re.MULTILINE)
    assert key not in err


def test_half_open_connections_of_one_peer_end_and_refuse_nobody_else(folder: Path) -> None:
    flags = ("--header-seconds", "1", "--max-connections", "40", "--host", "127.0.0.1")
    with endpoint("-m", folder, *flags) as (url, process):
        with half_open(url, 200, "127.0.0.2") as clients:
            assert answers(f"{url}/health")
            for client in clients:  # refused at once, or ended by its deadline
                with contextlib.suppress(ConnectionError):
                    while client.recv(4096):
                        pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert err.count("--max-peer-connections: refused a connection of 127.0.0.2") == 1
    assert "--header-seconds: ended a connection of 127.0.0.2" in err
    assert "Traceback" not in err


def test_workers_share_a_port_and_follow_a_reload(folder: Path, other_folder: Path) -> None:
    flags = ("--workers", "2", "--admin-key", "the-admin-key", "--host", "127.0.0.1")
    with endpoint("-m", folder, *flags) as (url, process):
        first = httpx2.get(f"{url}/info", timeout=60).json()
        changed = httpx2.post(
            f"{url}/reload", json={"model_path": str(other_folder)}, headers={"api-key": "the-admin-key"}, timeout=120
        )
        assert changed.json()["workers"] == 2
        assert changed.json()["revision"] != first["revision"]
        for number in range(30):  # each on a connection of its own, so that either worker may get it
            body = {"prompt": [f"prompt {number}"]}
            said = httpx2.post(f"{url}/predict", json=body, timeout=60, verify=False).json()  # no certificates to read
            assert said["revision"] == changed.json()["revision"]
        text = httpx2.get(f"{url}/metrics", timeout=60).text
        assert 'p2l_requests_total{route="/predict",status="200"} 30.0' in text
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "Traceback" not in err


def test_workers_end_with_their_supervisor(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with endpoint("-m", folder, "--workers", "2", "--host", "127.0.0.1") as (url, process):
        process.kill()
        process.wait()
        while answers(f"{url}/health") or list(tmp_path.glob("p2l-endpoint-*")):
            time.sleep(0.1)


@pytest.mark.parametrize("flag", ["--deadline", "--max-body-mb"])
def test_a_limit_that_nothing_can_meet_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["-m", "any", flag, "0"])
    assert "above 0" in capsys.readouterr().err


def test_keys_are_not_left_in_the_environment_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2L_API_KEY", "k")
    monkeypatch.setenv("P2L_ADMIN_KEY", "an-admin-key-of-some-length")
    with pytest.raises(InputError, match="nowhere"):
        main(["-m", "nowhere/at/all", "--host", "127.0.0.1", "--port", str(free_port())])
    assert not {"P2L_API_KEY", "P2L_ADMIN_KEY"} & set(os.environ)


def damaged(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return copy


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_damaged_model_is_one_line(folder: Path, tmp_path: Path, command: Command, workers: str) -> None:
    done = command(
        "python", "-m", "p2l.endpoint", "-m", damaged(folder, tmp_path / "copy"), "--api-key", "k",
        "--workers", workers, "-p", str(free_port()),
    )  # fmt: skip
    refused(done, "damaged")


def test_a_model_that_cannot_be_loaded_prints_no_key(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P2L_API_KEY", raising=False)
    with pytest.raises(InputError, match="damaged"):
        main(["-m", str(damaged(folder, tmp_path / "copy")), "--no-cuda", "-p", str(free_port())])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["-m", "nowhere/at/all"], "nowhere"),
        (["-m", "{folder}", "-ht", "bt"], "head_type"),
        (["-m", "{folder}", "--cuda"], "CUDA"),
        (["-m", "{folder}", "--reload", "--workers", "2"], "--reload"),
        (["-m", "{folder}", "--quantize", "int8", "--dtype", "bfloat16"], "--dtype"),
        (["-m", "{folder}", "--streams", "0", "--max-wait-ms", "5"], "--streams"),
        (["-m", "{folder}", "--api-key", ""], "--api-key"),
        (["-m", "{folder}", "--host", "256.1.1.1"], "256.1.1.1"),
        (["--watch", "{empty}"], "no complete model"),
        (["--watch", "{empty}/nothing"], "cannot be watched"),
    ],
)
def test_bad_flags_are_one_line(
    folder: Path, tmp_path: Path, flags: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from p2l.common.cli import run
    from p2l.endpoint import main

    if word == "CUDA" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    words = [flag.format(folder=folder, empty=tmp_path) for flag in flags]
    with pytest.raises(SystemExit) as caught:
        run(main, [*words, "-p", str(free_port()), *([] if "--api-key" in words else ["--api-key", "k"])])
    assert caught.value.code == 2
    line = capsys.readouterr().err.strip()
    assert word in line
    assert "\n" not in line


def test_a_port_in_use_is_one_line(folder: Path, command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = command("python", "-m", "p2l.endpoint", "-m", folder, "--host", "127.0.0.1", "-p", port)
    refused(done, port)


def refused(done: subprocess.CompletedProcess[str], word: str) -> None:
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 1
