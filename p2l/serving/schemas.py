"""The bodies of the service's requests and responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BatchRequest",
    "BatchResponse",
    "HealthResponse",
    "InfoResponse",
    "LeaderboardResponse",
    "ModelsResponse",
    "Prediction",
    "Problem",
    "PromptRequest",
    "Rank",
    "ReloadRequest",
    "ReloadResponse",
]

Turns = Annotated[
    list[str],
    Field(min_length=1, description="The user's turns of one conversation, in order.", examples=[["What is 2 + 2?"]]),
]


class PromptRequest(BaseModel):
    """One prompt."""

    prompt: Turns


class BatchRequest(BaseModel):
    """Several prompts."""

    prompts: Annotated[list[Turns], Field(min_length=1, description="Prompts, each the list of its user turns.")]


class Prediction(BaseModel):
    """What the model says of one prompt."""

    coefs: list[float] = Field(description="One coefficient for each name of GET /models, in its order.")
    eta: float | None = Field(description="Raw output of the eta head; null for a head without one.")
    gamma: float | None = Field(default=None, description="Raw output of the gamma head; only with head ba.")
    truncated: bool = Field(description="Whether the prompt was too long and lost its oldest tokens.")
    revision: str = Field(description="Which model spoke.")


class BatchResponse(BaseModel):
    """What the model says of several prompts, in their order."""

    predictions: list[Prediction]
    revision: str


class Rank(BaseModel):
    """One line of a leaderboard."""

    rank: int = Field(description="From 1.")
    model: str
    score: float = Field(description="The model's coefficient.")
    win_rate: float = Field(description="Chance of beating a model drawn from the rest; a tie is half a win.")


class LeaderboardResponse(BaseModel):
    """The models, best first, for one prompt."""

    leaderboard: list[Rank]
    truncated: bool
    revision: str


class ModelsResponse(BaseModel):
    """The names that the coefficients belong to."""

    models: list[str]
    revision: str


class HealthResponse(BaseModel):
    """The service answers."""

    status: str
    revision: str


class InfoResponse(BaseModel):
    """What is being served, and how."""

    model_config = ConfigDict(protected_namespaces=())

    model: str = Field(description="Name of the model's folder or hub id.")
    revision: str
    model_type: str
    head_type: str
    likelihood: str
    num_models: int
    max_length: int = Field(description="Tokens per prompt; older ones are cut.")
    device: str
    dtype: str
    dtype_reason: str
    version: str = Field(description="Of this software.")


class ReloadRequest(BaseModel):
    """Which model to load; without a path the present one is read again."""

    model_config = ConfigDict(protected_namespaces=())

    model_path: str | None = Field(default=None, min_length=1, max_length=4096)


class ReloadResponse(BaseModel):
    """The model that every worker serves now."""

    revision: str
    workers: int


class Problem(BaseModel):
    """Why a request was not answered."""

    detail: str = Field(description="One sentence.")
