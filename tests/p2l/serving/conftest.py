"""Tiny models and real servers on loopback."""

import contextlib
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from p2l.common.access import digest_of
from p2l.inference import P2L
from p2l.model import openvino
from p2l.model.model import P2LModel
from p2l.model.scratch import make_transformer
from p2l.model.tokenizer import load_tokenizer
from p2l.serving.app import build_app
from p2l.serving.reload import load
from p2l.serving.settings import Settings

NAMES = ["ant", "bee", "cat", "dog"]


def make_model(
    root: Path, *, seed: int, head_type: str = "rk", loss_type: str = "grk", names: Sequence[str] = NAMES
) -> Path:
    """The folder of a tiny untrained model."""
    backbone, saved = root / "backbone", root / "model"
    backbone.mkdir(parents=True)
    sizes = {"vocab_size": 270, "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 48}
    texts = [["write a long poem"], ["what is 12 plus 34"]]
    make_transformer(backbone, texts, model_type="qwen2", seed=seed, intermediate_size=None, **sizes)
    tokenizer = load_tokenizer(backbone, max_length=48)
    model = P2LModel.create(
        backbone,
        model_type="qwen2",
        head_type=head_type,
        loss_type=loss_type,
        model_list=list(names),
        tokenizer=tokenizer,
        seed=seed,
    )
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


@pytest.fixture(scope="module", autouse=True)
def children(warm_children: None) -> None:
    """The child that tries the tokenizer of a model is a warm one."""


@pytest.fixture(scope="module")
def torch_alone() -> Iterator[None]:
    """For tests of what is around a model: it is not laid out for OpenVINO, which takes most of the time of a load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino, "is_installed", lambda: False)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("one"), seed=1)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), seed=2)


@pytest.fixture
def model(folder: Path) -> P2L:
    return P2L.from_pretrained(folder, device="cpu")


@dataclass
class Running:
    """A server that answers, and a client of it."""

    client: httpx2.Client
    settings: Settings
    model: P2L
    url: str
    stop: Callable[[], None]
    """Ask the server to end, as a signal does."""

    def predict(self, prompt: Any, **options: Any) -> httpx2.Response:
        return self.client.post("/predict", json={"prompt": prompt}, **options)


Start = Callable[..., Running]


@pytest.fixture
def start(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start servers with these settings; all end with the test."""
    with contextlib.ExitStack() as stack:

        def run(
            prepare: Callable[[P2L], None] | None = None,
            *,
            api_key: str | None = None,
            admin_key: str | None = None,
            **changes: Any,
        ) -> Running:
            digests = (None if key is None else digest_of(key) for key in (api_key, admin_key))
            changes |= dict(zip(("api_key_digest", "admin_key_digest"), digests, strict=True))
            control = str(tmp_path_factory.mktemp("control"))
            settings = replace(
                Settings(str(folder), device="cpu", dtype="float32", control=control, streams=1), **changes
            )
            return stack.enter_context(serving(settings, prepare, api_key))

        yield run


def needs_ray() -> None:
    """Skip where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray Serve is not installed: pip install 'p2l[ray]'")


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    control = str(tmp_path_factory.mktemp("control"))
    settings = Settings(
        str(folder),
        device="cpu",
        dtype="float32",
        control=control,
        api_key_digest=digest_of("a key"),
        admin_key_digest=digest_of("admin"),
    )
    with serving(settings, None, "a key") as running:
        yield running


@contextlib.contextmanager
def serving(settings: Settings, prepare: Callable[[P2L], None] | None, key: str | None) -> Iterator[Running]:
    served = load(settings)
    if prepare:
        prepare(served.model)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(build_app(settings, served), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        headers = {} if key is None else {"api-key": key.encode()}

        def stop() -> None:
            server.should_exit = True

        try:
            while not server.started:
                assert thread.is_alive()
            with httpx2.Client(base_url=url, headers=headers, timeout=60) as client:
                yield Running(client, settings, served.model, url, stop)
        finally:
            stop()
            thread.join()
