import contextlib
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

from p2l.leaderboard import to_score
from p2l.likelihood import win_rates
from p2l.model.checkpoint import revision_of, seal
from p2l.serving.reload import Control
from tests.p2l.serving.conftest import NAMES, make_model

pytestmark = pytest.mark.usefixtures("torch_alone")  # what OpenVINO computes is served in test_contract.py


class Gate:
    """Holds forward passes back until it is opened."""

    def __init__(self):
        self._opened, self.reached, self.prompts = threading.Event(), threading.Event(), 0

    def __call__(self, model):
        compute = model.answer

        def answer(encoded, **options):
            self.reached.set()
            assert self._opened.wait(60)
            self.prompts += len(encoded)
            return compute(encoded, **options)

        model.answer = answer

    def open(self):
        self._opened.set()


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open()


def test_the_snippets_that_users_have_work_unchanged(start):
    running = start(api_key="a key")
    found = requests.get(f"{running.url}/models", headers={"api-key": "a key"}, timeout=60)
    assert found.json()["models"] == NAMES
    said = requests.post(
        f"{running.url}/predict",
        headers={"Content-Type": "application/json", "api-key": "a key"},
        json={"prompt": ["What is the capital of France?"]},
        timeout=60,
    )
    expected = running.model.predict("What is the capital of France?")
    np.testing.assert_allclose(said.json()["coefs"], expected.coefs[0], atol=1e-5)
    assert said.json()["eta"] == pytest.approx(float(expected.eta[0]), abs=1e-5)


def test_an_answer_says_what_was_cut_and_who_spoke(start):
    running = start()
    said = running.predict(["short"]).json()
    assert set(said) == {"coefs", "eta", "truncated", "revision"}
    assert not said["truncated"]
    assert said["revision"] == running.model.revision
    assert running.predict(["long " * 1000]).json()["truncated"]


@pytest.mark.parametrize(("head", "loss", "eta", "gamma"), [("bt", "bt", False, False), ("ba", "ba", True, True)])
def test_gamma_comes_with_its_head_and_eta_is_null_without(start, tmp_path, head, loss, eta, gamma):
    running = start(model_path=str(make_model(tmp_path / "made", seed=3, head_type=head, loss_type=loss)))
    said = running.predict(["hello"]).json()
    assert "eta" in said
    assert (said["eta"] is not None) == eta
    assert ("gamma" in said) == gamma


def test_several_prompts_come_back_in_their_order(start):
    running = start()
    prompts = [["one"], ["two", "turns"], ["one"], [""]]
    said = running.client.post("/predict_batch", json={"prompts": prompts}).json()
    expected = running.model.predict(prompts)
    found = [prediction["coefs"] for prediction in said["predictions"]]
    np.testing.assert_allclose(found, expected.coefs, atol=1e-5)
    assert said["revision"] == running.model.revision


def test_a_leaderboard_is_ranked_by_coefficient(start):
    running = start()
    said = running.client.post("/leaderboard", json={"prompt": ["hello"]}).json()
    expected = running.model.leaderboard("hello")
    assert [row["model"] for row in said["leaderboard"]] == expected["model"].tolist()
    assert [row["rank"] for row in said["leaderboard"]] == [1, 2, 3, 4]
    prediction = running.model.predict("hello")
    rates = win_rates(prediction.coefs, running.model.likelihood, prediction.eta, prediction.gamma)[0]
    for row in said["leaderboard"]:
        coef = float(prediction.coefs[0][NAMES.index(row["model"])])
        assert row["win_rate"] == pytest.approx(float(rates[NAMES.index(row["model"])]), abs=1e-5)
        assert (row["coef"], row["score"]) == pytest.approx((coef, float(to_score(coef))), rel=1e-4)


