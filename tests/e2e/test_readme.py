"""The clients that README and docs show, run as they are printed but for ports and keys."""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, free_port
from tests.p2l.serving_models import NAMES, tiny
from tests.serving_process import answers
from tests.warm import warm_python

KEY = "a-key"


def snippet(page: str, heading: str) -> str:
    """The first Python under a heading of a page."""
    text = (ROOT / page).read_text("utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    found: str = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    return re.sub(r"the key that the \w+ was started with|(?<=api_key=\")demo", KEY, found)


@contextlib.contextmanager
def server(*words: str, health: str) -> Iterator[int]:
    port = free_port()
    line = [warm_python(), "-m", *words, "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    with subprocess.Popen(line, cwd=ROOT) as process:
        try:
            while process.poll() is None and not answers(f"http://127.0.0.1:{port}/{health}"):
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


def run(code: str) -> str:
    done = subprocess.run([warm_python(), "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made, tokenizer = tiny(folder, "tfidf")
    made.save_pretrained(folder / "saved")
    tokenizer.save_pretrained(folder / "saved")
    return folder / "saved"


def test_the_readmes_clients_are_answered(model: Path, tmp_path: Path):
    models = {
        name: {"name": name, "type": "mock", "cost": 0.001 * (1 + n), "options": {"text": f"{name} says hello"}}
        for n, name in enumerate(NAMES)
    }
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump({"model_configs": models}), "utf-8")
    with server("p2l.endpoint", "--model-path", str(model), health="health") as endpoint:
        asked = snippet("docs/serve/serving.md", "Clients").replace("localhost:10250", f"localhost:{endpoint}")
        names, coefs = run(asked + "print(len(names), len(coefs))\n").split()
        assert names == coefs == str(len(NAMES))
        url = f"http://localhost:{endpoint}"
        flags = ["-c", str(config), "--router-model-endpoint", url]
        with server("route.openai_server", *flags, "--router-api-key", KEY, health="ready") as router:
            asked = snippet("README.md", "Route requests").replace("localhost:8000", f"localhost:{router}")
            lines = run(asked).splitlines()
            assert len(lines) == 2
            assert all(line.split(" <- ")[0] in NAMES for line in lines)
