"""Command: `p2l-route costs`: what an average answer of each model costs, from a price list and the logged usage.

cost = price per output token x mean output tokens per answer

Prices are per million tokens, in the unit of the costs. The mean is over the answers of the last days whose provider
counted their tokens. With `--output` the configuration is written with these costs; all else in it stays, comments too.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import yaml

from p2l.common.cli import add_config, add_output, nearest, parser, positive, print_note, run
from p2l.common.config import parse_yaml, read_yaml
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import atomic_path, check_can_write
from p2l.common.text_table import align
from route.keep.database import SchemaError
from route.keep.sqlite import check_schema
from route.keep.usage import DAY

_MIN_ANSWERS = 20  # a mean of fewer would swing with each long answer
_MILLION = 1_000_000


@dataclass(frozen=True)
class Answers:
    """The number of counted answers of a model, and the sum of their output tokens."""

    count: int
    output_tokens: int


@dataclass(frozen=True)
class _ModelCost:
    """One row of the table."""

    model: str
    answers: int
    mean_tokens: float | None
    """None: too few answers."""
    price: float | None
    """Per million output tokens; None: not in the price list."""
    before: float
    after: float | None
    """None: the cost stays."""


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("p2l-route costs", "Recompute the models' costs from a price list and the usage the router logged.")
    add_config(flags, "the router's configuration", "-c", required=True)
    flags.add_argument(
        "--prices",
        required=True,
        metavar="FILE",
        help="YAML: model: price per million output tokens, or model: {input: ..., output: ...}",
    )
    flags.add_argument("--database", required=True, metavar="FILE", help="the router's database")
    flags.add_argument("--days", type=positive, default=30, metavar="N", help="use the answers of the last N days")
    add_output(flags, "configuration to write with the new costs; may be --config")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if args.output:
        check_can_write(args.output)
    text = _read(args.config)
    since = int(time.time() // DAY) - args.days
    before = {model: _number(node, args.config) for model, node in _cost_nodes(text, args.config).items()}
    prices = read_prices(args.prices)
    costs = recompute(before, prices, read_answers(args.database, since=since))
    for model in prices.keys() - before.keys():
        if hint := nearest(model, before):
            print_note(f"{args.prices}: {model!r:.80} is no model of the configuration{hint}")
    rows: list[Sequence[str]] = [("model", "answers", "mean tokens", "price / M", "cost before", "cost now")]
    for cost in costs:
        mean = "too few" if cost.mean_tokens is None else f"{cost.mean_tokens:,.1f}"
        price = "not listed" if cost.price is None else f"{cost.price:g}"
        after = "stays" if cost.after is None else _plain(cost.after)
        rows.append((cost.model, f"{cost.answers:,}", mean, price, _plain(cost.before), after))
    print("\n".join(align(rows)))
    if args.output:
        changed = {cost.model: cost.after for cost in costs if cost.after is not None}
        with atomic_path(args.output) as temporary:
            temporary.write_text(with_costs(text, changed, args.config), encoding="utf-8")
        print(f"{args.output}: {len(changed)} of {len(costs)} costs are new")
    return None


def recompute(
    before: Mapping[str, float], prices: Mapping[str, float], answers: Mapping[str, Answers]
) -> list[_ModelCost]:
    """Compute the cost of each model that has a price and enough answers; raise ConfigError if no model has a price."""
    if not before.keys() & prices.keys():
        hint = nearest(next(iter(prices), ""), before)
        raise ConfigError(f"--prices: no price is one of a model of the configuration{hint}; use the same names")
    costs = []
    for model, cost in before.items():
        price, usage = prices.get(model), answers.get(model, Answers(0, 0))
        mean = usage.output_tokens / usage.count if usage.count >= _MIN_ANSWERS else None
        costs.append(
            _ModelCost(
                model=model,
                answers=usage.count,
                mean_tokens=mean,
                price=price,
                before=cost,
                after=None if price is None or mean is None else price * mean / _MILLION,
            )
        )
    return costs


def read_prices(path: str | Path) -> dict[str, float]:
    """Read prices per million output tokens by model; raise ConfigError, with the model, for anything else."""
    from route.config import Price  # which imports numpy: other commands of the books do without

    known, prices = tuple(Price.model_fields), {}
    for model, price in read_yaml(path).items():
        for key in price if isinstance(price, Mapping) else ():
            if key not in known:
                raise ConfigError(f"{path}: {model}: unknown key {key!r:.80}{nearest(str(key), known)}")
        output = price.get("output") if isinstance(price, Mapping) else price
        if isinstance(output, bool) or not isinstance(output, int | float) or not (0 <= output < math.inf):
            raise ConfigError(f"{path}: {model}: must be a price per million output tokens, or have one as 'output'")
        prices[str(model)] = float(output)
    return prices


def read_answers(database: str | Path, *, since: int) -> dict[str, Answers]:
    """Read each model's counted answers from day `since` (days since 1970, UTC) on; InputError for no such database."""
    path = Path(database)
    if not path.is_file():
        raise InputError(f"{path}: no such file; name the `database` of the router's configuration")
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA query_only = ON")  # a router may be writing to it
            check_schema(connection)
            rows = connection.execute(
                "SELECT model, sum(measured), sum(completion_tokens) FROM usage WHERE day >= ? GROUP BY model "
                "HAVING sum(measured) > 0",
                (since,),
            ).fetchall()
    except (sqlite3.Error, SchemaError) as error:
        raise InputError(f"{path}: cannot be read as the database of a router: {error}") from error
    return {model: Answers(count, tokens) for model, count, tokens in rows}


def with_costs(text: str, costs: Mapping[str, float], path: str | Path) -> str:
    """Return the configuration `text` with other costs; raise ConfigError, with `path`, if it is none of a router."""
    nodes = _cost_nodes(text, path)
    places = sorted((nodes[model].start_mark.index, nodes[model].end_mark.index, costs[model]) for model in costs)
    for start, end, cost in reversed(places):  # from the end, so that earlier places stay right
        text = text[:start] + _plain(cost) + text[end:]
    return text


def _plain(number: float) -> str:
    """Format to six significant digits without an exponent, since YAML reads 1e-05 as text."""
    return format(Decimal(f"{number:.6g}"), "f")


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _cost_nodes(text: str, path: str | Path) -> dict[str, yaml.ScalarNode]:
    """Return the place in the text of each model's cost."""
    try:
        _, root = parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    models = _entries(root).get("model_configs")
    if not isinstance(models, yaml.MappingNode):
        raise ConfigError(f"{path}: has no model_configs; name the router's configuration")
    nodes: dict[str, yaml.ScalarNode] = {}
    for model, node in _entries(models).items():
        cost = _entries(node).get("cost")
        if not isinstance(cost, yaml.ScalarNode):
            raise ConfigError(f"{path}:{node.start_mark.line + 1}: model {model!r} has no cost of its own; add one")
        if any(cost is other for other in nodes.values()):  # an alias (`*name`): one node for both
            raise ConfigError(f"{path}:{cost.start_mark.line + 1}: two models share this cost; give {model!r} its own")
        nodes[model] = cost
    return nodes


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _number(node: yaml.ScalarNode, path: str) -> float:
    try:
        return float(node.value)
    except ValueError as error:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: cost is {node.value!r}; it must be a number") from error


if __name__ == "__main__":
    run(main)
