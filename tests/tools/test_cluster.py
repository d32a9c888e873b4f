"""`make cluster`: a whole deployment comes up, loses a router, loses no request and no vote, and leaves nothing."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="takes HAProxy from Debian's packages")
def test_a_cluster_is_built_used_and_torn_down() -> None:
    folder = Path(tempfile.gettempdir())
    before = set(folder.glob("p2l-cluster-*"))
    words = [sys.executable, "-m", "tools.cluster", "--requests", "12", "--plain"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 requests answered" in done.stdout
    assert "4 of 4 votes stored" in done.stdout
    assert set(folder.glob("p2l-cluster-*")) <= before
