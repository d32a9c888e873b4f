"""Plan a run from a file of votes: everything it needs, written into its folder.

The folder gets the configuration (`training.yaml`, each choice with its reason), the DeepSpeed file, the votes to train
on and those held out, and a backbone if that is made from scratch. It gets its name only when all of that is written,
so a run that was stopped is either absent or can be resumed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2l.common.cli import counted
from p2l.common.errors import CheckpointError, ConfigError, InputError, VoteError
from p2l.common.files import claimed, parse_json, try_lock
from p2l.leaderboard.controls import Controls
from p2l.leaderboard.covariates import SIDE
from p2l.leaderboard.first_look import Observation, look_at, side_to_control
from p2l.model import backbones
from p2l.model.checkpoint import local_folder, read_object, weight_shapes, write_json
from p2l.model.encoding import PromptTokenizer
from p2l.model.packaged import find_encoder
from p2l.model.scratch import READER_DEFAULTS, make_reader, make_transformer, sample_prompts
from p2l.model.sentence import MODULES_FILE, pooling_of
from p2l.model.tokenizer import load_tokenizer
from p2l.people.voters import VOTER, by_people, find_people, sources_of
from p2l.training import recipe
from p2l.training.engine import choose_device, local_size, on_first, start_processes, world_size
from p2l.training.forecasts import check_counted, chunks
from p2l.training.recipe import BackboneFacts, Machine, Plan, Size, VoteFacts
from p2l.training.run_folder import candidates, newest_checkpoint
from p2l.training.run_records import COMPARISON_FILE, CONFIG_FILE, REQUEST_FILE
from p2l.votes import VoteStore, open_votes
from p2l.votes.splitting import hash_prompts, split_votes

_DEEPSPEED_FILE = "deepspeed.json"
LEAST_VOTES = 100
# Prompts of the closing table: a tenth, but enough to measure by wherever a thousand are there.
_HELD_OUT_SHARE, _MOST_HELD_OUT_PROMPTS = 0.1, 5000
_LEAST_HELD_OUT_PROMPTS, _PROMPTS_TO_SPARE_THEM = 200, 1000
_VOCABULARY_PROMPTS = 50_000
_LENGTH_PROMPTS = 2_000
_DEFAULT_POSITIONS = 8192
"""Tokens that a backbone reads which names no limit."""
SEED = 42
_NO_CONTROL = "none"
"""In place of the names of covariates: fit none."""


@dataclass(frozen=True)
class Request:
    """A training request; repeating it resumes the run that it started."""

    votes: str
    size: str | None = None
    val: str | None = None
    backbone: str | None = None
    output: str | None = None
    encoder: str | None = None
    """The reader's sentence encoder, as `find_encoder` takes it; None: the package's, if it is installed."""
    control: tuple[str, ...] = ()
    """Covariates of votes, by their names in `p2l.leaderboard.controls`; `none`: not even side, which is taken by
    itself where the votes show it."""
    people: str | None = None
    """The source of people's votes; None: human or people, where the votes have sources."""
    validate: bool = True
    """False: train on all votes, hold none out."""

    def record(self) -> dict[str, Any]:
        """Return the request with the state of its files and the number of processes, as the run's folder keeps it."""
        request: dict[str, Any] = {key: value for key, value in asdict(self).items() if key != "output"}
        # As JSON gives it back; folders of older versions have no such key.
        request |= {"control": list(self.control)} if request.pop("control") else {}
        request |= {"people": self.people} if request.pop("people") else {}
        return request | {"files": [_stamp(self.votes), _stamp(self.val)], "processes": world_size()}


