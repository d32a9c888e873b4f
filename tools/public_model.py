"""Make the public model of `p2l/public`: `python -m tools.public_model --data FOLDER`, some fifteen minutes.

The votes of all sets with texts train a reader by `p2l train`, with a level, a share of ties and a lean for each set as
covariates. One leaderboard is then fitted to all sets together, those without texts too, in which each has a sharpness
as well (`p2l.people`); it gives the levels of models that only sets without texts have. These get a row that follows
the mean of the others from prompt to prompt, with an interval as wide as that guess.

Shapes: M models with texts, L models without, R components of the posterior.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from p2l.common.errors import InputError
from p2l.leaderboard import Leaderboard
from p2l.model.model import P2LModel, write_folder
from p2l.model.posterior import SHAPES, Posterior
from p2l.model.tokenizer import load_tokenizer
from p2l.people import SourceFit
from p2l.people.runs import sources_of
from p2l.public.model import pack
from p2l.training.selection import one_leaderboard
from p2l.training.train_config import load_config
from p2l.votes import open_votes
from tools.public_card import write_card
from tools.public_votes import Frame, arena_votes, newest_board, public_votes

Floats = npt.NDArray[np.float64]
_SEED = 42
_REFERENCE = "zeroeval"
"""The set on whose scale the joint leaderboard stands; the others have a level and a sharpness beside it."""
_ARENA_VOTES = 15_000
_POINTS_PER_LOGIT = 400 / np.log(10)


@dataclass(frozen=True)
class Levels:
    """Models without texts: their place beside the mean of the M models with texts, in logits."""

    shifts: dict[str, float]
    sds: dict[str, float]
    """Standard deviations of what is not known of each."""
    joint: SourceFit
    """The joint leaderboard of all sets."""


@dataclass
class _Settings:
    """What `sources_of` asks of a configuration: every set but the reference is a source of its own."""

    people: str | None = _REFERENCE
    weigh_voters: bool = False
    weighted_loss: bool = False
    loss_type: str = "grk"
    covariates: tuple[str, ...] = ()


def main() -> None:
    """Read, train, add levels, pack, and write the card."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="folder of the sets that p2l/public/sources.yaml names")
    flags.add_argument("--work", type=Path, help="folder for the votes and the run; an existing run is taken up")
    args = flags.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="p2l-public-"))
    work.mkdir(parents=True, exist_ok=True)
    votes, left_out = public_votes(args.data, _SEED)
    votes.to_parquet(work / "votes.parquet")
    run = work / "run"
    if not (run / "config.json").is_file():
        command = [sys.executable, "-m", "p2l.train", "--votes", str(work / "votes.parquet")]
        subprocess.run([*command, "--control", "dataset", "--output", str(run)], check=True)
    levels = joint_levels(votes, args.data, work, run)
    whole = work / "whole"
    if not whole.is_dir():
        with_levels(run, levels, whole)
    made = datetime.now(timezone.utc).date().isoformat()
    with_texts = len(set(votes.model_a) | set(votes.model_b))
    pack(whole, made=made, models=with_texts + len(levels.shifts))
    write_card(votes, left_out, levels.joint, levels.sds, run, made)


def joint_levels(votes: Frame, data: Path, work: Path, run: Path) -> Levels:
    """Fit one leaderboard to all sets and return the places of models that only sets without texts have."""
    arena = arena_votes(data)
    arena = arena.iloc[np.random.default_rng(_SEED).permutation(len(arena))[:_ARENA_VOTES]]
    arena = arena.assign(dataset="arena140k", prompt=[["not published"]] * len(arena))
    columns = ["prompt", "model_a", "model_b", "winner", "dataset"]
    both = pd.concat([votes[columns], arena[columns]], ignore_index=True).rename(columns={"dataset": "source"})
    file = work / "joint.parquet"
    both.to_parquet(file)
    with open_votes(str(file)) as store:
        joint, names = sources_of(store, _Settings()), list(store.model_list)
    place = {name: number for number, name in enumerate(names)}
    board = _own_board(run)
    own = dict(zip(board.models, board.coefs.tolist(), strict=True))
    # The trained model's own leaderboard has another spread than the joint one: a line leads from one to the other.
    known = list(own)
    theta = np.array([joint.coefs[place[name]] for name in known])
    slope, _ = np.polyfit(theta, np.array([own[name] for name in known]), 1)
    new = sorted((set(arena.model_a) | set(arena.model_b)) - set(known))
    terms = next(judge for judge in joint.judges if judge.judge == "arena140k")
    # Of a model that the arena alone has, its votes cannot tell the level from the arena's taste: both are its place.
    places = {name: joint.coefs[place[name]] + terms.offsets.get(name, 0.0) / terms.scale for name in new}
    shifts = {name: float(slope * (places[name] - theta.mean())) for name in new}
    shared = sum(name in own for name in set(arena.model_a) | set(arena.model_b))
    unsure = abs(slope) * terms.taste / terms.scale * (1.0 + 1.0 / shared) ** 0.5
    sds = dict.fromkeys(new, float(unsure))
    _add_board(newest_board(data), shifts, sds, own, terms.scale / slope)
    return Levels(shifts, sds, joint)


