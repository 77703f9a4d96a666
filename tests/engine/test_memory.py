"""What a batch frees, the next one finds again: no new pages for every layer."""

import os
import platform
import subprocess
import sys

import pytest

# What malloc says that it holds, and not the kernel's faults of pages: those are also of what else is going on.
SCRIPT = """
import ctypes

import torch

from thresher.engine.backends.cpu import keep_freed_memory


class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field_{number}", ctypes.c_int) for number in range(10)]


def held():
    mallinfo = ctypes.CDLL(None).mallinfo
    mallinfo.restype = Mallinfo
    return mallinfo().field_8  # fordblks: bytes that are free and not given back


keep_freed_memory()
for turn in range(4):
    blocks = [torch.ones(10 * 2**20, dtype=torch.uint8) for _ in range(4)]
    before = held()
    del blocks
print(held() - before)
"""


def kept_of_what_was_freed(**malloc: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | malloc
    command = [sys.executable, "-c", SCRIPT]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other habits")
def test_freed_memory_is_kept_unless_the_user_decided_otherwise() -> None:
    decided = kept_of_what_was_freed(MALLOC_MMAP_THRESHOLD_="1048576")
    assert decided < 2**20 and kept_of_what_was_freed() > 39 * 2**20, "all is given back, or nothing"
