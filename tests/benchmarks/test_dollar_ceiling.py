"""The benchmark of dollar ceilings, on few requests."""

from __future__ import annotations

import pytest

from benchmarks.dollar_ceiling import CEILINGS, SCENARIOS, main
from p2l.common.errors import InputError


def test_every_scenario_has_a_row_for_each_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--requests", "1000", "--seeds", "1"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(SCENARIOS) * len(CEILINGS)
    assert all(row.startswith("| synthetic, ") for row in rows)


def test_fewer_requests_than_a_block_are_refused() -> None:
    with pytest.raises(InputError, match="--requests 999: a ceiling is kept in blocks of 1,000"):
        main(["--requests", "999"])
