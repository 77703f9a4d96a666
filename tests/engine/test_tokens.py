"""Heads that read every token: each has outputs in its own place, from the state with which it was dropped."""

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.makers import cpu, engine_with, reference  # noqa: E402
from tests.engine.test_engine import SCORES, sequences  # noqa: E402
from tests.models.families import (  # noqa: E402
    FAMILIES,
    LABELS,
    LAYERS,
    LENGTHS,
    SEPARATOR,
    SOME,
    WITHOUT_SPANS,
    one,
    prune_with_,
    ragged,
    run,
    tiny_config,
    tiny_model,
)
from tests.models.sentences import WORDS  # noqa: E402
from tests.models.twin import physically_dropped  # noqa: E402
from tests.words import word_tokenizer  # noqa: E402
from thresher.config import PruneConfig  # noqa: E402
from thresher.core.heads import Head  # noqa: E402
from thresher.engine.weights import read_weights  # noqa: E402
from thresher.errors import ConfigError, ModelError  # noqa: E402
from thresher.models.attach import gates_of, prune_  # noqa: E402
from thresher.models.checkpoint import has_head, load, load_dense, save  # noqa: E402
from thresher.models.heads import auto_class, head_of, outputs_in, set_head_  # noqa: E402
from thresher.models.plan import plan_of  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OUTPUTS = {"span": 2, "tags": LABELS}
KINDS = [(name, means) for name in FAMILIES for means in OUTPUTS if means == "tags" or name not in WITHOUT_SPANS]


def pruned(name: str, means: str, thresholds: tuple[float, ...] = SOME, **settings: Any) -> Any:
    model = tiny_model(name, means=means)
    prune_with_(model, thresholds, **settings)
    return model


def end_to_end(padded: torch.Tensor) -> torch.Tensor:
    """(texts, longest, outputs) -> (tokens of all texts, outputs)."""
    return torch.cat([row[:length] for row, length in zip(padded, LENGTHS, strict=True)])


