"""What cannot be pruned is refused with a sentence, and the ways to call a pruned model all reach the gates."""

import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import thresher
from tests.models.families import (
    BERT_LIKE,
    FAMILIES,
    LAYERS,
    SOME,
    exact_attention,
    logits_of,
    prune_with_,
    pruned_model,
    ragged,
    run,
    stock_precision,
    tiny_config,
    tiny_model,
    trace_of,
)
from thresher.config import PruneConfig
from thresher.core.layer import CONVOLUTION
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import gates_of
from thresher.models.registry import family_named, supported_types

SUPPORTED = ", ".join(FAMILIES)


def raises(text: str) -> Any:
    return pytest.raises(ModelError, match=re.escape(text))


# --- refused models --------------------------------------------------------------------------------------------------


def test_supported_families_are_the_tested_ones() -> None:
    assert tuple(supported_types()) == FAMILIES
    for name in FAMILIES:
        assert name in family_named(name).model_types


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_says_what_its_layers_have(name: str) -> None:
    family, base = family_named(name), tiny_model(name).base_model
    found = frozenset().union(*(spec.features for spec in family.specs(base)))
    assert found <= family.features and found >= family.features - {CONVOLUTION, "absolute positions"}


def test_unsupported_family() -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("gpt2", vocab_size=20, **sizes))
    with raises(
        f"model family 'gpt2' is not supported; supported: {SUPPORTED}; nothing here is like it: fine-tune one"
    ):
        thresher.prune_(model)
    nearest = "; its nearest is deberta-v2, which is also that of DeBERTa-v3"
    with raises(f"model family 'deberta' is not supported; supported: {SUPPORTED}{nearest}"):
        family_named("deberta")
    assert not any("thresher" in key for key in model.state_dict())


@pytest.mark.parametrize("name", ["nomic_bert", "gte", "modernbert"])
def test_scaled_rotary_positions(name: str) -> None:
    model = tiny_model(name)
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    model.config.rope_parameters = (
        dict.fromkeys(set(model.config.layer_types), scaled) if name == "modernbert" else scaled
    )
    with raises(
        f"this {name} model is not supported: rotary positions of type 'linear' are not supported, only 'default'; "
        "modernbert, nomic_bert and gte as they are published"
    ):
        thresher.prune_(model)


@pytest.mark.parametrize(("buckets", "most"), [(1, 16), (32, 16), (31, 16), (30, 16)])
def test_buckets_that_fall_with_the_distance(buckets: int, most: int) -> None:
    with raises(
        f"this deberta-v2 model is not supported: position_buckets = {buckets} with distances of up to {most}: buckets "
        f"must be 2 at least, and half of them fewer than {most - 1}"
    ):
        thresher.prune_(tiny_model("deberta-v2", position_buckets=buckets, max_relative_positions=most))
    thresher.prune_(tiny_model("deberta-v2", position_buckets=29, max_relative_positions=16))


@pytest.mark.parametrize("loader", [AutoModel, AutoModelForMaskedLM])
@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_head(name: str, loader: Any) -> None:
    model = loader.from_config(tiny_config(name))
    with raises(f"{type(model).__name__} is not supported yet: thresher takes sequence classifiers, cross-encoders"):
        thresher.prune_(model)


def test_decoder() -> None:
    with raises("BertForSequenceClassification is configured as a decoder; only encoders can be pruned"):
        thresher.prune_(tiny_model("bert", is_decoder=True))


def test_relative_position_embeddings() -> None:
    model = tiny_model("bert")
    model.config.position_embedding_type = "relative_key"
    with raises("position_embedding_type = 'relative_key' is not supported; only 'absolute' is"):
        thresher.prune_(model)


def test_not_a_hugging_face_model() -> None:
    with raises("Linear is not a Hugging Face model; load one with from_pretrained"):
        thresher.prune_(nn.Linear(2, 2))


def test_gradient_checkpointing() -> None:
    model = tiny_model("bert")
    model.gradient_checkpointing_enable()
    with raises("gradient checkpointing is not supported; call model.gradient_checkpointing_disable() first"):
        thresher.prune_(model)
    assert not hasattr(model.bert, "thresher_gates")


def test_gradient_checkpointing_switched_on_later() -> None:
    """The recomputed forward is noticed; it must not silently prune twice."""
    model = pruned_model("bert")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    loss = model(**ragged(model)).logits.sum()
    with raises("gradient checkpointing is not supported"):
        loss.backward()


