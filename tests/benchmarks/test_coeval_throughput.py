from __future__ import annotations

import re

import pytest

from benchmarks.coeval_throughput import main


@pytest.mark.slow
def test_it_prints_the_rate_beside_that_of_a_pool_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--calls 20 --baseline-calls 10 --rounds 1 --latency 0.01 --concurrency 8 --records 20"
    main(flags.split())
    said = capsys.readouterr().out
    assert re.search(r"\| response phase, `concurrency: 8` \| \d+ \[", said)
    assert re.search(r"\| 10 threads with OpenAI's client \| \d+ \[", said)
    assert re.search(r"\| 20 \| [\d,]+ \| (\d+ MB \| ){2}\d+ MB \|", said)
