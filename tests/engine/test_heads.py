"""Heads that read all tokens: masking, dropping and the kernels leave every token the same last state."""

import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# Read when the kernels are defined, so this must come before any import of them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.engine.makers import cpu, engine_with, reference  # noqa: E402
from tests.engine.test_engine import SCORES, sequences  # noqa: E402
from tests.models.families import (  # noqa: E402
    FAMILIES,
    LAYERS,
    LENGTHS,
    SOME,
    prune_with_,
    ragged,
    randomize_,
    run,
    tiny_config,
    tiny_model,
)
from tests.models.sentences import PAIRS, TEXTS, WORDS, embedder_folder  # noqa: E402
from tests.words import word_tokenizer  # noqa: E402
from thresher.config import PruneConfig  # noqa: E402
from thresher.core.heads import Head  # noqa: E402
from thresher.engine.engine import Engine  # noqa: E402
from thresher.engine.weights import read_weights  # noqa: E402
from thresher.errors import ConfigError, DataError, ModelError  # noqa: E402
from thresher.models.attach import gates_of, prune_  # noqa: E402
from thresher.models.checkpoint import load, save  # noqa: E402
from thresher.models.embedder import Embedder  # noqa: E402
from thresher.models.heads import set_head_  # noqa: E402
from thresher.models.plan import plan_of  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def embedder(name: str, *, reads: str = "mean", seed: int = 0, **more: Any) -> Any:
    from transformers import AutoModel

    encoder = AutoModel.from_config(tiny_config(name))
    randomize_(encoder, seed)
    return Embedder(encoder.double().eval(), Head(reads=reads, means="embedding", **more)).eval()


def pruned(name: str, thresholds: tuple[float, ...] = SOME, *, reads: str = "mean", **settings: Any) -> Any:
    model = embedder(name, reads=reads)
    prune_with_(model, thresholds, **settings)
    return model


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("reads", ["mean", "first"])
@pytest.mark.parametrize("name", FAMILIES)
def test_dropping_equals_masking_to_the_last_digit(name: str, reads: str, score: str) -> None:
    model = pruned(name, reads=reads, score=score)
    inputs = ragged(model)
    expected, trace = run(model, inputs)
    output = engine_with(model, reference(torch.float64)).compute(sequences(inputs))
    torch.testing.assert_close(output.outputs, expected, atol=1e-10, rtol=1e-10)
    counted = LAYERS if reads == "mean" else LAYERS - 1
    assert torch.equal(output.kept[:, :counted], trace.kept()[:, :counted])
    assert int(output.kept[:, -2].sum()) < sum(LENGTHS)
    fast = engine_with(model, cpu("fp32")).compute(sequences(inputs))
    assert torch.equal(fast.kept, output.kept)
    torch.testing.assert_close(fast.outputs, expected.float(), atol=1e-3, rtol=1e-3)


def test_a_dropped_token_keeps_the_state_with_which_it_entered() -> None:
    """By hand, from the hidden states: the mean of states where tokens left, and of the last ones of the others."""
    model = pruned("bert")
    inputs = ragged(model)
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    trace = gates_of(model).trace
    assert trace is not None
    for row, length in enumerate(LENGTHS):
        states = []
        for place in range(length):
            left = next((i for i in range(LAYERS) if not bool(trace.alive[i + 1][row, place])), LAYERS)
            states.append(output.hidden_states[left][row, place])
        torch.testing.assert_close(output.logits[row], torch.stack(states).mean(dim=0))
    assert any(not bool(alive[0, :11].all()) for alive in trace.alive[1:])


def test_gradients_flow_through_states_that_were_left_behind() -> None:
    """With every token but the first dropped in layer 1, only embeddings feed the mean, and they learn from it."""
    model = pruned("bert", (math.inf, 0.0, 0.0, 0.0)).train()
    model(**ragged(model)).logits.square().sum().backward()
    gradient = model.base_model.embeddings.word_embeddings.weight.grad
    assert int((gradient.abs().sum(dim=1) > 0).sum()) > len(LENGTHS)


