"""A model that trains in int8 against the engine that runs in it: the same numbers, layer by layer, and decisions.

Both round the same values, so they differ by float32's rounding, and where that moves a value across a byte's edge, by
what one byte makes.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.makers import cpu, engine_with
from tests.engine.test_engine import SCORES, sequences
from tests.engine.test_find_scales import scales_of
from tests.engine.test_parity import Layers, _texts
from tests.models.families import FAMILIES, LAYERS, pruned_model, ragged, run
from thresher.engine.backends.linear import check_int8
from thresher.engine.rounding import round_, unround_
from thresher.engine.weights import LayerScales
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import gates_of
from thresher.models.registry import family_of

EPSILON = 1e-4  # of states and outputs, whose spread is about 1
ACROSS = 0.1  # share of the texts that may be further apart, by a few bytes' worth: somewhere a byte is another one
BYTES = 0.1
LENGTHS = (11, 1, 7, 3, 16, 23, 40, 9)

try:
    check_int8()
except ConfigError as why:
    pytest.skip(str(why), allow_module_level=True)


def outputs_of_layers(model: Any, inputs: dict[str, Tensor]) -> tuple[list[Tensor], Any]:
    """(batch, tokens, width) of every layer pass, and the trace."""
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    hooks = [layer.register_forward_hook(keep) for layer in family_of(model).layers(model.base_model)]
    _, trace = run(model, inputs)
    for hook in hooks:
        hook.remove()
    return seen, trace


def alike(ours: Tensor, theirs: Tensor, texts: Tensor | None = None) -> bool:
    """(rows, ...) each; texts: (rows,) whose text a row is of, if not each of its own."""
    difference = (ours - theirs).abs().reshape(len(ours), -1).amax(dim=1)
    texts = torch.arange(len(ours)) if texts is None else texts
    apart = texts[difference > EPSILON].unique()
    return len(apart) <= ACROSS * len(texts.unique()) + 1 and float(difference.max()) < BYTES


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_gives_what_the_engine_gives_in_int8(name: str, score: str) -> None:
    model = pruned_model(name, score=score).float()
    inputs, scales = ragged(model, LENGTHS), scales_of(model, LENGTHS)
    engine = engine_with(model, cpu("int8-static", scales))
    layers = Layers(engine, sequences(inputs))
    plain, _ = outputs_of_layers(model, inputs)
    round_(model, scales)
    found, trace = outputs_of_layers(model, inputs)
    for index, (_, runs, scores, _) in enumerate(layers.seen):
        alive = torch.zeros_like(trace.alive[index])
        alive[_texts(runs), runs.positions] = True
        assert torch.equal(alive, trace.alive[index])
        assert alike(trace.scores[index][_texts(runs), runs.positions], scores, _texts(runs))
    # What layer i gave is what layer i + 1 was seen with.
    for index in range(1, len(layers.seen)):
        hidden, runs = layers.seen[index][:2]
        places = _texts(runs), runs.positions
        assert alike(found[index - 1][places], hidden[: len(runs.positions)], places[0])
        assert not alike(plain[index - 1][places], hidden[: len(runs.positions)], places[0]), "int8 loses more"
    assert len(layers.seen) == LAYERS - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_decisions_of_whole_texts(name: str) -> None:
    """All the texts here keep the same tokens, and nearly all must anywhere."""
    model = pruned_model(name).float()
    many = ragged(model, LENGTHS * 4)
    scales = scales_of(model, LENGTHS)
    output = engine_with(model, cpu("int8-static", scales)).compute(sequences(many))
    round_(model, scales)
    logits, trace = run(model, many)
    same = (trace.kept()[:, :-1] == output.kept[:, :-1]).all(dim=1)
    assert float(same.float().mean()) >= 0.9
    assert alike(logits[same], output.outputs[same])


def test_an_activation_that_is_not_gelu() -> None:
    model = pruned_model("bert", changes={"hidden_act": "relu"}).float()
    inputs, scales = ragged(model, LENGTHS), scales_of(model, LENGTHS)
    output = engine_with(model, cpu("int8-static", scales)).compute(sequences(inputs))
    round_(model, scales)
    assert alike(run(model, inputs)[0], output.outputs)


def test_gates_that_are_off_round_nothing() -> None:
    model = pruned_model("bert").float()
    inputs, scales = ragged(model, LENGTHS), scales_of(model, LENGTHS)
    gates_of(model).set_mode("off")
    before = model(**inputs).logits
    round_(model, scales)
    assert torch.equal(model(**inputs).logits, before)


def test_it_goes_with_the_model_and_leaves_no_trace() -> None:
    model = pruned_model("bert").float()
    inputs, names = ragged(model, LENGTHS), set(model.state_dict())
    before = run(model, inputs)[0]
    round_(model, scales_of(model, LENGTHS))
    assert torch.equal(run(copy.deepcopy(model), inputs)[0], run(model, inputs)[0])
    assert len(model.state_dict()) > len(names), "it is part of a saved state"
    unround_(model)
    assert set(model.state_dict()) == names and torch.equal(run(model, inputs)[0], before)


def test_all_products_get_gradients() -> None:
    model = pruned_model("bert", (0.0,) * LAYERS).float()
    round_(model, scales_of(model, LENGTHS))
    model(**ragged(model, LENGTHS)).logits.square().sum().backward()
    for layer in family_of(model).layers(model.base_model):
        parts = family_of(model).parts(layer)
        for linear in (*parts.qkv, parts.attention_output, *parts.ffn_in, parts.ffn_out):
            assert linear.weight.grad is not None and float(linear.weight.grad.abs().max()) > 0


def test_scales_of_another_model_are_refused() -> None:
    model = pruned_model("bert").float()
    scales = scales_of(model, LENGTHS)
    narrow = [LayerScales(s.qkv[:-1], s.attention_output[:-1], s.ffn_in[:-1], s.ffn_out) for s in scales]
    for wrong in (scales[:-1], narrow):
        with pytest.raises(ModelError, match="int8 scales are for .* quantize the run again"):
            round_(model, wrong)
