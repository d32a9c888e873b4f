"""From a file of votes to a run's folder that holds everything training needs.

The folder gets the configuration (`training.yaml`, each choice with its reason), the DeepSpeed file, the votes to train
on and those held out, and a backbone when that is made from scratch. It appears under its name only when all of it is
there, so a run that was stopped is either not there at all or can be gone on with.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from p2l.common.errors import CheckpointError, InputError, PeerError, VoteError
from p2l.common.files import claimed, try_lock
from p2l.model.checkpoint import local_folder, write_json
from p2l.model.scratch import make_transformer, sample_prompts
from p2l.model.tokenizer import PromptTokenizer
from p2l.training.engine import choose_device, peers, start_processes, world_size
from p2l.training.facts import (
    COMPARISON_FILE,
    check_counted,
    measure_backbone,
    measure_machine,
    measure_votes,
    one_prompt_only,
)
from p2l.training.recipe import (
    BackboneFacts,
    Machine,
    Plan,
    Size,
    check_machine,
    choose_size,
    derive,
    plan_lines,
    scratch_shape,
    to_yaml,
)
from p2l.training.run_folder import candidates, newest_checkpoint
from p2l.votes import VoteStore, open_votes
from p2l.votes.splitting import split_votes

CONFIG_FILE, REQUEST_FILE, DEEPSPEED_FILE = "training.yaml", "request.json", "deepspeed.json"
LEAST_VOTES = 100
HELD_OUT_SHARE, MOST_HELD_OUT = 0.1, 5000
VOCABULARY_SAMPLE = 50_000
SEED = 42


@dataclass(frozen=True)
class Request:
    """What the user asked for; the same request again goes on with the run that it started."""

    votes: str
    size: str | None = None
    val: str | None = None
    backbone: str | None = None
    output: str | None = None
    validate: bool = True
    """False: train on all votes, hold none out."""

    def record(self) -> dict[str, Any]:
        """The request, the state of its files and the number of processes, as the run's folder keeps it."""
        asked: dict[str, Any] = {key: value for key, value in asdict(self).items() if key != "output"}
        return asked | {"files": [_stamp(self.votes), _stamp(self.val)], "processes": world_size()}


@dataclass(frozen=True)
class Prepared:
    """A folder that is ready to be trained in."""

    folder: Path
    checkpoint: str | None
    """The folder again when training goes on from a checkpoint in it."""
    eval_steps: int | None
    save_steps: int
    lock: Any = None
    """Held by the first process as long as it runs, so that no second run trains in this folder."""

    @property
    def config(self) -> Path:
        """The configuration of the run."""
        return self.folder / CONFIG_FILE


def prepare(request: Request, checkpoint: str | None = None, *, quiet: bool = False) -> Prepared:
    """The folder of the run that goes on, or of a new one; every process calls this, the first one does it.

    Args:
        request: what to train.
        checkpoint: the folder, or a `checkpoint-N`, of a run to go on with; None looks for an unfinished run of the
            same request.
        quiet: say nothing, show no progress.

    Raises:
        InputError: votes, size, backbone or folder cannot be used.
    """
    return _on_first_process(lambda: _prepare(request, checkpoint, quiet=quiet))


def dry_run(request: Request) -> str:
    """The configuration and the plan that `prepare` would write, as YAML; nothing is kept.

    Raises:
        InputError: as `prepare`.
    """
    final = next(folder for folder in candidates(_target(request)) if not folder.exists())
    with tempfile.TemporaryDirectory(prefix="p2l-") as temporary:
        plan = _fill(Path(temporary), final, request, quiet=True)
        text = (Path(temporary) / CONFIG_FILE).read_text(encoding="utf-8")
    return "".join(f"# {line}\n" for line in plan_lines(plan)) + text


def _on_first_process(make: Callable[[], Prepared]) -> Prepared:
    if world_size() == 1:
        return make()
    start_processes(choose_device("auto"))
    made: Prepared | None = None
    box: list[Prepared | None] = [None]
    try:
        if torch.distributed.get_rank() == 0:
            made = make()
            box = [replace(made, lock=None)]
    finally:  # the others wait, whatever happened
        with peers():
            torch.distributed.broadcast_object_list(box, src=0)
    result = made or box[0]
    if result is None:
        raise PeerError("the first process of this run ended; its message says why")
    return result


def _prepare(request: Request, checkpoint: str | None, *, quiet: bool) -> Prepared:
    if checkpoint is not None:
        return _go_on(*_run_of(request, Path(checkpoint).expanduser()), quiet=quiet)
    for folder in candidates(_target(request)):
        if not folder.exists() and (made := _new(folder, request, quiet=quiet)):
            return made
        if _is_unfinished(folder, request) and (lock := _lock(folder)):
            return _go_on(folder, folder, lock, quiet=quiet)
    raise AssertionError("candidates never end")


