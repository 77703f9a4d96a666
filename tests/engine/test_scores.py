"""A reranker scores as the CrossEncoder that its users have: of base and run, and wherever scores come out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.families import prune_with_
from tests.models.sentences import PAIRS, TEXTS, cross_encoder_folder
from thresher.core.heads import Head
from thresher.engine.engine import Engine
from thresher.errors import ConfigError, DataError, ModelError
from thresher.evaluation.explain import explain, unpruned
from thresher.jobs.score import score_files
from thresher.models.checkpoint import load, load_dense, save
from thresher.models.defaults import mean_by_

sentence_transformers = pytest.importorskip("sentence_transformers")

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
CLOSE = {"abs": 1e-5, "rel": 0}
# What a folder says of its scores: in config.json since version 4, before it, and in a file of its own since version 6.
SAYS: dict[str, dict[str, Any]] = {
    "sigmoid": {"sentence_transformers": {"activation_fn": SIGMOID}},
    "identity": {"sentence_transformers": {"activation_fn": IDENTITY}},
    "identity, old": {"sbert_ce_default_activation_function": IDENTITY},
    "identity, new": {},
    "nothing": {},
}


@pytest.fixture(params=list(SAYS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = cross_encoder_folder(tmp_path / request.param, **SAYS[request.param])
    if request.param == "identity, new":
        identity = torch.nn.Identity()
        model = sentence_transformers.CrossEncoder(str(found), device="cpu", activation_fn=identity)
        model.save(str(found), create_model_card=False)
    return found


def stock_scores(folder: Path) -> Any:
    return sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)


def engine_of(folder: Path, **more: Any) -> Engine:
    """A base whose user says that it is a reranker, which changes nothing where the folder says so."""
    return Engine.load(folder, device="cpu", dtype="fp32", means="score", **more)


def run_of(folder: Path, place: Path, **more: Any) -> Path:
    """A run made of a folder as training and calibration make it, told that it is a reranker."""
    model, tokenizer = load_dense(folder, whole=True)
    mean_by_(model, "score")
    prune_with_(model, **more)
    save(model, tokenizer, place)
    return place


def check(engine: Engine, expected: Any) -> None:
    """Every way to a score, and the order."""
    np.testing.assert_allclose(engine.score(PAIRS), expected, **{"atol": 1e-5, "rtol": 0})
    assert [one.value for one in engine.predict(PAIRS)] == pytest.approx(expected.tolist(), **CLOSE)
    assert engine.predict_arrays(PAIRS).values.tolist() == pytest.approx(expected.tolist(), **CLOSE)
    for (query, document), score in zip(PAIRS, expected.tolist(), strict=True):
        (found,) = engine.rank(query, [document])
        assert found.score == pytest.approx(score, **CLOSE)


def test_a_base_scores_as_its_cross_encoder(folder: Path) -> None:
    check(engine_of(folder), stock_scores(folder))


def test_a_run_scores_as_its_base(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder, tmp_path / "run")
    engine = Engine.load(run, device="cpu", dtype="fp32", dial=0.0)
    check(engine, stock_scores(folder))
    np.testing.assert_allclose(stock_scores(run), stock_scores(folder), atol=1e-6)  # as the dense model that it is
    pruned, raw = (Engine.load(run, device="cpu", dtype="fp32").score(PAIRS, raw=raw) for raw in (False, True))
    expected = raw if "identity" in folder.name else 1 / (1 + np.exp(-raw))
    np.testing.assert_allclose(pruned, expected, atol=1e-6)


def test_a_run_of_the_first_versions_scores_as_its_base(folder: Path, tmp_path: Path) -> None:
    """Their descriptions say nothing of the activation; the folder around them does."""
    run = run_of(folder, tmp_path / "run")
    manifest = json.loads((run / "thresher.json").read_text())
    manifest["head"].pop("activation", None)
    (run / "thresher.json").write_text(json.dumps(manifest))
    check(Engine.load(run, device="cpu", dtype="fp32", dial=0.0), stock_scores(folder))
    assert load(run).manifest["head"]["means"] == "score"


def test_files_and_explanations_have_the_same_scores(folder: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"text": query, "document": document} for query, document in PAIRS]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score_files(folder, inputs=source, out=out, pair_column="document", rerank=True, device="cpu", dtype="fp32")
    expected = stock_scores(folder).tolist()
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == pytest.approx(expected, **CLOSE)
    model, tokenizer = unpruned(run_of(folder, tmp_path / "run"))
    model.thresher_head = load(tmp_path / "run").model.thresher_head
    assert explain(model, tokenizer, *PAIRS[0]).score == pytest.approx(expected[0], **CLOSE)


def test_a_folder_that_does_not_say_what_its_output_is(tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path)
    engine = Engine.load(folder, device="cpu", dtype="fp32")
    assert engine.head == Head(means="value") and engine.classify(["a film"])[0].value is not None
    for call in (lambda: engine.score(PAIRS), lambda: engine.rank("a film", TEXTS)):
        with pytest.raises(
            ModelError, match=r"does not say .* say Engine.load\(..., means='score'\), and else use pre"
        ):
            call()
    found = engine_of(folder)
    with pytest.raises(DataError, match="item 0: the model is for pairs of texts, and was given a single text"):
        found.score(["fog"])  # type: ignore[list-item]
    query = "two hours of fog"
    ids = found.read([(query, "the river " * 500)]).ids.tolist()
    assert ids[: len(query.split()) + 2] == found.tokenizer(query)["input_ids"], "the document gives way"
    declared = Engine.from_model(*load_dense(folder), device="cpu", dtype="fp32", means="score")
    assert declared.score(PAIRS).tolist() == found.score(PAIRS).tolist()


def test_what_cannot_be_declared(tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path, labels=3)
    with pytest.raises(ModelError, match="outputs are one class of several, and were declared a reranker's score"):
        engine_of(folder)
    with pytest.raises(ConfigError, match="means = 'reranker' is not one of: classes, labels"):
        Engine.load(folder, means="reranker")


def test_an_activation_is_of_scores() -> None:
    with pytest.raises(ValueError, match="activation = 'identity' is of scores only, and this head means value"):
        Head(means="value", activation="identity")
    with pytest.raises(ValueError, match="activation = 'softmax' is not one of: sigmoid, identity"):
        Head(means="score", activation="softmax")
    assert "activation" not in Head(means="score").to_dict(), "older versions read it"
    identity = Head(means="score", activation="identity")
    assert Head.from_dict(identity.to_dict()) == identity