@dataclass(frozen=True)
class PlannedRun:
    """A folder that is ready for training."""

    folder: Path
    checkpoint: str | None
    """The checkpoint to resume from."""
    eval_steps: int | None
    save_steps: int
    lock: Any = None
    """Held by the first process while it runs, so that no second run trains in this folder."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "lock": None}  # an open file stays with its process


def plan_run(request: Request, checkpoint: str | None = None, *, quiet: bool = False) -> PlannedRun:
    """Return the folder of a new or resumed run; every process calls this, and the first one does the work.

    `checkpoint` is the folder, or a `checkpoint-N`, of the run to resume; None looks for an unfinished run of the same
    request. InputError if votes, size, backbone or folder cannot be used.
    """

    def plan() -> PlannedRun:
        if checkpoint is not None:
            return _resume_named(request, Path(checkpoint).expanduser(), quiet=quiet)
        target = _target(request)
        if request.output is not None:
            with suppress(OSError):
                target.rmdir()  # an empty folder that was made for the run
        # The first folder that can hold a new run, or holds an unfinished one of the same request.
        for folder in candidates(target):
            if not folder.exists() and (planned := _begin(folder, request, quiet=quiet)):
                return planned
            if _is_unfinished(folder, request) and (lock := _lock(folder)):
                return _resume(folder, folder, lock, quiet=quiet)
            if request.output is not None:
                # A server or a command that names the folder next would find another model than this one.
                raise _taken(folder, request)
        raise AssertionError("candidates never end")

    if world_size() == 1:
        return plan()
    start_processes(choose_device("auto"))
    return on_first(plan)


def dry_run(request: Request) -> str:
    """Return the configuration and plan that `plan_run` would write, as YAML, without keeping anything."""
    target = _target(request)
    final = target if request.output else next(folder for folder in candidates(target) if not folder.exists())
    with tempfile.TemporaryDirectory(prefix="p2l-") as temporary:
        plan, seen = _RunWriter(request, Path(temporary), final, quiet=True).write()
        text = (Path(temporary) / CONFIG_FILE).read_text(encoding="utf-8")
    return "".join(f"# {line}\n" for line in [*seen, *recipe.plan_lines(plan)]) + text


def _taken(folder: Path, request: Request) -> InputError:
    """Return why a run cannot go into a folder that its user named."""
    has_record = (folder / REQUEST_FILE).is_file()
    if not has_record or _read_record(folder)["request"] != request.record():
        return InputError(
            f"{folder}: exists and holds something other than an unfinished run of these votes and flags; remove it, "
            "or use another --output"
        )
    if _is_unfinished(folder, request):
        return InputError(f"{folder}: another process is training there; wait for it, or use another --output")
    return InputError(f"{folder}: was trained by this line already; remove it to train again, or use another --output")


def _begin(folder: Path, request: Request, *, quiet: bool) -> PlannedRun | None:
    """Write the folder of a new run; None if another process is writing it."""
    with claimed(folder) as unfinished:
        if unfinished is None:
            return None
        plan, seen = _RunWriter(request, unfinished, folder, quiet=quiet).write()
        lock = _lock(unfinished)
    if not quiet:
        print("\n".join([*seen, *recipe.plan_lines(plan), f"configuration: {folder / CONFIG_FILE}"]), file=sys.stderr)
        if folder != _target(request):
            print(f"note: {_target(request)} exists, so this run is in {folder}", file=sys.stderr)
    return _planned(folder, None, lock)


def _resume(folder: Path, checkpoint: Path, lock: Any, *, quiet: bool) -> PlannedRun:
    newest = newest_checkpoint(checkpoint)
    if not quiet:
        where = f"from {newest.name}" if newest else "from its start"
        print(f"resuming {folder} {where}; use another --output for a new run", file=sys.stderr)
    return _planned(folder, str(newest) if newest else None, lock)


def _resume_named(request: Request, checkpoint: Path, *, quiet: bool) -> PlannedRun:
    """Resume the run of a checkpoint that the user named; CheckpointError unless this request started it."""
    folder = checkpoint.parent if newest_checkpoint(checkpoint) == checkpoint else checkpoint
    if not (folder / REQUEST_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint}: was not started with --votes; resume it with --config, or use its weights with --backbone"
        )
    before = _read_record(folder)["request"]
    for key, value in request.record().items():
        # Without --size the run keeps the one that was chosen for it.
        if before.get(key) == value or (key == "size" and value is None):
            continue
        if key == "files":
            raise CheckpointError(f"{folder}: its vote files have changed since; start a new run without --checkpoint")
        raise CheckpointError(
            f"{folder}: was started with {key} = {before.get(key)!r}, now it is {value!r}; "
            "use the same flags, or leave out --checkpoint for a new run"
        )
    lock = _lock(folder)
    if lock is None:
        raise CheckpointError(f"{folder}: another process is training there; wait for it or stop it")
    return _resume(folder, checkpoint, lock, quiet=quiet)


def _planned(folder: Path, checkpoint: str | None, lock: Any) -> PlannedRun:
    record = _read_record(folder)
    return PlannedRun(folder, checkpoint, record["eval_steps"], record["save_steps"], lock)


def _target(request: Request) -> Path:
    if request.output is not None:
        target = Path(request.output).expanduser()
        if target.name in ("", ".."):
            raise InputError(f"--output {request.output!r} cannot name a new folder; use another")
        return target
    stem = Path(request.votes).name.split(".")[0] or "votes"
    return Path("outputs") / (stem if request.size is None else f"{stem}-{request.size}")


def _is_unfinished(folder: Path, request: Request) -> bool:
    """Return whether a run of the same request was stopped before it wrote the last of its results."""
    last = COMPARISON_FILE if request.validate else "config.json"
    if not (folder / REQUEST_FILE).is_file() or (folder / last).exists():
        return False
    return bool(_read_record(folder)["request"] == request.record())


def _lock(folder: Path) -> Any:
    """Lock the folder and return the open file; None if another process holds it."""
    file = (folder / REQUEST_FILE).open()
    if try_lock(file.fileno()):
        return file
    file.close()
    return None


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / REQUEST_FILE
    try:
        record = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(record["request"], dict) or not isinstance(record["save_steps"], int):
            raise TypeError("unexpected content")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}; use another --output") from error
    return dict(record)


def _stamp(path: str | None) -> list[int] | None:
    """Return size and time of a file, which tell it from another file of the same name."""
    file = Path(path).expanduser() if path else None
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


@dataclass(frozen=True)
class _RunWriter:
    """Writes everything that a run needs into `folder`, which is renamed to `final` when all is there."""

    request: Request
    folder: Path
    final: Path
    quiet: bool

    def write(self) -> tuple[Plan, list[str]]:
        """Check the request, derive the settings, and write them with votes and backbone.

        Return the settings, and lines about what the votes show.
        """
        request = self.request
        machine = measure_machine()
        model_type = _check_names(request, machine)
        self.folder.mkdir(exist_ok=True)
        with open_votes(request.votes, quiet=self.quiet) as votes:
            _check_votes(votes)
            _check_controls(request, votes)
            sources = _sources(votes, request)
            observations = look_at(votes, sources.get("people"))
            side = _side_to_take(request, votes, observations)
            of_people = by_people(votes, sources.get("people"))
            people, prompts = int(of_people.sum()), len(np.unique(hash_prompts(votes)[of_people]))
            size = recipe.choose_size(request.size, votes=len(votes), gpu=machine.gpu, model_type=model_type)
            recipe.check_machine(size, machine, own_backbone=request.backbone is not None)
            folds = recipe.folds_for(size, people, prompts, model_type) if request.validate else None
            train, keys = self._split(votes, folds, prompts)
            with train:
                folder, backbone = self._backbone(size, train)
                tokenizer = load_tokenizer(
                    folder, chat_template=backbone.chat_template, max_length=max(2, backbone.positions)
                )
                plan = recipe.derive(size, measure_votes(train, tokenizer, SEED), backbone, machine)
                self._check_counted(train, plan)
        settings: dict[str, Any] = {"output_dir": str(self.final.parent), "proj_name": self.final.name}
        settings |= {**keys, **plan.settings, "seed": SEED}
        covariates = [SIDE] if side is not None else [name for name in request.control if name != _NO_CONTROL]
        settings |= {"covariates": covariates} if covariates else {}
        settings |= {**sources, "deepspeed_config_path": str(self.final / _DEEPSPEED_FILE)}
        reasons = plan.reasons | {
            "cross_fit": f"fewer than {recipe.CROSS_FIT_BELOW:,} prompts: all are trained on, none held out",
            "people": f"{people:,} votes of people; those of other sources are verdicts of judges",
        }
        reasons |= {} if side is None else {"covariates": f"{side.text}; --control {_NO_CONTROL} leaves it out"}
        write_json(self.folder / _DEEPSPEED_FILE, plan.deepspeed)
        text = recipe.to_yaml(settings, reasons, self._header(size, plan, machine))
        (self.folder / CONFIG_FILE).write_text(text, encoding="utf-8")
        record = {
            "request": request.record(),
            "eval_steps": plan.eval_steps if request.validate else None,
            "save_steps": plan.save_steps,
        }
        write_json(self.folder / REQUEST_FILE, record)
        return plan, _what_votes_show(observations, takes_side=side is not None)

    def _split(self, votes: VoteStore, folds: int | None, prompts: int) -> tuple[VoteStore, dict[str, Any]]:
        """Return the votes to train on, and the keys of the configuration that say how votes are used."""
        request = self.request
        if not request.validate or request.val is not None or folds is not None:
            keys: dict[str, Any] = {"train_data_path": request.votes}
            keys |= {} if request.val is None else {"val_data_path": request.val, "drop_unknown_models": True}
            keys |= {} if folds is None else {"cross_fit": folds}
            return votes, keys
        held_out = min(round(_HELD_OUT_SHARE * prompts), _MOST_HELD_OUT_PROMPTS)
        if prompts >= _PROMPTS_TO_SPARE_THEM:
            held_out = max(held_out, _LEAST_HELD_OUT_PROMPTS)
        done = split_votes(
            votes,
            by="prompt",
            val=max(1, round(held_out * len(votes) / prompts)),
            train_output=self.folder / "train.parquet",
            val_output=self.folder / "held_out.parquet",
            seed=SEED,
            quiet=self.quiet,
        )
        if not self.quiet:
            print(
                f"{votes.name}: {done.train:,} votes to train on, {done.val:,} on other prompts held out",
                file=sys.stderr,
            )
            if done.removed_models:
                print(f"left out, too few votes: {', '.join(done.removed_models)}", file=sys.stderr)
        keys = {"train_data_path": str(self.final / "train.parquet")}
        keys["val_data_path"] = str(self.final / "held_out.parquet")
        return open_votes(self.folder / "train.parquet"), keys

    def _backbone(self, size: Size, train: VoteStore) -> tuple[Path, BackboneFacts]:
        """Return the folder of the backbone and its facts; without a name it is made from scratch."""
        request = self.request
        name = request.backbone or size.backbone
        if name is not None:
            folder = _local(name, size)
            return folder, _measure_backbone(folder, name, size.chat_template if request.backbone is None else None)
        folder = self.folder / "backbone"
        folder.mkdir()
        prompts = sample_prompts((batch for _, batch in train.batches()), _VOCABULARY_PROMPTS, seed=SEED)
        if size.name == "reader":
            encoder = find_encoder(request.encoder)
            make_reader(folder, prompts, encoder=encoder, seed=SEED, quiet=self.quiet, **READER_DEFAULTS)
        else:
            make_transformer(folder, prompts, model_type="qwen2", seed=SEED, **recipe.scratch_shape(len(train)))
        return folder, _measure_backbone(folder, str(self.final / "backbone"), None)

    def _check_counted(self, train: VoteStore, plan: Plan) -> None:
        """Raise VoteError if no vote counts under the derived likelihood, before hours of training."""
        loss_type = plan.settings["loss_type"]
        check_counted(train, loss_type, weighted=plan.settings.get("weighted_loss", False))
        if self.request.val is not None:
            with open_votes(self.request.val, model_list=train.model_list, drop_unknown=True) as held_out:
                check_counted(held_out, loss_type)

    def _header(self, size: Size, plan: Plan, machine: Machine) -> list[str]:
        validate = f"--eval-steps {plan.eval_steps}" if self.request.validate else "--no-eval"
        processes = f"in {machine.processes} processes, " if machine.processes > 1 else ""
        return [
            f"Derived by p2l train from {self.request.votes} and --size {size.name} ({size.about}).",
            f"To train the same model again, {processes}from the folder where this was written:",
            f"  p2l train --config {self.final / CONFIG_FILE} {validate}",
        ]


def _check_names(request: Request, machine: Machine) -> str | None:
    """Check size and backbone before many votes are read in vain; return the type of the user's own."""
    size = recipe.choose_size(request.size, votes=0, gpu=machine.gpu)
    if request.size is not None:
        recipe.check_machine(size, machine, own_backbone=request.backbone is not None)
    name = request.backbone or (None if request.size is None else size.backbone)
    if request.encoder is not None:
        if request.backbone is not None or request.size not in (None, "reader"):
            raise ConfigError("--encoder goes with --size reader; a text model that is fine-tuned is --backbone")
        encoder = find_encoder(request.encoder)
        if encoder is not None:
            pooling_of(encoder)
    if name is None:
        return None
    backbone = _measure_backbone(_local(name, size), name, None)
    return None if request.backbone is None else backbone.model_type


