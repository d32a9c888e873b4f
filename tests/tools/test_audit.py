"""What is locked is looked up in a database of advisories in OSV's format."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.audit import DatabaseError, advisories, findings, locked, main


def advisory(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"id": f"PYSEC-{name}", "summary": "it breaks", "affected": [affected], **more}


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}], ["1.9", "1.10", "2.0rc1", "2.0", "3"]),
        ([{"introduced": "0"}, {"fixed": "2.0"}], ["1.9", "1.10", "2.0rc1"]),
        ([{"introduced": "1.10"}, {"last_affected": "2.0"}], ["1.10", "2.0rc1", "2.0"]),
        ([{"introduced": "0"}, {"fixed": "1.10"}, {"introduced": "2.0"}, {"fixed": "3"}], ["1.9", "2.0"]),
    ],
)
def test_versions_are_compared_as_versions(events: list[dict[str, str]], affected: list[str]) -> None:
    versions = {"1.9", "1.10", "2.0rc1", "2.0", "3"}
    found = findings({"some-name": versions}, iter([advisory("Some_Name", *events)]))
    assert {each.version for each in found} == set(affected)


def test_listed_versions_count_and_withdrawn_advisories_do_not() -> None:
    entry = advisory("a")
    entry["affected"][0]["versions"] = ["1.0"]
    assert [each.advisory for each in findings({"a": {"1.0"}, "b": {"1.0"}}, iter([entry]))] == ["PYSEC-a"]
    assert findings({"a": {"1.0"}}, iter([entry | {"withdrawn": "2026-01-01T00:00:00Z"}])) == []


@pytest.mark.parametrize("form", ["file", "list", "folder", "zip"])
def test_what_is_locked_is_found_in_every_form_of_a_database(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = min(locked()["starlette"])
    entry = advisory("starlette", {"introduced": "0"}, {"fixed": "999"})
    path = tmp_path / "database"
    if form == "folder":
        path.mkdir()
        (path / "one.json").write_text(json.dumps(entry))
    elif form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("one.json", json.dumps(entry))
    else:
        path.write_text(json.dumps(entry if form == "file" else [entry]))
    assert main(["--osv", str(path)]) == 1
    assert f"starlette {version}: PYSEC-starlette (fixed in 999) it breaks" in capsys.readouterr().out
    assert "torch" in locked()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "[]", '{"id": "GO-1", "affected": [{"package": {"ecosystem": "Go", "name": "starlette"}}]}'],
)
def test_a_database_in_which_nothing_can_be_found_does_not_pass(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "database.json"
    path.write_text(text)
    assert main(["--osv", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(DatabaseError):
        findings({}, advisories(tmp_path / "none"))