def test_info_health_and_metrics(start):
    running = start(api_key="k")
    info = running.client.get("/info").json()
    assert info["head_type"] == "rk"
    assert info["likelihood"] == "grk"
    assert info["dtype"] == "float32"
    assert info["max_length"] == 48
    assert requests.get(f"{running.url}/health", timeout=60).json() == {
        "status": "ready",
        "revision": running.model.revision,
    }
    running.predict(["hello"])
    running.predict(["hello"])
    text = requests.get(f"{running.url}/metrics", timeout=60).text
    assert 'p2l_requests_total{route="/predict",status="200"} 2.0' in text
    assert "p2l_cache_hits_total 1.0" in text
    assert "p2l_batch_prompts_count 2.0" in text  # the health check, and one of the two


def test_white_space_after_a_key_is_no_part_of_it(start):
    host, port = start(api_key="k").url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"GET /models HTTP/1.0\r\nhost: {host}\r\napi-key: k \t\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_bearer_key_is_a_key(start):
    running = start(api_key="schlüssel")
    bearer = {"authorization": "Bearer schlüssel".encode()}
    assert requests.get(f"{running.url}/models", headers=bearer, timeout=60).status_code == 200


JSON = {"content-type": "application/json"}


def test_a_request_beyond_the_size_limit_is_refused(start):
    running = start(max_body_mb=0.01)
    assert running.predict(["x" * 20_000]).status_code == 413
    parts = (b"x" * 5_000 for _ in range(10))  # without a length, in chunks
    assert running.client.post("/predict", content=parts, headers=JSON).status_code == 413
    assert running.predict(["x"]).status_code == 200


def test_a_body_that_does_not_arrive_is_not_waited_for(start):
    running = start(deadline=0.3)
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /predict HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 20"
        connection.sendall(f'{head}\r\n\r\n{{"prompt"'.encode())
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert said.startswith(b"HTTP/1.1 408")
    assert b"0.3 seconds" in said
    assert running.predict(["hello"]).status_code == 200


def test_a_batch_beyond_the_queue_is_refused_with_its_limit(start):
    running = start(queue_size=4)
    found = running.client.post("/predict_batch", json={"prompts": [["x"]] * 5})
    assert found.status_code == 422
    assert "4" in found.json()["detail"]