def _check_votes(votes: VoteStore) -> None:
    if len(votes) < LEAST_VOTES:
        raise VoteError(
            f"{votes.name}: holds {counted(len(votes), 'vote')}, too few to train on; bring {LEAST_VOTES} or more, "
            "or fit one leaderboard for all prompts (p2l leaderboard --votes)"
        )
    if one_prompt_only(votes):
        raise VoteError(
            f"{votes.name}: all votes share one prompt, so prompts cannot explain them; "
            "fit one leaderboard (p2l leaderboard --votes)"
        )


def _check_controls(request: Request, votes: VoteStore) -> None:
    """Raise an error for columns that are not there, and for `none` beside other names."""
    if request.control == (_NO_CONTROL,):
        return
    if _NO_CONTROL in ",".join(request.control).split(",") and _NO_CONTROL not in votes.columns:
        raise ConfigError(f"--control {_NO_CONTROL} goes without other names")
    Controls(request.control, votes.columns, votes.name)


def _side_to_take(request: Request, votes: VoteStore, observations: Sequence[Observation]) -> Observation | None:
    """Return what being shown first is worth if the model is trained with it unasked, else None."""
    columns = {SIDE, f"{SIDE}_a", f"{SIDE}_b"}  # which the name would stand for
    return None if request.control or columns & set(votes.columns) else side_to_control(observations)