def _new(folder: Path, request: Request, *, quiet: bool) -> Prepared | None:
    """A run made from nothing; None when another process is making it."""
    with claimed(folder) as unfinished:
        if unfinished is None:
            return None
        plan = _fill(unfinished, folder, request, quiet=quiet)
        lock = _lock(unfinished)
    if not quiet:
        print("\n".join([*plan_lines(plan), f"configuration: {folder / CONFIG_FILE}"]), file=sys.stderr)
    return _read(folder, None, lock)


def _go_on(folder: Path, checkpoint: Path, lock: Any, *, quiet: bool) -> Prepared:
    found = newest_checkpoint(checkpoint)
    if not quiet:
        where = f"from {found.name}" if found else "from its start"
        print(f"going on with {folder} {where}; give another --output for a new run", file=sys.stderr)
    return _read(folder, str(found) if found else None, lock)


def _run_of(request: Request, checkpoint: Path) -> tuple[Path, Path, Any]:
    """The run's folder, the checkpoint and the lock, when this request is what started the run."""
    is_one = newest_checkpoint(checkpoint) == checkpoint
    folder = checkpoint.parent if is_one else checkpoint
    if not (folder / REQUEST_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint}: was not started with --votes; go on with it by --config, or take its weights by --backbone"
        )
    before = _read_record(folder)["request"]
    for key, value in request.record().items():
        if before.get(key) == value or (key == "size" and value is None):
            continue
        if key == "files":
            raise CheckpointError(
                f"{folder}: its files of votes have changed since; start a new run without --checkpoint"
            )
        raise CheckpointError(
            f"{folder}: was started with {key} = {before.get(key)!r}, now it is {value!r}; "
            "start it as it was started, or without --checkpoint for a new run"
        )
    lock = _lock(folder)
    if lock is None:
        raise CheckpointError(f"{folder}: another process is training there; wait for it or stop it")
    return folder, checkpoint, lock


def _target(request: Request) -> Path:
    if request.output is not None:
        target = Path(request.output).expanduser()
        if target.name in ("", ".."):
            raise InputError(f"--output {request.output!r} is no name for a new folder; give another")
        return target
    stem = Path(request.votes).name.split(".")[0] or "votes"
    return Path("outputs") / (stem if request.size is None else f"{stem}-{request.size}")


def _is_unfinished(folder: Path, request: Request) -> bool:
    """Whether a run of the same request was stopped before it wrote the last of its results."""
    last = COMPARISON_FILE if request.validate else "config.json"
    if not (folder / REQUEST_FILE).is_file() or (folder / last).exists():
        return False
    return bool(_read_record(folder)["request"] == request.record())


def _lock(folder: Path) -> Any:
    """The open file that marks the folder as in use; None when another process holds it."""
    file = (folder / REQUEST_FILE).open()
    if try_lock(file.fileno()):
        return file
    file.close()
    return None


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / REQUEST_FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(record["request"], dict) or not isinstance(record["save_steps"], int):
            raise TypeError("unexpected content")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}; give another --output") from error
    return dict(record)


def _read(folder: Path, checkpoint: str | None, lock: Any) -> Prepared:
    record = _read_record(folder)
    return Prepared(folder, checkpoint, record["eval_steps"], record["save_steps"], lock)


def _stamp(path: str | None) -> list[int] | None:
    """Size and time of a file, so that another file under its name is another request."""
    file = Path(path).expanduser() if path else None
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _fill(folder: Path, final: Path, request: Request, *, quiet: bool) -> Plan:
    """Write everything into `folder`, which will be called `final`."""
    machine = measure_machine()
    text_model = _check_names(request, machine)
    folder.mkdir(exist_ok=True)
    with open_votes(request.votes, quiet=quiet) as votes:
        _check_votes(votes)
        size = choose_size(request.size, votes=len(votes), gpu=machine.gpu, text_model=text_model)
        check_machine(size, machine, own_backbone=request.backbone is not None)
        train, data = _parts(votes, folder, final, request, quiet=quiet)
        with train:
            plan = _plan(folder, final, request, size, machine, train)
            _check_counted(train, request.val, plan.settings)
    settings = {"output_dir": str(final.parent), "proj_name": final.name, **data, **plan.settings, "seed": SEED}
    settings["deepspeed_config_path"] = str(final / DEEPSPEED_FILE)
    write_json(folder / DEEPSPEED_FILE, plan.deepspeed)
    text = to_yaml(settings, plan.reasons, _header(final, request, size, plan, machine))
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    eval_steps = plan.eval_steps if request.validate else None
    write_json(
        folder / REQUEST_FILE, {"request": request.record(), "eval_steps": eval_steps, "save_steps": plan.save_steps}
    )
    return plan