@pytest.mark.parametrize("name", FAMILIES)
def test_twice(name: str) -> None:
    model = pruned_model(name)
    inputs = ragged(model)
    before = logits_of(model, inputs)
    with raises("the model already has gates; call thresher.unprune_(model) first"):
        thresher.prune_(model, PruneConfig(final_threshold=5.0))
    assert torch.equal(logits_of(model, inputs), before), "the refused call changed nothing"


@pytest.mark.parametrize("verb", [thresher.unprune_, gates_of])
def test_without_gates(verb: Any) -> None:
    for model in (tiny_model("bert"), nn.Linear(2, 2)):
        with raises("the model has no gates; call thresher.prune_(model, PruneConfig()) first"):
            verb(model)


# --- refused inputs and thresholds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", [[0, 1, 1, 1], [0, 0, 0, 0]])
def test_left_padding_and_empty_sequences(name: str, mask: list[int]) -> None:
    model = pruned_model(name)
    inputs = ragged(model, (4, 4))
    inputs["attention_mask"][1] = torch.tensor(mask)
    with raises("a sequence starts with padding or is empty; pad on the right and give every sequence a first token"):
        model(**inputs)
    gates_of(model).set_mode("off")
    assert logits_of(model, inputs).shape == (2, 3), "the stock model takes them"


@pytest.mark.parametrize("name", [*BERT_LIKE, "roberta-prelayernorm"])  # others have no encoder apart
def test_encoder_called_by_itself(name: str) -> None:
    model = pruned_model(name)
    base = model.base_model
    encoder = base.transformer if name == "distilbert" else base.encoder
    hidden = torch.zeros(1, 3, 16 if name == "albert" else 32, dtype=torch.float64)
    with raises("the encoder was called by itself; call the whole model, which tells the gates what is padding"):
        encoder(hidden, attention_mask=None)


def test_wrong_thresholds() -> None:
    gates = gates_of(pruned_model("bert"))
    before = gates.thresholds.detach().clone()
    with pytest.raises(ConfigError, match="^3 thresholds given for a model with 4 layers$"):
        gates.set_thresholds([1.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match="contain NaN; every threshold must be a number or infinity"):
        gates.set_thresholds([1.0, math.nan, 1.0, 1.0])
    with pytest.raises(ConfigError, match="contain NaN"):
        gates.set_thresholds(torch.full((4,), math.nan))
    assert torch.equal(gates.thresholds.detach(), before)
    gates.set_thresholds(torch.tensor([0.0, -1.0, math.inf, -math.inf]))
    assert gates.thresholds.tolist() == [0.0, -1.0, math.inf, -math.inf]


def test_wrong_modes() -> None:
    gates = gates_of(pruned_model("bert"))
    with pytest.raises(ConfigError, match="^mode = 'on' is not one of: off, soft, hard$"):
        gates.set_mode("on")
    with pytest.raises(ConfigError, match="^soft_mask = 'hard' is not one of: cumulative, plain, straight$"):
        gates.set_mode("soft", soft_mask="hard")
    assert (gates.mode, gates.soft_mask) == ("hard", "cumulative")


# --- ways to call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_by_name_by_position_or_left_out(name: str) -> None:
    model = pruned_model(name)
    inputs = ragged(model, (9, 5))
    wanted, trace = run(model, inputs)
    kept = trace.kept()
    with torch.no_grad():
        found = model(inputs["input_ids"], inputs["attention_mask"]).logits
        assert torch.equal(found, wanted) and torch.equal(trace_of(model).kept(), kept)
        model.base_model(inputs["input_ids"], inputs["attention_mask"])
    assert torch.equal(trace_of(model).kept(), kept)

    whole = ragged(model, (9, 9))
    wanted, trace = run(model, whole)
    kept = trace.kept()
    with torch.no_grad():
        assert torch.equal(model(whole["input_ids"]).logits, wanted)
        assert torch.equal(trace_of(model).kept(), kept)
        model(inputs_embeds=model.get_input_embeddings()(whole["input_ids"]))
    assert trace_of(model).lengths().tolist() == [9, 9]
    assert (trace_of(model).kept()[:, -1] < 9).all()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "distilbert"])  # which takes none
