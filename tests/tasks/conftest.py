"""Where real data are, and a tokenizer small enough to read."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.words import word_tokenizer

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["a", "bad", "film", "good", "the", "very"]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real GLUE rows: THRESHER_DATA, or shared/data beside the checkout."""
    folder = Path(os.environ.get("THRESHER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs real data, and {folder} does not exist; set THRESHER_DATA")
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """[PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, then WORDS from 4."""
    return word_tokenizer(WORDS, model_max_length=12)
