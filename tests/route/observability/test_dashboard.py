"""The dashboard queries what the router exports, by labels that it has."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.route.router_helpers import HELLO, a_router

BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "router.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
LEGENDS = [(target["expr"], target["legendFormat"]) for panel in BOARD["panels"] for target in panel.get("targets", ())]


def exported(text: str) -> dict[str, set[str]]:
    """Label names by the name of the series, of a page of metrics."""
    series: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(p2l_router_\w+)(?:\{(.*?)\})? ", text, re.MULTILINE):
        series[name] |= set(re.findall(r'(\w+)="', labels))
    return series


def test_every_query_is_of_metrics_and_labels_that_the_router_exports(tmp_path: Path) -> None:
    async def main() -> dict[str, set[str]]:
        async with a_router(tmp_path, static_order=["good"]) as router:
            router.mocks["good"].fail_next("status:500", "status:500")
            body = {"messages": HELLO, "cost": 5}
            assert (await router.post("/v1/chat/completions", body))[0] == 200
            _ = [chunk async for chunk in await router.ask(stream=True)]
            router.endpoint.is_down = True
            await router.ask([{"role": "user", "content": "of another prompt"}])
            return exported((await router.get("/metrics", None))[1])

    series = asyncio.run(main())
    queried = {name for query in QUERIES for name in re.findall(r"p2l_router_\w+", query)}
    assert queried - series.keys() == set()
    families = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in series}
    assert families - {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in queried} == set(), "all are shown"
    for query, legend in LEGENDS:
        labels = {name.strip() for group in re.findall(r"by \(([^)]*)\)", query) for name in group.split(",")}
        known = set().union(*(series[name] for name in re.findall(r"p2l_router_\w+", query)))
        assert labels | set(re.findall(r"\{(\w+)=~?\"", query)) <= known, query
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, legend


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
