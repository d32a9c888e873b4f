"""The inference engine: prompts in, coefficients out.

    model = P2L.from_pretrained("outputs/my-run")
    model.predict(["Prove that 17 is prime.", ["first turn", "second turn"]]).coefs     # (2, M)
    model.leaderboard("Prove that 17 is prime.")                                        # a ranked DataFrame

Prompts are formatted by the same function as in training and cut at the length of training. On a machine without GPU
the readers of `p2l train --votes` are read without torch where OpenVINO is installed (`p2l.model.light`).

Shapes: n prompts, M models, D hidden.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import choose
from p2l.common.errors import InputError
from p2l.common.prompts import familiarity_note, unfamiliar_note
from p2l.leaderboard import Covariates, to_score
from p2l.leaderboard.board import SHOWN_ROWS, Rates, best_html, best_text
from p2l.leaderboard.covariates import Effect, shifted
from p2l.likelihood import win_rates, win_rates_if
from p2l.model.batching import collate, plan_batches, to_device
from p2l.model.checkpoint import digests_of, joint_revision, local_folder
from p2l.model.encoding import Encoding, PromptTokenizer, check_turns
from p2l.model.encoding import Prompt as Prompt
from p2l.model.kept_votes import KeptVotes
from p2l.model.light import LightReader, Outputs
from p2l.model.posterior import to_numpy
from p2l.model.tokenizer import load_tokenizer
from p2l.public import PUBLIC
from p2l.public.model import public_folder

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from p2l.likelihood import Likelihood
    from p2l.model.model import P2LModel


NO_POSTERIOR = "this model has no posterior, and so no standard deviations; fit one with p2l posterior"
_GPU_DEVICES = ("nvidia0", "kfd", "dxg")
"""Files in /dev of a machine with a GPU that torch may compute on."""
_PROMPTS_AT_ONCE = 1024  # encoded and sorted by length together: memory does not grow with the prompts
Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """The model's output for n prompts, in their order."""

    coefs: Floats
    """(n, M)"""
    eta: Floats | None
    """(n,) raw output of the eta head, or None for a head without it"""
    gamma: Floats | None
    """(n,) or None"""
    truncated: npt.NDArray[np.bool_]
    """(n,) whether a prompt was too long and lost its oldest tokens"""
    hidden: Floats | None = None
    """(n, D) hidden states, if requested"""
    variances: Floats | None = None
    """(n, R) of the components of the coefficients' posterior; None for a model without one"""
    basis: Floats | None = None
    """(M, R): the covariance of prompt n's true coefficients is basis @ diag(variances[n]) @ basis.T"""
    models: tuple[str, ...] = ()
    """M names, and the likelihood that gives coefficients their meaning: what a prediction of `P2L` shows itself by."""
    likelihood: Likelihood | None = None
    familiarity: Floats | None = None
    """(n,) from 0 to 1: the share of each prompt's own departure from the overall leaderboard that is kept.

    0: the board is the overall one, since nothing like the prompt was voted on. None for a model without posterior.
    """

    def __repr__(self) -> str:
        """Return how much there is, with the leaderboard of a single prompt or the best models of each of several."""
        if not self.models:
            return self._heading()
        return (
            self.rates().text()
            if len(self.coefs) == 1
            else best_text(self._heading(), self._first_rates(), len(self.coefs), self._unfamiliar_note())
        )

    def _repr_html_(self) -> str:
        if not self.models:
            return f"<p>{html.escape(self._heading())}</p>"
        return (
            self.rates().html()
            if len(self.coefs) == 1
            else best_html(self._heading(), self._first_rates(), len(self.coefs), self._unfamiliar_note())
        )

    def _heading(self) -> str:
        parts = [name for name in ("eta", "gamma", "hidden") if getattr(self, name) is not None]
        parts += ["posterior"] if self.variances is not None else []
        prompts = "1 prompt" if len(self.coefs) == 1 else f"{len(self.coefs)} prompts"
        return ", ".join([f"Prediction of {prompts}, {self.coefs.shape[1]} models", *parts])

    def _first_rates(self) -> list[Rates]:
        return [self.rates(row) for row in range(min(len(self.coefs), SHOWN_ROWS))]

    def _unfamiliar_note(self) -> str:
        return "" if self.familiarity is None else unfamiliar_note(self.familiarity.tolist())

    def plot(self, row: int = 0) -> Figure:
        """Return the leaderboard of prompt `row`, win rates with 90 % intervals where there are any, as a figure."""
        return self.rates(row).figure()

    def rates(self, row: int = 0, level: float = 0.9) -> Rates:
        """Return the win rates of prompt `row` with their intervals, best model first; InputError without names."""
        if self.likelihood is None or not 0 <= row < len(self.coefs):
            raise InputError(f"there is no leaderboard of row {row}; predict with a P2L model, and count from 0")
        sides = [None if values is None else float(values[row]) for values in (self.eta, self.gamma)]
        coefs, limits = self.coefs[row], None
        if self.variances is not None:
            reach = NormalDist().inv_cdf(0.5 + level / 2) * self.field_sd()[row]
            ends = [win_rates_if(coefs + sign * reach, coefs, self.likelihood, *sides) for sign in (-1, 1)]
            limits = ends[0], ends[1]
        rates = win_rates(coefs, self.likelihood, *sides)
        note = "" if self.familiarity is None else familiarity_note(float(self.familiarity[row]))
        return Rates.of("Leaderboard of a prompt", self.models, rates, limits, level, note)

    def field_sd(self, places: Sequence[int] | None = None) -> Floats:
        """Return the standard deviation (n, M) of each true coefficient less the mean of the others'.

        With `places` in the model list these M alone are the field.
        """
        variances, basis = self._posterior()
        basis = basis if places is None else basis[list(places)]
        number = len(basis)
        contrasts = (basis - basis.mean(axis=0)) * (number / max(1, number - 1))
        return np.asarray(np.sqrt(variances @ (contrasts**2).T))

    def sd(self) -> Floats:
        """Return the standard deviation (n, M) of each true coefficient; InputError for a model without posterior."""
        variances, basis = self._posterior()
        return np.asarray(np.sqrt(variances @ (basis**2).T))

    def difference_sd(self, first: npt.ArrayLike, second: npt.ArrayLike) -> Floats:
        """Return the standard deviation (n, P) of the true log-odds coef[first] - coef[second].

        `first` and `second` are P positions in the model list. It is less than that of two separate coefficients where
        models rise and fall together. InputError for a model without posterior.
        """
        variances, basis = self._posterior()
        differences = basis[np.asarray(first)] - basis[np.asarray(second)]
        return np.asarray(np.sqrt(variances @ (differences**2).T))

    def _posterior(self) -> tuple[Floats, Floats]:
        if self.variances is None or self.basis is None:
            raise InputError(NO_POSTERIOR)
        return self.variances, self.basis


