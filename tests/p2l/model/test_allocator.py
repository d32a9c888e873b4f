import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys, torch
from p2l.model.allocator import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
def use():
    for _ in range(20):
        (torch.ones(16_000_000) + 1).sum()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS, how], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("no glibc here")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_used_again_without_being_cleared() -> None:
    assert faults("keep") < faults("plain") / 10
