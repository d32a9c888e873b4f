"""The page about prompts says what the code does."""

from __future__ import annotations

import re

from coeval.judging.prompts import PROMPTS, VARIABLES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "coeval" / "prompts.md").read_text(encoding="utf-8")


def test_every_prompt_and_variable_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \| \d[ ,]", PAGE, re.MULTILINE) == list(PROMPTS)
    section = PAGE.partition("| variable | in |")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {name: set() for name in PROMPTS}
    for variables, prompts in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", section, re.MULTILINE):
        for prompt in PROMPTS if prompts.strip() == "all" else re.findall(r"`(\w+)`", prompts):
            found[prompt] |= set(re.findall(r"`(\w+)`", variables))
    always = {"task_description", "output_description"}
    assert {name: variables | always for name, variables in VARIABLES.items()} == found
