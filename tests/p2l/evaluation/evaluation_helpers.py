"""What the tests of evaluation share: votes with answers, drawn from known coefficients, as rows and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p2l.auto_evals import main
from p2l.likelihood import get

NAMES = ["ant", "bee", "cat", "dog"]
WINNERS = ("model_a", "model_b", "tie", "tie (bothbad)")
# Battles between three models (winner, loser, tie) and how many of each there are.
BATTLES = {
    (0, 1, 0): 30,
    (1, 0, 0): 18,
    (0, 1, 1): 8,
    (0, 1, 2): 6,
    (1, 2, 0): 28,
    (2, 1, 0): 15,
    (1, 2, 1): 9,
    (1, 2, 2): 7,
    (0, 2, 0): 35,
    (2, 0, 0): 10,
    (0, 2, 1): 7,
    (0, 2, 2): 5,
}


def rows(count: int, names: Sequence[str] = NAMES, seed: int = 0, likelihood: str = "grk") -> list[dict[str, Any]]:
    """Votes drawn from the probabilities that their own coefficients give, with categories of every kind."""
    rng, model = np.random.default_rng(seed), get(likelihood)
    center = np.linspace(1.0, -1.0, len(names))
    made = []
    for number in range(count):
        coefs, eta = center + rng.normal(0, 0.5, len(names)), float(rng.normal(0, 0.2))
        a, b = rng.choice(len(names), 2, replace=False)
        probs = model.probs(coefs[a], coefs[b], eta, 0.0)
        outcome = model.outcomes[rng.choice(len(probs), p=probs / probs.sum())]
        winner = {"win": "model_a", "loss": "model_b", "tie": "tie", "bothbad": "tie (bothbad)"}[outcome]
        math, criteria = bool(number % 3 == 0), {f"c{k}": bool(k < number % 8) for k in range(7)}
        made.append(
            {
                "prompt": [f"prompt {number // 2}"],
                "model_a": names[a],
                "model_b": names[b],
                "winner": winner,
                "language": ("English", "Chinese")[number % 2],
                "is_code": bool(number % 4 == 0),
                "category_tag": {"math_v0.1": {"math": math}, "criteria_v0.1": criteria},
                "betas": coefs.tolist(),
                "eta": eta,
            }
        )
    return made


def as_checkpoint(made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows as batch inference writes them."""
    return [
        {key: value for key, value in row.items() if key not in ("betas", "eta")}
        | {"coefs": [row["betas"]], "eta": [[row["eta"]]], "gamma": None, "last_hidden_state": [[0.5, 1.0]]}
        for row in made
    ]


def write_lines(path: Path, made: Sequence[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    """A JSON file, as `json.dump` writes it."""
    path.write_text(json.dumps(value, indent=4), encoding="utf-8")
    return path


FEW = (
    *("--rand_subset_sizes", "50", "100", "--rand_num_samples", "4", "3"),
    *("--aggr_scale_subset_sizes", "1", "20", "--aggr_scale_num_samples", "5", "4", "--bootstrap", "50"),
)


def run_auto(folder: Path, *words: str | Path, likelihood: str = "grk", name: str = "eval_metrics") -> dict[str, Any]:
    """Run the command on `model_list.json` of a folder; returns what it wrote."""
    if not (folder / "model_list.json").exists():
        write_json(folder / "model_list.json", NAMES)
    fixed = ["--model_list_path", folder / "model_list.json", "--output_dir", folder / "out", "--quiet"]
    main([str(word) for word in (*fixed, "--loss_type", likelihood, *words)])
    found: dict[str, Any] = json.loads((folder / "out" / f"{name}.json").read_text(encoding="utf-8"))
    return found
