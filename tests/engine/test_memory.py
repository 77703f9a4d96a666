"""What a batch frees, the next one finds again: no new pages for every layer."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource

import torch

from thresher.engine.backends.cpu import keep_freed_memory

keep_freed_memory()
for turn in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(10 * 2**20, dtype=torch.uint8) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_a_turn(**malloc: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | malloc
    command = [sys.executable, "-c", SCRIPT]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other habits")
def test_freed_memory_is_kept_unless_the_user_decided_otherwise() -> None:
    # Without either, it is a matter of what else was freed before, and of where in the heap.
    decided = faults_of_a_turn(MALLOC_MMAP_THRESHOLD_="1048576")
    assert faults_of_a_turn() < 16 < decided, "new pages for every block, or for none"
