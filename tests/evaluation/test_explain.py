"""Every reported decision is one the model made."""

import json
import math
from typing import Any

import pytest
import torch
from tokenizers import decoders

from tests.training.test_meanings import embedder
from tests.training.tiny import FILLERS, LAYERS, POSITIONS, gated_model, stock_model, tiny_tokenizer, tokenizer_for
from thresher.config import PruneConfig
from thresher.core.cost import relative_flops
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.errors import DataError, ModelError
from thresher.evaluation.explain import Explanation, explain, readable
from thresher.models.attach import encoder_shape, gates_of, prune_, unprune_
from thresher.models.heads import set_head_

SOME = (0.6, 0.9, 1.0, math.inf)
TEXT = "worda good wordb wordc wordd worde wordf wordg bad wordh"


def counts(found: Explanation) -> list[int]:
    """How many tokens each layer left, from what is said of each token."""
    return [sum(at is None or at > layer for at in found.dropped_at) for layer in range(1, found.layers + 1)]


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_decisions_are_the_traces(name: str) -> None:
    model, tokenizer = gated_model(name, thresholds=SOME), tokenizer_for(name)
    found = explain(model, tokenizer, TEXT)
    assert found.tokens == ["[CLS]", *TEXT.split(), "[SEP]"]
    assert found.layers == LAYERS and len(found.dropped_at) == len(found.tokens) == 12
    assert found.kept_per_layer == counts(found)
    assert found.kept_per_layer[-1] == 1 < found.kept_per_layer[1] < 12  # some went early, and some later
    with torch.inference_mode():
        output = model.eval()(**tokenizer(TEXT, return_tensors="pt")).logits[0]
    trace = gates_of(model).trace
    assert trace is not None
    for token, at in enumerate(found.dropped_at):
        lived = [bool(alive[0, token]) for alive in trace.alive[1:]]
        assert lived == [at is None or layer < at for layer in range(1, LAYERS + 1)]
    probabilities = torch.softmax(output, -1)
    assert found.probability == pytest.approx(probabilities.max().item(), abs=1e-6)
    assert found.label == model.config.id2label[int(probabilities.argmax())]
    assert found.value is None
    wanted = relative_flops(encoder_shape(model), torch.tensor([12]), torch.tensor([found.kept_per_layer]))
    assert found.relative_flops == pytest.approx(wanted.item())
    assert not found.truncated


@pytest.mark.parametrize("thresholds", [SOME, (math.inf,) * 4, (9.0,) * 4, (0.0, 1.0, 0.0, 2.0)])
def test_the_first_token_is_never_dropped(thresholds: tuple[float, ...]) -> None:
    found = explain(gated_model(thresholds=thresholds), tiny_tokenizer(), TEXT)
    assert found.dropped_at[0] is None
    assert found.kept_per_layer == counts(found)
    if thresholds[0] == math.inf:
        assert found.dropped_at[1:] == [1] * 11
        assert found.kept_per_layer == [1] * LAYERS


def test_layers_are_counted_from_one() -> None:
    found = explain(gated_model(thresholds=(0.0, math.inf, 0.0, 0.0)), tiny_tokenizer(), "good worda")
    assert found.tokens == ["[CLS]", "good", "worda", "[SEP]"]
    assert found.dropped_at == [None, 2, 2, 2]
    assert found.kept_per_layer == [4, 1, 1, 1]


def test_nothing_dropped() -> None:
    model = gated_model(thresholds=(-1.0,) * 4)
    found = explain(model, tiny_tokenizer(), TEXT)
    assert found.dropped_at == [None] * 12
    assert found.kept_per_layer == [12] * LAYERS and found.relative_flops == 1.0
    with torch.inference_mode():
        dense = stock_model().eval()(**tiny_tokenizer()(TEXT, return_tensors="pt")).logits[0]
    assert found.probability == pytest.approx(torch.softmax(dense, -1).max().item(), abs=1e-6)


