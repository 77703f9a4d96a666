from types import SimpleNamespace

import pytest

from tests.models.families import BERT_LIKE, POSITIONS, logits_of, ragged, tiny_model
from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.defaults import mean_by_, positions_of, prune_defaults

TOKENIZER = SimpleNamespace(sep_token_id=102)


def test_what_heads_need() -> None:
    assert prune_defaults(Head(), TOKENIZER) == prune_defaults(Head(means="labels"), TOKENIZER) == {}
    reranker = prune_defaults(Head(means="score"), TOKENIZER)
    assert reranker == {"protect": ("first", "first_segment"), "separator_id": 102}
    assert PruneConfig(**reranker).collapse_last
    assert prune_defaults(Head(reads="mean", means="embedding"), TOKENIZER) == {"collapse_last": False}
    assert prune_defaults(Head(reads="first", means="embedding"), TOKENIZER) == {}


def test_no_head_is_trained_for_an_embedding() -> None:
    """prune refuses --finetune always with --embed, so that nobody is sent there."""
    with pytest.raises(ModelError, match="are for an embedding; give rows of the model's kind, or an embedding model$"):
        mean_by_(tiny_model("bert"), "embedding")
    with pytest.raises(ModelError, match=r"or train a new head \(thresher prune --finetune always\)"):
        mean_by_(tiny_model("bert"), "labels")


def test_a_reranker_needs_a_separator() -> None:
    with pytest.raises(ModelError, match="the tokenizer has no separator token"):
        prune_defaults(Head(means="score"), SimpleNamespace(sep_token_id=None))


@pytest.mark.parametrize("name", [*BERT_LIKE, "roberta-prelayernorm"])
def test_as_many_tokens_as_the_stock_model_has_positions_for(name: str) -> None:
    """Some families leave rows of their tables unused: what fits runs, and one token more does not."""
    model = tiny_model(name)
    most = positions_of(model, None)
    assert most == positions_of(model, 5) and POSITIONS - 2 <= most <= POSITIONS
    assert logits_of(model, ragged(model, (most,))).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        logits_of(model, ragged(model, (most + 1,)))


def test_longer_than_usual_where_that_is_asked_for() -> None:
    """DeBERTa puts distances into buckets and has no table that ends; modernbert says itself how far it reads."""
    model = tiny_model("deberta-v2")
    assert (positions_of(model, None), positions_of(model, POSITIONS + 1)) == (POSITIONS, 8192)
    assert logits_of(model, ragged(model, (POSITIONS + 1,))).isfinite().all()
    with_table = tiny_model("deberta-v2", position_biased_input=True)
    assert positions_of(with_table, None) == positions_of(with_table, 600) == POSITIONS
    assert positions_of(tiny_model("modernbert"), 600) == POSITIONS
