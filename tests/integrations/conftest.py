"""Tiny stock models of sentence-transformers, as scripts have them in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from tests.models.sentences import cross_encoder_folder, embedder_folder

PROMPTS = {"prompts": {"query": "query : ", "document": "passage : "}, "default_prompt_name": None}


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Handing over such small products takes far longer than computing them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def embedder(tmp_path: Path) -> Any:
    return SentenceTransformer(str(embedder_folder(tmp_path / "embedder", settings=PROMPTS)), device="cpu")


@pytest.fixture
def reranker(tmp_path: Path) -> Any:
    return CrossEncoder(str(cross_encoder_folder(tmp_path / "reranker")), device="cpu")