class P2L:
    """A trained prompt-to-leaderboard model with its tokenizer."""

    def __init__(
        self,
        model: P2LModel | LightReader,
        tokenizer: PromptTokenizer,
        device: torch.device | None = None,
        folder: Path | None = None,
    ) -> None:
        """Take a reader that needs no torch, or move a model to a device; `from_pretrained` loads a `folder`."""
        self._network = model if isinstance(model, LightReader) else _moved(model, choose_device(device))
        self.tokenizer = tokenizer
        self._folder = folder

    @property
    def model(self) -> P2LModel:
        """The module of torch, with which a reader that answered without torch is loaded, and answers from now on."""
        if isinstance(self._network, LightReader):
            from p2l.model.model import P2LModel

            assert self._folder is not None
            self._network = P2LModel.from_pretrained(self._folder)
        return self._network

    @model.setter
    def model(self, model: P2LModel) -> None:
        self._network = model

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates of votes that it was trained with, which coefficients leave out."""
        return self._network.covariate_names

    @property
    def device(self) -> torch.device:
        """The device that torch computes on."""
        return next(self.model.parameters()).device

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
        """Load a model folder, a hub id, or the public model ("p2l-public").

        By default it runs on the GPU if there is one, in bfloat16 where a GPU supports it, with the types that the
        checkpoint records and as many tokens per prompt as in training. On a CPU, a reader whose encoder is BERT runs
        without torch where OpenVINO is installed, unless a `dtype` or a type is given. InputError if the device is
        absent, or the folder is incomplete or contradicts an argument.
        """
        folder = public_folder() if path == PUBLIC else local_folder(path)
        if (folder / "committee.json").is_file():
            raise InputError(
                f"{folder}: is a committee of an older version, not a model; name one of its members' folders"
            )
        typed = (dtype, model_type, head_type, loss_type)
        if str(device or "cpu") == "cpu" and typed == (None,) * 4 and (device is not None or not _has_gpu()):
            reader = LightReader.open(folder)
            if reader is not None:
                tokenizer = load_tokenizer(folder, max_length=max_length)
                tokenizer.limit(reader.num_embeddings, folder)
                return cls(reader, tokenizer, folder=folder)
        import torch

        from p2l.model.model import P2LModel

        target = choose_device(device)
        half = target.type == "cuda" and torch.cuda.is_bf16_supported()
        model = P2LModel.from_pretrained(
            folder,
            model_type=model_type,
            head_type=head_type,
            loss_type=loss_type,
            dtype=dtype or (torch.bfloat16 if half else torch.float32),
        )
        tokenizer = load_tokenizer(folder, max_length=max_length, cls_token_if_none=None, pad_token_if_none=None)
        _fit_together(folder, model, tokenizer)
        return cls(model, tokenizer, target, folder)

    @classmethod
    def public(cls, *, device: str | torch.device | None = None) -> P2L:
        """Load the public model of real LLMs that comes with the package (docs/evaluate/public-model.md).

        InputError where the extra `encoder`, whose weights it reads with, is not installed.
        """
        return cls.from_pretrained(public_folder(), device=device)

    def __repr__(self) -> str:
        """Return what the model is, without its weights."""
        where = "" if self._folder is None else f"{str(self._folder)!r}, "
        kind = self._network.record.model_type
        place = "cpu, without torch" if isinstance(self._network, LightReader) else self.device
        return f"P2L({where}{kind}, {self.likelihood.name}, {len(self.model_list)} models, on {place})"

    def _repr_html_(self) -> str:
        names = ", ".join(self.model_list)
        return f"<p><b>{html.escape(repr(self))}</b></p><p>{html.escape(names)}</p>"

    def plot(self, prompt: Prompt) -> Figure:
        """Return the leaderboard of a prompt as a matplotlib figure."""
        return self.predict([prompt]).plot()

    @property
    def model_list(self) -> list[str]:
        """Names of the models, in the order of the coefficients."""
        return self._network.model_list

    @property
    def likelihood(self) -> Likelihood:
        """The outcome model that gives the coefficients their meaning."""
        return self._network.likelihood

    @cached_property
    def basis(self) -> Floats | None:
        """The basis (M, R) of the coefficients' posterior; None for a model without one."""
        posterior = self._network.posterior
        return None if posterior is None else to_numpy(posterior.basis)

    @cached_property
    def kept_votes(self) -> KeptVotes | None:
        """The votes that the model's folder keeps; None for one that keeps none, CheckpointError if damaged."""
        kept = None if self._folder is None else KeptVotes.load(self._folder)
        # A model that was added later has no votes there.
        return None if kept is None else kept.with_models(self.model_list)

    @cached_property
    def revision(self) -> str:
        """12 hexadecimal digits that identify the content of the model's folder; "" without a folder."""
        return "" if self._folder is None else joint_revision(self.digests)

    @cached_property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file of the model's folder that coefficients depend on; none without a folder."""
        return {} if self._folder is None else digests_of(self._folder)

    def predict(
        self,
        prompts: str | Sequence[Prompt],
        *,
        batch_size: int = 64,
        max_batch_tokens: int = 32_768,
        hidden: bool = False,
    ) -> Prediction:
        """Predict the coefficients of every prompt, a text or the list of its user turns; a single text is one prompt.

        A forward pass holds at most `batch_size` prompts and `max_batch_tokens` tokens (a longer prompt goes alone).
        `hidden` adds the hidden states. InputError for something that is not a prompt, a prompt without turns, or a
        batch smaller than one.
        """
        if batch_size < 1 or max_batch_tokens < 1:
            raise InputError(
                f"batch_size and max_batch_tokens must be at least 1, not {min(batch_size, max_batch_tokens)}"
            )
        if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
            raise InputError(f"prompts must be a text or a list of prompts, not {type(prompts).__name__}")
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        columns = self._columns(len(listed), hidden)
        for start in range(0, len(listed), _PROMPTS_AT_ONCE):
            turns = [
                check_turns(prompt, number)
                for number, prompt in enumerate(listed[start : start + _PROMPTS_AT_ONCE], start)
            ]
            self._fill(columns, start, self.encode(turns), batch_size, max_batch_tokens)
        return columns

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """Encode prompts, each the list of its user turns; InputError as `check_turns`."""
        encodings = self.tokenizer.encode(prompts)
        posterior = self._network.posterior
        return encodings if posterior is None else posterior.with_known(prompts, encodings)

    def inputs(self, prompts: Sequence[Prompt], *, max_batch_tokens: int = 32_768) -> Floats:
        """Return what tells prompts apart (n, F): a reader's inputs, the hidden states of any other backbone."""
        encoded = self.encode([check_turns(prompt, number) for number, prompt in enumerate(prompts)])
        if isinstance(self._network, LightReader):
            return self._network.inputs(encoded)
        import torch

        packed = _packs(self.model)
        rows_of_batches = plan_batches([len(one.ids) for one in encoded], max_tokens=max_batch_tokens, packed=packed)
        parts = list[Floats]()
        order = list[int]()
        for rows in rows_of_batches:
            batch = collate([encoded[row] for row in rows], self.tokenizer.pad_token_id, packed=packed)
            with torch.inference_mode():
                parts.append(self.model.read(to_device(batch, self.device))[1].float().cpu().numpy())
            order += rows
        return np.concatenate(parts)[np.argsort(order)]

    def keep_states(self) -> None:
        """Look up what a frozen encoder said of prompts before, in the file that training uses, and keep what is new.

        For prompts that are read more than once. Other models have nothing to look up.
        """
        if isinstance(self._network, LightReader):
            self._network.keep_states()
            return
        from p2l.model.reader import keep_states

        keep_states(self._network.model)

    def mean_variances(self, inputs: Floats) -> Floats:
        """Return the variance (R,) of each component's mean over prompts, by their `inputs` (n, F).

        The covariance of the mean of the prompts' true coefficients is basis @ diag(variances) @ basis.T. InputError
        for a model without posterior.
        """
        posterior = self._network.posterior
        if posterior is None:
            raise InputError(NO_POSTERIOR)
        if isinstance(self._network, LightReader):
            return to_numpy(posterior.mean_variances(inputs))
        import torch

        return to_numpy(posterior.mean_variances(torch.from_numpy(inputs).to(self.device)))

    def answer(self, encoded: Sequence[Encoding], *, max_batch_tokens: int = 32_768) -> Prediction:
        """Predict encoded prompts, with at most `max_batch_tokens` tokens per forward pass."""
        columns = self._columns(len(encoded), False)
        self._fill(columns, 0, encoded, max(1, len(encoded)), max_batch_tokens)
        return columns

    def _columns(self, num_prompts: int, hidden: bool) -> Prediction:
        """Return the arrays of a prediction, filled with zeros."""
        network = self._network
        head = network if isinstance(network, LightReader) else network.head

        def zeros(*width: int) -> Floats:
            return np.zeros((num_prompts, *width), dtype=np.float32)

        return Prediction(
            coefs=zeros(len(self.model_list)),
            eta=zeros() if head.has_eta else None,
            gamma=zeros() if head.has_gamma else None,
            truncated=np.zeros(num_prompts, dtype=np.bool_),
            hidden=zeros(network.hidden_size) if hidden else None,
            variances=None if self.basis is None else zeros(self.basis.shape[1]),
            basis=self.basis,
            models=tuple(self.model_list),
            likelihood=self.likelihood,
            familiarity=None if self.basis is None else zeros(),
        )

    def _fill(
        self, columns: Prediction, start: int, encoded: Sequence[Encoding], batch_size: int, max_batch_tokens: int
    ) -> None:
        """Fill the rows from `start` on, batch by batch."""
        columns.truncated[start : start + len(encoded)] = [encoding.truncated for encoding in encoded]
        lengths = [len(encoding.ids) for encoding in encoded]
        packed = isinstance(self._network, LightReader) or _packs(self._network)
        for rows in plan_batches(lengths, max_tokens=max_batch_tokens, max_rows=batch_size, packed=packed):
            output = self._outputs([encoded[row] for row in rows], packed=packed)
            for target, source in (
                (columns.coefs, output.coefs),
                (columns.eta, output.eta),
                (columns.gamma, output.gamma),
                (columns.hidden, output.hidden),
                (columns.variances, output.variances),
                (columns.familiarity, output.familiarity),
            ):
                if target is not None and source is not None:
                    target[[start + row for row in rows]] = source

    def _outputs(self, encoded: Sequence[Encoding], *, packed: bool) -> Outputs:
        """Return what the model says of the prompts of a batch."""
        if isinstance(self._network, LightReader):
            return self._network.outputs(encoded)
        import torch

        batch = collate(encoded, self.tokenizer.pad_token_id, packed=packed)
        posterior = self._network.posterior
        if posterior is not None and posterior.vocabulary is not None:
            batch["known"] = torch.tensor([encoding.known for encoding in encoded])
        with torch.inference_mode():
            output = self._network(to_device(batch, self.device))
        names = ("eta", "gamma", "last_hidden_state", "variances", "familiarity")
        columns = [None if output.get(name) is None else to_numpy(output[name].float()) for name in names]
        return Outputs(to_numpy(output.coefs.float()), *columns)

    def effects(self, level: float = 0.95) -> tuple[Effect, ...]:
        """Return what covariates of votes were found to add, which coefficients leave out; maybe nothing."""
        covariates = self.model.covariates
        return () if covariates is None else covariates.table(level)

    def vote_probs(
        self,
        prompts: Sequence[Prompt],
        model_a: Sequence[str],
        model_b: Sequence[str],
        covariates: Mapping[str, npt.ArrayLike] | None = None,
    ) -> Floats64:
        """Return the probabilities (n, K) of the outcomes of votes on prompts between models by name.

        `covariates` are values, seen from model_a, that count in the votes: `{"side": 1}` for model_a shown first.
        InputError for a name that the model does not know.
        """
        there = {name: place for place, name in enumerate(self.model_list)}
        codes = [[choose("model", name, there) for name in names] for names in (model_a, model_b)]
        prediction, rows = self.predict(prompts), np.arange(len(prompts))
        a, b = (prediction.coefs[rows, column].astype(np.float64) for column in codes)
        a, b, eta = self.with_covariates(a, b, prediction.eta, covariates or {})
        return np.asarray(self.likelihood.probs(a, b, eta, prediction.gamma))

    def with_covariates(
        self, coef_a: Floats64, coef_b: Floats64, eta: npt.NDArray[np.floating] | None, covariates: Mapping[str, Any]
    ) -> tuple[Floats64, Floats64, npt.NDArray[np.floating] | None]:
        """Return coefficients (n,) and eta (n,) of votes with covariates counted in, by name, seen from model a.

        InputError for a name that the model was not trained with.
        """
        if not covariates:
            return coef_a, coef_b, eta
        effects = self.effects()
        if not effects:
            raise InputError("this model was trained without covariates; leave them out")
        for name in covariates:
            choose("covariate", name, dict.fromkeys(effect.name for effect in effects))
        chosen = [effect for effect in effects if effect.name in covariates]
        values = [
            np.broadcast_to(np.asarray(covariates[effect.name], dtype=np.float64), len(coef_a)) for effect in chosen
        ]
        names, roles = tuple(effect.name for effect in chosen), tuple(effect.role for effect in chosen)
        sizes = {(effect.name, effect.role): effect.coef for effect in chosen}
        columns = Covariates(names, roles, np.stack(values, axis=1))
        shift: tuple[Floats64, Floats64, Floats64 | None] = shifted(
            self.likelihood, coef_a, coef_b, eta, columns, sizes
        )
        return shift

    def leaderboard(self, prompt: Prompt) -> pd.DataFrame:
        """Return the leaderboard of one prompt, best model first: rank (from 1), model, score, coef and win_rate.

        The win rate is the probability of beating a model drawn from the rest of the list (a tie is half a win).
        """
        import pandas as pd

        prediction = self.predict([prompt])
        rates = win_rates(prediction.coefs, self.likelihood, prediction.eta, prediction.gamma)[0]
        order = np.argsort(-prediction.coefs[0], kind="stable")
        names = np.array(self.model_list, dtype=object)
        table: pd.DataFrame = pd.DataFrame(
            {
                "rank": np.arange(1, len(order) + 1),
                "model": names[order],
                "score": to_score(prediction.coefs[0][order]),
                "coef": prediction.coefs[0][order],
                "win_rate": rates[order],
            }
        )
        return table


