"""One thread, because handing over such small products takes far longer than computing them; and a saved run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.models.families import pruned_model
from tests.models.saved import THRESHOLDS
from thresher.models.checkpoint import save


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module")
def model() -> Any:
    return pruned_model("bert", THRESHOLDS).float()


@pytest.fixture
def saved(tmp_path: Path, model: Any, tokenizer: Any) -> Path:
    save(model, tokenizer, tmp_path / "run", about={"recipe": "default", "quality": {"accuracy": 0.5}})
    return tmp_path / "run"
