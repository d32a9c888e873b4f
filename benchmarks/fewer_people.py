"""How few votes of people do verdicts of biased judges leave necessary, when some voters are rigged?

    python -m benchmarks.fewer_people [--seeds 5] [--votes 5000] [--taste SD] [--folder DIR]

A simulated arena of fifteen models, and votes of people on as many battles. Three judges say of every battle which
answer is better, drawn from the same truth: each is blunter or sharper than people, prefers one of the two answers'
sides or the longer one by far, or gives models of its own family a bonus, and all have a little of each of these. With
`--taste` each has an offset of its own for every model on every topic besides, which no model of judges knows. Of the
people only a tenth are asked, ten votes each; a fifth of these are rigged: they vote for one model whenever it is
shown, or for one side, or at random.

    tenth            the tenth of people's votes, as they are, by one line that knows neither sources nor voters
    pooled           the same with the judges' verdicts, as if all were votes of people
    fewer people     the same by `p2l train --votes`, which is told who cast each vote
    three tenths     three times as many votes, all of them of people
    all              all votes, all of them of people

Losses are those of the arena's held-out votes on other prompts, of people, clean. Models are readers without an
encoder. Printed: each run, the median of the runs with the least and the greatest, differences with intervals over
seeds (bootstrap), and the share of the gap between the tenth and all clean votes that is closed. Runs that are finished
in the folder are not made again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.cli import parser, positive, run
from p2l.common.text_table import text_table
from p2l.likelihood import get, vote_losses
from p2l.simulation import Arena, SimulationConfig, simulate
from p2l.simulation.batches import vote_batch
from p2l.votes import WINNERS

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
MODELS, HELD_OUT, VOTES_EACH, RIGGED = 15, 4000, 10, 0.2
PLAIN = ("question_id", "prompt", "model_a", "model_b", "winner")
ARMS = ("tenth", "pooled", "fewer people", "three tenths", "all")


class Judge(NamedTuple):
    """A judge's leanings, in logits; the family is a place in the list of organisations."""

    scale: float
    side: float
    length: float
    own: float
    family: int
    level: float


JUDGES = (
    Judge(0.8, 0.2, 0.3, 1.2, 0, 0.3),
    Judge(1.2, 0.1, 2.0, 0.3, 1, 0.0),
    Judge(0.6, 1.0, 0.3, 0.3, 2, -0.3),
)


def arena_of(seed: int, votes: int) -> tuple[Arena, Any, Any]:
    """Return the arena, and its battles and held-out votes with the truth of each (coefficients and eta)."""
    import pandas as pd

    arena = simulate(SimulationConfig(votes=votes, validation_votes=HELD_OUT, models=MODELS, topics=6, seed=seed + 1))
    parts = []
    for is_held_out in (False, True):
        frames = []
        for chunk in arena.chunks(validation=is_held_out):
            frame = vote_batch(arena, chunk).to_pandas()[[*PLAIN, "topic"]]
            rows = np.arange(len(frame))
            truth = (chunk.truth.coefs[rows, chunk.model_a], chunk.truth.coefs[rows, chunk.model_b], chunk.truth.eta)
            frames.append(frame.assign(**dict(zip(("true_a", "true_b", "eta"), truth, strict=True))))
        parts.append(pd.concat(frames, ignore_index=True))
    return arena, *parts


def with_lengths(battles: Any, arena: Arena, rng: np.random.Generator) -> Any:
    """Return the battles with lengths of the answers, of which each model has a habit that people do not mind."""
    habit = dict(zip(arena.model_list, rng.normal(0.0, 0.5, MODELS), strict=True))
    for one in "ab":
        noise = rng.normal(0.0, 0.6, len(battles))
        battles[f"length_{one}"] = np.exp(6.0 + battles[f"model_{one}"].map(habit).to_numpy() + noise).round()
    return battles