def test_positions_that_are_given(name: str) -> None:
    """Nothing is dropped: the stock model's answers; and then the same with and without dropped tokens' slots."""
    plain, model = (tiny_model(name, attention=exact_attention(name)) for _ in range(2))
    prune_with_(model, (-math.inf,) * LAYERS)
    inputs = ragged(model, (16, 11))
    own = torch.arange(16).expand(2, -1) + (2 if name in ("roberta", "xlm-roberta", "camembert") else 0)
    places = torch.stack([own[0] * 2, own[1].flip(0)])
    wanted, found = (logits_of(side, {**inputs, "position_ids": places}) for side in (plain, model))
    torch.testing.assert_close(found, wanted, atol=max(1e-9, stock_precision(name)), rtol=0)
    if name != "deberta-v2":  # which goes by distances between places in the text
        assert (wanted - logits_of(plain, inputs)).abs().max() > 1e-2
    with torch.no_grad():
        base, arguments = model.base_model, [inputs["input_ids"], inputs["attention_mask"]]
        by_name = base(*arguments, position_ids=places[:1])[0]
        between = () if name in ("modernbert", "mpnet") else (None,)  # token types
        assert torch.equal(base(*arguments, *between, places[:1])[0], by_name), "by their place in the call, too"

    gates_of(model).set_thresholds(SOME)
    whole = logits_of(model, {**inputs, "position_ids": places})
    with gates_of(model).shortening():
        torch.testing.assert_close(logits_of(model, {**inputs, "position_ids": places}), whole, atol=1e-9, rtol=0)
    assert trace_of(model).outputs[-1].live.shape[1] < 16, "slots are fewer than tokens"


def test_segments_reach_the_pruned_model() -> None:
    model = pruned_model("bert")
    inputs = ragged(model, (9,))
    plain = logits_of(model, inputs)
    segments = torch.tensor([[0] * 4 + [1] * 5])
    assert (logits_of(model, {**inputs, "token_type_ids": segments}) - plain).abs().max() > 1e-3


def test_labels_give_a_loss() -> None:
    model = pruned_model("distilbert")
    inputs = ragged(model, (9, 5))
    found = model(**inputs, labels=torch.tensor([0, 2]))
    wanted = torch.nn.functional.cross_entropy(found.logits, torch.tensor([0, 2]))
    torch.testing.assert_close(found.loss, wanted)


def test_through_a_data_parallel_wrapper() -> None:
    model = pruned_model("bert")
    wrapped = nn.DataParallel(model)
    assert gates_of(wrapped) is gates_of(model)
    thresher.unprune_(wrapped)
    with raises("the model has no gates"):
        gates_of(model)


def test_two_models_of_one_family_do_not_share_gates() -> None:
    one, two = pruned_model("bert"), pruned_model("bert", (math.inf,) * LAYERS)
    inputs = ragged(one)
    before, _ = run(one, inputs)
    _, shut = run(two, inputs)
    assert (shut.kept() == 1).all()
    thresher.unprune_(two)
    assert torch.equal(run(one, inputs)[0], before)
    assert type(one.bert.encoder.layer[0]).__name__ == "PrunedBertLayer"


def test_thresholds_travel_in_the_state() -> None:
    model, other = pruned_model("mpnet"), pruned_model("mpnet", (9.0,) * LAYERS, seed=5)
    other.load_state_dict(model.state_dict())
    assert gates_of(other).thresholds.tolist() == torch.tensor(SOME).tolist()
    inputs = ragged(model)
    assert torch.equal(logits_of(other, inputs), logits_of(model, inputs))


def test_regression_head() -> None:
    model = tiny_model("roberta", num_labels=1)
    prune_with_(model)
    logits, trace = run(model, ragged(model))
    assert logits.shape == (5, 1)
    assert (trace.kept()[:, -1] < trace.lengths()).any()


def test_weights_can_change_between_passes() -> None:
    """The layer is taken apart anew in every pass, so replaced or trained weights are the ones that count."""
    model = pruned_model("bert")
    inputs = ragged(model)
    before = logits_of(model, inputs)
    with torch.no_grad():
        model.bert.encoder.layer[2].intermediate.dense.weight.mul_(2.0)
    assert (logits_of(model, inputs) - before).abs().max() > 1e-4


# --- ways to keep a pruned model -------------------------------------------------------------------------------------


def test_a_state_dict_has_weights_and_gates() -> None:
    model, other = pruned_model("bert", SOME), pruned_model("bert", (0.1,) * LAYERS, seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits_of(other, ragged(model)), logits_of(model, ragged(model)))


def test_save_pretrained_keeps_the_stock_model(tmp_path: Path) -> None:
    model = pruned_model("bert", SOME).float()
    model.save_pretrained(tmp_path)
    found, about = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert about["unexpected_keys"] == {"bert.thresher_gates.thresholds"} and not about["missing_keys"]
    gates_of(model).set_mode("off")
    assert torch.equal(logits_of(found.eval(), ragged(model)), logits_of(model, ragged(model)))


def test_a_whole_model_cannot_be_pickled(tmp_path: Path) -> None:
    with pytest.raises(pickle.PicklingError, match="PrunedBertLayer"):
        torch.save(pruned_model("bert"), tmp_path / "model.pt")
