from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l import likelihood as likelihoods
from p2l.common.errors import ConfigError
from p2l.leaderboard.newton import derivatives
from p2l.likelihood import get, mean_loss, targets, vote_losses
from tests.p2l.exact_likelihood import exact_probs, exact_slopes
from tests.p2l.worked_votes import COEFS, ETA, LABELS

TRAINED = likelihoods.names()
COARSE = likelihoods.names(evaluation_only=True)
FAR = st.floats(-50, 50)
POINTS = st.tuples(FAR, FAR, FAR, FAR)

# 178 battles of three models as (winner, loser, tie): count, and the parameters that fit them best.
BATTLES = {
    (0, 1, 0): 30, (1, 0, 0): 18, (0, 1, 1): 8, (0, 1, 2): 6, (1, 2, 0): 28, (2, 1, 0): 15,
    (1, 2, 1): 9, (1, 2, 2): 7, (0, 2, 0): 35, (2, 0, 0): 10, (0, 2, 1): 7, (0, 2, 2): 5,
}  # fmt: skip
FITS = {
    "bt": ((0.5832, 0.0395, -0.6227), 0.0, 0.6134),
    "bt-tie": ((0.4415, 0.0193, -0.4608), 0.0, 0.6467),
    "rk": ((0.4748, 0.0142, -0.4891), -6.521, 1.0144),
    "bag": ((1.9445, 1.4664, 0.9282), -0.794, 1.1761),
}


def random_points(count: int, dtype: type = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.uniform(-50, 50, count).astype(dtype) for _ in range(4)]


@pytest.mark.parametrize("name", TRAINED + COARSE)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-6)])
def test_probabilities_sum_to_one(name, dtype, tolerance):
    points = random_points(20_000, dtype)
    likelihood = get(name)
    for probs in (np.exp(likelihood.log_probs(*points)), likelihood.probs(*points)):
        assert probs.dtype == dtype
        assert probs.shape == (20_000, len(likelihood.outcomes))
        assert np.abs(probs.sum(axis=-1) - 1).max() < tolerance


@pytest.mark.parametrize("name", TRAINED)
@settings(max_examples=30, deadline=None)
@given(point=POINTS)
def test_log_probabilities_agree_with_exact_arithmetic(name, point):
    exact = [float(value) for value in exact_probs(name, *point)]
    assert get(name).probs(*point) == pytest.approx(exact, rel=1e-11)
    assert np.exp(get(name).log_probs(*point)) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("name", TRAINED)
@settings(max_examples=30, deadline=None)
@given(point=st.tuples(*[st.floats(-3, 3)] * 4))
def test_probabilities_agree_with_the_naive_formula(name, point):
    a, b, eta, gamma = point
    x, y = np.exp(a), np.exp(b)
    if name in ("bt", "bt-tie"):
        naive = [x / (x + y), y / (x + y)]
    elif name == "rk":
        t = np.exp(max(10 * np.log(1 + np.exp(0.1 * (eta - 22.5))), 0.02))
        naive = [x / (x + t * y), y / (y + t * x)]
    else:
        t, g = (np.exp(eta) + 1.02, np.exp(gamma)) if name == "ba" else (np.exp(eta) + 1.000001, 1.0)
        naive = [x / (x + t * y + g), y / (y + t * x + g)]
    if "tie" in get(name).outcomes:
        bothbad = [g / (x + y + g)] if "bothbad" in get(name).outcomes else []
        naive = [*naive, 1 - sum(naive) - sum(bothbad), *bothbad]
    assert get(name).probs(*point) == pytest.approx(naive, rel=1e-7, abs=1e-13)