def test_a_full_queue_says_when_to_come_again(start, gate):
    running = start(gate, queue_size=1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(running.predict, ["first"])
        gate.reached.wait(60)
        refused = running.predict(["second"])
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert running.client.get("/models").status_code == 200  # waits for nobody
        gate.open()
        assert first.result().status_code == 200
    assert running.predict(["second"]).status_code == 200


def test_a_deadline_ends_a_request_and_a_client_may_ask_for_a_shorter_one(start, gate):
    running = start(gate, deadline=30.0)
    assert running.predict(["hello"], headers={"x-p2l-timeout": "0.1"}).status_code == 504
    refused = running.predict(["hello"], headers={"x-p2l-timeout": "-1"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == 'x-p2l-timeout: must be a number of seconds above 0, got "-1"'
    assert running.predict(["hello"], headers={"x-p2l-timeout": "nan"}).status_code == 422
    gate.open()
    assert running.predict(["hello"]).status_code == 200


def test_a_client_that_left_costs_no_forward_pass(start, gate):
    running = start(gate)
    host, port = running.url.removeprefix("http://").split(":")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(running.predict, ["first"])
        gate.reached.wait(60)
        body = b'{"prompt": ["nobody will read this"]}'
        with socket.create_connection((host, int(port))) as leaving:
            head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            leaving.sendall(head.encode() + b"\r\n\r\n" + body)
            _until(lambda: _metric(running, "p2l_prompts_total") == 2)
        _until(lambda: _metric(running, "p2l_dropped_total") == 1)
        gate.open()
        assert first.result().status_code == 200
    assert running.predict(["last"]).status_code == 200
    assert gate.prompts == 2


def test_stopping_answers_what_was_accepted(start, gate):
    with contextlib.ExitStack() as stack:
        running = start(gate)
        pool = stack.enter_context(ThreadPoolExecutor())
        accepted = [pool.submit(running.predict, [f"prompt {n}"]) for n in range(3)]
        gate.reached.wait(60)
        _until(lambda: _metric(running, "p2l_pending_prompts") == 3)
        running.stop()
        time.sleep(0.2)
        gate.open()
        assert [answer.result().status_code for answer in accepted] == [200, 200, 200]


def test_no_key_and_no_prompt_is_logged_unless_asked_for(start, caplog):
    caplog.set_level("DEBUG")
    running = start(api_key="very-secret", admin_key="more-secret")
    running.predict(["a private prompt"])
    running.predict([1])
    running.client.get("/models", headers={"api-key": "wrong-secret"})
    assert "secret" not in caplog.text
    assert "private" not in caplog.text
    start(log_prompts=True).predict(["a public prompt"])
    assert "a public prompt" in caplog.text


def test_a_reload_changes_the_model_and_drops_no_request(start, other_folder):
    running = start(admin_key="admin")
    admin = {"api-key": "admin"}
    seen, stop = [], threading.Event()

    def load():
        number = 0
        while not stop.is_set():
            number += 1
            seen.append(running.predict([f"prompt {number}"]))

    with ThreadPoolExecutor() as pool:
        loading = [pool.submit(load) for _ in range(3)]
        try:
            changed = running.client.post("/reload", json={"model_path": str(other_folder)}, headers=admin)
            assert changed.status_code == 200
            again = running.client.post("/reload", headers=admin)  # the same folder, read once more
        finally:
            stop.set()
        for each in loading:
            each.result()
    assert {answer.status_code for answer in seen} == {200}
    revisions = [answer.json()["revision"] for answer in seen]
    assert set(revisions) <= {running.model.revision, changed.json()["revision"]}
    assert again.json() == changed.json() == {"revision": running.predict(["x"]).json()["revision"], "workers": 1}


def test_reloads_come_one_after_the_other(start):
    running = start(admin_key="admin")
    with Control(Path(running.settings.control)).turn("reload") as mine:
        assert mine
        refused = running.client.post("/reload", headers={"api-key": "admin"})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert running.client.post("/reload", headers={"api-key": "admin"}).status_code == 200


def test_a_reload_that_fails_changes_nothing(start, tmp_path):
    running = start(admin_key="admin", api_key="k")
    for headers, status in (({"api-key": "admin"}, 422), ({"api-key": "k"}, 403), ({"api-key": ""}, 403)):
        found = running.client.post("/reload", json={"model_path": str(tmp_path / "nothing")}, headers=headers)
        assert found.status_code == status
    assert running.predict(["x"]).json()["revision"] == running.model.revision
    assert start().client.post("/reload").status_code == 403


def test_the_newest_model_of_a_watched_folder_is_served(start, tmp_path, other_folder):
    watched = tmp_path / "watched"
    watched.mkdir()
    running = start(watch=str(watched))
    (watched / "checkpoint-1").mkdir()  # not complete yet
    first = running.predict(["x"]).json()["revision"]
    for file in sorted(other_folder.iterdir(), key=lambda file: file.name == "model_list.json"):
        (watched / "checkpoint-1" / file.name).write_bytes(file.read_bytes())
    _until(lambda: running.predict(["x"]).json()["revision"] != first)


def test_a_bad_model_of_a_watched_folder_is_told_once_and_tried_again(start, tmp_path, other_folder, caplog):
    watched = tmp_path / "watched"
    model = shutil.copytree(other_folder, watched / "model")
    seal(model)
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4] + b"\0\0\0\0")
    running = start(watch=str(watched))
    first = running.predict(["x"]).json()["revision"]
    _until(lambda: _metric(running, 'p2l_reloads_total{result="failed"}') >= 2)
    assert sum("is not the file" in record.getMessage() for record in caplog.records) == 1
    assert running.predict(["x"]).json()["revision"] == first
    with (model / "model.safetensors").open("r+b") as file:  # in place, as a copy that goes on
        file.write(weights)
    _until(lambda: running.predict(["x"]).json()["revision"] != first)
    assert running.predict(["x"]).json()["revision"] == revision_of(model)


def _metric(running, name):
    text = running.client.get("/metrics").text
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def _until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")
