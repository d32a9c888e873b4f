"""Commands on a configuration: write it, show it, probe its models, say what its run will do, cost and take.

coeval plan --config experiment.yaml --estimate-samples 0
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coeval.cli import (
    add_continue,
    add_estimate_samples,
    add_keys,
    add_log_level,
    add_out,
    config_flags,
    keys_of,
    load,
    names,
)
from p2l.common.cli import nearest, parser

if TYPE_CHECKING:
    from coeval.config.keys import Keys
    from coeval.schema import Config, Mode, Phase
    from coeval.storage.run import Run


def build_parser() -> ArgumentParser:
    """Return the flags of `coeval plan`."""
    flags = config_flags("plan", "Say what a run will do, what it will cost and how long it will take.")
    add_continue(flags, "plan only what is left of the run in its folder")
    add_estimate_samples(flags)
    add_log_level(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan and the estimate; store the estimate where the run has a folder."""
    arguments = build_parser().parse_args(argv)
    from coeval.phases.start import start_of
    from coeval.planning.counting import remaining
    from coeval.planning.estimate import estimate_text
    from coeval.planning.plan import plan_text
    from coeval.storage.records import write_json
    from coeval.storage.run import Run

    config, keys, _ = load(arguments, continue_in_place=arguments.continue_in_place)
    folder = Run(config.experiment.folder)
    stored, modes = start_of(config, continue_in_place=arguments.continue_in_place)
    print(plan_text(config, remaining(config, stored, modes)), end="\n\n")
    figures = _run_estimate(config, keys, samples=arguments.estimate_samples, run=stored, modes=modes)
    print(estimate_text(figures))
    if folder.folder.is_dir():
        write_json(folder.estimate, figures)
    return 0


def _run_estimate(
    config: Config, keys: Keys, *, samples: int | None, run: Run | None, modes: Mapping[Phase, Mode]
) -> dict[str, Any]:
    """Return the estimate, with calls to measure speed if `samples`, or the configuration, asks for them."""
    import asyncio

    from coeval.calling.caller import make_caller
    from coeval.planning.estimate import estimate, static_estimate

    count = config.experiment.estimate_samples if samples is None else samples
    if not count:
        return static_estimate(config, run=run, modes=modes)

    async def measured() -> dict[str, Any]:
        async with make_caller(config, keys) as caller:
            return await estimate(config, caller, samples=count, run=run, modes=modes)

    return asyncio.run(measured())


# `coeval probe` exits with 0 where all models are there (or --probe-on-fail warn), 1 where the configuration is wrong,
# 2 where a model is not available.


def probe_parser() -> ArgumentParser:
    """Return the flags of `coeval probe`."""
    flags = config_flags("probe", "Ask every provider whether it has the models of an experiment, without a token.")
    add_probe(flags)
    add_log_level(flags)
    return flags


def add_probe(flags: ArgumentParser) -> None:
    """Add `--probe` and `--probe-on-fail`."""
    flags.add_argument(
        "--probe",
        choices=("full", "resume", "disable"),
        help="all models, those that are still needed, or none (default: what the file says, or full)",
    )
    flags.add_argument(
        "--probe-on-fail",
        choices=("abort", "warn"),
        help="what to do when a model is not available (default: what the file says, or abort)",
    )


def probe_main(argv: Sequence[str] | None = None) -> int:
    """Probe; store the results where the run has a folder."""
    arguments = probe_parser().parse_args(argv)
    from coeval.planning.probing import log_probe, probe_results
    from coeval.storage.records import write_json
    from coeval.storage.run import Run

    config, keys, log = load(arguments)
    mode = arguments.probe or config.experiment.probe_mode
    on_fail = arguments.probe_on_fail or config.experiment.probe_on_fail
    states = run_probe(config, keys, mode)
    failed = log_probe(states, log)
    folder = Run(config.experiment.folder)
    if states and folder.folder.is_dir():
        write_json(folder.probe, probe_results(mode, on_fail, states))
    if failed and on_fail == "abort":
        log.error(f"not available: {', '.join(failed)}")
        return 2
    return 0


