"""A trained reader that answers without torch: its encoder in OpenVINO (`p2l.model.bert`), the rest in NumPy.

The same formulas as in `p2l.model.reader`, `p2l.model.heads` and `P2LModel.forward`, for readers with the parts that
`p2l train --votes` makes: a BERT encoder or none, a hidden layer, a head.

Shapes: B prompts, F inputs, H hidden units, M models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood
from p2l.common.errors import CheckpointError, ConfigError
from p2l.model import bert
from p2l.model.checkpoint import P2LRecord, check_fit, covariate_names, map_weights, read_model_list, read_object
from p2l.model.encoding import Encoding
from p2l.model.posterior import Posterior
from p2l.model.reader_inputs import ReaderConfig, read_config
from p2l.model.sentence import StateCache, encoder_digest

Floats = npt.NDArray[np.float32]
_ENCODER = "model.encoder."
_EFFECTS = "covariates.effects"
_ERF = np.frompyfunc(math.erf, 1, 1)


class Outputs(NamedTuple):
    """What a model says of B prompts, in float32; the fields of `P2LOutput`."""

    coefs: Floats
    """(B, M)"""
    eta: Floats | None
    """(B,)"""
    gamma: Floats | None
    """(B,)"""
    hidden: Floats | None
    """(B, H)"""
    variances: Floats | None
    """(B, R)"""
    familiarity: Floats | None
    """(B,)"""


class LightReader:
    """The reader of a folder."""

    def __init__(self, folder: Path, config: ReaderConfig) -> None:
        """Load the folder; CheckpointError if it is incomplete or damaged."""
        self.record = _record(folder)
        self.likelihood = likelihood.get(self.record.loss_type)
        self.model_list = read_model_list(folder)
        self.covariate_names = covariate_names(folder)
        self.posterior = Posterior.load(folder, len(self.model_list), library="numpy")
        self._config = config
        weights = map_weights(folder)
        stored = {name: part.shape for name, part in weights.items()}
        shapes = _shapes(config, self.record, len(self.model_list), stored)
        check_fit(folder, shapes, stored)
        self._weights = {name: weights[name].astype(np.float32) for name in shapes if not name.startswith(_ENCODER)}
        self._cache: StateCache | None = None
        self._encoder = None
        self._encoder_weights = {
            name.removeprefix(_ENCODER): part for name, part in weights.items() if name.startswith(_ENCODER)
        }
        if config.encoder is not None:
            self._encoder = bert.Bert(
                self._encoder_weights, config.encoder, pooling=config.pooling, normalise=config.normalise
            )
            # The first pass lays the weights out for the processor; what they were read from is not needed then.
            self._encoder.states([np.zeros(1, dtype=np.int64)])
            weights.let_go()

    @staticmethod
    def open(folder: Path) -> LightReader | None:
        """Return the reader of a folder; None for another kind of model, or where OpenVINO is not installed for it."""
        content = read_object(folder / "config.json")
        if content.get("model_type") != "reader" or "p2l" not in content or content.get("dtype") == "bfloat16":
            return None
        config = read_config(folder)
        if config.activation != "gelu":
            return None
        if config.encoder is not None and not bert.is_readable(config.encoder):
            return None
        return LightReader(folder, config)

    @property
    def hidden_size(self) -> int:
        """H, the width of the hidden state."""
        return self._config.hidden_size

    @property
    def num_embeddings(self) -> int:
        """V, the number of token ids."""
        return self._config.vocab_size

    @property
    def has_eta(self) -> bool:
        """Whether the head has eta."""
        return any(name.startswith("head.eta_head.") for name in self._weights)

    @property
    def has_gamma(self) -> bool:
        """Whether the head has gamma."""
        return "head.gamma_head.weight" in self._weights

    def outputs(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return what the model says of encoded prompts, those of its `ReaderTokenizer`."""
        inputs = self.inputs(encodings)
        hidden: Floats = np.asarray(_gelu(self._linear("model.layer", inputs)) / np.float32(self._config.members))
        if self._config.with_inputs:
            hidden = np.concatenate([inputs, hidden], axis=1)
        coefs = self._head("head.head", hidden)
        eta = self._head("head.eta_head", hidden)[:, 0] if self.has_eta else None
        gamma = self._head("head.gamma_head", hidden)[:, 0] if self.has_gamma else None
        if self.posterior is None:
            return Outputs(coefs, eta, gamma, hidden, None, None)
        place = self.posterior.place(inputs)
        trust = self.posterior.trust(place, _features(encodings)[:, -1])
        coefs, eta, gamma = self.posterior.shrunk(trust, coefs, eta, gamma, place.tried)
        familiarity = place.familiarity(trust)
        return Outputs(coefs, eta, gamma, hidden, self.posterior.variances(place, familiarity), familiarity)

    def inputs(self, encodings: Sequence[Encoding]) -> Floats:
        """Return the inputs (B, F) of encoded prompts: states, words, form, of about unit variance."""
        features = _features(encodings)[:, :-1]
        if self._encoder is None:
            return features
        states = self.states([encoding.ids for encoding in encodings])
        mean, scale = (self._weights[f"model.state_{name}"] for name in ("mean", "scale"))
        return np.concatenate([(states - mean) * scale, features], axis=1)

    def states(self, tokens: Sequence[npt.NDArray[np.int64]]) -> Floats:
        """Return the encoder's states (B, D) of prompts by their tokens, rounded as those that training looks up."""
        states = self._read(tokens) if self._cache is None else self._cache.states(tokens, self._read)
        return states.astype(np.float32)

    def keep_states(self) -> None:
        """Look up states that were computed before, by training too, and keep those that are new."""
        config = self._config
        if self._encoder is not None and config.frozen and self._cache is None:
            digest = encoder_digest(
                config.pooling, normalise=config.normalise, weights=self._encoder_weights, rounded=False
            )
            self._cache = StateCache.open(digest, len(self._weights["model.state_mean"]))

    def _read(self, tokens: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float16]:
        assert self._encoder is not None
        return self._encoder.states(tokens).astype(np.float16)

    def _linear(self, name: str, x: Floats) -> Floats:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"])

    def _head(self, name: str, hidden: Floats) -> Floats:
        """Return the outputs of a head: one layer, two, or two with a GELU between them."""
        if f"{name}.weight" in self._weights:
            return self._linear(name, hidden)
        inner = self._linear(f"{name}.0", hidden)
        if f"{name}.1.weight" in self._weights:
            return self._linear(f"{name}.1", inner)
        return self._linear(f"{name}.2", _gelu(inner))