def choose_device(device: str | torch.device | None) -> torch.device:
    """Return the device of this name, by default the GPU if there is one; InputError if it is unknown or absent."""
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device!r} is unknown; use cpu, cuda or cuda:N") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r} is absent: this machine has no CUDA device; use cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {str(device)!r} is absent: this machine has {torch.cuda.device_count()}; use cuda:0")
    try:
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, NotImplementedError, AssertionError) as error:  # raised by other kinds of devices
        raise InputError(f"device {str(device)!r} cannot be used on this machine; use cpu") from error
    return chosen


def _has_gpu() -> bool:
    """Return whether the machine seems to have a GPU; torch, which knows, takes seconds to import."""
    return any(Path("/dev", name).exists() for name in _GPU_DEVICES)


def _moved(model: P2LModel, device: torch.device) -> P2LModel:
    import torch

    try:
        return model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise InputError(f"the model does not fit into the memory of {device}; use another device") from error


def _packs(model: P2LModel) -> bool:
    from p2l.model import backbones

    return backbones.get(model.record.model_type).packs


def _fit_together(folder: Path, model: P2LModel, tokenizer: PromptTokenizer) -> None:
    """Limit a tokenizer to the ids and positions that the model learned; CheckpointError if they are too few."""
    from p2l.model import backbones

    tokenizer.limit(model.num_embeddings, folder)
    if backbones.get(model.record.model_type).learned_positions:
        tokenizer.max_length = min(tokenizer.max_length, model.max_positions)


# Tell an error that fewer tokens at a time would have spared from any other.

_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory, of a GPU or the machine, ran out; on a CPU only the message tells."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def free_memory() -> None:
    """Release what a failed forward pass left in the GPU's cache."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