def _what_votes_show(observations: Sequence[Observation], *, takes_side: bool) -> list[str]:
    """Return lines about what is beyond chance in the votes, and what is done about it; none where nothing is."""
    lines = [f"  {seen.text}" for seen in observations if seen.is_notable]
    if takes_side:
        lines.append(
            f"  {SIDE} is fitted beside the model and left out of its predictions; --control {_NO_CONTROL}: not"
        )
    return ["what the votes show:", *lines] if lines else []


def _sources(votes: VoteStore, request: Request) -> dict[str, Any]:
    """Return the keys of the configuration that say who cast the votes."""
    people = find_people(sources_of(votes), request.people, votes.name)
    keys: dict[str, Any] = {} if people is None else {"people": people}
    if people is not None:
        count = int(by_people(votes, people).sum())
        if count < LEAST_VOTES:
            raise VoteError(
                f"{votes.name}: holds {counted(count, 'vote')} of people (source {people!r}), too few to tell what "
                f"judges are made of; bring {LEAST_VOTES} or more"
            )
    keys |= {"weigh_voters": True} if VOTER in votes.columns else {}
    return keys


def _local(name: str, size: Size) -> Path:
    try:
        return local_folder(name)
    except InputError as error:
        if Path(name).expanduser().exists() or not size.backbone:
            raise
        raise InputError(
            f"{error}; pass a folder to --backbone, or leave --size out, or use --size tiny: both need no download"
        ) from error