def _features(encodings: Sequence[Encoding]) -> Floats:
    """Return the features of encoded prompts (B, F + 1), the share of known words last."""
    return np.stack([encoding.features for encoding in encodings if encoding.features is not None])


def _gelu(x: Floats) -> Floats:
    return np.asarray(x * 0.5 * (1.0 + _ERF(x / math.sqrt(2.0)).astype(np.float32)), dtype=np.float32)


def _record(folder: Path) -> P2LRecord:
    """Return the record of config.json; CheckpointError if it cannot be used."""
    stored: Any = read_object(folder / "config.json").get("p2l")
    fields = P2LRecord.__dataclass_fields__  # a later version may have written more
    try:
        record = P2LRecord(**{key: value for key, value in stored.items() if key in fields})
        likelihood.check_pair(record.head_type, record.loss_type)
    except (AttributeError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: its record 'p2l' cannot be used: {error}") from error
    return record


def _shapes(
    config: ReaderConfig, record: P2LRecord, num_models: int, stored: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that a folder with this configuration has, by name."""
    width = 0 if config.encoder is None else bert.weight_shapes(config.encoder)["embeddings.LayerNorm.bias"][0]
    inputs = width + config.directions + config.form
    units = config.units(inputs)
    shapes: dict[str, tuple[int, ...]] = {
        "model.state_mean": (width,),
        "model.state_scale": (width,),
        "model.layer.weight": (units, inputs),
        "model.layer.bias": (units,),
    }
    heads = {"head.head": num_models}
    heads |= {"head.eta_head": 1} if record.head_type in ("rk", "ba") else {}
    heads |= {"head.gamma_head": 1} if record.head_type == "ba" else {}
    for name, outputs in heads.items():
        inner = stored.get(f"{name}.0.weight")
        layers = {"": (outputs, config.hidden_size)}
        if inner is not None:
            last = ".2" if name == "head.eta_head" else ".1"
            layers = {".0": (inner[0], config.hidden_size), last: (outputs, inner[0])}
        for place, shape in layers.items():
            shapes |= {f"{name}{place}.weight": shape, f"{name}{place}.bias": shape[:1]}
    if _EFFECTS in stored:  # of covariates, which coefficients leave out
        shapes[_EFFECTS] = stored[_EFFECTS]
    if config.encoder is not None:
        shapes |= {f"{_ENCODER}{name}": shape for name, shape in bert.weight_shapes(config.encoder).items()}
    return shapes
