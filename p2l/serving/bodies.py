"""Bodies of the service's requests and responses: bounded before they are parsed, and one sentence for a fault.

Parsing makes an object of every value, so that a body of a few megabytes may take seconds and gigabytes: what a request
cannot need is refused by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from starlette.exceptions import HTTPException

from p2l.common.cli import listed, nearest
from p2l.common.long_texts import LONG, BusyError, PatientDecoder, count_values, decode
from p2l.common.web import ClientGoneError, within
from p2l.serving.pairs import LONGEST_NAME, MOST_COVARIATES, MOST_PAIRS, PairInterval, PairVote, few_covariates
from p2l.serving.settings import Settings

_OTHER_VALUES = 1000  # of a request, beside its turns


Turns = Annotated[
    list[str],
    FailFast(),  # a fault for each of a million turns takes seconds to describe
    Field(
        min_length=1,
        description="A text, or the user's turns of one conversation, in order.",
        examples=["What is 2 + 2?", ["Write a limerick.", "Shorter, please."]],
    ),
    BeforeValidator(
        lambda prompt: [prompt] if isinstance(prompt, str) else prompt, json_schema_input_type=str | list[str]
    ),
]


class PromptRequest(BaseModel):
    """One prompt."""

    model_config = ConfigDict(extra="forbid")

    prompt: Turns


class PredictRequest(PromptRequest):
    """One prompt, and which uncertainty of its coefficients to return."""

    sd: bool = Field(default=False, description="Whether to return the standard deviation of each coefficient.")
    pairs: Annotated[
        list[tuple[str, str]], FailFast(), Field(max_length=MOST_PAIRS, description="Pairs of names to compare.")
    ] = []
    level: float = Field(default=0.9, gt=0, lt=1, description="Probability of each pair's interval.")
    covariates: Annotated[
        dict[str, Annotated[float, Field(allow_inf_nan=False)]],
        BeforeValidator(few_covariates),
        Field(
            max_length=MOST_COVARIATES,
            description="What else counts in votes on the pairs, seen from the first model of each: side 1 where it is "
            "shown first. GET /info has the names.",
        ),
    ] = {}


class BatchRequest(BaseModel):
    """Several prompts."""

    model_config = ConfigDict(extra="forbid")

    prompts: Annotated[
        list[Turns], FailFast(), Field(min_length=1, description="Prompts, each a text or the list of its user turns.")
    ]
    sd: bool = Field(default=False, description="Whether to return the standard deviation of each coefficient.")


Familiarity = Annotated[
    float | None,
    Field(
        description="Share of the prompt's own departure from the overall leaderboard that is kept, 0 to 1; 0: the "
        "answer is the overall leaderboard, since nothing like the prompt was voted on. Of models with a posterior."
    ),
]


class PredictResponse(BaseModel):
    """Coefficients of the models for one prompt, and more on request."""

    coefs: list[float] = Field(description="One coefficient for each name of GET /models, in its order.")
    eta: float | None = Field(description="Raw output of the eta head; null for a head without one.")
    gamma: float | None = Field(default=None, description="Raw output of the gamma head; only with head ba.")
    truncated: bool = Field(description="Whether the prompt was too long and lost its oldest tokens.")
    revision: str = Field(description="Revision of the model that answered.")
    familiarity: Familiarity = None
    sd: list[float] | None = Field(
        default=None, description="Standard deviation of each true coefficient on this prompt; only if asked for."
    )
    pairs: list[PairInterval] | None = Field(default=None, description="Of each pair that was asked for, in order.")
    votes: list[PairVote] | None = Field(
        default=None, description="Of each pair, with the covariates counted in; only if covariates are given."
    )


class BatchResponse(BaseModel):
    """Coefficients for several prompts, in their order."""

    predictions: list[PredictResponse]
    revision: str


class Rank(BaseModel):
    """One line of a leaderboard."""

    rank: int = Field(description="From 1.")
    model: str
    coef: float = Field(description="The model's coefficient.")
    score: float = Field(description="The coefficient on the scale of arena scores: 1000 + 400 / ln(10) * coef.")
    win_rate: float = Field(description="Chance of beating a model drawn from the rest; a tie is half a win.")


class LeaderboardResponse(BaseModel):
    """The models, best first, for one prompt."""

    leaderboard: list[Rank]
    truncated: bool
    revision: str
    familiarity: Familiarity = None


class ModelsResponse(BaseModel):
    """The names that the coefficients belong to."""

    models: list[str]
    revision: str


class HealthResponse(BaseModel):
    """The service answers."""

    status: str
    revision: str


class InfoResponse(BaseModel):
    """The model that is served, and the limits of the service."""

    model_config = ConfigDict(protected_namespaces=())

    model: str = Field(description="Name of the model's folder or hub id.")
    revision: str
    model_type: str
    head_type: str
    likelihood: str
    num_models: int
    covariates: list[str] = Field(description="Names that `covariates` of POST /predict may have.")
    max_length: int = Field(description="Tokens per prompt; older ones are cut.")
    max_turns: int = Field(description="Turns of a request, those of all its prompts together.")
    max_chars: int = Field(description="Characters of a prompt.")
    max_body_mb: float = Field(description="Largest request, in MiB.")
    device: str
    dtype: str
    dtype_reason: str
    version: str = Field(description="Of this software.")


class ReloadRequest(BaseModel):
    """The model to load; without a path the present one is read again."""

    model_config = ConfigDict(protected_namespaces=(), extra="forbid")

    model_path: str | None = Field(default=None, min_length=1, max_length=4096)


class ReloadResponse(BaseModel):
    """The model that every worker serves now."""

    revision: str
    workers: int


class Problem(BaseModel):
    """The reason why a request was not answered."""

    detail: str = Field(description="One sentence.")


class BoundedRoute(APIRoute):
    """A route whose requests are parsed within the limits of the service."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler for requests that parse themselves."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request.scope, request.receive))

        return handle_bounded


