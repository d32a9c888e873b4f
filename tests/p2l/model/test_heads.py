import numpy as np
import pytest
import torch

from p2l.common.errors import ConfigError
from p2l.model import heads


@pytest.mark.parametrize(
    ("name", "has_eta", "has_gamma"), [("bt", False, False), ("rk", True, False), ("ba", True, True)]
)
@pytest.mark.parametrize("factor", [None, 2])
def test_each_head_gives_its_parameters_plain_and_low_rank(name, has_eta, has_gamma, factor):
    head = heads.build(name, 6, 5, downsize_factor=factor)
    out = head(torch.randn(3, 6))
    assert out.coefs.shape == (3, 5)
    assert (out.eta is not None) == has_eta
    assert (out.gamma is not None) == has_gamma
    assert all(value.shape == (3,) for value in out[1:] if value is not None)


def test_weight_names_are_those_of_published_models():
    names = set(heads.build("ba", 6, 5).state_dict())
    assert names == {f"{part}.{kind}" for part in ("head", "eta_head", "gamma_head") for kind in ("weight", "bias")}


def test_low_rank_has_the_width_outputs_over_factor():
    head = heads.build("rk", 6, 9, downsize_factor=4)
    assert head.head[0].weight.shape == (2, 6)
    assert head.head[1].weight.shape == (9, 2)


def test_what_rows_share_moves_them_alike_and_is_folded_into_them():
    head, x = heads.build("rk", 6, 5), torch.randn(3, 6)
    before = head(x).coefs
    heads.share_level(head)
    heads.share_level(head)
    assert torch.equal(head(x).coefs, before)
    with torch.no_grad():
        heads.last_layer(head).level.copy_(torch.randn(6))
    after = head(x).coefs
    moved = (after - before).detach()
    assert moved.std() > 0.1
    assert torch.allclose(moved, moved[:, :1].expand(3, 5), atol=1e-6)
    plain = heads.build("rk", 6, 5)
    weights = {f"head.{name}": weight for name, weight in head.state_dict().items()}
    plain.load_state_dict({name.removeprefix("head."): own for name, own in heads.folded(weights).items()})
    assert torch.allclose(plain(x).coefs, after, atol=1e-6)
    with pytest.raises(ConfigError, match="shared_level"):
        heads.share_level(heads.build("rk", 6, 5, downsize_factor=2))


def test_low_rank_without_width_is_refused():
    with pytest.raises(ConfigError, match="leaves no inner width for 5 models"):
        heads.build("bt", 6, 5, downsize_factor=6)


@pytest.mark.parametrize(("options", "width"), [({"eta_dim": 3}, 3), ({"eta_downsize": 2}, 3)])
def test_head_config_makes_a_two_layer_eta_head(options, width):
    head = heads.build("rk", 6, 5, head_config=options)
    assert head.eta_head[0].weight.shape == (width, 6)
    assert head(torch.randn(2, 6)).eta.shape == (2,)


@pytest.mark.parametrize("options", [{"eta_dim": 1}, {"eta_downsize": 6}])
def test_an_eta_width_of_one_is_the_plain_head(options):
    names = [set(heads.build("rk", 6, 5, head_config=config).state_dict()) for config in (options, None)]
    assert names[0] == names[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_parameter_of_every_head_learns(dtype):
    torch.manual_seed(0)
    for name in heads.HEADS:
        config = None if name == "bt" else {"eta_dim": 3}
        head = heads.build(name, 6, 5, downsize_factor=2, head_config=config).to(dtype)
        out = head(torch.randn(4, 6).to(dtype))
        assert {value.dtype for value in out if value is not None} == {torch.float32}
        sum(value.square().sum() for value in out if value is not None).backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())


@pytest.mark.parametrize(
    ("head_type", "options", "message"),
    [
        ("rk", {"eta_dimm": 2}, "did you mean 'eta_dim'"),
        ("rk", {"eta_dim": 2, "eta_downsize": 2}, "not both"),
        ("rk", {"eta_dim": 0}, "at least 1"),
        ("rk", {"eta_downsize": 7}, "no inner width"),
        ("bt", {"eta_dim": 2}, "does not have"),
        ("rkk", {}, "did you mean 'rk'"),
    ],
)
def test_wrong_head_settings_are_named(head_type, options, message):
    with pytest.raises(ConfigError, match=message):
        heads.build(head_type, 6, 5, head_config=options)