def test_pairs() -> None:
    model, tokenizer = gated_model(thresholds=SOME), tiny_tokenizer()
    found = explain(model, tokenizer, "good worda", "bad wordb wordc")
    assert found.tokens == ["[CLS]", "good", "worda", "[SEP]", "bad", "wordb", "wordc", "[SEP]"]
    assert found.kept_per_layer == counts(found)
    with torch.inference_mode():  # the second text's token types reach the model
        output = model.eval()(**tokenizer("good worda", "bad wordb wordc", return_tensors="pt")).logits
    assert found.probability == pytest.approx(torch.softmax(output[0], -1).max().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (
            decoders.WordPiece(),
            "[CLS] good film ##s [UNK] . [SEP] caf ##é [SEP]",
            "[CLS] good films [UNK]. [SEP] café [SEP]",
        ),
        (None, "[CLS] good film ##s [UNK] [SEP] caf ##é [SEP]", "[CLS] good films [UNK] [SEP] café [SEP]"),
        (
            decoders.ByteLevel(),
            "[CLS] good ĠcafÃ© s Ġ## ##a Ġ ð Ċ [SEP] [SEP] bad [SEP]",
            "[CLS] good cafés ####a ␣� ␣ [SEP] [SEP] bad [SEP]",
        ),
        (
            decoders.Metaspace(),
            "[CLS] ▁good ▁caf é ▁ [UNK] s [SEP] ▁bad [SEP]",
            "[CLS] good café ␣[UNK]s [SEP] bad [SEP]",
        ),
    ],
)
def test_pieces_read_as_the_text(decoder: Any, tokens: str, text: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoder
    pieces = readable(tokenizer, tokens.split())
    assert len(pieces) == len(tokens.split()) and "".join(pieces) == f" {text}"


def test_every_token_has_its_piece() -> None:
    found = explain(gated_model(thresholds=SOME), tiny_tokenizer(), TEXT)
    assert found.pieces == [f" {token}" for token in found.tokens]


def test_regression_gives_a_value() -> None:
    model = gated_model(outputs=1, thresholds=SOME)
    found = explain(model, tiny_tokenizer(), TEXT)
    with torch.inference_mode():
        output = model.eval()(**tiny_tokenizer()(TEXT, return_tensors="pt")).logits
    assert found.value == pytest.approx(output.item(), abs=1e-6)
    assert found.label == "" and found.probability is None


@pytest.mark.parametrize(
    ("words", "max_length", "tokens", "truncated"),
    [(10, None, 12, False), (10, 12, 12, False), (10, 11, 11, True), (60, None, POSITIONS, True)],
)
def test_truncation_is_flagged(words: int, max_length: int | None, tokens: int, truncated: bool) -> None:
    text = " ".join(["good"] * words)
    found = explain(gated_model(), tiny_tokenizer(), text, max_length=max_length)
    assert len(found.tokens) == len(found.dropped_at) == tokens
    assert found.truncated is truncated
    assert found.tokens[-1] == "[SEP]"


def test_texts_are_as_long_as_in_training() -> None:
    model = gated_model()
    gates_of(model).about = {"recipe": {"max_length": 8}}
    found = explain(model, tiny_tokenizer(), TEXT)
    assert found.truncated and len(found.tokens) == 8
    assert len(explain(model, tiny_tokenizer(), TEXT, max_length=9).tokens) == 9


@pytest.mark.parametrize("mode", ["off", "soft", "hard"])
def test_the_mode_is_left_as_found_and_dropout_is_off(mode: str) -> None:
    model = gated_model(thresholds=SOME).train()
    gates_of(model).set_mode(mode)
    found = explain(model, tiny_tokenizer(), TEXT)
    assert gates_of(model).mode == mode
    assert found == explain(gated_model(thresholds=SOME).eval(), tiny_tokenizer(), TEXT)


def test_the_training_flag_is_left_as_found() -> None:
    for training in (True, False):
        model = gated_model(thresholds=SOME).train(training)
        explain(model, tiny_tokenizer(), TEXT)
        assert all(module.training is training for module in model.modules())


def test_mode_and_training_flag_are_left_as_found_on_an_error() -> None:
    model = gated_model(thresholds=SOME).train()
    gates_of(model).set_mode("soft")
    hook = model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        explain(model, tiny_tokenizer(), TEXT)
    hook.remove()
    assert gates_of(model).mode == "soft" and all(module.training for module in model.modules())


@pytest.mark.parametrize("text", ["", " ", "\u200b\ufffd"])
def test_a_text_that_nobody_can_see_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="the text is empty; give at least one word"):
        explain(gated_model(thresholds=SOME), tiny_tokenizer(), text)