def run_probe(config: Config, keys: Keys, mode: str, phases: Sequence[Phase] | None = None) -> dict[str, str]:
    """Return model -> `ok` or why not, of the models that these phases need: by default all, those left, or none."""
    import asyncio

    from coeval.planning.probing import probe_models
    from coeval.schema import PHASES
    from coeval.storage.run import Run, stored_meta

    if mode == "disable":
        return {}
    left = phases or PHASES
    # A run that is not there yet has all phases left.
    if not phases and mode == "resume" and stored_meta(Run(config.experiment.folder)) is not None:
        from coeval.phases.start import start_of
        from coeval.planning.plan import phases_left

        left = phases_left(config, *start_of(config, continue_in_place=True))
    return asyncio.run(probe_models(config, keys, left))


def describe_parser() -> ArgumentParser:
    """Return the flags of `coeval describe`."""
    flags = config_flags("describe", "Show an experiment as a page: models, tasks, prompts, calls and costs.")
    flags.add_argument(
        "--html", "--out", metavar="PATH", help="the page (default: NAME_description.html beside the experiment)"
    )
    flags.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    flags.add_argument("--probe", action="store_true", help="ask every provider whether it has the models, and show it")
    return flags


def describe_main(argv: Sequence[str] | None = None) -> int:
    """Write a configuration as a page that needs nothing but itself, and open it."""
    arguments = describe_parser().parse_args(argv)
    from coeval.config.loading import load_config
    from coeval.planning.plan import description_page
    from p2l.common.files import check_can_write
    from p2l.common.report.tables import write_page

    keys = keys_of(arguments.keys)
    source = arguments.config.expanduser()
    config = load_config(source, keys=keys, fresh=False)
    path = check_can_write(arguments.html or source.with_name(f"{source.stem}_description.html"), source)
    states = run_probe(config, keys, "full") if arguments.probe else None
    write_page(description_page(config, states), path)
    print(path)
    if not arguments.no_open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return 0


def models_parser() -> ArgumentParser:
    """Return the flags of `coeval models`."""
    flags = parser("coeval models", "List the models of every provider that there is a key for.")
    flags.add_argument(
        "--providers", type=names, metavar="A,B", help="only these providers (default: all that there is a key for)"
    )
    flags.add_argument("--verbose", action="store_true", help="with list prices and what a batch costs")
    add_keys(flags)
    return flags


def models_main(argv: Sequence[str] | None = None) -> int:
    """Print the models that the keys can reach; a provider that does not answer is not a failure."""
    arguments = models_parser().parse_args(argv)
    import asyncio

    from coeval.interfaces import batch_discount, price_at

    keys = keys_of(arguments.keys)
    interfaces = _interfaces(arguments.providers, keys)
    if not interfaces and arguments.providers is None:
        print("no provider has credentials; set OPENAI_API_KEY or another key, or write a key file", file=sys.stderr)

    async def lists() -> list[list[str] | str]:
        return await asyncio.gather(*(_models(interface, keys) for interface in interfaces))

    for interface, models in zip(interfaces, asyncio.run(lists()), strict=True):
        print(f"{interface}: {models}" if isinstance(models, str) else f"{interface}: {len(models)} models")
        for model in [] if isinstance(models, str) else models:
            price, discount = price_at(interface, model), batch_discount(interface)
            batch = f", {discount:.0%} of it in batches" if discount != 1 else ""
            prices = f"  ${price.input:g} in, ${price.output:g} out per million tokens{batch}"
            print(f"  {model}{prices if arguments.verbose else ''}")
    return 0


def _interfaces(providers: tuple[str, ...] | None, keys: Keys) -> list[str]:
    from coeval.interfaces import INTERFACES, LOCAL, VIRTUAL

    listing = [name for name in INTERFACES if name not in (*VIRTUAL, *LOCAL)]
    if providers is None:
        return [name for name in listing if keys.has(name)]
    for name in providers:
        if name not in listing:
            print(f"{name}: no provider that lists models{nearest(name, listing)}", file=sys.stderr)
    return [name for name in providers if name in listing]