@pytest.mark.parametrize("name", TRAINED + COARSE)
@settings(max_examples=25, deadline=None)
@given(point=POINTS)
def test_swapping_the_models_swaps_the_outcomes(name, point):
    a, b, eta, gamma = point
    outcomes = get(name).outcomes
    mirror = [outcomes.index({"win": "loss", "loss": "win"}.get(outcome, outcome)) for outcome in outcomes]
    straight, swapped = get(name).log_probs(a, b, eta, gamma), get(name).log_probs(b, a, eta, gamma)
    np.testing.assert_allclose(straight[mirror], swapped, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("name", TRAINED + COARSE)
def test_torch_and_numpy_share_their_values(name):
    for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 2e-6)):
        points = random_points(500, dtype)
        ours = get(name).log_probs(*points)
        theirs = get(name).log_probs(*(torch.from_numpy(point) for point in points))
        np.testing.assert_allclose(theirs.numpy(), ours, rtol=tolerance, atol=tolerance)
        probs = get(name).probs(*(torch.from_numpy(point) for point in points)).numpy()
        np.testing.assert_allclose(probs, get(name).probs(*points), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRAINED + COARSE)
def test_probs_is_the_exponential_of_log_probs(name):
    points = random_points(20_000)
    for scale in (0.1, 1.0, 10.0):  # the last one is beyond the range of plain products
        scaled = [scale * point for point in points]
        exact = np.exp(get(name).log_probs(*scaled))
        np.testing.assert_allclose(get(name).probs(*scaled), exact, rtol=2e-11 * max(scale, 1.0), atol=1e-300)


def test_all_pairs_of_a_block_of_prompts_by_broadcasting():
    rng = np.random.default_rng(0)
    coefs, eta = rng.normal(size=(5, 7)), rng.normal(size=5)
    probs = get("grk").probs(coefs[:, :, None], coefs[:, None, :], eta[:, None, None])
    assert probs.shape == (5, 7, 7, 4)
    assert probs[..., 2].flags.c_contiguous
    np.testing.assert_allclose(probs[3, 1, 6], get("grk").probs(coefs[3, 1], coefs[3, 6], eta[3]), rtol=1e-14)


HARD = (-50.0, -20.0, -3.0, 0.0, 1e-6, 1.0, 20.0, 50.0)


def hard_points() -> list[np.ndarray]:
    """Points where naive gradients round to zero: far apart, equal, nearly equal, with extreme eta and gamma."""
    rng = np.random.default_rng(3)
    near = [(v, v + d, e, 0.5) for v in (-50, 0, 10, 50) for d in (0, 1e-6, -1e-3) for e in (-40, 0, 3, 40)]
    far = [rng.choice(HARD, 4) for _ in range(40)] + [rng.uniform(-50, 50, 4) for _ in range(20)]
    far += [np.array(point) for point in ((0, -50, 20, 0), (-50, 1, 20, 1), (20, 20, 50, 20), (0, 0, -6.5, 0))]
    return [np.array(point, dtype=np.float32) for point in near + far]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-37), (torch.float64, 1e-190)])
def test_gradients_are_finite_and_vanish_only_where_the_exact_ones_do(name, dtype, tiny):
    likelihood = get(name)
    parameters = 2 + len(likelihood.parameters)
    for point in hard_points():
        inputs = torch.tensor(point, dtype=dtype, requires_grad=True)
        log_probs = likelihood.log_probs(*inputs)
        for log_prob, exact in zip(log_probs, exact_slopes(name, point.tolist(), parameters), strict=True):
            (slopes,) = torch.autograd.grad(log_prob, inputs, retain_graph=True)
            assert slopes.isfinite().all()
            for slope, truth in zip(slopes.tolist(), exact, strict=False):
                assert slope != 0 or abs(truth) < tiny, (point, exact)
                assert slope == pytest.approx(truth, rel=1e-6, abs=1e-15 if name == "rk-reparam" else tiny)


@pytest.mark.parametrize("name", TRAINED)
def test_bfloat16_inputs_are_computed_in_float32(name):
    points = [torch.from_numpy(point).bfloat16().requires_grad_() for point in random_points(2_000)]
    log_probs = get(name).log_probs(*points)
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    used = points[: 2 + len(get(name).parameters)]
    assert all(point.grad is not None and point.grad.isfinite().all() for point in used)
    assert (log_probs.exp().sum(-1) - 1).abs().max() < 5e-6