@pytest.mark.parametrize(("name", "means"), KINDS)
def test_masking_gives_every_token_what_dropping_leaves_it(name: str, means: str) -> None:
    """Against the twin that really removes tokens, through the stock model's own output layer."""
    model = pruned(name, means)
    inputs = ragged(model)
    found, trace = run(model, inputs)
    assert head_of(model) == Head(reads="tokens", means=means)
    output = model.qa_outputs if hasattr(model, "qa_outputs") else model.classifier
    inner = model.head if name == "modernbert" else torch.nn.Identity()
    for row, length in enumerate(LENGTHS):
        twin = physically_dropped(model, one(inputs, row)["input_ids"][0], SOME)
        assert [len(kept) for kept in twin.kept] == trace.kept()[row].tolist()
        with torch.no_grad():
            torch.testing.assert_close(found[row, :length], output(inner(twin.left)), atol=1e-10, rtol=0)
    assert int(trace.kept()[:, -1].sum()) < sum(LENGTHS) / 2, "most outputs are of tokens that were dropped"


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("name", "means"), KINDS)
def test_dropping_equals_masking_to_the_last_digit(name: str, means: str, score: str) -> None:
    model = pruned(name, means, score=score)
    inputs = ragged(model)
    masked, trace = run(model, inputs)
    output = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    assert output.outputs.shape == (sum(LENGTHS), OUTPUTS[means])
    torch.testing.assert_close(output.outputs, end_to_end(masked), atol=1e-10, rtol=1e-10)
    assert torch.equal(output.kept, trace.kept())
    fast = engine_with(model, cpu("fp32")).compute(sequences(inputs))
    assert torch.equal(fast.kept, output.kept)
    torch.testing.assert_close(fast.outputs, end_to_end(masked).float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_narrow_arithmetic_is_near(dtype: str) -> None:
    """Nothing is dropped, so that no decision can differ: values alone."""
    model = pruned("bert", "tags", (0.0,) * LAYERS)
    inputs = ragged(model)
    exact = engine_with(model, cpu("fp32")).compute(sequences(inputs)).outputs
    found = engine_with(model, cpu(dtype)).compute(sequences(inputs)).outputs
    assert float((found - exact).abs().mean() / exact.abs().mean()) < 0.1
    assert not torch.equal(found, exact)


@pytest.mark.parametrize("means", OUTPUTS)
def test_without_gates_the_engine_gives_the_stock_models_outputs(means: str) -> None:
    model = tiny_model("mpnet", means=means)
    inputs = ragged(model)
    with torch.no_grad():
        stock = outputs_in(model(**inputs))
    found = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(found.outputs, end_to_end(stock), atol=1e-10, rtol=1e-10)
    assert found.kept.tolist() == [[length] * LAYERS for length in LENGTHS], "no layer collapses"


def test_a_layer_that_keeps_protected_tokens_only_still_leaves_all_their_outputs() -> None:
    thresholds = (0.0, math.inf, 0.0, 0.0)
    protect: dict[str, Any] = {"protect": ("first", "first_segment"), "separator_id": SEPARATOR}
    model = pruned("bert", "span", thresholds, **protect)
    inputs = ragged(model)
    inputs["input_ids"][0, 3] = inputs["input_ids"][4, 5] = SEPARATOR
    masked, trace = run(model, inputs)
    assert trace.kept()[[0, 4], -1].tolist() == [4, 6], "a question and its separator stay"
    found = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(found.outputs, end_to_end(masked), atol=1e-10, rtol=1e-10)
    assert torch.equal(found.kept, trace.kept())


@pytest.mark.parametrize("means", OUTPUTS)
def test_gradients_flow_into_the_layers_below_a_drop(means: str) -> None:
    """The loss of a token that the second layer dropped reaches the first layer, and no later one."""
    model = pruned("bert", means, (0.0, math.inf, 0.0, 0.0))
    inputs = ragged(model, (8,))
    outputs_in(model(**inputs))[0, 5].sum().backward()
    layers = model.base_model.encoder.layer
    assert float(layers[0].output.dense.weight.grad.abs().sum()) > 0
    for layer in layers[1:]:
        grad = layer.output.dense.weight.grad
        assert grad is None or float(grad.abs().sum()) == 0
    assert gates_of(model).trace is not None


def test_nothing_may_collapse() -> None:
    model = tiny_model("bert", means="tags")
    with pytest.raises(ConfigError, match="collapse_last leaves the head nothing to read: it reads tokens"):
        prune_(model, PruneConfig())
    prune_(model)
    assert not gates_of(model).config.collapse_last


@pytest.mark.parametrize(("name", "means"), KINDS)
def test_a_folder_from_elsewhere_keeps_its_head_and_its_names(name: str, means: str, tmp_path: Path) -> None:
    model = tiny_model(name, means=means).float()
    if means == "tags":
        model.config.id2label = {0: "O", 1: "B-x", 2: "I-x"}
        model.config.label2id = {"O": 0, "B-x": 1, "I-x": 2}
    model.save_pretrained(tmp_path)
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    loaded, _ = load_dense(tmp_path, whole=True)
    inputs = ragged(model)
    torch.testing.assert_close(outputs_in(loaded(**inputs)), outputs_in(model(**inputs)))
    assert head_of(loaded) == Head(reads="tokens", means=means)
    assert has_head(tmp_path, OUTPUTS[means], means=means) and has_head(tmp_path)
    assert not has_head(tmp_path, means="classes")
    if means == "tags":
        assert list(loaded.config.id2label.values()) == ["O", "B-x", "I-x"]


def test_a_run_remembers_its_null_threshold(tmp_path: Path) -> None:
    model = pruned("bert", "span").float()
    set_head_(model, Head(reads="tokens", means="span", null_threshold=-1.5))
    save(model, word_tokenizer(WORDS), tmp_path / "run")
    opened = load(tmp_path / "run")
    assert head_of(opened.model).null_threshold == -1.5
    inputs = ragged(model)
    torch.testing.assert_close(run(opened.model, inputs)[0], run(model, inputs)[0])


def test_a_new_head_on_an_encoder(tmp_path: Path) -> None:
    tiny_model("bert").float().base_model.save_pretrained(tmp_path)
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    model, _ = load_dense(tmp_path, means="span", num_labels=2)
    assert type(model).__name__ == "BertForQuestionAnswering"
    model, _ = load_dense(tmp_path, means="tags", num_labels=5)
    assert type(model).__name__ == "BertForTokenClassification" and model.classifier.out_features == 5


def test_spans_are_two_outputs() -> None:
    model = auto_class("span").from_config(tiny_config("bert"))
    with pytest.raises(ModelError, match="BertForQuestionAnswering has 3 outputs a token"):
        head_of(model)
    tags = tiny_model("bert", means="tags")
    with pytest.raises(ModelError, match="gives no span that reads tokens; its outputs are tags"):
        set_head_(tags, Head(reads="tokens", means="span"))


@pytest.mark.parametrize("mode", ["sync", "graph"])
@pytest.mark.parametrize(("name", "means"), [("bert", "span"), ("mpnet", "tags")])
def test_the_kernels_agree_with_the_reference(name: str, means: str, mode: str) -> None:
    if find_spec("triton") is None:
        pytest.skip("needs Triton, which is not installed: pip install triton")
    from thresher.engine.cuda.executor import CudaExecutor

    model = pruned(name, means, score="value")
    ids = sequences(ragged(model, (11, 1, 33, 3)))
    expected = engine_with(model, reference()).compute(ids)
    executor = CudaExecutor(read_weights(model), plan_of(model), dtype="fp32", mode=mode, device=DEVICE)
    for _ in range(2):  # a graph, and its replay
        found = executor.compute(ids)
        assert found.kept.tolist() == expected.kept.tolist() and found.outputs.shape == (48, OUTPUTS[means])
        torch.testing.assert_close(found.outputs, expected.outputs.float(), atol=2e-4, rtol=2e-4)
    assert int(found.kept[:, -1].sum()) < 48 / 2


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["sync", "graph"])
@pytest.mark.parametrize(("name", "means"), KINDS)
def test_every_family_on_the_gpu(name: str, means: str, mode: str) -> None:
    test_the_kernels_agree_with_the_reference(name, means, mode)