@pytest.mark.parametrize("init_type", heads.INIT_TYPES)
@pytest.mark.parametrize("factor", [None, 2])
def test_initialisation_depends_on_the_seed_alone(init_type, factor):
    def weights(seed):
        head = heads.build("rk", 64, 8, downsize_factor=factor)
        torch.manual_seed(seed)
        heads.initialise(head, init_type, heads.HeadStart(np.zeros(8), 0.0, None))
        return torch.cat([parameter.flatten() for parameter in head.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_initialisations_have_their_scale():
    head = heads.build("bt", 256, 100)
    for init_type, std in {"he_unif": (2 / 256) ** 0.5, "xavier_unif": (2 / 356) ** 0.5, "tiny_normal": 1e-3}.items():
        heads.initialise(head, init_type)
        assert head.head.weight.std().item() == pytest.approx(std, rel=0.05)
        assert not head.head.bias.any()


def test_unknown_initialisation_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'xavier_unif'"):
        heads.initialise(heads.build("bt", 2, 2), "xavier_uniform")


def test_bfloat16_weights_give_float32_coefficients_and_get_gradients():
    head = heads.build("ba", 8, 4).to(torch.bfloat16)
    exact = heads.build("ba", 8, 4)
    exact.load_state_dict(head.state_dict())
    hidden = torch.randn(3, 8).bfloat16().requires_grad_()
    out = head(hidden)
    assert out.coefs.dtype == torch.float32
    torch.testing.assert_close(out.coefs, exact(hidden.float()).coefs)
    out.coefs.sum().backward()
    assert head.head.weight.grad.dtype == torch.bfloat16
    assert hidden.grad is not None


def test_another_head_registers_with_a_decorator(monkeypatch):
    monkeypatch.setattr(heads, "HEADS", dict(heads.HEADS))

    @heads.register("twice")
    class Twice(heads.BTHead):
        def forward(self, hidden):
            out = super().forward(hidden)
            return out._replace(coefs=2 * out.coefs)

    assert isinstance(heads.build("twice", 3, 2), Twice)


@pytest.mark.parametrize("factor", [None, 2])
@pytest.mark.parametrize("head_type", heads.HEADS)
def test_a_marginal_start_says_nearly_the_same_of_every_prompt(head_type, factor):
    start = heads.HeadStart(np.array([1.0, -0.5, 0.25, 2.0]), -0.7, 0.3)
    head = heads.build(head_type, 16, 4, downsize_factor=factor)
    heads.initialise(head, "marginal", start)
    coefs, eta, gamma = head(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(coefs, torch.tensor(start.coefs).float().expand(5, 4), atol=0.03)
    assert eta is None or torch.allclose(eta, torch.tensor(-0.7), atol=0.03)
    assert gamma is None or torch.allclose(gamma, torch.tensor(0.3), atol=0.03)
    assert coefs.std(0).min() > 0


def test_a_marginal_start_needs_a_leaderboard():
    with pytest.raises(ConfigError, match="needs the leaderboard to start at"):
        heads.initialise(heads.build("bt", 8, 3), "marginal")


@pytest.mark.parametrize("head_type", ["bt", "rk", "ba"])
@pytest.mark.parametrize("options", [{}, {"downsize_factor": 2}])
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0])
def test_shrinking_the_weights_shrinks_what_the_head_says(head_type, options, factor):
    config = {"eta_dim": 3} if head_type != "bt" else None
    head = heads.build(head_type, 6, 5, head_config=config, **options)
    start = heads.HeadStart(np.linspace(-1.0, 1.0, 5), 0.7, -0.4)
    hidden = torch.randn(4, 6)
    before = head(hidden)
    with torch.no_grad():
        for parameter, change in heads.towards(head, start, factor).items():
            change(parameter)
    after = head(hidden)
    for old, new, target in zip(before, after, (torch.tensor(start.coefs), start.eta, start.gamma), strict=True):
        if old is not None:
            torch.testing.assert_close(new, (factor * old + (1 - factor) * target).float())
