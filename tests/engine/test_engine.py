"""The engine drops what the attached model masks: same decisions, same logits, for every family and backend."""

import math
from typing import Any

import pytest
import torch

from tests.engine.makers import cpu, engine_with, reference
from tests.models.families import FAMILIES, LAYERS, LENGTHS, SEPARATOR, SOME, in_pairs, prune_with_, ragged, tiny_model
from thresher.engine.backends import attention
from thresher.engine.backends.cpu import Cpu
from thresher.engine.backends.linear import LINEARS
from thresher.engine.engine import Engine
from thresher.engine.ragged import idle_rows
from thresher.engine.weights import activation_name, read_weights
from thresher.errors import ConfigError, ModelError
from thresher.models.attach import gates_of

SCORES = ("attention", "value")


def sequences(inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    lengths = inputs["attention_mask"].sum(dim=-1).tolist()
    return [row[:length].tolist() for row, length in zip(inputs["input_ids"], lengths, strict=True)]


def attached(name: str, thresholds: tuple[float, ...] = SOME, *, seed: int = 0, **settings: Any) -> Any:
    model = tiny_model(name, seed=seed)
    prune_with_(model, thresholds, **settings)
    return model


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_dropping_equals_masking_to_the_last_digit(name: str, score: str) -> None:
    model = attached(name, score=score)
    inputs = ragged(model)
    with torch.inference_mode():
        expected = model(**inputs).logits
    trace = gates_of(model).trace
    assert trace is not None
    output = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(output.outputs, expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(output.kept[:, :-1], trace.kept()[:, :-1])
    assert int(output.kept[:, -2].sum()) < sum(LENGTHS)


VARIANTS: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "separators": (SOME, {"protect": ("first", "separators"), "separator_id": SEPARATOR}),
    "first segment": (SOME, {"protect": ("first", "first_segment"), "separator_id": SEPARATOR}),
    "paper scale": ((0.05, 0.08, 0.1, 0.1), {"scale": "paper"}),
    "all but the first at layer 2": ((0.5, math.inf, 0.5, 0.5), {}),
    "first tokens alone from layer 2 on, nothing to compare": ((0.0, math.inf, 0.0, 0.0), {}),
    "first tokens alone from layer 1 on": ((math.inf, 0.5, 0.5, 0.5), {}),
    "all but separators at layer 2": (
        (0.5, math.inf, 0.5, 0.5),
        {"protect": ("first", "separators"), "separator_id": SEPARATOR},
    ),
    "quiet and negative": ((0.0, -1.0, 0.9, 0.0), {}),
}


@pytest.mark.parametrize(("name", "variant", "score"), in_pairs(FAMILIES, tuple(VARIANTS), SCORES))
def test_every_rule_of_the_gates_holds_in_the_engine(name: str, variant: str, score: str) -> None:
    """Also with separators and with padding ids inside a text, which RoBERTa's kind leaves out of its positions."""
    thresholds, settings = VARIANTS[variant]
    model = attached(name, thresholds, score=score, **settings)
    inputs = ragged(model)
    inputs["input_ids"][0, 4] = inputs["input_ids"][4, 9] = SEPARATOR
    inputs["input_ids"][2, 3] = model.config.pad_token_id
    with torch.inference_mode():
        expected = model(**inputs).logits
    trace = gates_of(model).trace
    assert trace is not None
    output = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(output.outputs, expected, atol=1e-9, rtol=1e-9)
    assert torch.equal(output.kept[:, :-1], trace.kept()[:, :-1])
    fast = engine_with(model, cpu()).compute(sequences(inputs))
    assert torch.equal(fast.kept, output.kept)
    torch.testing.assert_close(fast.outputs, expected.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("score", SCORES)
def test_big_groups_are_computed_in_pieces(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached("mpnet", score=score)
    inputs = sequences(ragged(model, (7, 7, 7, 7, 7, 3)))
    whole = engine_with(model, cpu()).compute(inputs)
    monkeypatch.setattr(attention, "TILE", 2 * 4 * 7 * 7)
    pieces = engine_with(model, cpu()).compute(inputs)
    assert torch.equal(whole.kept, pieces.kept)
    torch.testing.assert_close(whole.outputs, pieces.outputs)


def test_token_types_of_one_text_do_not_change_another() -> None:
    engine = engine_with(attached("bert"), cpu())
    ids = [[11, 12, 13], [14, 15]]
    alone = engine.compute([ids[0]], [[0, 1, 1]])
    mixed = engine.compute(ids, [[0, 1, 1], None])
    torch.testing.assert_close(mixed.outputs[0], alone.outputs[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(alone.outputs[0], engine.compute([ids[0]]).outputs[0], atol=1e-3)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_fast_backend_agrees_with_the_reference(name: str, score: str) -> None:
    model = attached(name, score=score)
    inputs = sequences(ragged(model, (11, 1, 7, 3, 16, 7, 7, 16)))
    slow = engine_with(model, reference(torch.float32)).compute(inputs)
    fast = engine_with(model, cpu("fp32")).compute(inputs)
    torch.testing.assert_close(fast.outputs, slow.outputs.float(), atol=1e-4, rtol=1e-4)
    assert torch.equal(fast.kept, slow.kept)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_a_text_does_not_notice_its_neighbours(name: str, score: str, dtype: str) -> None:
    model = attached(name, score=score)
    inputs = sequences(ragged(model))
    engine = engine_with(model, cpu(dtype))
    together = engine.compute(inputs)
    for row, ids in enumerate(inputs):
        alone = engine.compute([ids])
        assert torch.equal(alone.kept[0], together.kept[row])
        torch.testing.assert_close(alone.outputs[0], together.outputs[row], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_low_precision_stays_near(name: str, dtype: str) -> None:
    """Values under the same decisions: nothing pruned, error against fp32 at most a few percent of the spread."""
    model = tiny_model(name)
    inputs = sequences(ragged(model))
    exact = engine_with(model, reference()).compute(inputs).outputs
    low = engine_with(model, cpu(dtype)).compute(inputs).outputs
    assert (low - exact).abs().mean() < 0.1 * exact.std()


@pytest.mark.parametrize("score", SCORES)
def test_dial(score: str) -> None:
    model = attached("bert", score=score)
    inputs = sequences(ragged(model))
    kept = [engine_with(model, cpu(), dial).compute(inputs).kept[:, :-1].sum() for dial in (0.0, 0.5, 1.0, 2.0)]
    assert kept == sorted(kept, reverse=True) and kept[0] == sum(LENGTHS) * (LAYERS - 1) and kept[-1] < kept[1]
    for dial in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="dial = "):
            engine_with(model, cpu(), dial)


def test_a_dense_model_is_an_engine_without_thresholds() -> None:
    model = tiny_model("bert")
    inputs = ragged(model)
    with torch.inference_mode():
        expected = model(**inputs).logits.float()
    output = Engine.from_model(model, None, device="cpu", dtype="fp32").executor.compute(sequences(inputs))
    torch.testing.assert_close(output.outputs, expected, atol=1e-4, rtol=1e-4)


def test_bad_input() -> None:
    engine = Engine.from_model(tiny_model("bert"), None, device="cpu", dtype="fp32").executor
    with pytest.raises(ModelError, match="at least one token"):
        engine.compute([[1, 2], []])
    with pytest.raises(ModelError, match="at least one token"):
        engine.compute([])
    with pytest.raises(ModelError, match="65 tokens are more than the model's 64 positions"):
        engine.compute([[11] * 65])
    with pytest.raises(ConfigError, match="backend = 'tpu' is not one of"):
        Engine.from_model(tiny_model("bert"), None, backend="tpu")
    with pytest.raises(ConfigError, match="dtype = 'fp4' is not one of"):
        Engine.from_model(tiny_model("bert"), None, dtype="fp4")
    with pytest.raises(ConfigError, match="mode = 'graph' is for the cuda backend, and the backend here is cpu"):
        Engine.from_model(tiny_model("bert"), None, device="cpu", mode="graph")


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_products_have_few_shapes(dtype: str, score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle rows fill every product up to whole steps, and change nothing."""
    model = attached("mpnet", score=score)
    inputs = sequences(ragged(model, (11, 1, 7, 3, 16, 7)))
    rows: list[int] = []
    linear = LINEARS[dtype]
    call = linear.__call__
    monkeypatch.setattr(linear, "__call__", lambda self, values: rows.append(len(values)) or call(self, values))
    stepped = engine_with(model, cpu(dtype)).compute(inputs)
    assert max(rows) == 46 and all(idle_rows(count, Cpu.row_step) == 0 for count in rows)
    monkeypatch.setattr(Cpu, "row_step", 1)
    plain = engine_with(model, cpu(dtype)).compute(inputs)
    assert torch.equal(stepped.kept, plain.kept)
    torch.testing.assert_close(stepped.outputs, plain.outputs, atol=2e-2, rtol=2e-2)


def test_what_no_table_has_is_refused() -> None:
    """An index of -1 would count from the end, and nobody would notice."""
    model = tiny_model("bert")
    for backend in (reference(), cpu("fp32")):
        engine = engine_with(model, backend)
        for ids, types, says in (
            ([5, model.config.vocab_size], None, "outside the model's vocabulary"),
            ([5, -1], None, "token id -1 is outside"),
            ([5, 6], [0, 2], "token type 2 is not one of the model's 2"),
            ([5, 6], [0, -1], "token type -1 is not one"),
        ):
            with pytest.raises(ModelError, match=says):
                engine.compute([[5], ids], None if types is None else [None, types])


@pytest.mark.parametrize(
    ("act", "name"), [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_10", "none"), ("relu", "none")]
)
def test_activations_are_known_by_what_they_compute(act: str, name: str) -> None:
    """gelu_10 is GELU up to 10 and flat from there on."""
    assert activation_name(read_weights(tiny_model("bert", hidden_act=act)).layers[0].spec.activation) == name


def test_layers_in_which_first_tokens_are_alone_have_values_only() -> None:
    """Queries and keys are not even converted there; with another protected token, or the dial at 0, all are."""
    model = attached("bert", (0.5, math.inf, 0.5, 0.5))
    separators = attached("bert", (0.5, math.inf, 0.5, 0.5), protect=("first", "separators"), separator_id=SEPARATOR)
    for given, dial, parts in ((model, 1.0, [3, 2, 1, 1]), (model, 0.0, [3, 3, 3, 2]), (separators, 1.0, [3, 3, 3, 2])):
        engine = engine_with(given, cpu(), dial)
        backend = engine.backend
        assert isinstance(backend, Cpu)
        assert engine.plan.alone == parts.index(2)
        width = engine.shape.width
        outputs = [layer.qkv(torch.zeros(16, width)).shape[1] // width for layer in backend.layers]
        assert outputs == parts


def test_thresholds_are_fitted_from_the_dense_model() -> None:
    engine = engine_with(attached("bert", (0.5, math.inf, 0.5, 0.5)), cpu())
    with pytest.raises(ModelError, match="start with none that is infinite"):
        engine.fit([1.0, 0.5, 0.0, 0.0], engine.pack([[11, 12, 13]]))
