"""`p2l mcp` with the protocol's official client over stdin and stdout, and `p2l skill`."""

import os
import re
from pathlib import Path

import anyio
import pytest

from p2l.agents.skill import main as skill
from p2l.common.errors import InputError
from p2l.model.sentence import packaged_encoder
from p2l.public.sample import public_sample
from p2l.votes.writing import write_votes
from tests.warm import warm_python

pytest.importorskip("mcp")
needs_encoder = pytest.mark.skipif(packaged_encoder() is None, reason="the extra `encoder` is not installed")


def call(*calls: tuple[str, dict[str, object]]) -> list[object]:
    """Start a server, list its tools, and return them with the results of some calls."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def conversation() -> list[object]:
        server = StdioServerParameters(command=warm_python(), args=["-m", "p2l.cli", "mcp"], env=dict(os.environ))
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            results: list[object] = [{tool.name: tool for tool in (await session.list_tools()).tools}]
            for name, arguments in calls:
                results.append(await session.call_tool(name, arguments))
            return results

    return anyio.run(conversation)


@needs_encoder
def test_a_client_gets_boards_recommendations_and_comparisons() -> None:
    costs = {"gpt-4o": 0.012, "claude-3-haiku": 0.002, "vicuna-13b": 0.0004}
    prompt = "Solve x^2 - 5x + 6 = 0."
    tools, board, within, free, only, compared, unknown, no_costs = call(
        ("leaderboard", {"prompt": prompt, "models": [*costs, "gpt-99"]}),
        ("recommend", {"prompt": prompt, "budget": 0.01, "models": costs}),
        ("recommend", {"prompt": prompt, "models": list(costs)}),
        ("recommend", {"prompt": prompt, "models": ["gpt-4o", "gpt-99"]}),
        ("compare", {"a": "gpt-4o", "b": "vicuna-13b", "prompts": [prompt, "What is 7 times 8?"]}),
        ("leaderboard", {"prompt": prompt, "models": ["gpt-99"]}),
        ("recommend", {"prompt": prompt, "budget": 0.01}),
    )
    assert set(tools) == {"leaderboard", "recommend", "compare", "train", "votes_check"}
    assert all(tool.output_schema for tool in tools.values())
    rows = board.structured_content["rows"]
    assert [row["model"] for row in rows] == ["gpt-4o", "claude-3-haiku", "vicuna-13b"]
    assert all(row["lower"] < row["win_rate"] < row["upper"] for row in rows)
    assert board.structured_content["unknown"] == ["gpt-99"]
    assert "public P2L" in board.structured_content["by"]
    assert within.structured_content["model"] == "claude-3-haiku"
    assert within.structured_content["cost"] == 0.002
    assert free.structured_content["model"] == "gpt-4o"
    assert compared.structured_content["win_rate"] > 0.6
    assert compared.structured_content["better_on"] == 2
    assert sorted(row["prompt"] for row in compared.structured_content["rows"]) == [0, 1]
    rates = [row["win_rate"] for row in compared.structured_content["rows"]]
    assert rates == sorted(rates, reverse=True)
    assert only.structured_content["model"] == "gpt-4o"
    assert only.structured_content["reason"].endswith("knows and that the budget buys; unknown: gpt-99")
    for refused, words in ((unknown, "knows no gpt-99"), (no_costs, "a budget needs the cost of an answer")):
        assert refused.is_error
        assert words in refused.content[0].text


def test_a_client_checks_a_file_of_votes(tmp_path: Path) -> None:
    batch = public_sample(200, 0)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    write_votes([batch], batch.schema, good)
    text = good.read_text(encoding="utf-8")
    bad.write_text(re.sub('"winner": ?"model_a"', '"winner": "left"', text, count=1), encoding="utf-8")
    twice = tmp_path / "twice.jsonl"
    twice.write_text(text + text, encoding="utf-8")
    _, usable, repeated, faulty, absent = call(
        ("votes_check", {"path": str(good)}),
        ("votes_check", {"path": str(twice)}),
        ("votes_check", {"path": str(bad)}),
        ("votes_check", {"path": str(tmp_path / "none.csv")}),
    )
    assert usable.structured_content["usable"] is True
    assert usable.structured_content["votes"] == 200
    assert any("repeat" in line for line in repeated.structured_content["shown"])
    assert all(line in repeated.structured_content["report"] for line in repeated.structured_content["shown"])
    assert faulty.structured_content["usable"] is False
    assert "left" in faulty.structured_content["problems"][0]
    assert absent.is_error
    assert "none.csv" in absent.content[0].text


def test_the_skill_is_printed_and_installed_where_agents_look(capsys, tmp_path: Path) -> None:
    skill([])
    text = capsys.readouterr().out
    assert text.startswith("---\nname: p2l\ndescription: ")
    skill(["--install", str(tmp_path)])
    assert (tmp_path / "p2l" / "SKILL.md").read_text(encoding="utf-8") == text
    skill(["--install", str(tmp_path)])
    (tmp_path / "p2l" / "SKILL.md").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is there and differs"):
        skill(["--install", str(tmp_path)])
