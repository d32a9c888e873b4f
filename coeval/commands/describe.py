"""Command: show a configuration as a page that needs nothing but itself, and open it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from coeval.command import add_keys, keys_of, run
from p2l.command import check_can_write, parser

__all__ = ["build_parser", "main"]


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval describe", "Show an experiment as a page: models, tasks, prompts, calls and costs.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--out", metavar="PATH", help="the page (default: NAME_description.html beside the experiment)")
    made.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    made.add_argument("--probe", action="store_true", help="ask every provider whether it has the models, and show it")
    add_keys(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    arguments = build_parser().parse_args(argv)
    from coeval.commands.probe import run_probe
    from coeval.config.loading import load_config
    from coeval.describing import description_page
    from p2l.report import write_page

    keys = keys_of(arguments.keys)
    source = Path(arguments.config).expanduser()
    config = load_config(source, keys=keys, fresh=False)
    target = arguments.out or source.with_name(f"{source.stem}_description.html")
    path = check_can_write(target, source)
    probed = run_probe(config, keys, "full") if arguments.probe else None
    write_page(description_page(config, probed), path)
    print(path)
    if not arguments.no_open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return 0


if __name__ == "__main__":
    run(main)