def test_a_cold_soft_gate_is_the_hard_one() -> None:
    model = pruned("bert", (0.7, 0.0, 0.9, 0.0))
    hard, _ = run(model, ragged(model))
    gates = gates_of(model)
    gates.set_mode("soft", soft_mask="cumulative")
    gates.temperature = 1e-7
    soft, _ = run(model, ragged(model))
    torch.testing.assert_close(soft, hard, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_a_text_does_not_notice_its_neighbours(dtype: str) -> None:
    model = pruned("mpnet")
    inputs = sequences(ragged(model))
    engine = engine_with(model, cpu(dtype))
    together = engine.compute(inputs)
    for row, ids in enumerate(inputs):
        alone = engine.compute([ids])
        assert torch.equal(alone.kept[0], together.kept[row])
        torch.testing.assert_close(alone.outputs[0], together.outputs[row], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_narrow_arithmetic_is_near(name: str, dtype: str) -> None:
    """Nothing is dropped, so that no decision can differ: values alone."""
    model = pruned(name, (0.0,) * LAYERS)
    inputs = sequences(ragged(model))
    exact = engine_with(model, cpu("fp32")).compute(inputs).outputs
    found = engine_with(model, cpu(dtype)).compute(inputs).outputs
    assert float((found - exact).abs().mean() / exact.abs().mean()) < 0.1
    assert not torch.equal(found, exact)


@pytest.mark.parametrize("mode", ["sync", "graph"])
@pytest.mark.parametrize(
    ("name", "score", "reads"), [("bert", "value", "mean"), ("mpnet", "attention", "mean"), ("bert", "value", "first")]
)
def test_the_kernels_agree_with_the_reference(name: str, score: str, reads: str, mode: str) -> None:
    if find_spec("triton") is None:
        pytest.skip("needs Triton, which is not installed: pip install triton")
    from thresher.engine.cuda.executor import CudaExecutor

    model = embedder(name, reads=reads, normalised=True)
    prune_with_(model, score=score)
    ids = sequences(ragged(model, (11, 1, 33, 3)))
    expected = engine_with(model, reference()).compute(ids)
    found = CudaExecutor(read_weights(model), plan_of(model), dtype="fp32", mode=mode, device=DEVICE).compute(ids)
    assert found.kept.tolist() == expected.kept.tolist()
    torch.testing.assert_close(found.outputs, expected.outputs.float(), atol=2e-4, rtol=2e-4)
    assert found.outputs.norm(dim=1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["sync", "graph"])
@pytest.mark.parametrize("reads", ["mean", "first"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_on_the_gpu(name: str, reads: str, mode: str) -> None:
    test_the_kernels_agree_with_the_reference(name, "value", reads, mode)


def test_nothing_collapses_where_all_tokens_are_read() -> None:
    model = embedder("bert")
    with pytest.raises(ConfigError, match="collapse_last leaves the head nothing to read: it reads mean"):
        prune_(model, PruneConfig())
    prune_(model)
    assert not gates_of(model).config.collapse_last and plan_of(model).alone == LAYERS
    assert plan_of(embedder("bert", reads="first")).alone == LAYERS - 1


def test_a_text_must_not_lose_all_its_tokens() -> None:
    """The attached model would keep its best one; the engine has no such rule, and says so before any text."""
    model = pruned("bert", (0.0, 50.0, 50.0, 50.0), protect=("none",))
    assert int(run(model, ragged(model))[1].kept().min()) == 1
    with pytest.raises(ModelError, match="nothing is protected, and the engine must not lose all tokens of a text"):
        Engine.from_model(model.float(), word_tokenizer(WORDS), device="cpu", dtype="fp32")


def test_a_saved_embedder(tmp_path: Path) -> None:
    model = pruned("bert").float()
    save(model, word_tokenizer(WORDS), tmp_path / "run")
    checkpoint = load(tmp_path / "run")
    assert checkpoint.manifest["head"]["reads"] == "mean"
    wanted = run(model, ragged(model))[0]
    assert torch.equal(run(checkpoint.model, ragged(model))[0], wanted)
    found = Engine.load(tmp_path / "run", device="cpu", dtype="fp32").executor.compute(sequences(ragged(model)))
    torch.testing.assert_close(found.outputs, wanted, atol=1e-4, rtol=1e-4)


# ---- what users call


def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    prompts = {"prompts": {"query": "query : ", "document": "passage : "}, "default_prompt_name": "query"}
    folder = embedder_folder(tmp_path / "model", settings=prompts)
    engine, stock = (
        Engine.load(folder, device="cpu", dtype="fp32"),
        sentence_transformers.SentenceTransformer(str(folder), device="cpu"),
    )
    for options in ({}, {"prompt_name": "document"}, {"prompt": "the "}):
        found, expected = engine.embed(TEXTS, **options), stock.encode(TEXTS, **options)
        assert found.dtype == np.float32 and found.shape == (len(TEXTS), 32)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert engine.embed([]).shape == (0, 32)
    with pytest.raises(ConfigError, match="prompt_name = 'title' is not one of the model's prompts: query, document"):
        engine.embed(TEXTS, prompt_name="title")
    with pytest.raises(DataError, match="item 1: the text is empty"):
        engine.embed(["a film", " "])
    calls: list[tuple[str, Any]] = [
        ("predict", lambda: engine.classify(TEXTS)),
        ("score", lambda: engine.score(PAIRS)),
        ("rank", lambda: engine.rank("fog", [])),
        ("tag", lambda: engine.tag(TEXTS)),
        ("answer", lambda: engine.answer("who?", "fog")),
    ]
    for asked, call in calls:
        with pytest.raises(ModelError, match=rf"gives embedding, which {asked} does not serve; use embed\(texts\)"):
            call()


@pytest.mark.parametrize("prompts", [{}, {"query": "query : "}, {"document": "passage : ", "title": "the "}])
def test_every_embedder_knows_queries_and_documents(tmp_path: Path, prompts: dict[str, str]) -> None:
    """As in sentence-transformers: a model without such a prompt reads the text alone, whatever its default is."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    settings = {"prompts": prompts, "default_prompt_name": next(iter(prompts), None)}
    folder = embedder_folder(tmp_path / "model", settings=settings)
    engine = Engine.load(folder, device="cpu", dtype="fp32")
    stock = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    for name, encode in (("query", stock.encode_query), ("document", stock.encode_document)):
        np.testing.assert_allclose(engine.embed(TEXTS, prompt_name=name), encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kinds", [("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")])
@pytest.mark.parametrize("settings", [{}, {"truncate_dim": 20}])
def test_embeddings_of_fewer_numbers(tmp_path: Path, kinds: Any, settings: Any) -> None:
    """What sentence-transformers cuts and, of a model that normalises, scales again; a folder's own width is cut as
    it cuts it, and not scaled."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = embedder_folder(tmp_path / "model", kinds=kinds, settings=settings)
    engine = Engine.load(folder, device="cpu", dtype="fp32")
    stock = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(engine.embed(TEXTS), stock.encode(TEXTS), atol=1e-5)
    for width in (1, 8, settings.get("truncate_dim", 32)):
        expected = stock.encode(TEXTS, truncate_dim=width, normalize_embeddings=len(kinds) == 3)
        np.testing.assert_allclose(engine.embed(TEXTS, dimensions=width), expected, atol=1e-5)
    most = settings.get("truncate_dim", 32)
    with pytest.raises(ConfigError, match=f"dimensions = {most + 1} is above {most}, the numbers of the model's"):
        engine.embed(TEXTS, dimensions=most + 1)
    with pytest.raises(ConfigError, match="dimensions = 0 is below 1"):
        engine.embed(TEXTS, dimensions=0)


@pytest.mark.parametrize("default", [None, "query"])
def test_what_is_given_to_embed(tmp_path: Path, default: str | None) -> None:
    """One text is not its letters, a generator is not empty, and a prompt does not hide that there is no text."""
    settings = {"prompts": {"query": "query : "}, "default_prompt_name": default}
    engine = Engine.load(embedder_folder(tmp_path / "model", settings=settings), device="cpu", dtype="fp32")
    expected = engine.embed(TEXTS)
    for progress in (False, True):
        found = engine.embed((text for text in TEXTS), progress=progress)  # type: ignore[arg-type]
        assert np.array_equal(found, expected)
    for prompt in (None, "the "):
        with pytest.raises(ConfigError, match="a single text was given as texts; give a list of texts"):
            engine.embed("fog", prompt=prompt)
        with pytest.raises(DataError, match="item 1: the text is empty"):
            engine.embed(["fog", "\u200b"], prompt=prompt)
    with pytest.raises(ConfigError, match="prompt = 3 is of type int; give a string"):
        engine.embed(TEXTS, prompt=3)  # type: ignore[arg-type]
    for name in ("", ["query"]):
        with pytest.raises(ConfigError, match="is not one of the model's prompts: query"):
            engine.embed(TEXTS, prompt_name=name)  # type: ignore[arg-type]


def test_texts_that_are_token_ids_already(tmp_path: Path) -> None:
    engine = Engine.load(embedder_folder(tmp_path / "model"), device="cpu", dtype="fp32", max_length=6)
    rows = [engine.tokenizer(text)["input_ids"] for text in TEXTS]
    given: Any = [np.array(rows[0][:4]), rows[1][:3] * 5, [], [0, 10**9], [-1]]
    found = engine.finish(engine.begin(engine.read_ids(given)))
    assert found.truncated.tolist() == [False, True, False, False, False] and found.tokens.tolist() == [4, 6, 0, 0, 0]
    assert [found.problems.get(number) is None for number in range(5)] == [True, True, False, False, False]
    assert "token id -1 is outside the model's vocabulary" in found.problems[4]
    for wrong in (["a"], [None], [[1.5]], [[1], ["x"]], None):
        with pytest.raises(ConfigError, match=r"is no list of token ids; give whole numbers|rows = None is of type"):
            engine.read_ids(wrong)  # type: ignore[arg-type]


def test_warm_up_is_for_texts_with_their_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"prompts": {"query": "query : "}, "default_prompt_name": "query"}
    engine = Engine.load(embedder_folder(tmp_path / "model", settings=settings), device="cpu", dtype="fp32")
    prepared: list[Any] = []
    monkeypatch.setattr(engine.executor, "warm_up", prepared.extend)
    engine.warm_up(TEXTS)
    assert sum(batch.total for batch in prepared) == engine.predict_arrays(TEXTS).tokens.sum()


def reranker() -> Engine:
    model = tiny_model("bert", num_labels=1).float()
    set_head_(model, Head(means="score"))
    return Engine.from_model(model, word_tokenizer(WORDS), device="cpu", dtype="fp32")


def test_scores_and_ranks() -> None:
    engine = reranker()
    raw, scores = engine.score(PAIRS, raw=True), engine.score(PAIRS)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw)), atol=1e-6)
    assert [found.value for found in engine.classify(PAIRS)] == pytest.approx(scores.tolist())
    documents = [document for _, document in PAIRS]
    ranked = engine.rank("a film", documents)
    alone = [float(engine.score([("a film", document)])[0]) for document in documents]
    assert [found.index for found in ranked] == sorted(range(4), key=lambda i: -alone[i])
    assert [found.score for found in ranked] == pytest.approx(sorted(alone, reverse=True), abs=1e-5)
    assert (
        engine.rank("a film", documents, top_k=2) == engine.rank("a film", documents, top_k=np.int64(2)) == ranked[:2]
    )
    assert engine.rank("a film", []) == [] and engine.score([]).shape == (0,)
    lists: Any = [list(pair) for pair in PAIRS]
    for given in (lists, np.array(lists), np.array(lists, dtype=object)):  # as users of CrossEncoder and pandas write
        assert np.array_equal(engine.score(given), scores)