def _own_board(run: Path) -> Leaderboard:
    """Return the one leaderboard of the run's votes, with the levels of the sets taken out by its covariates."""
    config = load_config(run / "training.yaml")
    with open_votes(config.train_data_path) as store:
        return one_leaderboard(store, config)


def _add_board(
    board: Frame, shifts: dict[str, float], sds: dict[str, float], own: dict[str, float], sharpness: float
) -> None:
    """Add the models of a published leaderboard, on its scale as far as shared models tell it, in place."""
    level = dict(zip(board.model, board.rating / _POINTS_PER_LOGIT / sharpness, strict=True))
    shared = [name for name in level if name in shifts]
    gaps = np.array([shifts[name] - level[name] for name in shared])
    spread = float(gaps.std(ddof=1))
    unsure = float(np.mean([sds[name] for name in shared]))
    for name, value in level.items():
        if name not in shifts and name not in own:
            shifts[name] = float(value + gaps.mean())
            sds[name] = float((unsure**2 + spread**2 * (1.0 + 1.0 / len(shared))) ** 0.5)


def with_levels(run: Path, levels: Levels, target: Path) -> None:
    """Write the trained model with a row for each model that has only a level."""
    model = P2LModel.from_pretrained(run)
    tokenizer = load_tokenizer(run, cls_token_if_none=None, pad_token_if_none=None)
    count, names = len(model.model_list), list(levels.shifts)
    model.widen(count + len(names))
    weight, bias = (model.get_parameter(name) for name in model.row_names)
    with torch.no_grad():
        weight[count:] = weight[:count].mean(dim=0)
        bias[count:] = bias[:count].mean() + torch.tensor([levels.shifts[name] for name in names])
    model.model_list = [*model.model_list, *names]
    posterior, board = model.posterior, _own_board(run)
    assert posterior is not None
    # What a strange prompt gets: the posterior's own board knows nothing of the sets' levels.
    if board.models != model.model_list[:count]:
        raise InputError(f"{run}: its leaderboard has other models than its head; remove the folder and train again")
    posterior.coefs = torch.from_numpy(board.coefs).float()
    posterior.eta = torch.tensor(board.eta, dtype=torch.float32)
    widened = _widened(posterior, levels, names)
    order = np.argsort(model.model_list, kind="stable")
    listed = [model.model_list[number] for number in order]
    for name in ("basis", "coefs"):
        widened[name] = widened[name][torch.from_numpy(order)]
    final = Posterior(widened, posterior.vocabulary)
    write_folder(target, model, tokenizer, model_list=listed, add_files=final.save)


def _widened(posterior: Posterior, levels: Levels, names: list[str]) -> dict[str, torch.Tensor]:
    """Return the posterior's tensors with L rows more, each with a component of its own that no vote determines."""
    tensors = {name: getattr(posterior, name) for name in SHAPES}
    basis = posterior.basis
    # A known model departs from the mean from prompt to prompt by this much, and so may a new one.
    apart = basis - basis.mean(dim=0)
    of_prompts = float(((apart**2) @ posterior.offset).mean())
    sds = torch.tensor([(levels.sds[name] ** 2 + of_prompts) ** 0.5 for name in names])
    shared = basis.mean(dim=0).expand(len(names), -1)
    tensors["basis"] = torch.cat(
        [
            torch.cat([basis, torch.zeros(len(basis), len(names))], dim=1),
            torch.cat([shared, torch.diag(sds)], dim=1),
        ]
    )
    shifts = torch.tensor([levels.shifts[name] for name in names])
    tensors["coefs"] = torch.cat([posterior.coefs, posterior.coefs.mean() + shifts])
    tensors["kept"] = torch.cat([posterior.kept, torch.zeros(len(names), posterior.kept.shape[1])])
    for name in ("offset", "least"):
        tensors[name] = torch.cat([tensors[name], torch.ones(len(names))])
    return tensors


if __name__ == "__main__":
    main()
