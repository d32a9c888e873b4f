import pytest

from benchmarks.quantization import main
from p2l.model import openvino


@pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")
def test_every_way_gets_a_line_beside_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--shape", "tiny", "--rounds", "1"])
    title, _, head, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("tiny shape, ")
    assert "16 tokens" in head
    assert "8 at once" in head
    names = ["transformers, bfloat16", "torch, float32", "torch, bfloat16"]
    names += ["OpenVINO, float32", "OpenVINO, bfloat16", "OpenVINO, int8"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == names
    assert lines[0].count("(1.00)") == 5
    assert "| 0.00% | 1.0000 |" in lines[1]
