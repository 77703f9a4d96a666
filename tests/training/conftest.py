"""One thread: models this small make threads wait for each other, up to 20 times as long on a busy machine.

Rules of search are tried on the worlds of benchmarks/search_studies.py, a script that is no package's.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