def test_a_tie_between_nearly_equal_models_still_pulls_them_together():
    coefs = torch.tensor([[1e-9, 0.0]], requires_grad=True)
    vote_losses(get("bt-tie"), coefs, torch.tensor([[0, 1, 1]])).sum().backward()
    assert coefs.grad is not None
    assert coefs.grad[0].tolist() == pytest.approx([2.5e-10, -2.5e-10], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "loss"),
    [("bt", 0.7011), ("bt-tie", 0.7486), ("rk", 1.1014), ("rk-reparam", 1.2209), ("bag", 1.5452)],
)
def test_worked_losses(name, loss):
    likelihood = get(name)
    assert round(float(mean_loss(likelihood, COEFS, LABELS, ETA)), 4) == loss
    tensors = (torch.tensor(COEFS, dtype=torch.float32), torch.tensor(LABELS), torch.tensor(ETA, dtype=torch.float32))
    assert round(float(mean_loss(likelihood, *tensors)), 4) == loss


@pytest.mark.parametrize("name", FITS)
def test_worked_fit_has_the_stated_loss(name):
    coefs, eta, loss = FITS[name]
    labels, counts = np.array(list(BATTLES)), np.array(list(BATTLES.values()))
    rows = np.tile(coefs, (len(labels), 1))
    assert float(mean_loss(get(name), rows, labels, np.full(12, eta), weights=counts)) == pytest.approx(loss, abs=5e-5)


@pytest.mark.parametrize("name", TRAINED + COARSE)
def test_losses_are_the_cross_entropy_with_the_targets(name):
    likelihood = get(name)
    log_probs = likelihood.log_probs(COEFS[range(6), LABELS[:, 0]], COEFS[range(6), LABELS[:, 1]], ETA, ETA)
    expected = -(targets(likelihood, LABELS[:, 2]) * log_probs).sum(axis=1)
    np.testing.assert_allclose(vote_losses(likelihood, COEFS, LABELS, ETA, ETA), expected, rtol=1e-13)
    tensors = [torch.tensor(value) for value in (COEFS, LABELS, ETA, ETA)]
    np.testing.assert_allclose(vote_losses(likelihood, *tensors).numpy(), expected, rtol=1e-12)
    assert targets(likelihood, tensors[1][:, 2]).tolist() == targets(likelihood, LABELS[:, 2]).tolist()


@pytest.mark.parametrize("name", TRAINED)
def test_a_weight_of_two_counts_as_the_vote_twice(name):
    likelihood, twice = get(name), [0, 0, 1, 2, 2, 3, 4, 5]
    weighted = mean_loss(likelihood, COEFS, LABELS, ETA, ETA, weights=np.array([2, 1, 2, 1, 1, 1]))
    repeated = mean_loss(likelihood, COEFS[twice], LABELS[twice], ETA[twice], ETA[twice])
    assert float(weighted) == pytest.approx(float(repeated), rel=1e-14)


def test_a_mean_of_no_votes_is_no_number():
    ties = LABELS[[1, 2, 4]]
    assert np.isnan(mean_loss(get("bt"), COEFS[:3], ties))
    assert torch.isnan(mean_loss(get("bt"), torch.tensor(COEFS[:3]), torch.tensor(ties)))


def test_targets_of_the_three_kinds_of_label():
    kinds = np.array([0, 1, 2])
    assert targets(get("bt"), kinds).tolist() == [[1, 0], [0, 0], [0, 0]]
    assert targets(get("bt_tie"), kinds).tolist() == [[1, 0], [0.5, 0.5], [0.5, 0.5]]
    assert targets(get("rk"), kinds).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert targets(get("grk"), kinds).tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert targets(get("tie-bag"), kinds).tolist() == [[0, 1], [1, 0], [1, 0]]
    assert targets(get("tie-bb-bag"), kinds).tolist() == [[0, 1], [0, 1], [1, 0]]