def _check_names(request: Request, machine: Machine) -> bool:
    """Say that size or backbone cannot be used before many votes are read for nothing.

    Returns whether the user brings a text model.
    """
    size = choose_size(request.size, votes=0, gpu=machine.gpu)
    if request.size is not None:
        check_machine(size, machine, own_backbone=request.backbone is not None)
    name = request.backbone or (None if request.size is None else size.backbone)
    if name is None:
        return False
    facts = measure_backbone(_local(name, size), name, None)
    return request.backbone is not None and facts.model_type != "tfidf"


def _check_votes(votes: VoteStore) -> None:
    if len(votes) < LEAST_VOTES:
        raise VoteError(
            f"{votes.name}: holds {len(votes)} votes, too few to train on; bring {LEAST_VOTES} or more, "
            "or fit one leaderboard for all prompts (p2l leaderboard --votes)"
        )
    if one_prompt_only(votes):
        raise VoteError(
            f"{votes.name}: all votes share one prompt, so there is nothing to read; "
            "fit one leaderboard (p2l leaderboard --votes)"
        )


def _parts(
    votes: VoteStore, folder: Path, final: Path, request: Request, *, quiet: bool
) -> tuple[VoteStore, dict[str, Any]]:
    """The votes to train on, and what the configuration says of votes."""
    if not request.validate or request.val is not None:
        held_out = {} if request.val is None else {"val_data_path": request.val, "drop_unknown_models": True}
        return votes, {"train_data_path": request.votes, **held_out}
    wanted = max(1, min(round(HELD_OUT_SHARE * len(votes)), MOST_HELD_OUT))
    done = split_votes(
        votes,
        by="prompt",
        val=wanted,
        train_output=folder / "train.parquet",
        val_output=folder / "held_out.parquet",
        seed=SEED,
        quiet=quiet,
    )
    if not quiet:
        print(
            f"{votes.name}: {done.train:,} votes to train on, {done.val:,} on other prompts held out", file=sys.stderr
        )
        if done.removed_models:
            print(f"left out, too few votes: {', '.join(done.removed_models)}", file=sys.stderr)
    data = {
        "train_data_path": str(final / "train.parquet"),
        "val_data_path": str(final / "held_out.parquet"),
    }
    return open_votes(folder / "train.parquet"), data


def _check_counted(train: VoteStore, val: str | None, settings: dict[str, Any]) -> None:
    """Say of votes that cannot serve that they cannot, before the folder has its name."""
    check_counted(train, settings["loss_type"], weighted=settings.get("weighted_loss", False))
    if val is not None:
        with open_votes(val, model_list=train.model_list, drop_unknown=True) as votes:
            check_counted(votes, settings["loss_type"])


def _plan(folder: Path, final: Path, request: Request, size: Size, machine: Machine, train: VoteStore) -> Plan:
    where, backbone = _backbone(folder, final, request, size, train)
    tokenizer = PromptTokenizer.from_pretrained(
        where, chat_template=backbone.chat_template, max_length=max(2, backbone.positions)
    )
    return derive(size, measure_votes(train, tokenizer, SEED), backbone, machine)


def _backbone(folder: Path, final: Path, request: Request, size: Size, train: VoteStore) -> tuple[Path, BackboneFacts]:
    """Where the backbone's files are, and what it is; made here unless it has a name."""
    name = request.backbone or size.backbone
    if name is not None:
        where = _local(name, size)
        return where, measure_backbone(where, name, size.chat_template if request.backbone is None else None)
    where = folder / "backbone"
    where.mkdir()
    prompts = sample_prompts((batch for _, batch in train.batches()), VOCABULARY_SAMPLE, seed=SEED)
    make_transformer(where, prompts, model_type="qwen2", seed=SEED, **scratch_shape(len(train)))
    return where, measure_backbone(where, str(final / "backbone"), None)


def _local(name: str, size: Size) -> Path:
    try:
        return local_folder(name)
    except InputError as error:
        if Path(name).expanduser().exists() or not size.backbone:
            raise
        raise InputError(
            f"{error}; give a folder with --backbone, or use --size tiny, which downloads nothing"
        ) from error


def _header(final: Path, request: Request, size: Size, plan: Plan, machine: Machine) -> list[str]:
    validate = f"--eval-steps {plan.eval_steps}" if request.validate else "--no-eval"
    many = f"in {machine.processes} processes, " if machine.processes > 1 else ""
    return [
        f"Derived by p2l train from {request.votes} and --size {size.name} ({size.about}).",
        f"The same model again, {many}from the folder where this was made:",
        f"  p2l train --config {final / CONFIG_FILE} {validate}",
    ]
