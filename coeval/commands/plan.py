"""Command: say what a run will do, what it will cost and how long it will take.

coeval plan --config experiment.yaml --estimate-samples 0
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coeval.cli import add_keys, add_log_level, keys_of, run
from p2l.common.cli import nearest, parser, whole
from p2l.common.files import check_can_write

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.schema import Config, Mode, Phase
    from coeval.storage.run import Run


def build_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval plan", "Say what a run will do, what it will cost and how long it will take.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--continue", dest="go_on", action="store_true", help="what is left of the run in its folder")
    made.add_argument(
        "--estimate-samples",
        type=whole,
        metavar="N",
        help="questions to each model, to see how fast it is; 0: nobody is asked (default: what the file says, or 2)",
    )
    add_log_level(made)
    add_keys(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and the estimate; keep the estimate where the run has a folder."""
    arguments = build_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.phases.modes import start_of
    from coeval.planning.estimate import estimate_text
    from coeval.planning.plan import plan_text
    from coeval.storage.jsonl import write_json
    from coeval.storage.run import Run
    from coeval.storage.store import Log

    keys = keys_of(arguments.keys)
    config = load_config(arguments.config, keys=keys, continue_in_place=arguments.go_on, fresh=False)
    log = Log(None, arguments.log_level)
    for note in config.notes:
        log.info(note)
    folder = Run(config.experiment.folder)
    there, modes = start_of(config, continue_in_place=arguments.go_on)
    print(plan_text(config, there, modes), end="\n\n")
    found = run_estimate(config, keys, samples=arguments.estimate_samples, run=there, modes=modes)
    print(estimate_text(found))
    if folder.folder.is_dir():
        write_json(folder.estimate, found)
    return 0


def run_estimate(
    config: Config, keys: Keys, *, samples: int | None, run: Run | None, modes: Mapping[Phase, Mode]
) -> dict[str, Any]:
    """The estimate, with models asked if `samples`, or the configuration, says so."""
    import asyncio

    from coeval.calling.caller import make_caller
    from coeval.planning.estimate import estimate, static_estimate

    count = config.experiment.estimate_samples if samples is None else samples
    if not count:
        return static_estimate(config, run=run, modes=modes)

    async def asked() -> dict[str, Any]:
        async with make_caller(config, keys) as caller:
            return await estimate(config, caller, samples=count, run=run, modes=modes)

    return asyncio.run(asked())


# Command: ask every provider whether it has the models of an experiment. No token is spent.
#
# Exit codes: 0 all are there (or --probe-on-fail warn), 1 the configuration is wrong, 2 a model is not available.


def probe_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval probe", "Ask every provider whether it has the models of an experiment, without a token.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    add_probe(made)
    add_log_level(made)
    add_keys(made)
    return made


def add_probe(made: ArgumentParser) -> None:
    """Add `--probe` and `--probe-on-fail`."""
    made.add_argument(
        "--probe",
        choices=("full", "resume", "disable"),
        help="all models, those that are still needed, or none (default: what the file says, or full)",
    )
    made.add_argument(
        "--probe-on-fail",
        choices=("abort", "warn"),
        help="what follows when a model is not available (default: what the file says, or abort)",
    )


def probe_main(argv: Sequence[str] | None = None) -> int:
    """Probe; keep the results where the run has a folder."""
    arguments = probe_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.probing import probe_results, tell_probe
    from coeval.storage.jsonl import write_json
    from coeval.storage.run import Run
    from coeval.storage.store import Log

    keys = keys_of(arguments.keys)
    config = load_config(arguments.config, keys=keys, fresh=False)
    log = Log(None, arguments.log_level)
    for note in config.notes:
        log.info(note)
    mode = arguments.probe or config.experiment.probe_mode
    on_fail = arguments.probe_on_fail or config.experiment.probe_on_fail
    found = run_probe(config, keys, mode)
    failed = tell_probe(found, log)
    folder = Run(config.experiment.folder)
    if found and folder.folder.is_dir():
        write_json(folder.probe, probe_results(mode, on_fail, found))
    if failed and on_fail == "abort":
        log.error(f"not available: {', '.join(failed)}")
        return 2
    return 0


