"""Standard deviations and intervals over HTTP and through the client, of models with and without a posterior."""

import shutil
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from p2l.client import P2LClient
from p2l.common.errors import BadRequestError
from p2l.inference import P2L
from p2l.model.posterior import Posterior
from tests.p2l.serving.conftest import NAMES, Running, Start

PROMPT = "what is 12 plus 34"


def with_posterior(folder: Path, target: Path, seed: int = 0) -> Path:
    """A copy of a model folder that has a posterior, whose components vary with the prompt."""
    shutil.copytree(folder, target)
    model = P2L.from_pretrained(folder, device="cpu")
    states = torch.from_numpy(model.predict([PROMPT, "write a long poem", "hello"], hidden=True).hidden)
    draw = torch.Generator().manual_seed(seed)
    Posterior(
        {
            "centre": states.mean(0),
            "scale": 1 / states.std(),
            "points": (states - states.mean(0)) / states.std(),
            "axes": torch.eye(3),
            "kept": torch.rand(2, 3, generator=draw) * 0.8,
            "offset": torch.tensor([1.2, 1.0]),
            "least": torch.tensor([0.2, 0.1]),
            "basis": torch.randn(len(model.model_list), 2, generator=draw),
            "share": torch.full((3,), 0.5),
            "near": torch.tensor(1e3),
            "far": torch.tensor(2e3),
            "strange": torch.tensor(1.4),
            "words": torch.tensor([-2.0, -1.0]),
            "encoded": torch.tensor(0.0),
            "coefs": torch.zeros(len(model.model_list)),
            "eta": torch.tensor(0.0),
            "gamma": torch.tensor(float("nan")),
        }
    ).save(target)
    return target


@pytest.fixture
def server(start: Start, folder: Path, tmp_path: Path) -> Running:
    return start(model_path=str(with_posterior(folder, tmp_path / "model")))


def test_deviations_and_intervals_come_when_asked_for(server: Running) -> None:
    plain = server.predict([PROMPT]).json()
    assert plain.keys() == {"coefs", "eta", "truncated", "revision", "familiarity"}
    pairs = [["ant", "dog"], ["dog", "bee"]]
    body = {"prompt": [PROMPT], "sd": True, "pairs": pairs, "level": 0.8}
    answer = server.client.post("/predict", json=body).json()
    assert {name: answer[name] for name in plain} == plain
    prediction = server.model.predict([PROMPT])
    assert np.allclose(answer["sd"], prediction.sd()[0], rtol=1e-4)
    reach = NormalDist().inv_cdf(0.9)
    for pair, own in zip(pairs, answer["pairs"], strict=True):
        first, second = (NAMES.index(name) for name in pair)
        assert [own["model_a"], own["model_b"]] == pair
        odds = plain["coefs"][first] - plain["coefs"][second]
        deviation = float(prediction.difference_sd([first], [second])[0, 0])
        assert own["log_odds"] == pytest.approx(odds, abs=1e-5)
        assert own["sd"] == pytest.approx(deviation, rel=1e-4)
        assert own["upper"] - own["lower"] == pytest.approx(2 * reach * deviation, rel=1e-4)
    separate = np.hypot(answer["sd"][0], answer["sd"][3])
    assert answer["pairs"][0]["sd"] != pytest.approx(separate, rel=1e-3)


def test_a_batch_has_deviations_for_each_prompt(server: Running) -> None:
    prompts = [[PROMPT], ["write a long poem"]]
    answer = server.client.post("/predict_batch", json={"prompts": prompts, "sd": True}).json()
    deviations = [row["sd"] for row in answer["predictions"]]
    assert np.allclose(deviations, server.model.predict(prompts).sd(), rtol=1e-4)
    assert "sd" not in server.client.post("/predict_batch", json={"prompts": prompts}).json()["predictions"][0]


def test_the_client_asks_for_them(server: Running) -> None:
    with P2LClient(server.url) as client:
        assert client.predict(PROMPT).sd is None
        answer = client.predict(PROMPT, sd=True, pairs=[("ant", "bee")])
        assert answer.sd is not None
        assert answer.pairs is not None
        assert len(answer.sd) == len(NAMES)
        assert answer.pairs[0].lower < answer.pairs[0].log_odds < answer.pairs[0].upper
        assert all(one.sd is not None for one in client.predict_batch([PROMPT, "more"], sd=True))
        with pytest.raises(BadRequestError, match="names a model that is not in the list"):
            client.predict(PROMPT, pairs=[("ant", "nobody")])


def test_a_model_without_posterior_says_so_in_one_line(shared: Running) -> None:
    for body in ({"prompt": [PROMPT], "sd": True}, {"prompt": [PROMPT], "pairs": [["ant", "bee"]]}):
        response = shared.client.post("/predict", json=body)
        assert response.status_code == 422
        assert "p2l posterior" in response.json()["detail"]
    response = shared.client.post("/predict_batch", json={"prompts": [[PROMPT]], "sd": True})
    assert response.status_code == 422


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"level": 1}, "level"),
        ({"level": 0}, "level"),
        ({"pairs": [["ant"]]}, "pairs.0"),
        ({"pairs": [["ant", "bee"]] * 1001}, "pairs"),
        ({"sd": "perhaps"}, "sd"),
    ],
)
def test_what_cannot_be_asked_is_refused(shared: Running, change: dict[str, object], place: str) -> None:
    response = shared.client.post("/predict", json={"prompt": [PROMPT], **change})
    assert response.status_code == 422
    assert response.json()["detail"].startswith(place)