# What the settings depend on: machine, backbone and votes.


def measure_machine() -> Machine:
    """Measure the processes of this run, and the memory of each."""
    processes = world_size()
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Machine(processes, memory, gpu=True, bfloat16=torch.cuda.is_bf16_supported())
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(processes, min([installed, *memory_limits()]) // local_size(), gpu=False)


def memory_limits(system: Path = Path("/")) -> list[int]:
    """Return the memory limits, in bytes, of this process's container and its parents; empty without a limit."""
    groups = system / "sys/fs/cgroup"
    files = [groups / "memory/memory.limit_in_bytes"]  # of the first version of control groups
    path = Path()
    with suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = Path(line.removeprefix("0::").lstrip("/"))
    files += [groups / part / "memory.max" for part in (path, *path.parents)]
    limits = []
    for file in files:
        with suppress(OSError, ValueError):  # there is no such group, or it says `max`
            limits.append(int(file.read_text()))
    return limits


def _measure_backbone(folder: Path, name: str, chat_template: str | None) -> BackboneFacts:
    """Measure a backbone called `name` in the configuration; InputError if the folder holds none of a known family."""
    config = read_object(folder / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder / 'config.json'}: names no model_type; is this the folder of a text model?")
    backbones.get(model_type)
    parameters = sum(int(np.prod(shape)) for shape in weight_shapes(folder).values())
    positions = config.get("max_position_embeddings")
    pooled = (folder / MODULES_FILE).is_file() and model_type != "reader"
    return BackboneFacts(
        name=name,
        model_type=model_type,
        parameters=parameters,
        positions=positions if isinstance(positions, int) else _DEFAULT_POSITIONS,
        chat_template=chat_template,
        pooling=pooling_of(folder).kind if pooled else None,
    )


def measure_votes(votes: VoteStore, tokenizer: PromptTokenizer, seed: int) -> VoteFacts:
    """Count votes, prompts and ties, and sample the lengths of prompts; memory holds 8 bytes a vote."""
    ties, both_bad = count_ties(votes)
    sample = sample_prompts((batch for _, batch in votes.batches()), _LENGTH_PROMPTS, seed=seed)
    return VoteFacts(
        votes=len(votes),
        prompts=len(np.unique(hash_prompts(votes))),
        ties=ties,
        both_bad=both_bad,
        lengths=[len(encoding.ids) for encoding in tokenizer.encode(sample)],
        weighted=votes.has_weights,
        models=len(votes.model_list),
    )


def count_ties(votes: VoteStore) -> tuple[int, int]:
    """Return the numbers of votes that are ties, and that call both answers bad."""
    counts = sum(np.bincount(votes.labels(ids)[:, 2], minlength=3) for ids in chunks(len(votes)))
    _, ties, both_bad = (int(count) for count in np.asarray(counts))
    return ties, both_bad


def one_prompt_only(votes: VoteStore) -> bool:
    """Return whether all votes share one prompt; reads no further than the second one."""
    prompts = chain.from_iterable(votes.prompts(ids) for ids in chunks(len(votes), 1024))
    first = next(prompts)
    return all(turns == first for turns in prompts)
