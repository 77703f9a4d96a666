"""Tiny models of every head, made once, and rows for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.bulk.making import make_models


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `classes`, `labels`, `value`, `score` and `embedding`."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