class _BoundedRequest(Request):
    async def json(self) -> Any:
        """Return the parsed body; FastAPI answers 422 to json.JSONDecodeError, and passes HTTPException on."""
        body = await self.body()
        if len(body) <= LONG:
            return json.loads(body)
        service = self.app.state.service
        settings: Settings = service.settings
        work = service.batcher.long_work.run(len(body), partial(_parse, body, settings.max_turns))
        try:
            return await within(self, settings.deadline, work)
        except BusyError as error:
            raise HTTPException(503, str(error), {"retry-after": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, "the deadline passed before the request was read") from None
        except ClientGoneError:
            raise HTTPException(499, "the client left") from None


def check_prompts(prompts: Sequence[Sequence[str]], settings: Settings) -> None:
    """Raise HTTPException 413 for prompts beyond the limits of turns and characters."""
    num_turns = sum(map(len, prompts))
    if num_turns > settings.max_turns:
        raise _too_many_turns(settings.max_turns)
    for number, prompt in enumerate(prompts):
        num_chars = sum(map(len, prompt))
        if num_chars > settings.max_chars:
            raise HTTPException(
                413,
                f"prompt {number} has {num_chars} characters, more than {settings.max_chars} (--max-chars); "
                "send its newest turns",
            )


def _too_many_turns(most: int) -> HTTPException:
    return HTTPException(
        413, f"the request has more than {most} turns (--max-turns); send the newest, or fewer prompts"
    )


def _parse(body: bytes, max_turns: int) -> Any:
    most = 2 * max_turns + _OTHER_VALUES  # a turn, and a list for each
    if count_values(body, most) > most:
        raise _too_many_turns(max_turns)
    # Other encodings, which the library would guess, hide what was counted.
    return PatientDecoder().decode(decode(body, "surrogatepass"))


# What is wrong with a request whose values are not those of its model.

_TEXT = "a text"
_PROMPT = "a text or a list of texts (the user's turns)"
_EXPECTED = {
    "prompt": (_PROMPT, _TEXT),
    "prompts": (f"a list of prompts, each {_PROMPT}", _PROMPT, _TEXT),
    "sd": ("true or false",),
    "pairs": (
        f"a list of at most {MOST_PAIRS:,} pairs of models",
        'two models, such as ["a", "b"]',
        "the name of a model",
    ),
    "level": ("above 0 and below 1",),
    "covariates": (
        f"an object of numbers by name: at most {MOST_COVARIATES} names of at most {LONGEST_NAME} characters",
        "a finite number",
    ),
    "model_path": ("a text of 1 to 4,096 characters",),
    "x-p2l-timeout": ("a number of seconds above 0",),
}
"""Name of a key or header: what it has to be, and what has to be within it, one level after the other."""


def describe_faults(faults: Sequence[Mapping[str, Any]], keys: Collection[str]) -> str:
    """Return a sentence of the first of pydantic's faults, and of a misspelt key before what is missing without it.

    `keys` are those that the body may have. Nothing of a prompt is shown, of whatever type it is.
    """
    fault = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")  # the first of those that are equal
    kind, value, (section, *place) = fault["type"], fault["input"], fault["loc"]
    if kind == "json_invalid":
        return "the body is not valid JSON"
    if kind == "extra_forbidden":
        name = str(place[-1])
        return f"unknown key {listed([name])!r}{nearest(name, keys)}; see GET /docs"
    if not place:
        if isinstance(value, bytes):  # as it came: no header says that it is JSON
            return "the body was not read as JSON: send it with the header content-type: application/json"
        example = "is missing" if value is None else f"is {_kind_of(value)}"
        return f"the body {example}; send a JSON object, with what GET /docs says"
    if kind == "missing" and len(place) > 1:  # a pair of one name, say
        place = place[:-1]
    levels = _EXPECTED[name := str(place[0])]
    where = ".".join(listed([str(step)]) for step in place)
    expected = levels[min(len(place), len(levels)) - 1]
    if kind == "missing" and len(place) == 1:
        return f"{where}: is missing; it must be {expected}"
    is_shown = section == "header" or (isinstance(value, int | float) and not name.startswith("prompt"))
    return f"{where}: must be {expected}, got {listed([json.dumps(value)]) if is_shown else _kind_of(value)}"


def _kind_of(value: object) -> str:
    """Return the kind of a JSON value in words, without its content."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return f"a list of {len(value):,}" if value else "an empty list"
    return "an object"
