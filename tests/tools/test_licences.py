"""The page of licences says of every locked package what the installed ones say of themselves."""

from __future__ import annotations

import importlib.metadata

import pytest
import yaml

from tools.licences import licence_of, listed, table
from tools.lock import CONSTRAINTS, LOCK, ROOT, parse_pins, requirement_name

PINS = {requirement_name(pin.name): pin.version for pin in parse_pins(LOCK.read_text(encoding="utf-8"))}


def test_every_locked_package_has_a_licence_and_no_other_is_listed() -> None:
    assert set(listed()) == {*PINS, "torch"}, "run python -m tools.licences"
    assert "unknown" not in listed().values()
    assert "torch==" in CONSTRAINTS.read_text(encoding="utf-8")


def test_the_page_says_what_is_installed() -> None:
    compared = 0
    for name, licence in listed().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed == PINS.get(name):
            assert licence == licence_of(name), f"{name}: run python -m tools.licences"
            compared += 1
    assert compared > 50


def test_what_asks_for_more_than_its_notice_is_explained() -> None:
    text = (ROOT / "docs" / "operate" / "licences.md").read_text(encoding="utf-8")
    explained = text.partition("| licence | packages |")[0]
    for name, licence in listed().items():
        if any(mark in licence for mark in ("GPL", "MPL", "unknown", "Proprietary", "Other")):
            assert name in explained, f"{name} is under {licence}"


def test_the_notice_names_every_set_that_the_weights_of_the_package_are_made_of() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    sources = yaml.safe_load((ROOT / "p2l" / "public" / "sources.yaml").read_text(encoding="utf-8"))
    assert sources
    for source in sources.values():
        assert f"{source['address']}: {source['licence']}" in notice


@pytest.mark.parametrize(
    ("licences", "rows"), [({"b": "MIT", "a": "MIT", "c": "ISC"}, "| MIT | a, b |\n| ISC | c |\n")]
)
def test_packages_stand_at_their_licence(licences: dict[str, str], rows: str) -> None:
    assert table(licences) == rows
