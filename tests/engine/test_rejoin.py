"""Dropped tokens that take part again in the last layers: masked, removed, packed, on GPUs and as a graph, the same."""

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.graphs.running import TOLERANCE, answer, arrays, gated, graph_of, opened  # noqa: E402
from tests.engine.kernels.cases import DEVICES  # noqa: E402
from tests.engine.makers import cpu, engine_with, reference  # noqa: E402
from tests.engine.test_engine import sequences  # noqa: E402
from tests.models.families import (  # noqa: E402
    FAMILIES,
    LAYERS,
    LENGTHS,
    SOME,
    one,
    prune_with_,
    ragged,
    run,
    tiny_model,
)
from tests.models.twin import physically_dropped  # noqa: E402
from thresher.config import PruneConfig  # noqa: E402
from thresher.core.cost import EncoderShape, paper_macs  # noqa: E402
from thresher.engine.weights import read_weights  # noqa: E402
from thresher.errors import ConfigError  # noqa: E402
from thresher.models.attach import gates_of, prune_  # noqa: E402
from thresher.models.plan import plan_of  # noqa: E402
from thresher.training.objective import expected_kept  # noqa: E402


def tagger(name: str, rejoin: int, **settings: Any) -> Any:
    model = tiny_model(name, means="tags")
    prune_with_(model, SOME, rejoin=rejoin, **settings)
    return model


def wanted_counts(trace: Any, rejoin: int) -> list[list[int]]:
    """What layers kept, and all tokens in the last ones."""
    kept = trace.kept().tolist()
    return [row[: LAYERS - rejoin] + [length] * rejoin for row, length in zip(kept, LENGTHS, strict=True)]


@pytest.mark.parametrize("rejoin", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_masking_removing_and_packing_agree(name: str, rejoin: int) -> None:
    model = tagger(name, rejoin, score="value" if rejoin == 2 else "attention")
    inputs = ragged(model)
    masked, trace = run(model, inputs)
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
    for row, length in enumerate(LENGTHS):
        ids = one(inputs, row)["input_ids"][0]
        twin = physically_dropped(model, ids, SOME, by=gates_of(model).config.score, rejoin=rejoin)
        assert [len(kept) for kept in twin.kept] == trace.kept()[row].tolist()
        torch.testing.assert_close(hidden[row, :length], twin.left, atol=1e-10, rtol=0)
    assert trace.kept().tolist() == wanted_counts(trace, rejoin)
    assert int(trace.kept()[:, -rejoin - 1].sum()) < sum(LENGTHS), "there was somebody to come back"
    packed = torch.cat([row[:length] for row, length in zip(masked, LENGTHS, strict=True)])
    exact = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(exact.outputs, packed, atol=1e-10, rtol=1e-10)
    fast = engine_with(model, cpu("fp32")).compute(sequences(inputs))
    torch.testing.assert_close(fast.outputs, packed.float(), atol=1e-3, rtol=1e-3)
    assert torch.equal(exact.kept, trace.kept()) and torch.equal(fast.kept, exact.kept)


@pytest.mark.parametrize("rejoin", [1, 2])
@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert", "deberta-v2"])
def test_shorter_tensors_in_training_give_the_same(name: str, rejoin: int) -> None:
    model = tagger(name, rejoin)
    inputs = ragged(model, (11, 1, 7, 33, 16), extra=9)
    masked, whole = run(model, inputs)
    with torch.no_grad(), gates_of(model).shortening():
        found = model(**inputs).logits
    shorter = gates_of(model).trace
    assert shorter is not None and torch.equal(shorter.kept(), whole.kept())
    alive = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[alive], masked[alive], atol=1e-10, rtol=0)
    widths = [slots.live.shape[1] for slots in shorter.outputs]
    assert min(widths[: LAYERS - rejoin]) < widths[-1], "tensors grow again"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["sync", "graph"])
