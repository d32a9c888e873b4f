"""The flags of an evaluation: which files it reads (local or on the hub), and what it measures.

Each output comes from the first of these that is present: a checkpoint's output, a file of training (`--eval_path`),
`eval_output.jsonl` beside the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import parse_json
from p2l.evaluation.categories import Category, parse
from p2l.leaderboard.pair_tables import check_number_of_models
from p2l.likelihood import Likelihood, get
from p2l.metrics import LEADERBOARD_METRICS, METRICS
from p2l.model.checkpoint import MODEL_LIST_FILE, read_object

_BESIDE_MODEL = ("eval_output.jsonl", "eval_outputs.jsonl")


@dataclass(frozen=True)
class Inputs:
    """The flags that name inputs; the n-th entries of all lists belong together."""

    model_repo: str | None = None
    model_list_path: str | None = None
    eval_path: Sequence[str] = ()
    checkpoint_path: Sequence[str] = ()
    hf_checkpoint_repo: str | None = None
    hf_checkpoint_file: Sequence[str] = ()
    output_file_name: Sequence[str] = ()


@dataclass(frozen=True)
class Entry:
    """One output to evaluate."""

    name: str
    eval_path: str | None = None
    checkpoint_path: str | None = None
    hf_checkpoint_file: str | None = None

    @property
    def is_checkpoint(self) -> bool:
        """Whether batch inference wrote it, whose coefficients follow the model list of training."""
        return bool(self.checkpoint_path or self.hf_checkpoint_file)

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.checkpoint_path or self.hf_checkpoint_file or self.eval_path or self.name


def entries(inputs: Inputs) -> list[Entry]:
    """Return the outputs to evaluate, in order; ConfigError for lists of different lengths, equal names, or nothing."""
    _check(inputs)
    lists = {name: list(getattr(inputs, name)) for name in ("eval_path", "checkpoint_path", "hf_checkpoint_file")}
    flags = {name: values for name, values in lists.items() if values}
    count = max((len(values) for values in flags.values()), default=1)
    names = list(inputs.output_file_name) or _default_names(flags, count)
    for name, values in {**flags, "output_file_name": names}.items():
        if len(values) != count:
            whole = ", ".join(f"{len(one)} --{flag}" for flag, one in {**flags, "output_file_name": names}.items())
            raise ConfigError(f"--{name} does not go with the other lists ({whole}); give as many of each")
    if len(set(names)) < count:
        raise ConfigError(f"--output_file_name {' '.join(names)}: every output needs a name of its own")
    columns = {name: values or [None] * count for name, values in lists.items()}
    return [Entry(names[place], **{name: column[place] for name, column in columns.items()}) for place in range(count)]


def _check(inputs: Inputs) -> None:
    if not (inputs.model_repo or inputs.model_list_path):
        raise ConfigError("the names of the models are needed: give --model_list_path FILE or --model_repo REPO")
    if bool(inputs.hf_checkpoint_repo) != bool(inputs.hf_checkpoint_file):
        raise ConfigError("--hf_checkpoint_repo and --hf_checkpoint_file go together")
    if not (inputs.eval_path or inputs.checkpoint_path or inputs.hf_checkpoint_file or inputs.model_repo):
        raise ConfigError("there is nothing to evaluate: give --eval_path, --checkpoint_path or --model_repo")


def _default_names(names: dict[str, list[str]], count: int) -> list[str]:
    """`eval_metrics` for one output; several are named after their files."""
    if count == 1:
        return ["eval_metrics"]
    source = next(names[name] for name in ("checkpoint_path", "hf_checkpoint_file", "eval_path") if name in names)
    return [Path(path).stem for path in source]


def model_list(inputs: Inputs) -> list[str]:
    """Read the names of the coefficients; InputError if the file is missing or is not a list of different names."""
    path = inputs.model_list_path or _from_model_repo(str(inputs.model_repo), [MODEL_LIST_FILE])
    try:
        names: Any = parse_json(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is not a readable JSON list of model names: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"{path}: must be a JSON list of model names, each once")
    check_number_of_models(len(names), path)
    if len(names) < 2:
        raise InputError(f"{path}: an evaluation needs at least two models, not {len(names)}")
    return names


def output_path(entry: Entry, inputs: Inputs) -> str:
    """Return the local file of an output, downloaded where it is on the hub; InputError where there is none."""
    if entry.checkpoint_path:
        return entry.checkpoint_path
    if entry.hf_checkpoint_file:
        return _download(str(inputs.hf_checkpoint_repo), entry.hf_checkpoint_file, repo_type="dataset")
    return entry.eval_path or _from_model_repo(str(inputs.model_repo), _BESIDE_MODEL)


def recorded_likelihood(path: str) -> str | None:
    """Return the likelihood that a file beside the predictions records: that of p2l eval, or of training."""
    file = Path(path)
    # Training writes these names beside the model's own config.json; that of another file may be any model's.
    config = _object(file.with_name("config.json")) if file.name in _BESIDE_MODEL else {}
    name = _object(file.with_suffix(".info.json")).get("loss_type") or (config.get("p2l") or {}).get("loss_type")
    with contextlib.suppress(ConfigError):
        return None if name is None else get(str(name)).name
    return None


def origin(path: str) -> tuple[str, str]:
    """Return the model that wrote an output and the votes it is of, as far as records beside the file say."""
    file = Path(path)
    info = _object(file.with_suffix(".info.json"))
    if info.get("slice_file"):  # of p2l eval-chrono
        return str(info.get("checkpoint")), str(info["slice_file"])
    if info.get("model"):
        return short_name(info["model"]), short_name(info.get("dataset") or file.name)
    if file.name in _BESIDE_MODEL:
        config = _object(file.with_name("training_config.json"))
        data = config.get("val_data_path")
        return short_name(file.resolve().parent), short_name(data) if data else "its votes in folds"
    return short_name(file.stem), f"the votes of {file.name}"


def short_name(path: object) -> str:
    """Return the last two parts of a path: `outputs/sample`."""
    return "/".join(Path(str(path)).parts[-2:]).lstrip("/")


def check_model_list(inputs: Inputs, names: Sequence[str], path: str) -> None:
    """Raise InputError if an output's own record of its models contradicts these names.

    `p2l eval` records the list of each file beside it (NAME.info.json), training and `p2l eval-chrono` write
    model_list.json into the folder. One of the two lists may go on after the other: models are added at the end.
    """
    record, beside = Path(path).with_suffix(".info.json"), Path(path).with_name(MODEL_LIST_FILE)
    own: Any = _object(record).get("model_list")
    if own is None:
        record = beside
        with contextlib.suppress(OSError, ValueError):
            own = parse_json(beside.read_text(encoding="utf-8"))
    pairs = enumerate(zip(names, own, strict=False)) if isinstance(own, list) else ()
    place, one, other = next(((place, one, other) for place, (one, other) in pairs if one != other), (0, "", ""))
    if one != other:
        shown = inputs.model_list_path or inputs.model_repo
        raise InputError(
            f"{path}: coefficient {place + 1} is of {other!r} by {record}, and of {one!r} by {shown}; give the list "
            f"of the model that wrote this file (--model_list_path)"
        )


def _object(path: Path) -> dict[str, Any]:
    with contextlib.suppress(InputError):
        return read_object(path, missing={})
    return {}


def _from_model_repo(repo: str, names: Sequence[str]) -> str:
    """Return the first of these files in a model's folder or repository."""
    folder = Path(repo).expanduser()
    if folder.is_dir():
        for name in names:
            if (folder / name).is_file():
                return str(folder / name)
        raise InputError(f"{folder}: has no {' or '.join(names)}")
    problems = []
    for name in names:
        try:
            return _download(repo, name, repo_type="model")
        except InputError as error:
            problems.append(error)
    raise problems[0]


