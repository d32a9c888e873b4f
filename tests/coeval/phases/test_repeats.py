"""Items that repeat each other: refused, asked again, counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coeval.phases.items import TeacherPrompts
from coeval.storage.records import read_records
from coeval.storage.run import Run
from coeval.storage.store import Store
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config


def test_a_teacher_that_repeats_itself_makes_one_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = json.dumps({"prompt": "Write to the landlord about the roof.", "response": "Dear landlord"})
    models = [model("ant", roles=["teacher"], text=item), model("bee"), model("cat", roles=["judge"])]
    task: dict[str, Any] = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 3}}
    assert coeval("run", "--config", write_config(tmp_path, models, [task], generation_retries=1)) == 0
    assert len(records(run_of(tmp_path), "data_generation")) == 1
    assert len(list(read_records(run_of(tmp_path).repeats))) == 2
    assert "the prompt repeats that of mail__ant__0000" in run_of(tmp_path).errors.read_text()
    capsys.readouterr()
    assert coeval("status", "--run", run_of(tmp_path).folder) == 0
    assert "1 of 3 items in 1 files, 2 refused as they repeat others" in capsys.readouterr().out


def test_an_item_may_keep_its_prompt_and_another_teacher_may_have_it(tmp_path: Path) -> None:
    with Store(Run(tmp_path)) as store:
        prompts = TeacherPrompts(store, "mail", "ant")
        assert prompts.claim("one", "Write to the landlord about the leaking roof of the house.") is None
        assert prompts.claim("one", "Write to the landlord about the leaking roof of the house.") is None
        reason = prompts.claim("two", "write to the landlord, about the leaking roof of the house!")
        assert reason == "the prompt repeats that of one, exactly or nearly"
        assert prompts.claim("two", "Thank a neighbour for a cake.") is None
        assert TeacherPrompts(store, "mail", "bee").claim("three", "Thank a neighbour for a cake.") is None
