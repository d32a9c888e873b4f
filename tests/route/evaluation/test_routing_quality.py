"""The benchmark on public sets, on small tables in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.routing_quality.__main__ import SETS, main
from benchmarks.routing_quality.bars import bars, figures
from benchmarks.routing_quality.overview import overview
from p2l.common.errors import InputError
from route.evaluation.measuring import within
from route.evaluation.policies import Setup
from route.evaluation.report import write_results
from tests.route.evaluation.routing_tables import answers, known_table


@pytest.mark.slow
def test_the_benchmark_runs_from_start_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("route.evaluation.features.packaged_encoder", lambda: None)
    for name in ("routerbench", "routerdc"):
        answers(60).to_parquet(tmp_path / SETS[name].file)
    flags = ["--sets", "routerbench,routerdc", "--folds", "2", "--output", str(tmp_path / "out"), "--quiet"]
    main([str(tmp_path), *flags, "--told"])
    printed, details = capsys.readouterr()
    assert "### routerdc-told" in details
    assert "### routerbench-average" in details
    assert "### routerdc-average" not in details  # without costs there are no budgets
    for title in ("### A budget for each request", "### Budgets on average", "### The category is told"):
        assert title in printed
    assert printed.count("Not behind best single model by an interval: holds") == 3
    assert printed.count("Not behind k-means leaderboards by an interval:") == 3
    assert "| router's area less this | differences foreseen |" in details
    assert "Differences foreseen: the share that a policy foresees of how scores differ" in details
    assert (tmp_path / "out" / "routing.png").stat().st_size > 1000
    assert (tmp_path / "out" / "routerbench-told" / "curves.svg").is_file()
    main([str(tmp_path), "--sets", "routerbench", *flags[2:]])
    assert "told" not in capsys.readouterr().out
    with pytest.raises(InputError, match=r"'routerdcs' is unknown \(did you mean 'routerdc'\?\)"):
        main([str(tmp_path), "--sets", "routerdcs"])
    with pytest.raises(SystemExit) as asked:
        main(["--help"])
    assert asked.value.code == 0
    assert "--folds" in capsys.readouterr().out


def test_figures_and_bars_say_what_was_found(tmp_path: Path) -> None:
    results, _ = within(known_table(40), Setup("words", category=True), share=0.4, folds=1, seed=0)
    found = {"known": results}
    assert "| known |" in figures(found)
    assert "sets (bar: 3): missed" in bars(found)
    assert "less 0.002 on every set: holds" in bars(found)
    overview(found, {}, tmp_path / "all.png")
    write_results(results, tmp_path / "one", has_figures=True)
    assert "per-category best" in (tmp_path / "one" / "curves.svg").read_text(encoding="utf-8")
    assert (tmp_path / "all.png").stat().st_size > 1000