def _download(repo: str, name: str, *, repo_type: str) -> str:
    folder = Path(repo).expanduser()
    if (folder / name).is_file():
        return str(folder / name)
    from huggingface_hub import hf_hub_download

    try:
        return str(hf_hub_download(repo, name, repo_type=repo_type))
    except Exception as error:  # the hub's client raises its HTTP library's errors too
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{repo}: {name} cannot be had, neither here nor from the hub: {reason}") from error


@dataclass(frozen=True)
class EvaluationSettings:
    """What to measure: the flags of the same names.

    Attributes:
        categories: as the user wrote them.
        lenient: whether to pass over categories that the votes do not have (as those of the default list).
        metrics_to_inc: which blocks of `p2l.evaluation.defaults.PARTS`.
        seed: of every draw.
        bootstrap: replicates of the intervals of vote metrics; 0 leaves intervals out.
    """

    likelihood: Likelihood
    model_type: str
    ground_truth: str
    categories: Sequence[str]
    lenient: bool
    metrics_to_inc: Sequence[str]
    simple_metrics: Sequence[str]
    category_metrics: Sequence[str]
    rand_subset_metrics: Sequence[str]
    rand_subset_sizes: Sequence[int]
    rand_num_samples: Sequence[int]
    aggr_scale_metrics: Sequence[str]
    aggr_scale_subset_sizes: Sequence[int]
    aggr_scale_num_samples: Sequence[int]
    seed: int
    bootstrap: int
    level: float
    parsed: tuple[Category, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", tuple(parse(text) for text in dict.fromkeys(self.categories)))
        _check_setting("metric", self.simple_metrics, METRICS)
        _check_setting("leaderboard metric", self.category_metrics, LEADERBOARD_METRICS)
        self._check_draws("rand_subset_metrics", "rand_subset_sizes", "rand_num_samples")
        self._check_draws("aggr_scale_metrics", "aggr_scale_subset_sizes", "aggr_scale_num_samples")
        if not 0.0 < self.level < 1.0:
            raise ConfigError(f"--level {self.level} is not a coverage; use a number between 0 and 1, such as 0.95")
        if self.bootstrap == 1:
            raise ConfigError("--bootstrap 1 is too few; use 100 or more, or 0 for no intervals")

    def _check_draws(self, metrics: str, sizes: str, samples: str) -> None:
        _check_setting("leaderboard metric", getattr(self, metrics), LEADERBOARD_METRICS)
        if "Leaderboard" in getattr(self, metrics):
            raise ConfigError(
                f"--{metrics} Leaderboard is a list of names, which has no mean over subsets; leave it out"
            )
        first, second = len(getattr(self, sizes)), len(getattr(self, samples))
        if first != second:
            raise ConfigError(f"--{sizes} has {first} numbers and --{samples} {second}; give one sample count a size")


def _check_setting(kind: str, names: Sequence[str], choices: Iterable[str]) -> None:
    for name in names:
        if name not in choices:
            raise ConfigError(f"unknown {kind} {name!r}{nearest(name, choices)}; use some of {', '.join(choices)}")