def test_only_bt_drops_ties():
    assert likelihoods.counted(get("bt"), LABELS).tolist() == [1, 0, 0, 1, 0, 1]
    assert likelihoods.counted(get("bt"), torch.tensor(LABELS)).tolist() == [1, 0, 0, 1, 0, 1]
    assert likelihoods.counted(get("bt-tie"), LABELS).tolist() == [1] * 6


@pytest.mark.parametrize(
    ("coarse", "fine", "first"),
    [("tie-rk", "rk", ["tie"]), ("tie-grk", "grk", ["tie", "bothbad"]), ("tie-bb-grk", "grk", ["bothbad"])],
)
def test_coarse_likelihoods_add_up_outcomes(coarse, fine, first):
    points = random_points(200)
    probs = get(fine).probs(*points)
    expected = sum(probs[:, get(fine).outcomes.index(outcome)] for outcome in first)
    np.testing.assert_allclose(get(coarse).probs(*points)[:, 0], expected, rtol=1e-11)


def test_only_a_shift_that_keeps_the_ground_changes_nothing():
    point = np.array([0.3, -0.8, 0.2, 0.1])
    for name in TRAINED:
        likelihood = get(name)
        moved = likelihood.log_probs(point[0] + 1, point[1] + 1, point[2], point[3])
        assert np.allclose(moved, likelihood.log_probs(*point)) == (name in ("bt", "bt-tie", "rk"))
    np.testing.assert_allclose(
        get("ba").log_probs(*(point + np.array([1, 1, 0, 1]))), get("ba").log_probs(*point), rtol=1e-13
    )


def test_names_aliases_and_defaults():
    assert get("bag") is get("grk") is get("GRK")
    assert get("bt_tie") is get("bt-tie")
    assert likelihoods.aliases()["bag"] == "grk"
    assert [likelihoods.default_for_head(head).name for head in ("bt", "rk", "ba")] == ["bt", "grk", "ba"]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: get("gkr"), "'grk'"),
        (lambda: likelihoods.check_pair("rk", "bt"), "rk, rk-reparam or grk"),
        (lambda: likelihoods.check_pair("bt", "bag"), "needs head_type 'rk'"),
        (lambda: likelihoods.check_pair("rk", "tie-rk"), "metrics only"),
        (lambda: likelihoods.check_pair("rl", "rk"), "unknown head_type 'rl'"),
        (lambda: get("grk").log_probs(0.0, 0.0), "needs eta"),
        (lambda: get("ba").probs(0.0, 0.0, 0.0), "needs gamma"),
    ],
)
def test_mistakes_are_named_with_what_to_do(action, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as caught:
        action()
    assert "\n" not in str(caught.value)


def test_heads_go_with_their_losses():
    for head, losses in {"bt": ["bt", "bt-tie"], "rk": ["rk", "rk-reparam", "grk", "bag"], "ba": ["ba"]}.items():
        for loss in losses:
            likelihoods.check_pair(head, loss)


def test_a_new_likelihood_registers_in_one_line():
    @likelihoods.register("coin", head="bt", outcomes=("win", "loss"))
    def _coin(_xp, a, b, _eta, _gamma):
        return 0.0 * (a - b) - np.log(2), 0.0 * (a - b) - np.log(2)

    try:
        assert get("coin").probs(3.0, 1.0).tolist() == pytest.approx([0.5, 0.5])
        assert derivatives(get("coin"), 3.0, 1.0)[1].tolist() == [[0, 0], [0, 0]]
    finally:
        del likelihoods.LIKELIHOODS["coin"]


def test_the_mathematics_never_imports_torch():
    code = "import sys, p2l.likelihood, p2l.metrics, p2l.leaderboard.newton; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
