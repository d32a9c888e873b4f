"""The inference engine: prompts in, coefficients out.

    model = P2L.from_pretrained("outputs/my-run")
    model.predict(["Prove that 17 is prime.", ["first turn", "second turn"]]).coefs     # (2, M)
    model.leaderboard("Prove that 17 is prime.")                                        # a ranked DataFrame

Prompts are formatted by the same function as in training and cut at the length of training.

Shapes: n prompts, M models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from p2l import backbones
from p2l.batching import collate, plan_batches, to_device
from p2l.checkpoint import local_folder
from p2l.encoding import Encoding, check_turns
from p2l.errors import CheckpointError, InputError
from p2l.leaderboard.field import win_rates
from p2l.members import member_folders
from p2l.model import P2LModel, P2LOutput
from p2l.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    import pandas as pd

    from p2l.likelihood import Likelihood

__all__ = ["P2L", "Member", "Prediction", "Prompt", "choose_device"]

Prompt: TypeAlias = "str | Sequence[str]"
"""One prompt: its text, or the user's turns in order."""

_PROMPTS_AT_ONCE = 1024  # encoded, sorted by length and forgotten again: memory does not grow with the prompts

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """What the model says of n prompts, in their order."""

    coefs: Floats
    """(n, M)"""
    eta: Floats | None
    """(n,) raw output of the eta head, or None for a head without it"""
    gamma: Floats | None
    """(n,) or None"""
    truncated: npt.NDArray[np.bool_]
    """(n,) whether a prompt was too long and lost its oldest tokens"""


@dataclass(frozen=True)
class Member:
    """A model and the tokenizer that it was trained with."""

    model: P2LModel
    tokenizer: PromptTokenizer


