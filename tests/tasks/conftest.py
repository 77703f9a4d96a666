"""Where real data are, and a tokenizer small enough to read."""

import os
from pathlib import Path
from typing import Any

import pytest

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
    """BERT's wrapping around six words: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, then WORDS from 4."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=12,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