def test_refusals() -> None:
    with pytest.raises(ModelError, match="prune_"):
        explain(stock_model(), tiny_tokenizer(), TEXT)
    with pytest.raises(DataError, match="max_length = 2 leaves no room"):
        explain(gated_model(), tiny_tokenizer(), TEXT, max_length=2)


def test_it_is_plain_data() -> None:
    found: dict[str, Any] = explain(gated_model(thresholds=SOME), tiny_tokenizer(), TEXT).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# --- heads that read every token ------------------------------------------------------------------------------------


def test_an_answer_is_shown_in_the_window_that_has_it() -> None:
    from tests.training.test_tokens import model_for

    model, tokenizer = model_for("span"), tiny_tokenizer()
    set_head_(model, Head(reads="tokens", means="span", null_threshold=1e6))
    context = " ".join(FILLERS * 4)
    found = explain(model, tokenizer, "good", context, max_length=24)
    assert found.windows > 4 and found.answer == context[found.start : found.end] and found.margin is not None
    shown = " ".join(piece for piece in found.tokens if piece not in ("[CLS]", "[SEP]", "good"))
    assert found.answer in shown and len(found.tokens) == len(found.dropped_at) <= 24
    assert found.kept_per_layer == counts(found)
    assert found.decision() == f"'{found.answer}'"
    engine = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32", max_length=24)
    assert engine.answer("good", context).start == found.start, "the engine says the same"
    assert {"answer", "start", "end", "margin"} <= set(json.loads(json.dumps(found.to_dict())))
    set_head_(model, Head(reads="tokens", means="span", null_threshold=-1e6))
    assert explain(model, tokenizer, "good", context, max_length=24).decision() == "no answer"
    with pytest.raises(DataError, match="a question is answered from a context; give both"):
        explain(model, tokenizer, "good")


def test_entities_are_shown() -> None:
    from tests.training.test_tokens import model_for

    model, tokenizer = model_for("tags"), tiny_tokenizer()
    text = "worda good wordb bad " * 3
    found = explain(model, tokenizer, text)
    engine = Engine.from_model(model, tokenizer, device="cpu", dtype="fp32")
    assert found.entities is not None
    assert [(e.label, e.start) for e in found.entities] == [(e.label, e.start) for e in engine.tag([text])[0].entities]
    assert found.kept_per_layer == counts(found) and "answer" not in found.to_dict()
    with pytest.raises(DataError, match="tags are of one text, but two were given"):
        explain(model, tokenizer, "a", "b")


def test_who_comes_back_was_dropped_all_the_same() -> None:
    model = embedder()
    unprune_(model)
    prune_(model, PruneConfig(collapse_last=False, rejoin=1))
    gates_of(model).set_thresholds([0.5, 1.0, 1.2, 0.0])
    found = explain(model, tiny_tokenizer(), TEXT)
    assert found.layers == len(found.kept_per_layer) == LAYERS
    assert found.kept_per_layer == [*counts(found)[:-1], len(found.tokens)] and None in found.dropped_at
    assert counts(found)[-1] == counts(found)[-2] < len(found.tokens)