class P2L:
    """A trained prompt-to-leaderboard model, ready to be asked; or a committee, whose members' answers are averaged."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        """Bring the members to a device; `from_pretrained` finds them."""
        self.members = [Member(member.model.to(device).eval(), member.tokenizer) for member in members]
        self.device = device

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        model_type: str | None = None,
        head_type: str | None = None,
        loss_type: str | None = None,
        max_length: int | None = None,
    ) -> P2L:
        """Load a model folder, the folder of a committee (`p2l committee`), or a hub id.

        Args:
            path: a local folder or hub id.
            device: by default the GPU if there is one.
            dtype: by default bfloat16 on a GPU that knows it, float32 elsewhere.
            model_type: by default as the checkpoint says; likewise the next two.
            head_type: bt, rk or ba.
            loss_type: the likelihood.
            max_length: tokens per prompt; by default the length of training.

        Raises:
            InputError: a device that is absent, a folder that is incomplete or contradicts what was given.
        """
        target = choose_device(device)
        half = target.type == "cuda" and torch.cuda.is_bf16_supported()
        members = []
        for folder in member_folders(local_folder(path)):
            model = P2LModel.from_pretrained(
                folder,
                model_type=model_type,
                head_type=head_type,
                loss_type=loss_type,
                dtype=dtype or (torch.bfloat16 if half else torch.float32),
            )
            tokenizer = PromptTokenizer.from_pretrained(
                folder, max_length=max_length, cls_token_if_none=None, pad_token_if_none=None
            )
            _fit_together(folder, model, tokenizer)
            members.append(Member(model, tokenizer))
        return cls(members, target)

    @property
    def model_list(self) -> list[str]:
        """Names of the models, in the order of the coefficients."""
        return self.members[0].model.model_list

    @property
    def likelihood(self) -> Likelihood:
        """The outcome model that gives the coefficients their meaning."""
        return self.members[0].model.likelihood

    def predict(
        self, prompts: str | Sequence[Prompt], *, batch_size: int = 64, max_batch_tokens: int = 32_768
    ) -> Prediction:
        """Coefficients of every prompt.

        Args:
            prompts: a list of prompts, each a text or the list of its user turns; one text alone is one prompt.
            batch_size: most prompts per forward pass.
            max_batch_tokens: most tokens per forward pass (a longer prompt goes alone).

        Raises:
            InputError: a prompt that is no text and no list of texts, or has no turns; a batch of less than one.
        """
        if batch_size < 1 or max_batch_tokens < 1:
            raise InputError(
                f"batch_size and max_batch_tokens must be at least 1, not {min(batch_size, max_batch_tokens)}"
            )
        listed = _listed(prompts)
        columns = _Columns(len(listed), len(self.model_list), len(self.members))
        for start in range(0, len(listed), _PROMPTS_AT_ONCE):
            stop = min(start + _PROMPTS_AT_ONCE, len(listed))
            turns = [check_turns(listed[number], number) for number in range(start, stop)]
            for member in self.members:
                encodings = member.tokenizer.encode(turns)
                columns.truncated[start:stop] |= [encoding.truncated for encoding in encodings]
                for rows, output in self._outputs(member, encodings, batch_size, max_batch_tokens):
                    columns.add([start + row for row in rows], output)
        head = self.members[0].model.head
        return Prediction(
            columns.coefs,
            columns.eta if head.has_eta else None,
            columns.gamma if head.has_gamma else None,
            columns.truncated,
        )

    def _outputs(
        self, member: Member, encodings: list[Encoding], batch_size: int, max_batch_tokens: int
    ) -> Iterator[tuple[list[int], P2LOutput]]:
        """What one member says of which of the encodings, batch by batch."""
        packed = backbones.get(member.model.record.model_type).packs
        lengths = [len(encoding.ids) for encoding in encodings]
        for rows in plan_batches(lengths, max_tokens=max_batch_tokens, max_rows=batch_size, packed=packed):
            batch = collate([encodings[row] for row in rows], member.tokenizer.pad_token_id, packed=packed)
            with torch.inference_mode():
                yield rows, member.model(to_device(batch, self.device))

    def leaderboard(self, prompt: Prompt) -> pd.DataFrame:
        """The leaderboard of one prompt, best model first.

        Args:
            prompt: its text, or the user's turns in order.

        Returns:
            Columns rank (from 1), model, coef, and win_rate, the chance of beating a model drawn from the rest of the
            list (a tie counts as half a win).
        """
        import pandas as pd

        said = self.predict([prompt])
        rates = win_rates(said.coefs, self.likelihood, said.eta, said.gamma)[0]
        order = np.argsort(-said.coefs[0], kind="stable")
        names = np.array(self.model_list, dtype=object)
        table: pd.DataFrame = pd.DataFrame(
            {
                "rank": np.arange(1, len(order) + 1),
                "model": names[order],
                "coef": said.coefs[0][order],
                "win_rate": rates[order],
            }
        )
        return table


def _listed(prompts: Any) -> list[Any]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
        raise InputError(f"prompts must be a text or a list of prompts, not {type(prompts).__name__}")
    return list(prompts)


def choose_device(device: str | torch.device | None) -> torch.device:
    """A device that is there; None takes the GPU if there is one.

    Raises:
        InputError: the device is unknown or absent.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device!r} is unknown; use cpu, cuda or cuda:N") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r} was asked for, but this machine has no CUDA device; use cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {str(device)!r} is absent: this machine has {torch.cuda.device_count()}; use cuda:0")
    try:
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, NotImplementedError, AssertionError) as error:  # what another kind of device says
        raise InputError(
            f"device {str(device)!r} was asked for, but cannot be used on this machine; use cpu"
        ) from error
    return chosen


class _Columns:
    """The arrays of a prediction, filled batch by batch in any order: the mean over the members of a committee."""

    def __init__(self, num_prompts: int, num_models: int, num_members: int) -> None:
        self.coefs = np.zeros((num_prompts, num_models), dtype=np.float32)
        self.eta = np.zeros(num_prompts, dtype=np.float32)
        self.gamma = np.zeros(num_prompts, dtype=np.float32)
        self.truncated = np.zeros(num_prompts, dtype=np.bool_)
        self._share = np.float32(1 / num_members)

    def add(self, rows: list[int], output: P2LOutput) -> None:
        for target, values in ((self.coefs, output.coefs), (self.eta, output.eta), (self.gamma, output.gamma)):
            if isinstance(values, Tensor):
                target[rows] += values.float().cpu().numpy() * self._share


def _fit_together(folder: Path, model: P2LModel, tokenizer: PromptTokenizer) -> None:
    """Refuse a tokenizer with more tokens than the model knows; stop at the last position that it learned."""
    rows = model.num_embeddings
    if tokenizer.cls_token_id >= rows:
        raise CheckpointError(f"{folder}: the CLS token has id {tokenizer.cls_token_id}, the model only {rows} ids")
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {rows}; "
            "copy tokenizer and model from one folder"
        )
    if backbones.get(model.record.model_type).learned_positions:
        tokenizer.max_length = min(tokenizer.max_length, model.max_positions)
