"""Every route in the schema of the client it is for, with the numbers that the engine gives."""

import base64
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import Alone, Client
from thresher.engine.engine import Engine

TEXT, OTHER = "the film is good", "the plot is dull and poor"
QUERY, DOCUMENTS = "a warm river", ["the long river", "a cold film", "warm"]


def engine_of(client: Client, name: str) -> Engine:
    return client.house.runs[name].engine


def test_predict_in_its_three_shapes(all_heads: Client) -> None:
    engine = engine_of(all_heads, "classes")
    one = all_heads.post("/run/classes/predict", {"inputs": TEXT}).json
    (expected,) = engine.classify([TEXT])
    assert one[0]["label"] == expected.label and one[0]["score"] == pytest.approx(expected.probability, abs=1e-5)
    assert [row["score"] for row in one] == sorted((row["score"] for row in one), reverse=True)
    batch = all_heads.post("/run/classes/predict", {"inputs": [[TEXT], [OTHER]]}).json
    assert len(batch) == 2 and batch[0][0] == pytest.approx(one[0])
    raw = all_heads.post("/run/classes/predict", {"inputs": TEXT, "raw_scores": True}).json
    assert sum(row["score"] for row in raw) != pytest.approx(1) and sum(row["score"] for row in one) == pytest.approx(1)
    pair = all_heads.post("/run/classes/predict", {"inputs": [TEXT, OTHER]})  # a pair, and no batch
    assert pair.status == 422 and "the model is for single texts, and was given a pair" in pair.json["error"]


def test_several_labels_are_not_softmaxed(all_heads: Client) -> None:
    found = all_heads.post("/run/labels/predict", {"inputs": TEXT}).json
    (expected,) = engine_of(all_heads, "labels").classify([TEXT])
    assert {row["label"]: pytest.approx(row["score"], abs=1e-5) for row in found} == expected.probabilities


@pytest.mark.parametrize("route", ["/rerank", "/run/reranker/rerank"])
def test_rerank_as_tei_has_it(all_heads: Client, route: str) -> None:
    reply = all_heads.post(route, {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    expected = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS)
    assert [row["index"] for row in reply.json] == [row.index for row in expected]
    assert [row["score"] for row in reply.json] == pytest.approx([row.score for row in expected], abs=1e-5)
    assert all(row["text"] == DOCUMENTS[row["index"]] for row in reply.json)
    raw = all_heads.post(route, {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json
    raws = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS, raw=True)
    assert [row["score"] for row in raw] == pytest.approx([row.score for row in raws], abs=1e-4)


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_by_documents(all_heads: Client, route: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, "model": "reranker", "return_documents": True}
    found = all_heads.post(route, body).json
    expected = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS, top_k=2)
    assert [row["index"] for row in found["results"]] == [row.index for row in expected]
    assert found["results"][0]["document"]["text"] == DOCUMENTS[expected[0].index]
    assert found["usage"]["total_tokens"] > 0 and found["id"] and found["meta"]


def test_relevant_spans_are_characters_of_surviving_tokens(all_heads: Client) -> None:
    document = "the long river is cold and the film is warm"
    body: dict[str, Any] = {"query": QUERY, "documents": [document], "model": "reranker"}
    body["relevant_spans"] = {"mode": "enabled", "threshold": 0.0}
    spans = all_heads.post("/v2/rerank", body).json["results"][0]["relevant_spans"]
    assert spans and all(0 <= span["start"] < span["end"] <= len(document) for span in spans)
    assert [span["score"] for span in spans] == sorted((span["score"] for span in spans), reverse=True)
    body["relevant_spans"] = {"mode": "enabled", "threshold": 0.0, "max_spans": 1}
    assert len(all_heads.post("/v2/rerank", body).json["results"][0]["relevant_spans"]) == 1
    body["relevant_spans"] = {"mode": "disabled"}
    assert "relevant_spans" not in all_heads.post("/v2/rerank", body).json["results"][0]


def test_embeddings(all_heads: Client) -> None:
    texts = ["a cold river", "a warm film"]
    vectors = engine_of(all_heads, "embedder").embed(texts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert all_heads.post("/embed", {"inputs": texts}).json == pytest.approx(vectors, abs=1e-5)
    assert all_heads.post("/embed", {"inputs": texts[0]}).json == pytest.approx(vectors[:1], abs=1e-5)
    floats = all_heads.post("/v1/embeddings", {"input": texts, "model": "embedder"}).json
    assert [row["embedding"] for row in floats["data"]] == pytest.approx(vectors, abs=1e-5)
    body = {"input": texts, "model": "embedder", "encoding_format": "base64", "dimensions": 3}
    rows = all_heads.post("/v1/embeddings", body).json["data"]
    decoded = np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])
    short = vectors[:, :3] / np.linalg.norm(vectors[:, :3], axis=1, keepdims=True)
    assert decoded == pytest.approx(short, abs=1e-5)
    body = {"inputs": {"source_sentence": texts[0], "sentences": texts}}
    assert all_heads.post("/similarity", body).json == pytest.approx(vectors @ vectors[0], abs=1e-5)
    scores = all_heads.post("/score", {"text_1": texts[0], "text_2": texts, "model": "embedder"}).json["data"]
    assert [row["score"] for row in scores] == pytest.approx(vectors @ vectors[0], abs=1e-5)


def test_token_ids_are_texts_that_are_tokenized_already(all_heads: Client) -> None:
    engine = engine_of(all_heads, "embedder")
    ids = engine.read(["a cold river"]).ids.tolist()
    by_text = all_heads.post("/embed", {"inputs": "a cold river"}).json
    assert all_heads.post("/embed", {"inputs": ids}).json == pytest.approx(np.array(by_text), abs=1e-5)
    assert all_heads.post("/embed", {"inputs": [ids, ids]}).json[1] == pytest.approx(by_text[0], abs=1e-5)


