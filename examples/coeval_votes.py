"""A CoEval run into votes: scripted students answer, a scripted judge compares, and boards show who is good at what.

    python examples/coeval_votes.py

No keys, no network. The configuration is that of `examples/to_p2l.yaml`: three of the four students are each the best
at one kind of task, the fourth at none. The boards of the votes should find that, and the overall board cannot.

Shapes: N votes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from coeval.cli import dispatch
from p2l.common.program import shipped
from p2l.leaderboard import fit, to_score
from p2l.votes import encode_votes, read_columns

ITEMS = 60
"""Items of each task."""


def main(items: int = ITEMS) -> dict[str, str]:
    """Run the experiment, print a board for all votes and one for each task; return the best student of each task."""
    with TemporaryDirectory() as name:
        columns = _votes(Path(name), items)
    print(f"{len(columns['winner'])} votes")
    best = {"overall": _print_board("overall", columns)}
    for task in sorted(set(columns["task"])):
        here = [number for number, value in enumerate(columns["task"]) if value == task]
        best[task] = _print_board(task, {key: [values[row] for row in here] for key, values in columns.items()})
    return best


def _votes(folder: Path, items: int) -> dict[str, list[str]]:
    """Run a copy of the shipped configuration in the folder; return the columns of its votes."""
    config = yaml.safe_load((shipped() / "examples" / "to_p2l.yaml").read_text("utf-8"))
    config["experiment"]["storage_folder"] = str(folder / "runs")
    for task in config["tasks"]:
        task["sampling"]["total"] = items
    path, run = folder / "config.yaml", folder / "runs" / config["experiment"]["id"]
    path.write_text(yaml.safe_dump(config), "utf-8")
    with _silence():
        dispatch(["run", "--config", str(path)])
        dispatch(["analyze", "export-preferences", "--run", str(run), "--format", "parquet", "--out", str(folder)])
    names = ["model_a", "model_b", "winner", "task"]
    parts = [read_columns(str(folder / f"{part}.parquet"), names) for part in ("train", "val")]
    return {name: [value for part in parts for value in part[name].to_pylist()] for name in names}


def _print_board(title: str, columns: dict[str, list[str]]) -> str:
    """Print the leaderboard of some votes; return its first student."""
    votes = encode_votes(columns["model_a"], columns["model_b"], columns["winner"])
    board = fit(votes.model_a, votes.model_b, votes.winner, models=votes.models)
    order = board.coefs.argsort()[::-1]
    names = ", ".join(f"{board.models[place]} {to_score(board.coefs[place]):.0f}" for place in order)
    print(f"{title:<12} {names}")
    best: str = board.models[order[0]]
    return best


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    main()
