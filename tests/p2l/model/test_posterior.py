"""The posterior of a model: its variances, what it shrinks, and folders that hold a wrong one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from p2l.common.errors import CheckpointError
from p2l.model.encoding import Encoding
from p2l.model.posterior import KEPT_OF_STRANGERS, POSTERIOR_FILE, Posterior
from p2l.model.tfidf import TfidfTokenizer

INPUTS, POINTS, MODELS, PARTS = 3, 4, 5, 2


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Some posterior: two components, four points."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "centre": torch.zeros(INPUTS),
        "scale": torch.tensor(1.0),
        "points": torch.randn(POINTS, INPUTS, generator=draw),
        "axes": torch.eye(POINTS),
        "kept": torch.full((PARTS, POINTS), 0.5),
        "offset": torch.tensor([1.25, 1.0]),
        "least": torch.tensor([0.3, 0.1]),
        "basis": torch.randn(MODELS, PARTS, generator=draw),
        "share": torch.full((POINTS,), 0.5),
        "near": torch.tensor(0.5),
        "far": torch.tensor(1.5),
        "strange": torch.tensor(1.4),
        "words": torch.tensor([0.3, 0.6]),
        "encoded": torch.tensor(0.0),
        "coefs": torch.randn(MODELS, generator=draw),
        "eta": torch.tensor(0.7),
        "gamma": torch.tensor(float("nan")),
    }


def test_a_prompt_like_no_other_has_the_whole_variance_and_little_of_its_own_departure() -> None:
    posterior = Posterior(tensors())
    place = posterior.place(torch.full((1, INPUTS), 100.0))
    trust = posterior.trust(place)
    assert trust.item() == pytest.approx(KEPT_OF_STRANGERS)
    assert torch.allclose(posterior.variances(place, trust)[0], 1.4 * posterior.offset)
    own = torch.randn(1, MODELS)
    coefs, eta, gamma = posterior.shrunk(trust, own, torch.zeros(1), None)
    assert torch.allclose(coefs, posterior.coefs + KEPT_OF_STRANGERS * (own - posterior.coefs))
    assert eta is not None
    assert eta.item() == pytest.approx((1.0 - KEPT_OF_STRANGERS) * 0.7)
    assert gamma is None


@pytest.mark.parametrize(("encoded", "kept"), [(0.0, 0.0), (1.0, KEPT_OF_STRANGERS)])
def test_unknown_words_leave_nothing_unless_an_encoder_reads_them(encoded: float, kept: float) -> None:
    posterior = Posterior(tensors() | {"encoded": torch.tensor(encoded)})
    place = posterior.place(posterior.points[:1])
    assert posterior.trust(place, torch.tensor([0.3])).item() == pytest.approx(kept)
    assert posterior.trust(place, torch.tensor([0.6])).item() == pytest.approx(1.0)


def test_a_familiar_prompt_has_less_variance_and_its_own_coefficients() -> None:
    posterior = Posterior(tensors())
    place = posterior.place(posterior.points)
    trust = posterior.trust(place)
    assert torch.allclose(trust, torch.ones(POINTS))
    assert bool((posterior.variances(place, trust) < posterior.offset).all())
    assert bool((posterior.variances(place, trust) >= posterior.least).all())
    own = torch.randn(POINTS, MODELS)
    coefs, _, _ = posterior.shrunk(trust, own, None, None)
    assert torch.allclose(coefs, own, atol=1e-6)


def test_models_that_were_not_tried_on_such_prompts_stay_where_the_one_leaderboard_has_them() -> None:
    tried = torch.ones(MODELS, POINTS)
    tried[0, 0] = 0.0
    posterior = Posterior(tensors() | {"tried": tried})
    place = posterior.place(posterior.points)
    trust, own = posterior.trust(place), torch.randn(POINTS, MODELS)
    coefs, _, _ = posterior.shrunk(trust, own, None, None, place.tried)
    away = (coefs - posterior.coefs).abs() / (own - posterior.coefs).abs()
    assert away[0, 0] < 0.5  # other points lie near this one
    assert torch.allclose(away[:, 1:], torch.ones(POINTS, MODELS - 1), atol=1e-4)
    assert place.familiarity(trust)[0] < place.familiarity(trust)[1:].max() <= 1.0


def test_the_factor_falls_smoothly_with_the_distance_from_the_nearest_prompt() -> None:
    posterior = Posterior(tensors())
    path = posterior.points[:1] + torch.linspace(0, 6, 400)[:, None] * torch.tensor([1.0, 0.0, 0.0])
    place = posterior.place(path)
    trust = posterior.trust(place)[place.nearest.argsort()]
    assert bool((trust.diff() <= 0).all())
    assert trust.max() == pytest.approx(1.0)
    assert trust.min() == pytest.approx(KEPT_OF_STRANGERS)
    assert trust.diff().abs().max() < 0.05


def test_shares_of_tried_models_lie_between_0_and_1() -> None:
    with pytest.raises(CheckpointError, match="tried holds what is no share"):
        Posterior(tensors() | {"tried": torch.full((MODELS, POINTS), 1.5)})


@pytest.mark.parametrize("more", [{}, {"tried": torch.eye(MODELS, POINTS)}])
def test_a_folder_gives_back_what_was_saved(tmp_path: Path, more: dict[str, torch.Tensor]) -> None:
    posterior = Posterior(tensors() | more)
    posterior.save(tmp_path)
    again = Posterior.load(tmp_path, MODELS)
    assert again is not None
    assert (again.tried is not None) == bool(more)
    inputs = torch.randn(6, INPUTS)
    trust = torch.ones(6)
    difference = again.variances(again.place(inputs), trust) - posterior.variances(posterior.place(inputs), trust)
    assert float(difference.abs().max()) < 1e-2
    assert Posterior.load(tmp_path / "none", MODELS) is None


def test_the_words_of_a_model_that_does_not_read_them_are_kept_in_the_file(tmp_path: Path) -> None:
    words = TfidfTokenizer(["one", "two", "ключ"], [1.0, 2.0, 3.0])
    Posterior(tensors(), words).save(tmp_path)
    posterior = Posterior.load(tmp_path, MODELS)
    assert posterior is not None
    assert posterior.vocabulary is not None
    assert posterior.vocabulary.contents()[0] == ["one", "two", "ключ"]
    prompts = [["one two"], ["ключ three"], ["three four"]]
    plain = [Encoding(np.zeros(1, np.int64), None, False) for _ in prompts]
    known = [encoding.known for encoding in posterior.with_known(prompts, plain)]
    assert known == pytest.approx([1.0, 0.5, 0.0])
    assert posterior.without_shrinking().vocabulary is None
    assert Posterior(tensors()).with_known(prompts, plain) == plain


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("vocabulary", torch.tensor([255, 254], dtype=torch.uint8), "damaged vocabulary"),
        ("vocabulary_idf", torch.ones(3), "does not fit its weights"),
        ("vocabulary_idf", torch.tensor([1.0, float("inf")]), "does not fit its weights"),
    ],
)
def test_damaged_words_are_refused(tmp_path: Path, name: str, value: torch.Tensor, fault: str) -> None:
    Posterior(tensors(), TfidfTokenizer(["one", "two"], [1.0, 2.0])).save(tmp_path)
    save_file({**load_file(tmp_path / POSTERIOR_FILE), name: value}, tmp_path / POSTERIOR_FILE)
    with pytest.raises(CheckpointError, match=fault):
        Posterior.load(tmp_path, MODELS)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("basis", torch.zeros(MODELS, PARTS + 1), "basis does not fit"),
        ("axes", torch.zeros(POINTS), "axes, or has it in another shape"),
        ("offset", torch.tensor([float("nan"), 1.0]), "offset holds values that are not finite"),
    ],
)
def test_a_posterior_that_does_not_fit_is_refused(name: str, value: torch.Tensor, fault: str) -> None:
    with pytest.raises(CheckpointError, match=fault):
        Posterior({**tensors(), name: value})


def test_a_posterior_of_other_models_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    Posterior(tensors()).save(tmp_path)
    with pytest.raises(CheckpointError, match="is of 5 models, the head of 6"):
        Posterior.load(tmp_path, MODELS + 1)
    (tmp_path / POSTERIOR_FILE).write_bytes(b"no safetensors")
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        Posterior.load(tmp_path, MODELS)