def verdicts(battles: Any, judge: Judge, arena: Arena, taste: float, rng: np.random.Generator) -> Any:
    """Return the verdicts of a judge on all battles."""
    families = sorted(set(arena.models.organisations))
    family = families[judge.family % len(families)]
    own = {name: float(one == family) for name, one in zip(arena.model_list, arena.models.organisations, strict=True)}
    a, b = battles["length_a"].to_numpy(), battles["length_b"].to_numpy()
    of_family = battles.model_a.map(own).to_numpy() - battles.model_b.map(own).to_numpy()
    lean = judge.side + judge.length * (a - b) / (a + b) + judge.own * of_family
    tastes = rng.normal(0.0, taste, (len(arena.topics), MODELS))
    topic = battles["topic"].map(arena.topics.index).to_numpy()
    first, second = (
        judge.scale * battles[f"true_{one}"].to_numpy()
        + judge.level
        + tastes[topic, battles[f"model_{one}"].map(arena.model_list.index).to_numpy()]
        for one in "ab"
    )
    winner = _drawn(first + lean / 2, second - lean / 2, battles["eta"].to_numpy(), rng)
    return battles.assign(winner=winner, source=f"{family}-judge", voter=None)


def _drawn(first: Floats, second: Floats, eta: Floats, rng: np.random.Generator) -> Any:
    probs = get("grk").probs(first, second, eta)
    code = (rng.random(len(probs))[:, None] > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.array(WINNERS)[code]


def of_voters(votes: Any, rng: np.random.Generator) -> Any:
    """Return votes of people with voters, a fifth of whom are rigged."""
    number = -(-len(votes) // VOTES_EACH)
    voter = rng.permutation(np.arange(len(votes)) % number)
    winner = votes["winner"].to_numpy().copy()
    first, second = votes["model_a"].to_numpy(), votes["model_b"].to_numpy()
    rigged = rng.permutation(number)[: round(RIGGED * number)]
    for place, one in enumerate(rigged):
        rows = np.flatnonzero(voter == one)
        if place % 3 == 0:  # for a model, of the five that are shown most
            names, counts = np.unique(np.concatenate([first, second]), return_counts=True)
            favourite = rng.choice(names[np.argsort(-counts)[:5]])
            winner[rows[first[rows] == favourite]] = "model_a"
            winner[rows[second[rows] == favourite]] = "model_b"
        elif place % 3 == 1:
            winner[rows] = rng.choice(["model_a", "model_b"])
        else:
            winner[rows] = rng.choice(WINNERS, len(rows), p=(0.35, 0.35, 0.15, 0.15))
    return votes.assign(winner=winner, voter=[f"voter-{one}" for one in voter], source="human")


def files_of(seed: int, votes: int, taste: float, folder: Path) -> Any:
    """Write the votes of each arm and return the held-out votes."""
    import pandas as pd

    arena, battles, held_out = arena_of(seed, votes)
    rng = np.random.default_rng([seed, 19])
    battles = with_lengths(battles, arena, rng)
    order = rng.permutation(len(battles))
    tenth = of_voters(battles.iloc[order[: votes // 10]], rng)
    judged = pd.concat([tenth, *(verdicts(battles, judge, arena, taste, rng) for judge in JUDGES)], ignore_index=True)
    plain = list(PLAIN)
    sourced = [*plain, "source", "voter", "length_a", "length_b"]
    tables = (
        tenth[plain],
        judged[plain],
        judged[sourced],
        battles.iloc[order[: 3 * votes // 10]][plain],
        battles[plain],
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in zip(ARMS, tables, strict=True):
        table.to_parquet(folder / f"{name}.parquet")
    return held_out


def train(votes: Path, folder: Path) -> None:
    """Train in one line unless that was done."""
    if (folder / "comparison.json").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    flags = ["--votes", votes, "--output", folder, "--size", "reader", "--encoder", "none", "--quiet"]
    line = [sys.executable, "-m", "p2l.cli", "train", *map(str, flags)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr[-2000:]}")
    (folder / "printed.txt").write_text(done.stdout, encoding="utf-8")


def loss_of(folder: Path, held_out: Any) -> float:
    """Return the mean loss of held-out votes under a model."""
    from p2l import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    place = {name: number for number, name in enumerate(model.model_list)}
    known = held_out[held_out.model_a.isin(place) & held_out.model_b.isin(place)]
    a, b = (known[side].map(place).to_numpy() for side in ("model_a", "model_b"))
    b_won = (known.winner == "model_b").to_numpy()
    ties = known.winner.map({name: max(code - 1, 0) for code, name in enumerate(WINNERS)}).to_numpy()
    labels = np.stack([np.where(b_won, b, a), np.where(b_won, a, b), ties], axis=1).astype(np.int32)
    found = model.predict([list(prompt) for prompt in known.prompt])
    return float(vote_losses(model.likelihood, found.coefs.astype(float), labels, found.eta, found.gamma).mean())


def best_loss(held_out: Any) -> float:
    """Return the loss of the truth itself."""
    coefs = held_out[["true_a", "true_b"]].to_numpy()
    b_won = (held_out.winner == "model_b").to_numpy()
    ties = held_out.winner.map({name: max(code - 1, 0) for code, name in enumerate(WINNERS)}).to_numpy()
    labels = np.stack([b_won, ~b_won, ties], axis=1).astype(np.int32)
    return float(vote_losses(get("grk"), coefs, labels, held_out["eta"].to_numpy()).mean())


def losses_of(seed: int, votes: int, taste: float, folder: Path) -> Floats:
    """Return the loss of each arm, and of the truth."""
    held_out = files_of(seed, votes, taste, folder)
    for name in ARMS:
        train(folder / f"{name}.parquet", folder / name.replace(" ", "-"))
    arms = [loss_of(folder / name.replace(" ", "-"), held_out) for name in ARMS]
    return np.array([*arms, best_loss(held_out)])


def closed(losses: Floats) -> Floats:
    """Return the share (S,) of the gap between a tenth and all clean votes that fewer people close, by seed."""
    tenth, ours, every = (losses[:, ARMS.index(name)] for name in ("tenth", "fewer people", "all"))
    return np.asarray((tenth - ours) / (tenth - every))


def report(losses: Floats) -> Iterator[str]:
    """Yield the lines of the summary of losses (S, arms and truth)."""
    rows = []
    for name, column in zip((*ARMS, "truth"), losses.T, strict=True):
        rows.append([name, f"{np.median(column):.4f}", f"{column.min():.4f}", f"{column.max():.4f}"])
    yield from text_table(["trained on", "median loss", "least", "greatest"], rows, left={0})
    rng = np.random.default_rng(0)
    draws = losses[rng.integers(len(losses), size=(2000, len(losses)))]
    for name in ("tenth", "pooled", "three tenths", "all"):
        column, ours = ARMS.index(name), ARMS.index("fewer people")
        gaps = draws[:, :, ours] - draws[:, :, column]
        low, high = np.quantile(gaps.mean(axis=1), [0.025, 0.975])
        better = int((losses[:, ours] <= losses[:, column]).sum())
        mean = float((losses[:, ours] - losses[:, column]).mean())
        yield (
            f"fewer people less {name}: {mean:+.4f} nats [{low:+.4f}, {high:+.4f}], lower in {better} of {len(losses)}"
        )
    shares = closed(losses)
    yield f"of the gap to all clean votes it closes: median {np.median(shares):.0%}, least {shares.min():.0%}"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.fewer_people", "Train on few votes of people and verdicts of biased judges.")
    flags.add_argument("--seeds", type=positive, default=5)
    flags.add_argument("--votes", type=positive, default=5000, help="of people, of whom a tenth are asked")
    flags.add_argument("--taste", type=float, default=0.0, metavar="SD", help="of judges, for models on topics")
    flags.add_argument("--folder", type=Path, help="keep runs here, and go on with those that are finished")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each seed, and the summary."""
    flags = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.folder or Path(temporary)
        losses = []
        for seed in range(flags.seeds):
            losses.append(losses_of(seed, flags.votes, flags.taste, folder / str(seed)))
            cells = zip((*ARMS, "truth"), losses[-1], strict=True)
            print(f"seed {seed + 1}: " + ", ".join(f"{name} {loss:.4f}" for name, loss in cells), flush=True)
        print("\n".join(report(np.array(losses))))


if __name__ == "__main__":
    run(main)