@pytest.mark.parametrize("name", ["bert", "mpnet", "nomic_bert", "modernbert", "deberta-v2"])
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_the_gpu_executor_agrees_with_the_reference(name: str, mode: str, device: str) -> None:
    from thresher.engine.cuda.executor import CudaExecutor

    model = tagger(name, 2)
    ids = sequences(ragged(model))
    expected = engine_with(model, reference()).compute(ids)
    executor = CudaExecutor(read_weights(model), plan_of(model), dtype="fp32", mode=mode, device=device)
    for _ in range(2):  # a captured graph is used again
        found = executor.compute(ids)
        assert torch.equal(found.kept, expected.kept)
        torch.testing.assert_close(found.outputs, expected.outputs, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", ["bert", "mpnet", "nomic_bert", "modernbert", "deberta-v2"])
def test_the_exported_graph_agrees_with_the_reference(name: str, single: bool) -> None:
    model = gated(name, reads="mean", rejoin=2).float()
    inputs = ragged(model)
    expected = engine_with(model, reference()).compute(sequences(inputs))
    names = ("sentence_embedding", "kept", "passed")
    session = opened(graph_of(model, one=single, kept=True, passed=True, dial=not single))
    given = arrays(inputs)
    if single:  # texts of different lengths
        rows = [
            {key: value[row : row + 1, :length] for key, value in given.items()} for row, length in enumerate(LENGTHS)
        ]
        parts = [session.run(list(names), each) for each in rows]
        found, kept = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
        passed = [part[2][0] for part in parts]
    else:
        found, kept, whole = answer(session, given, *names)
        passed = [row[:length] for row, length in zip(whole, LENGTHS, strict=True)]
    np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)
    assert kept.tolist() == expected.kept.tolist()
    for row, each in enumerate(passed):
        for layer in range(LAYERS - 2):
            assert int((each > layer).sum()) == kept[row, layer], "who came back is still said to have been dropped"
        assert set(each.tolist()) <= {0, 1, LAYERS}


def test_who_comes_back_is_shown_as_dropped() -> None:
    model = tagger("bert", 2)
    inputs = ragged(model)
    _, trace = run(model, inputs)
    executor = engine_with(model, reference(torch.float64))
    _, dropped = executor.trace(executor.pack(sequences(inputs)))
    for row, (length, layers) in enumerate(zip(LENGTHS, dropped, strict=True)):
        seen = [alive[row, :length].tolist() for alive in trace.alive[1 : LAYERS - 1]]
        first = [next((at for at, kept in enumerate(seen, 1) if not kept[place]), None) for place in range(length)]
        assert layers == first


@pytest.mark.parametrize("mask", ["cumulative", "straight"])
def test_tokens_that_fade_are_whole_again(mask: str) -> None:
    """In the soft stage, too: the last layers see and count all tokens, and nothing learns thresholds there."""
    model = tagger("bert", 2)
    gates = gates_of(model)
    gates.set_mode("soft", soft_mask=mask)
    inputs = ragged(model)
    outputs = model(**inputs).logits
    trace = gates.trace
    assert trace is not None
    counts = expected_kept(trace)
    torch.testing.assert_close(counts[:, -2:], torch.tensor(LENGTHS)[:, None].expand(-1, 2).to(counts))
    assert float(counts[:, 1].detach().sum()) < sum(LENGTHS)
    (outputs.square().sum() + counts.sum()).backward()
    assert gates.thresholds.grad is not None
    assert gates.thresholds.grad[-2:].tolist() == [0, 0] and bool((gates.thresholds.grad[:2] != 0).any())


def test_the_last_layers_have_no_thresholds() -> None:
    assert gates_of(tagger("bert", 2)).thresholds[-2:].tolist() == [0, 0]


def test_dial_0_drops_nothing_and_more_drops_more() -> None:
    model = tagger("bert", 1)
    ids = sequences(ragged(model))
    dense, usual, more = (engine_with(model, reference(), dial=dial).compute(ids).kept for dial in (0.0, 1.0, 1.5))
    assert dense.tolist() == [[length] * LAYERS for length in LENGTHS]
    assert int(more.sum()) < int(usual.sum()) < int(dense.sum())


def test_the_cost_counts_all_tokens_of_the_last_layers() -> None:
    shape = EncoderShape(layers=3, width=8, ffn_width=16)
    lengths, kept = torch.tensor([10]), torch.tensor([[4, 2, 10]])
    of_layer = [2 * 8 * n * n + 4 * 64 * n + 2 * 8 * 16 * k for n, k in ((10, 4), (4, 2), (10, 10))]
    assert int(paper_macs(shape, lengths, kept)) == sum(of_layer)


def test_who_cannot_rejoin_is_refused() -> None:
    with pytest.raises(ConfigError, match="rejoin = 1 is for heads that read every token, or their mean"):
        prune_(tiny_model("bert"), PruneConfig(rejoin=1, collapse_last=False))
    with pytest.raises(ConfigError, match="rejoin = 4 leaves none of the 4 layers to drop tokens in; set it to 3"):
        prune_(tiny_model("bert", means="tags"), PruneConfig(rejoin=4, collapse_last=False))