def test_ties_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = reranker()
    scores = np.array([0.5, 0.7, 0.5, 0.7, 0.5], np.float32)
    monkeypatch.setattr(engine, "_scored", lambda pairs, raw: (scores, scores > 1))
    assert [found.index for found in engine.rank("fog", ["a film"] * 5)] == [1, 3, 0, 2, 4]


def test_a_long_document_gives_way_and_the_query_stays() -> None:
    engine = reranker()
    query, document = "two hours of fog", "the river " * 500
    (found,) = engine.classify([(query, document)])
    assert found.truncated and found.tokens == engine.max_length
    assert [one.truncated for one in sorted(engine.rank(query, ["fog", document]), key=lambda one: one.index)] == [
        False,
        True,
    ]
    ids = engine._stream.tokens([(query, document)]).ids.tolist()
    own = engine.tokenizer(query)["input_ids"]
    assert ids[: len(own)] == own


def test_a_query_that_leaves_no_room() -> None:
    engine = reranker()
    long, short = engine.classify([("the river " * 500, "fog"), ("the river", "fog")])
    assert short.value is not None and long.value is None and not long.truncated
    rule = f"the first text leaves no room for the second within {engine.max_length} tokens; shorten it, or give a"
    assert long.error == f"{rule} larger max_length"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda engine: engine.score([["fog"]]), "item 0: 1 texts in one item; give a text or a pair of texts"),
        (lambda engine: engine.score([[["fog"], "film"]]), "item 0: a list is not text; give a string"),
        (lambda engine: engine.score("fog"), "a single text was given as pairs"),
        (lambda engine: engine.score([None]), "item 0: a NoneType is not text"),
        (lambda engine: engine.score(["fog"]), "item 0: the model is for pairs of texts, and was given a single text"),
        (lambda engine: engine.rank("", ["a"]), "the query '' is empty; give at least one word"),
        (lambda engine: engine.rank(None, []), "the query None is of type NoneType; give a string"),
        (lambda engine: engine.rank(["a"], ["film"]), r"the query \['a'\] is of type list; give a string"),
        (lambda engine: engine.rank("a", ["a", ""]), "item 1: the text is empty"),
        (lambda engine: engine.rank("a", ["a", 5]), "item 1: a int is not text"),
        (lambda engine: engine.rank("a", "film"), "a single text was given as documents"),
        (lambda engine: engine.rank("a", None), "documents = None is of type NoneType; give a list of texts"),
        (lambda engine: engine.rank("a", {"id": "film"}), "documents = {'id': 'film'} is of type dict; give a list"),
        (lambda engine: engine.predict(None), "texts = None is of type NoneType; give a list of texts"),
        (lambda engine: engine.predict({"fog", "film"}), "is of type set; give a list of texts"),
        (lambda engine: engine.score(5), "pairs = 5 is of type int; give a list of texts"),
        (lambda engine: engine.rank("a", ["film"], top_k=0), "top_k = 0 is below 1, the smallest allowed value"),
        (lambda engine: engine.rank("a", ["film"], top_k=True), "top_k = True is of type bool; give a whole number"),
        (
            lambda engine: engine.embed(["a"]),
            r"gives score, which embed does not serve; use score\(pairs\) or rank\(query, documents\)",
        ),
    ],
)
def test_bad_calls(call: Any, says: str) -> None:
    with pytest.raises((ConfigError, DataError, ModelError), match=says):
        call(reranker())


def test_a_thousand_documents() -> None:
    ranked = reranker().rank("fog", [WORDS[i % len(WORDS)] + " film" * (i % 7) for i in range(1000)])
    assert sorted(found.index for found in ranked) == list(range(1000))
    assert [found.score for found in ranked] == sorted((found.score for found in ranked), reverse=True)


def test_a_classifier_neither_ranks_nor_embeds() -> None:
    engine = Engine.from_model(tiny_model("bert").float(), word_tokenizer(WORDS), device="cpu", dtype="fp32")
    (found,) = engine.classify(["a film"])
    assert (
        sum(found.probabilities.values()) == pytest.approx(1) and found.probabilities[found.label] == found.probability
    )
    with pytest.raises(ModelError, match=r"gives classes, which rank does not serve; use predict\(texts\)"):
        engine.rank("a", ["b"])
    with pytest.raises(ModelError, match=r"gives classes, which embed does not serve; use predict\(texts\)"):
        engine.embed(["a"])
