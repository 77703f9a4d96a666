"""Whatever is fed to the graph: the right answer or an error, never another text's answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.graphs.running import TOLERANCE, Arrays, answer, arrays, expected_of, gated, graph_of, opened
from tests.models.families import BERT_LIKE, LAYERS, POSITIONS, VOCABULARY, ragged
from thresher.core.plan import PruningPlan
from thresher.exporting.folder import write_graph

FORMS: dict[str, dict[str, Any]] = {"batch": {}, "one": {"one": True}, "dial": {"dial": True}}
EMPTY = f"every_text_needs_1_to_{POSITIONS}_tokens_beside_padding"


def moved(inputs: dict[str, torch.Tensor], *, left: int, gap: bool = False) -> Arrays:
    """The same texts with `left` columns of padding before each, or with padding between their tokens."""
    found = {}
    for name, value in arrays(inputs).items():
        wide = np.zeros((value.shape[0], left + value.shape[1] * (2 if gap else 1)), value.dtype)
        wide[:, left :: 2 if gap else 1] = value
        found[name] = wide
    if not left and not gap:
        return found
    rng = np.random.default_rng(0)  # what stands in the padding must not matter
    noise = rng.integers(0, VOCABULARY, found["input_ids"].shape)
    found["input_ids"] = np.where(found["attention_mask"] == 1, found["input_ids"], noise)
    return found


def flush_right(inputs: dict[str, torch.Tensor]) -> Arrays:
    """Padding on the left, as some tokenizers do it."""
    found = {name: np.zeros_like(value) for name, value in arrays(inputs).items()}
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        for name, value in arrays(inputs).items():
            found[name][row, value.shape[1] - length :] = value[row, :length]
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("family", "reads"), [*((name, None) for name in BERT_LIKE), ("mpnet", "mean")])
def test_padding_may_stand_anywhere(family: str, reads: str | None, form: str) -> None:
    model = gated(family, reads=reads, score="value")
    inputs = ragged(model)
    expected = expected_of(model, inputs)
    session = opened(graph_of(model, kept=True, **FORMS[form]))
    name = "logits" if reads is None else "sentence_embedding"
    for texts in (moved(inputs, left=0), flush_right(inputs), moved(inputs, left=3), moved(inputs, left=1, gap=True)):
        found, kept = answer(session, texts, name, "kept")
        assert kept.tolist() == expected.kept.tolist()
        np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert"])
def test_padding_may_stand_anywhere_beside_idle_rows(family: str) -> None:
    """These are copies of the first token: padding that came in their place could be of no vocabulary, and stands in
    front of all positions."""
    model = gated(family, score="value")
    inputs = ragged(model)
    expected = expected_of(model, inputs)
    session = opened(graph_of(model, kept=True, one=True, step=8))
    for texts in (flush_right(inputs), moved(inputs, left=3), moved(inputs, left=1, gap=True)):
        texts["input_ids"][texts["attention_mask"] == 0] = VOCABULARY
        found, kept = answer(session, texts, "logits", "kept")
        assert kept.tolist() == expected.kept.tolist()
        np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


def test_the_states_of_left_padded_tokens_are_in_their_places() -> None:
    model = gated("bert", reads="mean")
    inputs = ragged(model)
    session = opened(graph_of(model))
    right, left = (answer(session, each, "last_hidden_state")[0] for each in (arrays(inputs), flush_right(inputs)))
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        np.testing.assert_allclose(left[row, left.shape[1] - length :], right[row, :length], **TOLERANCE)
        assert not left[row, : left.shape[1] - length].any()


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (POSITIONS,), (POSITIONS, 1, 2), (3, 3)])
@pytest.mark.parametrize(("family", "reads"), [("bert", None), ("roberta", None), ("mpnet", None), ("mpnet", "mean")])
def test_lengths(family: str, reads: str | None, lengths: tuple[int, ...]) -> None:
    model = gated(family, reads=reads)
    longest = min(POSITIONS, model.config.max_position_embeddings - (0 if family == "bert" else 2))
    inputs = ragged(model, tuple(min(length, longest) for length in lengths))
    expected = expected_of(model, inputs)
    for form in FORMS.values():
        found, kept = answer(opened(graph_of(model, kept=True, **form)), arrays(inputs), *names(reads), "kept")
        assert kept.tolist() == expected.kept.tolist()
        np.testing.assert_allclose(found, expected.outputs.numpy(), **TOLERANCE)


def names(reads: str | None) -> tuple[str, ...]:
    return ("logits",) if reads is None else ("sentence_embedding",)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reads", [None, "mean"])
def test_a_text_of_padding_alone_is_refused(reads: str | None, form: str) -> None:
    model = gated("bert", reads=reads)
    session = opened(graph_of(model, **FORMS[form]))
    for row in (0, 2, 4):
        texts = arrays(ragged(model))
        texts["attention_mask"][row] = 0
        with pytest.raises(Exception, match=EMPTY):
            answer(session, texts, *names(reads))
    texts["attention_mask"][:] = 0
    with pytest.raises(Exception, match=EMPTY):
        answer(session, texts, *names(reads))


@pytest.mark.parametrize("single", [False, True])
def test_the_dense_graph_refuses_it_too(single: bool) -> None:
    model = gated("bert")
    texts = arrays(ragged(model, (4,)))
    texts["attention_mask"][:] = 0
    with pytest.raises(Exception, match=EMPTY):
        opened(graph_of(model, PruningPlan.dense(LAYERS), one=single)).run(None, texts)


REFUSED = {
    "too long": ((POSITIONS + 1, 3), EMPTY),
    "not in the vocabulary": ((4, 3), "token_ids_must_be_of_the_vocabulary"),
    "another mask": ((4, 3), "attention_mask_must_have_the_shape_of_input_ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    lengths, says = REFUSED[case]
    model = gated("bert")
    texts = arrays(ragged(model, lengths))
    if case == "not in the vocabulary":
        texts["input_ids"][0, 1] = VOCABULARY
    if case == "another mask":
        texts["attention_mask"] = texts["attention_mask"][:, :-1]
    with pytest.raises(Exception, match=says):
        opened(graph_of(model)).run(None, texts)


def test_a_graph_for_one_text_refuses_two() -> None:
    model = gated("bert")
    with pytest.raises(Exception, match="Got: 2 Expected: 1"):
        opened(graph_of(model, one=True)).run(None, arrays(ragged(model, (4, 3))))


def test_a_text_does_not_notice_its_neighbours() -> None:
    model = gated("mpnet", score="value")
    inputs = arrays(ragged(model))
    session = opened(graph_of(model, kept=True))
    together, kept = answer(session, inputs, "logits", "kept")
    for row in range(len(together)):
        alone, own = session.run(["logits", "kept"], {name: value[row : row + 1] for name, value in inputs.items()})
        assert own[0].tolist() == kept[row].tolist()
        np.testing.assert_allclose(alone[0], together[row], **TOLERANCE)


@pytest.mark.parametrize("form", ["batch", "one"])
def test_a_runtime_that_does_not_look_gives_no_number(form: str, tmp_path: Path) -> None:
    """OpenVINO reads whatever lies there: the text's own output is NaN, and its neighbours' are right."""
    openvino = pytest.importorskip("openvino", reason="needs OpenVINO: pip install 'thresher[bench]'")
    model = gated("bert")
    file = tmp_path / "model.onnx"
    write_graph(graph_of(model, **FORMS[form]), file)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    texts = ragged(model, (POSITIONS, 5, 7) if form == "batch" else (7,))
    right = expected_of(model, texts).outputs.numpy()
    inputs = arrays(texts)
    np.testing.assert_allclose(compiled(inputs)["logits"], right, **TOLERANCE)
    inputs["attention_mask"][-1] = 0
    found = compiled(inputs)["logits"]
    assert np.isnan(found[-1]).all()
    np.testing.assert_allclose(found[:-1], right[:-1], **TOLERANCE)
    inputs = arrays(ragged(model, (POSITIONS + 1,) if form == "one" else (POSITIONS + 1, 5)))
    found = compiled(inputs)["logits"]
    assert np.isnan(found[0]).all() and not np.isnan(found[1:]).any()
