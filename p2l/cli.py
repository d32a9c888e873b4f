"""Command: `p2l NAME ...`, every command under one name. `python -m p2l.cli` is the same."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.common import program
from p2l.common.cli import run

COMMANDS = {
    "demo": ("p2l.demo.story", "the whole story in under five minutes, on simulated votes"),
    "simulate": ("p2l.simulate", "make votes of an arena whose truth is known"),
    "votes": ("p2l.commands.votes", "check, import or split a file of votes"),
    "leaderboard": ("p2l.commands.leaderboard", "fit a leaderboard to votes, or read one from a model"),
    "init": ("p2l.commands.model:init_main", "make a small backbone from scratch, to train on without any download"),
    "train": ("p2l.train", "train a prompt-to-leaderboard model on votes"),
    "online-train": ("p2l.online_training.online_train", "train on a stream of votes, with models that join later"),
    "eval": ("p2l.eval", "run a model over a whole data set of prompts"),
    "rollback": ("p2l.commands.model:rollback_main", "serve the model that was published before the current one"),
    "eval-chrono": ("p2l.eval_chrono", "evaluate every checkpoint of an online run on the votes of its time"),
    "auto-evals": ("p2l.auto_evals", "measure predictions of votes: losses, leaderboards, calibration, by category"),
    "eval-routing": ("route.evaluation.command", "measure a router against the best single model and other baselines"),
    "visualize": ("p2l.online_training.visualize", "plot the results of eval-chrono, one run or several"),
    "drift": ("p2l.commands.drift", "show which models rose or fell between two checkpoints, versions or times"),
    "explain": ("p2l.commands.explain", "show on which kinds of prompts each model is better or worse than overall"),
    "scaling": ("p2l.commands.scaling", "would more votes help, or another model? measured on votes of your own"),
    "endpoint": ("p2l.endpoint", "serve a trained model over HTTP"),
    "export-votes": ("p2l.commands.votes:export_main", "write the votes that a router has collected as training data"),
    "buffer": ("p2l.online_training.reorder", "write votes in the order in which online training uses them"),
    "timestamps": ("p2l.online_training.timestamps", "write the last vote time of each training batch"),
    "posterior": ("p2l.commands.model:posterior_main", "fit what the votes leave open about a model's coefficients"),
    "committee": ("p2l.commands.model:committee_main", "join trained models into one that averages their coefficients"),
}
"""Name: (module with a `main(argv)`, description)."""


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    about = "Prompt-to-leaderboard models: read a prompt, return how strong each LLM is on that prompt."
    return program.dispatch("p2l", about, COMMANDS, argv)


def main() -> None:
    """Run the console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
