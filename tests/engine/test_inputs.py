"""Which tokens of a packed batch are protected: by the attached model's rule, asked once for all texts."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.makers import cpu, engine_with
from tests.models.families import LAYERS, SEPARATOR, prune_with_, tiny_model
from thresher.core.gates import protected_tokens
from thresher.core.plan import PruningPlan
from thresher.engine import inputs
from thresher.engine.executor import made_up_texts
from thresher.engine.inputs import protected_rows
from thresher.engine.ragged import Ragged
from thresher.errors import ModelError

PROTECT = (("first",), ("first", "separators"), ("first", "first_segment"), ("separators",), ("first_segment",))
TEXTS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=8)


@given(texts=TEXTS, protect=st.sampled_from(PROTECT), separator=st.sampled_from([0, 3]))
def test_a_text_has_the_same_tokens_protected_as_alone(
    texts: list[list[int]], protect: tuple[str, ...], separator: int
) -> None:
    """Also where padding, 0, is the separator."""
    plan = PruningPlan((1.0,), protect=protect, separator_id=separator)
    alone = [
        protected_tokens(
            protect,
            alive=torch.ones(1, len(text), dtype=torch.bool),
            input_ids=torch.tensor([text]),
            separator_id=separator,
        )[0]
        for text in texts
    ]
    found = protected_rows(Ragged.pack([torch.tensor(text) for text in texts]), plan)
    assert found.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("protect", PROTECT)
def test_the_rule_is_asked_once_for_all_texts(protect: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand documents, one by one, would keep a GPU waiting for longer than it computes."""
    asked = []

    def counted(*args: Any, **more: Any) -> Any:
        asked.append(args)
        return protected_tokens(*args, **more)

    monkeypatch.setattr(inputs, "protected_tokens", counted)
    texts = Ragged.pack([torch.tensor([2, 5, 3, 6, 3])] * 1000)
    protected_rows(texts, PruningPlan((1.0,), protect=protect, separator_id=3))
    assert len(asked) <= 1


def test_made_up_texts_are_computed_where_separators_alone_stay() -> None:
    """As texts do, they end with one: a server warms up with them, and could not start."""
    model = tiny_model("bert", means="tags")
    prune_with_(model, (5.0,) * LAYERS, protect=("separators",), separator_id=SEPARATOR)
    executor = engine_with(model, cpu())
    for batch in made_up_texts(executor, [(3, 16), (2, 1)]):
        assert executor.compute(batch).kept.min() >= 1
        executor.warm_up([batch])


def test_a_text_without_a_separator_that_loses_all_its_tokens_is_one_clear_error() -> None:
    """Only ids without special tokens have none, so that nothing can be said of the setting before them."""
    model = tiny_model("bert", means="tags")
    prune_with_(model, (5.0,) * LAYERS, protect=("separators",), separator_id=SEPARATOR)
    with pytest.raises(ModelError, match=r"a text lost all its tokens, of which protect = \['separators'\] names none"):
        engine_with(model, cpu()).compute([[11, 12, 13], [21, 22, SEPARATOR]])
