"""Pages run as they are printed: in order, in one shell, and a failure names the block."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT

PAGE = """# A page

```yaml
# made.yaml
answer: 42
```

```bash
make install && source nowhere/activate    # which has been done
sleep 600 & echo $! > background
NAME=kept
```

Between two blocks.

<!-- not run: needs a machine that nobody has -->
```bash
exit 9
```

```python
from pathlib import Path

Path("read").write_text(Path("made.yaml").read_text())
```

```json
{"shown": "alone"}
```

```bash
echo "$NAME" > name
```
"""


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tools.run_docs", str(page), "--keep", str(folder)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


def test_blocks_run_in_order_in_one_shell(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    done = run(page, tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run/read").read_text() == "# made.yaml\nanswer: 42\n"
    assert (tmp_path / "run/name").read_text() == "kept\n"
    assert "page.md:17: needs a machine that nobody has" in done.stdout
    assert "page.md: 4 blocks" in done.stdout
    background = int((tmp_path / "run/background").read_text())
    while not is_gone(background):  # the signal is sent; the system ends the process when it finds the time
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_a_block_that_fails_is_named_with_its_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\nsleep 600 &\nprintf fine\n```\n\n```bash\necho what went wrong; false\necho unreached\n```\n", "utf-8"
    )
    done = run(page, tmp_path / "run")
    assert done.returncode == 1
    assert "page.md:6: failed" in done.stdout  # though the pipe is still open, and the line before it without end
    assert "what went wrong" in done.stdout
    assert "unreached" not in done.stdout


def test_the_shell_of_a_page_is_that_of_the_path(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\ncommand -v python > where\n```\n", "utf-8")
    assert run(page, tmp_path / "run").returncode == 0
    assert (tmp_path / "run/where").read_text().strip() in {
        str(Path(folder) / "python") for folder in os.environ["PATH"].split(os.pathsep)
    }
