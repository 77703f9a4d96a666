from types import SimpleNamespace

import pytest

from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.defaults import prune_defaults

TOKENIZER = SimpleNamespace(sep_token_id=102)


def test_what_heads_need() -> None:
    assert prune_defaults(Head(), TOKENIZER) == prune_defaults(Head(means="labels"), TOKENIZER) == {}
    reranker = prune_defaults(Head(means="score"), TOKENIZER)
    assert reranker == {"protect": ("first", "first_segment"), "separator_id": 102}
    assert PruneConfig(**reranker).collapse_last
    assert prune_defaults(Head(reads="mean", means="embedding"), TOKENIZER) == {"collapse_last": False}
    assert prune_defaults(Head(reads="first", means="embedding"), TOKENIZER) == {}


def test_a_reranker_needs_a_separator() -> None:
    with pytest.raises(ModelError, match="the tokenizer has no separator token"):
        prune_defaults(Head(means="score"), SimpleNamespace(sep_token_id=None))