async def _models(interface: str, keys: Keys) -> list[str] | str:
    """Return the models of an interface, or why there is no list."""
    from coeval.interfaces import INTERFACES
    from coeval.planning.probing import PATIENCE
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


# `coeval wizard`: a configuration out of a dozen questions, or out of one sentence.


def wizard_parser() -> ArgumentParser:
    """Return the flags of `coeval wizard`."""
    flags = parser(
        "coeval wizard",
        "Write a configuration: answer a dozen questions, or describe the test in a sentence. It is checked, has "
        "comments, and says what the run will cost.",
    )
    add_out(flags, "the configuration to write, YAML")
    flags.add_argument("--overwrite", action="store_true", help="replace what --out names, if it is there")
    flags.add_argument("--answers", type=Path, metavar="FILE", help="answers, one a line, in place of the terminal's")
    flags.add_argument("--sentence", metavar="TEXT", help="what the test is for: a model makes the task of it")
    flags.add_argument(
        "--model", metavar="NAME", help="with --sentence: the model that writes the task, as `provider:model`"
    )
    add_keys(flags)
    return flags


def wizard_main(argv: Sequence[str] | None = None) -> int:
    """Write the configuration; 1 where it cannot be used or written, or the model makes no task."""
    flags = wizard_parser()
    arguments = flags.parse_args(argv)
    if (arguments.sentence is None) != (arguments.model is None):
        flags.error("--sentence and --model go together")
    if arguments.out.exists() and not arguments.overwrite:
        flags.error(f"--out {arguments.out} is there already; choose another name, or add --overwrite to replace it")
    from coeval.config.loading import load_config
    from coeval.planning.estimate import estimate_text, minutes, static_estimate
    from coeval.planning.wizard import Wizard, config_text
    from p2l.common.files import atomic_path, check_can_write
    from p2l.common.report.tables import dollars_text

    keys, out = keys_of(arguments.keys), check_can_write(arguments.out, arguments.answers)
    wizard = Wizard(_answers(arguments.answers), print, keys)
    task = wizard.task() if arguments.sentence is None else _from_sentence(arguments.sentence, arguments.model, keys)
    models = wizard.models()
    experiment = wizard.experiment(task, models)
    with atomic_path(out) as temporary:
        temporary.write_text(config_text(task, models, experiment, ""), encoding="utf-8")
        costs = static_estimate(load_config(temporary, keys=keys, fresh=False))
        amounts = (dollars_text(costs["total_cost_usd"]), minutes(costs["total_time_min"]))
        summary = ", ".join((f"{costs['total_calls']:,} calls", *amounts))
        temporary.write_text(config_text(task, models, experiment, f"Planned: {summary}."), encoding="utf-8")
    print(estimate_text(costs))
    print(f"written: {out}\ngo on with: coeval run --config {out}")
    return 0


def _answers(path: Path | None) -> Callable[[str], str]:
    """Return what asks: a file of answers, or the terminal."""
    if path is None:
        return input
    try:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        from coeval.errors import RunInputError

        why = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise RunInputError(f"--answers {path}: cannot be read: {why}") from None

    def ask(question: str) -> str:
        answer = next(lines, None)
        if answer is None:
            raise EOFError
        print(f"{question}{answer}")
        return answer

    return ask


def _from_sentence(sentence: str, name: str, keys: Keys) -> dict[str, Any]:
    import asyncio

    from coeval.calling.caller import make_caller
    from coeval.calling.calls import CallError
    from coeval.errors import RunError
    from coeval.planning.wizard import author_config, task_from

    config = author_config(name, keys)

    async def ask() -> dict[str, Any]:
        async with make_caller(config, keys) as caller:
            return await task_from(sentence, config.models[0], caller)

    try:
        task = asyncio.run(ask())
    except CallError as error:
        raise RunError(f"{name}: {error}") from None
    print(f"{name} calls the task {task['name']}: {task['description']}", file=sys.stderr)
    return task
