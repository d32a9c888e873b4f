"""What a stranger's configuration may ask for: YAML is refused before anything of it is built."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from coeval.config.keys import Keys
from coeval.config.loading import load_config as load_experiment
from coeval.config.reading import ConfigErrors
from coeval.ingest.writing import read_configuration
from coeval.storage.run import Run, stored_config
from p2l.common.config import MAX_BYTES, lines_of, parse_yaml, read_yaml
from p2l.common.errors import InputError
from p2l.training.train_config import load_config as load_training
from route.config import load_config as load_router
from route.costs import read_prices as read_costs
from route.evaluation.table import read_prices as read_table_prices

# Nine times, ten of what stands in the line before.
PAIRS = [*zip("abcdefghi", "bcdefghij", strict=True)]
ALIASES = "a: &a [x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in PAIRS)
MERGES = "a: &a {k: 1}\n" + "".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n" for a, b in PAIRS)
HOSTILE = {
    "aliases": (ALIASES, 6),
    "merges": (MERGES, 6),
    "brackets": ("[" * 100_000, 1),
    "lists": ("- " * 100_000 + "a", 1),
    "mappings": ("\n".join(" " * depth + "a:" for depth in range(2000)), 101),
    "chain of aliases": ("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 1000)), 100),
    "cycle": ("a: &a [*a]\n", 1),
    "cycle of mappings": ("a: &a\n  b:\n    c: *a\n", 3),
    "sexagesimal": ("a: 1\nb: 1" + ":59" * 200_000 + "\n", 2),
    "tagged number": ('a: !!int "1' + ":59" * 200_000 + '"\n', 1),
    "many values": ("a: [" + "1, " * 200_000 + "]\n", 1),
    **{f"no {tag}": (f"a: 1\nb: !!{tag} soon\n", 2) for tag in ("bool", "int", "float", "timestamp")},
    "no number at all": ("a: !!int ''\n", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "read", [read_yaml, load_training, load_router, lambda path: load_experiment(path, keys=Keys())],
    ids=["yaml", "training", "router", "coeval"],
)  # fmt: skip
def test_a_text_that_stands_for_too_much_is_refused_with_its_line(tmp_path: Path, name: str, read) -> None:
    text, line = HOSTILE[name]
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    tracemalloc.start()
    with pytest.raises((InputError, ConfigErrors), match=rf"^{path}:{line}: ") as caught:
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert peak < 32 << 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; write 'key: value' lines"),
        ("# nothing yet\n", "is empty; write 'key: value' lines"),
        ("- a\n- b\n", "is a list, and must have 'key: value' lines"),
        ("learning_rate 5", "is text, and must have 'key: value' lines"),
        ("8", "is 8, and must have 'key: value' lines"),
    ],
)
@pytest.mark.parametrize("read", [read_yaml, load_training, load_router])
def test_a_file_without_keys_is_said_to_be_what_it_is(tmp_path: Path, text: str, problem: str, read) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize("read", [read_costs, read_table_prices])
def test_files_of_prices_are_refused_too(tmp_path: Path, read) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(MERGES, encoding="utf-8")
    with pytest.raises(InputError, match="stands for more than 100,000 values"):
        read(path)


def test_the_configuration_in_a_run_folder_is_refused_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.config.write_text(MERGES, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read: no YAML"):
        read_configuration(run)
    assert stored_config(run) == {}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match=r"config\.yaml: is larger than 16 MiB"):
        read_yaml(path)
    with pytest.raises(ConfigErrors, match=r"config\.yaml: is larger than 16 MiB"):
        load_experiment(path, keys=Keys())


def test_aliases_merges_and_long_texts_that_people_write_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    digits = "7" * 5000
    path.write_text(
        "base: &base {rate: 8e-6, steps: 10}\nrun:\n  <<: *base\n  steps: 20\ntwo: [*base, *base]\n"
        f"text: '{digits}'\n",
        encoding="utf-8",
    )
    base = {"rate": 8e-6, "steps": 10}
    assert read_yaml(path) == {"base": base, "run": {"rate": 8e-6, "steps": 20}, "two": [base, base], "text": digits}


def test_what_replaces_a_merged_key_is_not_written_twice() -> None:
    content, node = parse_yaml("base: &base {name: a, steps: 10}\nrun:\n  <<: *base\n  name: b\n")
    assert content["run"] == {"name": "b", "steps": 10}
    assert node is not None
    assert [where for where, _, is_second in lines_of(node) if is_second] == []
