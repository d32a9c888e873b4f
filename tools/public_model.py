"""Make the public model of `p2l/public`: `python -m tools.public_model --data FOLDER`, some twenty minutes.

The votes of all sets with texts train a reader by `p2l train`, with a level, a share of ties and a lean for each set as
covariates. One leaderboard is then fitted to all sets together, those without texts too, on the scale of people's votes
in the arena; the others have a level, a sharpness and tastes of their own beside it (`p2l.people`). It is the overall
board. A prompt gets a board of its own where graded answers to prompts like it tell one, on the same scale: what the
reader says of right answers is divided by how much more sharply these tell models apart than people do. A model that
only sets without texts have goes there as models of its level go, with an interval as wide as that guess.

Shapes: M models with texts, L models without, R components of the posterior, K its points.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from p2l import P2L
from p2l.model.model import P2LModel, write_folder
from p2l.model.posterior import Posterior
from p2l.model.tokenizer import load_tokenizer
from p2l.people.runs import sources_of
from p2l.public.model import pack
from p2l.votes import open_votes
from tools.public_card import Overall, write_card
from tools.public_votes import Frame, arena_votes, newest_board, public_votes, sources

_SEED = 42
_PEOPLE = "arena140k"
"""The set on whose scale the overall board stands: votes of people on what they ask themselves."""
_ARENA_VOTES = 15_000
_POINTS_PER_LOGIT = 400 / np.log(10)


@dataclass
class _Settings:
    """What `sources_of` asks of a configuration: every set but that of people is a source of its own."""

    people: str | None = _PEOPLE
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
    votes["prompt_text"] = votes.prompt.map(tuple)
    run = work / "run"
    if not (run / "config.json").is_file():
        command = [sys.executable, "-m", "p2l.train", "--votes", str(work / "votes.parquet")]
        subprocess.run([*command, "--control", "dataset", "--output", str(run)], check=True)
    overall = overall_board(votes, args.data, work)
    whole = work / "whole"
    if not whole.is_dir():
        with_overall(run, votes, overall, whole)
    made = datetime.now(timezone.utc).date().isoformat()
    pack(whole, made=made, models=len(overall.coefs))
    write_card(votes, left_out, overall, run, made, unused_votes(args.data))


def overall_board(votes: Frame, data: Path, work: Path) -> Overall:
    """Fit one leaderboard to all sets, and add the models of the newest public board."""
    arena = _shuffled_arena(data)[:_ARENA_VOTES]
    arena = arena.assign(dataset=_PEOPLE, prompt=[["not published"]] * len(arena))
    columns = ["prompt", "model_a", "model_b", "winner", "dataset"]
    both = pd.concat([votes[columns], arena[columns]], ignore_index=True).rename(columns={"dataset": "source"})
    file = work / "joint.parquet"
    both.to_parquet(file)
    with open_votes(str(file)) as store:
        joint, names = sources_of(store, _Settings()), list(store.model_list)
    coefs = dict(zip(names, joint.coefs.tolist(), strict=True))
    board = newest_board(data)
    level = dict(zip(board.model, board.rating / _POINTS_PER_LOGIT, strict=True))
    gap = float(np.mean([coefs[name] - level[name] for name in level if name in coefs]))
    coefs = {name: value + gap for name, value in level.items()} | coefs
    with_texts = {*votes.model_a, *votes.model_b}
    assert joint.eta is not None
    return Overall(coefs, joint.eta, sorted(coefs.keys() - with_texts), joint)


def unused_votes(data: Path) -> Frame:
    """Return votes of the arena that the overall board was not fitted to, as many again."""
    return _shuffled_arena(data)[_ARENA_VOTES : 2 * _ARENA_VOTES]


def _shuffled_arena(data: Path) -> Frame:
    arena = arena_votes(data)
    return arena.iloc[np.random.default_rng(_SEED).permutation(len(arena))]


def with_overall(run: Path, votes: Frame, overall: Overall, target: Path) -> None:
    """Write the trained model with the overall board, and with a row for each model that only the board has."""
    model = P2LModel.from_pretrained(run)
    tokenizer = load_tokenizer(run, cls_token_if_none=None, pad_token_if_none=None)
    posterior = model.posterior
    assert posterior is not None
    known, count = list(model.model_list), len(model.model_list)
    levels = torch.tensor([overall.coefs[name] for name in (*known, *overall.new)], dtype=torch.float64)
    goes = _Trend.of(levels, count)
    sharpness = goes.slope(posterior.coefs)
    model.widen(count + len(overall.new))
    with torch.no_grad():
        for name in model.row_names:
            rows = model.get_parameter(name)
            rows[:count] = _packable(rows[:count] / sharpness)
            rows[count:] = goes.foreseen(rows[:count])
        # Four in five graded answers to a prompt are equally good; its board says how people's votes would go.
        model.get_parameter("head.eta_head.weight").zero_()
        model.get_parameter("head.eta_head.bias").fill_(overall.eta)
    model.model_list = [*known, *overall.new]
    tensors = posterior.tensors()
    tensors["coefs"], tensors["eta"] = levels.float(), torch.tensor(overall.eta)
    tensors["basis"] = _widened_basis(_packable(posterior.basis / sharpness), posterior.offset, goes)
    tensors["axes"] = _packable(posterior.axes)
    tensors["kept"] = torch.cat([posterior.kept, torch.zeros(len(overall.new), posterior.kept.shape[1])])
    for name in ("offset", "least"):
        tensors[name] = torch.cat([tensors[name], torch.ones(len(overall.new))])
    tensors["tried"] = tried(run, votes, posterior, model.model_list)
    order = np.argsort(model.model_list, kind="stable")
    for name in ("basis", "coefs", "tried"):
        tensors[name] = tensors[name][torch.from_numpy(order)]
    final = Posterior(tensors, posterior.vocabulary)
    listed = [model.model_list[number] for number in order]
    write_folder(target, model, tokenizer, model_list=listed, add_files=final.save)


@dataclass(frozen=True)
class _Trend:
    """How what the M models with texts have of their own goes with their levels, and so that of L others."""

    known: torch.Tensor
    """(M, 2) one and the level of each model with texts."""
    new: torch.Tensor
    """(L, 2)"""

    @classmethod
    def of(cls, levels: torch.Tensor, count: int) -> _Trend:
        design = torch.stack([torch.ones_like(levels), levels], dim=1)
        return cls(design[:count], design[count:])

    def slope(self, board: torch.Tensor) -> float:
        """Return by how much a board (M,) of the known models tells them further apart than their levels do."""
        fitted: torch.Tensor = torch.linalg.lstsq(self.known, board.double()[:, None]).solution
        return float(fitted[1, 0])

    def foreseen(self, rows: torch.Tensor, *, of_known: bool = False) -> torch.Tensor:
        """Return least-squares predictions of rows (M, ...) for the new models (L, ...), or for the known ones."""
        slopes = torch.linalg.lstsq(self.known, rows.double().reshape(len(rows), -1)).solution
        design = self.known if of_known else self.new
        return _packable((design @ slopes).reshape(len(design), *rows.shape[1:]).to(rows))


def _packable(tensor: torch.Tensor) -> torch.Tensor:
    """Return values that float16 holds too: their other bits are zeros, which the package's archive does not keep."""
    return tensor.half().to(tensor)


