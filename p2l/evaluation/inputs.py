"""The flags of an evaluation: which files it reads (local or on the hub), and what it measures.

Each output comes from the first of these that is present: a checkpoint's output, a file of training (`--eval-path`),
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
from p2l.common.files import parse_json, read_names
from p2l.evaluation.categories import Category, parse
from p2l.leaderboard.pair_tables import check_number_of_models
from p2l.likelihood import Likelihood, get
from p2l.metrics import LEADERBOARD_METRICS, METRICS
from p2l.model.checkpoint import MODEL_LIST_FILE, read_object
from p2l.training.run_records import FORECASTS_FILE

_BESIDE_MODEL = (FORECASTS_FILE, "eval_outputs.jsonl")


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
    if not (inputs.model_repo or inputs.model_list_path):
        raise ConfigError("the names of the models are needed: give --model-list-path FILE or --model MODEL")
    if bool(inputs.hf_checkpoint_repo) != bool(inputs.hf_checkpoint_file):
        raise ConfigError("--hf-checkpoint-repo and --hf-checkpoint-file go together")
    if not (inputs.eval_path or inputs.checkpoint_path or inputs.hf_checkpoint_file or inputs.model_repo):
        raise ConfigError("there is nothing to evaluate: give --eval-path, --checkpoint-path or --model")
    files = {name: list(getattr(inputs, name)) for name in ("checkpoint_path", "hf_checkpoint_file", "eval_path")}
    lists = {name: paths for name, paths in files.items() if paths}
    count = max((len(paths) for paths in lists.values()), default=1)
    names = list(inputs.output_file_name)
    if not names:  # several outputs are named after their files
        names = ["eval_metrics"] if count == 1 else [Path(path).stem for path in next(iter(lists.values()))]
    lists["output_file_name"] = names
    for name, values in lists.items():
        if len(values) != count:
            flag = name.replace("_", "-")
            counts = ", ".join(f"{len(paths)} --{key.replace('_', '-')}" for key, paths in lists.items())
            raise ConfigError(f"--{flag} does not go with the other lists ({counts}); give as many of each")
    if len(set(names)) < count:
        raise ConfigError(f"--output-file-name {' '.join(names)}: every output needs a name of its own")
    columns = {name: paths or [None] * count for name, paths in files.items()}
    return [
        Entry(
            name=names[number],
            eval_path=columns["eval_path"][number],
            checkpoint_path=columns["checkpoint_path"][number],
            hf_checkpoint_file=columns["hf_checkpoint_file"][number],
        )
        for number in range(count)
    ]


def model_list(inputs: Inputs) -> list[str]:
    """Read the names of the coefficients; InputError if the file is missing or is not a list of different names."""
    path = inputs.model_list_path or _from_model_repo(str(inputs.model_repo), [MODEL_LIST_FILE])
    names = read_names(path, "model list")
    if len(set(names)) < len(names):
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
    recorded: Any = _object(record).get("model_list")
    if recorded is None:
        record = beside
        with contextlib.suppress(OSError, ValueError):
            recorded = parse_json(beside.read_text(encoding="utf-8"))
    if not isinstance(recorded, list):
        return
    for number, (name, recorded_name) in enumerate(zip(names, recorded, strict=False), 1):
        if name != recorded_name:
            source = inputs.model_list_path or inputs.model_repo
            raise InputError(
                f"{path}: coefficient {number} is of {recorded_name!r} by {record}, and of {name!r} by {source}; give "
                "the list of the model that wrote this file (--model-list-path)"
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
        metrics_to_inc: which blocks: `simple`, `category`, `random_subsets`, `aggr_scale`.
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
        metrics_flag, sizes_flag, samples_flag = (f"--{name.replace('_', '-')}" for name in (metrics, sizes, samples))
        if "Leaderboard" in getattr(self, metrics):
            raise ConfigError(
                f"{metrics_flag} Leaderboard is a list of names, which has no mean over subsets; leave it out"
            )
        num_sizes, num_samples = len(getattr(self, sizes)), len(getattr(self, samples))
        if num_sizes != num_samples:
            raise ConfigError(
                f"{sizes_flag} has {num_sizes} numbers and {samples_flag} {num_samples}; give one sample count a size"
            )


def _check_setting(kind: str, names: Sequence[str], choices: Iterable[str]) -> None:
    for name in names:
        if name not in choices:
            raise ConfigError(f"unknown {kind} {name!r}{nearest(name, choices)}; use some of {', '.join(choices)}")