def run_probe(config: Config, keys: Keys, mode: str, phases: Sequence[Phase] | None = None) -> dict[str, str]:
    """Model -> `ok` or why not, of the models that these phases need: by default all phases, or those left, or none."""
    import asyncio

    from coeval.probing import probe_models
    from coeval.schema import PHASES

    if mode == "disable":
        return {}
    left = phases or (_left(config) if mode == "resume" else PHASES)
    return asyncio.run(probe_models(config, keys, left))


def _left(config: Config) -> Sequence[Phase]:
    """The phases of which a run that goes on has something to do; all, where there is none."""
    from coeval.phases.modes import start_of
    from coeval.planning.plan import phases_left
    from coeval.schema import PHASES
    from coeval.storage.run import Run, stored_meta

    if stored_meta(Run(config.experiment.folder)) is None:
        return PHASES
    return phases_left(config, *start_of(config, continue_in_place=True))


# Command: show a configuration as a page that needs nothing but itself, and open it.


def describe_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval describe", "Show an experiment as a page: models, tasks, prompts, calls and costs.")
    made.add_argument("--config", required=True, metavar="PATH", help="the experiment")
    made.add_argument("--out", metavar="PATH", help="the page (default: NAME_description.html beside the experiment)")
    made.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    made.add_argument("--probe", action="store_true", help="ask every provider whether it has the models, and show it")
    add_keys(made)
    return made


def describe_main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    arguments = describe_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.describing import description_page
    from p2l.common.report.tables import write_page

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


# Command: list the models that your keys can reach.


def models_parser() -> ArgumentParser:
    """The flags."""
    made = parser("coeval models", "List the models of every provider that there is a key for.")
    made.add_argument("--providers", metavar="A,B", help="these interfaces alone (default: all with credentials)")
    made.add_argument("--verbose", action="store_true", help="with list prices and what a batch costs")
    add_keys(made)
    return made


def models_main(argv: Sequence[str] | None = None) -> int:
    """Print them; a provider that does not answer is said so, and is no failure."""
    import asyncio

    arguments = models_parser().parse_args(argv)
    keys = keys_of(arguments.keys)
    chosen = _chosen(arguments.providers, keys)
    if not chosen and arguments.providers is None:
        print("no provider has credentials; set OPENAI_API_KEY or another key, or write a key file", file=sys.stderr)
    for interface, found in asyncio.run(_all(chosen, keys)):
        print(f"{interface}: {found}" if isinstance(found, str) else f"{interface}: {len(found)} models")
        for model in [] if isinstance(found, str) else found:
            print(f"  {model}{_price(interface, model) if arguments.verbose else ''}")
    return 0


def _chosen(providers: str | None, keys: Keys) -> list[str]:
    from coeval.interfaces import INTERFACES, LOCAL, VIRTUAL

    listing = [name for name in INTERFACES if name not in (*VIRTUAL, *LOCAL)]
    if providers is None:
        return [name for name in listing if keys.has(name)]
    named = [name.strip() for name in providers.split(",") if name.strip()]
    for name in named:
        if name not in listing:
            print(f"{name}: no provider that lists models{nearest(name, listing)}", file=sys.stderr)
    return [name for name in named if name in listing]


async def _all(interfaces: Sequence[str], keys: Keys) -> list[tuple[str, list[str] | str]]:
    import asyncio

    found = await asyncio.gather(*(_models(interface, keys) for interface in interfaces))
    return list(zip(interfaces, found, strict=True))


async def _models(interface: str, keys: Keys) -> list[str] | str:
    """The models, or why there is no list."""
    from coeval.interfaces import INTERFACES
    from coeval.probing import PATIENCE
    from p2l.common.errors import ConfigError
    from route.providers.base import ProviderError
    from route.providers.files import Catalogue

    try:
        catalogue = Catalogue(INTERFACES[interface].name, keys.account_of(interface))
    except ConfigError as error:
        return str(error)
    try:
        return await catalogue.models(PATIENCE)
    except ProviderError as error:
        return str(error)
    finally:
        await catalogue.close()


def _price(interface: str, model: str) -> str:
    from coeval.prices import batch_discount, price_at

    price, discount = price_at(interface, model), batch_discount(interface)
    batch = f", {discount:.0%} of it in batches" if discount != 1 else ""
    return f"  ${price.input:g} in, ${price.output:g} out per million tokens{batch}"


if __name__ == "__main__":
    run(main)