def _widened_basis(basis: torch.Tensor, offset: torch.Tensor, goes: _Trend) -> torch.Tensor:
    """Return the basis (M + L, R + L) from that (M, R) of known models, with variances `offset` (R,).

    Each new model has a component of its own that no vote determines.
    """
    count = len(goes.new)
    # A known model departs from what its level foretells by this much, and so may a new one.
    apart = basis - goes.foreseen(basis, of_known=True)
    sd = float(((apart**2) @ offset).mean()) ** 0.5
    known = torch.cat([basis, torch.zeros(len(basis), count)], dim=1)
    return torch.cat([known, torch.cat([goes.foreseen(basis), sd * torch.eye(count)], dim=1)])


def tried(run: Path, votes: Frame, posterior: Posterior, models: Sequence[str]) -> torch.Tensor:
    """Return (models, K) 1 where a model was tried on prompts of a point's kind.

    Graded answers are of one kind: what one set tells of right answers holds in another. Votes and verdicts tell of the
    models of their own set alone.
    """
    kinds = {source.name: source.kind for source in sources()}
    texts = votes.drop_duplicates("prompt_text")
    inputs = torch.from_numpy(P2L.from_pretrained(run).inputs([list(prompt) for prompt in texts.prompt]))
    scaled = (inputs.float() - posterior.centre) * posterior.scale
    places = torch.cdist(posterior.points.float(), scaled).argmin(dim=1).numpy()
    there = {name: {*table.model_a, *table.model_b} for name, table in votes.groupby("dataset")}
    sets = texts.dataset.to_numpy()[places]
    table = [[kinds[name] == "answers" or model in there[name] for name in sets] for model in models]
    return torch.tensor(table, dtype=torch.float32)


if __name__ == "__main__":
    main()