def test_states_of_all_tokens_have_the_embedding_as_their_mean(all_heads: Client) -> None:
    (states,) = all_heads.post("/embed_all", {"inputs": "a cold river"}).json
    mean = np.mean(states, axis=0)
    vector = all_heads.post("/embed", {"inputs": "a cold river"}).json[0]
    assert mean / np.linalg.norm(mean) == pytest.approx(vector, abs=1e-4)


def test_tokenize_says_where_tokens_are(all_heads: Client) -> None:
    (row,) = all_heads.post("/run/classes/tokenize", {"inputs": TEXT}).json
    inner = [token for token in row if not token["special"]]
    assert (
        [TEXT[token["start"] : token["stop"]] for token in inner] == [token["text"] for token in inner] == TEXT.split()
    )
    assert row[0]["special"] and row[0]["start"] is None
    (bare,) = all_heads.post("/run/classes/tokenize", {"inputs": TEXT, "add_special_tokens": False}).json
    assert bare == inner


def test_classify_and_score_as_vllm_has_them(all_heads: Client) -> None:
    reply = all_heads.post("/classify", {"input": [TEXT, OTHER], "model": "classes"}).json
    expected = engine_of(all_heads, "classes").classify([TEXT, OTHER])
    assert [row["label"] for row in reply["data"]] == [one.label for one in expected]
    assert reply["data"][0]["num_classes"] == 2 and sum(reply["data"][0]["probs"]) == pytest.approx(1)
    body = {"queries": QUERY, "documents": DOCUMENTS, "model": "reranker"}
    scores = [row["score"] for row in all_heads.post("/score", body).json["data"]]
    expected_scores = engine_of(all_heads, "reranker").score([(QUERY, text) for text in DOCUMENTS])
    assert scores == pytest.approx(expected_scores.tolist(), abs=1e-5)
    body = {"text_1": [QUERY] * 3, "text_2": DOCUMENTS, "model": "reranker"}
    assert [row["score"] for row in all_heads.post("/score", body).json["data"]] == pytest.approx(scores)


def test_a_models_own_address_does_what_its_head_does(alone: Alone) -> None:
    nested = alone("classes").post("/", {"inputs": TEXT, "parameters": {"top_k": 1}}).json
    assert len(nested) == 1 and len(nested[0]) == 1 and nested[0][0]["label"] in ("negative", "positive")
    assert len(alone("embedder").post("/", {"inputs": TEXT}).json) == 1
    body = {"inputs": {"source_sentence": "a river", "sentences": ["a river", "warm"]}}
    assert alone("embedder").post("/", body).json[0] == pytest.approx(1, abs=1e-5)
    assert 0 < alone("reranker").post("/", {"inputs": [QUERY, "warm"]}).json[0]["score"] < 1


def test_explain_says_which_layer_dropped_which_token(all_heads: Client) -> None:
    reply = all_heads.post("/run/classes/explain", {"text": TEXT, "dials": [0, 1]}).json
    dense, pruned = reply["explanations"]
    layers = dense["layers"]
    assert all(token["dropped_at"] in (None, layers) for token in dense["tokens"])
    for each in (dense, pruned):
        alive = [
            sum(token["dropped_at"] is None or token["dropped_at"] > layer for token in each["tokens"])
            for layer in range(1, layers + 1)
        ]
        assert alive == each["kept_per_layer"]
    assert pruned["kept_ratio"] < dense["kept_ratio"] and pruned["labels"][0]["label"]
    words = [token for token in pruned["tokens"] if token["part"] == 0]
    assert [TEXT[token["start"] : token["end"]] for token in words] == TEXT.split()


def test_headers_say_where_time_went_and_what_was_kept(all_heads: Client) -> None:
    headers = all_heads.post("/run/classes/predict", {"inputs": TEXT}, {"x-request-id": "abc"}).headers
    for name in ("compute-time", "total-time", "tokenization-time", "queue-time", "inference-time"):
        assert headers[f"x-{name}"].isdigit()
    assert headers["x-compute-tokens"] == "6" and headers["x-compute-characters"] == str(len(TEXT))
    assert 0 < float(headers["x-thresher-kept-ratio"]) < 1 and headers["x-thresher-dial"] == "1"
    assert headers["x-request-id"] == "abc"


def test_what_is_served_is_told(all_heads: Client, alone: Alone) -> None:
    assert {run["name"]: run["head"] for run in all_heads.get("/info").json["runs"]}["embedder"] == "embedding"
    info = alone("reranker").get("/info").json
    assert "reranker" in info["model_type"] and info["max_input_length"] > 0
    assert [model["id"] for model in all_heads.get("/v1/models").json["data"]] == list(all_heads.house.runs)
    for route in ("/livez", "/readyz", "/health", "/run/classes/readyz"):
        assert all_heads.get(route).status == 200
    assert all_heads.get("/run/nobody/readyz").status == 503
    document = all_heads.get("/openapi.json").json
    assert set(document["paths"]) >= {"/predict", "/v2/rerank", "/v1/embeddings", "/explain"}


def test_metrics_count_what_happened(alone: Alone) -> None:
    client = alone("labels")
    client.post("/predict", {"inputs": TEXT})
    client.post("/embed", {"inputs": TEXT})
    text = client.get("/metrics").body.decode()
    assert 'thresher_requests_total{route="/predict",run="labels",status="200"}' in text
    assert 'thresher_errors_total{kind="Validation",run=""}' in text
    for name in ("queue_tokens", "tokens_total", "kept_tokens_total", "batch_texts_bucket", "dial", "drifted"):
        assert f"thresher_{name}{{" in text, name
    assert TEXT not in text
