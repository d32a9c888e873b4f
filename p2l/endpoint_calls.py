"""What can be asked of a P2L endpoint, and what its answers hold: one function or constant for each of its paths.

Fields are named as in the HTTP contract but for the two lists, `models` and `leaderboard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter

from p2l.encoding import check_turns, repair
from p2l.errors import InputError

__all__ = [
    "HEALTH",
    "INFO",
    "MODELS",
    "Call",
    "Health",
    "ModelAnswer",
    "ModelList",
    "Prompt",
    "PromptLeaderboard",
    "RankedModel",
    "leaderboard",
    "predict",
    "predict_batch",
    "read_json",
]

T = TypeVar("T")

Prompt: TypeAlias = "str | Sequence[str]"
"""One prompt: its text, or the user's turns in order."""


@dataclass(frozen=True)
class ModelAnswer:
    """What the model says of one prompt."""

    coefs: Annotated[list[FiniteFloat], Field(min_length=1)]
    """One coefficient for each name of `models()`, in that order."""
    eta: FiniteFloat | None = None
    """Raw output of the eta head, or None for a head without it."""
    gamma: FiniteFloat | None = None
    truncated: bool = False
    """Whether the prompt was too long and lost its oldest tokens."""
    revision: str = ""
    """Which model spoke; a change means that `models()` may have changed. Older endpoints say nothing."""


@dataclass(frozen=True)
class ModelList:
    """The models that have a coefficient, in the order of the coefficients."""

    names: Annotated[list[str], Field(min_length=1, validation_alias="models")]
    revision: str = ""


@dataclass(frozen=True)
class RankedModel:
    """A row of a leaderboard."""

    rank: int
    """From 1, the best."""
    model: str
    score: FiniteFloat
    """Its coefficient."""
    win_rate: FiniteFloat
    """Chance of beating a model drawn from the rest of the list, a tie being half a win."""


@dataclass(frozen=True)
class PromptLeaderboard:
    """The leaderboard of one prompt, best model first."""

    rows: Annotated[list[RankedModel], Field(min_length=1, validation_alias="leaderboard")]
    truncated: bool = False
    revision: str = ""


@dataclass(frozen=True)
class Health:
    """What a ready endpoint says of itself."""

    status: str
    revision: str = ""


@dataclass(frozen=True)
class _Batch:
    predictions: list[ModelAnswer]
    revision: str = ""


@dataclass(frozen=True)
class Call(Generic[T]):
    """What to ask, and how to read the answer."""

    path: str
    read: Callable[[bytes], T]
    """Raises ValueError for what is no answer."""
    body: Mapping[str, Any] | None = None
    patient: bool = False
    """Whether one attempt may take all the time there is."""
    repeated: bool = True
    """Whether a failed attempt may be followed by another."""


def read_json(shape: Any, body: bytes) -> Any:
    """The JSON of `body` as a value of the type `shape`; further fields are passed over.

    Raises:
        ValidationError: it is no JSON, or of another shape.
    """
    return _adapter(shape).validate_json(body, strict=True)


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _read_batch(expected: int, body: bytes) -> list[ModelAnswer]:
    batch: _Batch = read_json(_Batch, body)
    if len(batch.predictions) != expected:
        raise ValueError(f"{len(batch.predictions)} predictions for {expected} prompts")
    return [replace(answer, revision=answer.revision or batch.revision) for answer in batch.predictions]


def _turns(prompt: Prompt, number: int = 0) -> list[str]:
    return [repair(turn) for turn in check_turns(prompt, number)]


def predict(prompt: Prompt) -> Call[ModelAnswer]:
    """Coefficients for one prompt. `InputError` for what is no prompt; likewise the next two."""
    return Call("/predict", partial(read_json, ModelAnswer), {"prompt": _turns(prompt)})


def predict_batch(prompts: Iterable[Prompt]) -> Call[list[ModelAnswer]]:
    """Coefficients for several prompts."""
    if isinstance(prompts, str):
        raise InputError("predict_batch takes a list of prompts; give one prompt to predict")
    turns = [_turns(prompt, number) for number, prompt in enumerate(prompts)]
    return Call("/predict_batch", partial(_read_batch, len(turns)), {"prompts": turns}, patient=True)


def leaderboard(prompt: Prompt) -> Call[PromptLeaderboard]:
    """All models ranked for one prompt."""
    return Call("/leaderboard", partial(read_json, PromptLeaderboard), {"prompt": _turns(prompt)})


MODELS: Call[ModelList] = Call("/models", partial(read_json, ModelList))
INFO: Call[dict[str, Any]] = Call("/info", partial(read_json, dict[str, Any]))
HEALTH: Call[Health] = Call("/health", partial(read_json, Health), repeated=False)
