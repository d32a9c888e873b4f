"""Command: `p2l NAME ...`, every command under one name. `python -m p2l.cli` is the same."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.common import program
from p2l.common.cli import run

GROUPS = {
    "first steps": {
        "demo": ("p2l.demo.story", "the main job on real data, in minutes"),
        "votes": (
            "p2l.commands.votes",
            "sample, check, import, split or slice votes, make them from scores, add to a lake",
        ),
        "train": ("p2l.train", "train a prompt-to-leaderboard model on votes"),
        "leaderboard": ("p2l.commands.leaderboard", "show who is good at a prompt, or fit a leaderboard to votes"),
        "examples": ("p2l.commands.examples", "write the configurations and examples of the documentation"),
    },
    "votes": {
        "simulate": ("p2l.simulate", "make votes of an arena whose truth is known"),
        "export-votes": ("p2l.commands.votes:export_main", "write the votes that a router has collected"),
        "next-pairs": ("p2l.commands.next_pairs", "choose the pairs of models whose votes would tell most"),
    },
    "training": {
        "init": ("p2l.commands.model:init_main", "make a small backbone from scratch, without any download"),
        "report": ("p2l.commands.report", "write the page of a training run: verdict, loss, leaderboard"),
        "scaling": ("p2l.commands.scaling", "measure whether more votes, or another model, would help"),
        "posterior": ("p2l.commands.model:posterior_main", "fit how uncertain the coefficients are after the votes"),
    },
    "use a model": {
        "endpoint": ("p2l.endpoint", "serve a trained model over HTTP"),
        "eval": ("p2l.eval", "run a model over a whole data set of prompts"),
        "mcp": ("p2l.agents.mcp_server", "serve boards, recommendations and training to agents, by MCP"),
        "skill": ("p2l.agents.skill", "print or install the skill for agents: which command for which wish"),
    },
    "evaluate": {
        "auto-evals": ("p2l.auto_evals", "measure forecasts of votes: losses, leaderboards, calibration"),
        "eval-routing": ("route.evaluation.command", "measure a router against the best single model"),
        "explain": ("p2l.commands.explain", "show on which kinds of prompts each model is better or worse"),
        "drift": ("p2l.commands.drift", "show which models rose or fell between two models or times"),
    },
    "keep learning from a stream of votes": {
        "online-train": ("p2l.online_training.online_train", "train on a stream of votes, with models that join later"),
        "rollback": ("p2l.commands.model:rollback_main", "serve the model that was published before the current one"),
        "add-model": ("p2l.newcomers.command:add_main", "add a new LLM to a model from a few votes or answers"),
        "probes": ("p2l.newcomers.command:probes_main", "choose the prompts that tell most about a new LLM"),
        "eval-chrono": ("p2l.eval_chrono", "evaluate each checkpoint of an online run on votes of its time"),
        "visualize": ("p2l.online_training.visualize", "plot the results of eval-chrono, one run or several"),
        "buffer": ("p2l.online_training.reorder", "write votes in the order in which online training uses them"),
        "timestamps": ("p2l.online_training.timestamps", "write the last vote time of each training batch"),
    },
}
"""Purpose: {name: (module with a `main(argv)`, description)}."""
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def dispatch(argv: Sequence[str] | None = None) -> int | None:
    """Run the command that `argv` names."""
    about = "Prompt-to-leaderboard models: read a prompt, return how strong each LLM is on that prompt."
    return program.dispatch("p2l", about, GROUPS, argv)


def main() -> None:
    """Run the console script."""
    run(dispatch)


if __name__ == "__main__":
    main()
