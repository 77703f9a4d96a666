"""Every route in the schema of the client it is for, with the numbers that the engine gives."""

import base64
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import kinds
from tests.models.sentences import cross_encoder_folder
from tests.serving.conftest import Alone, Client, served, setting
from thresher.engine.engine import Engine
from thresher.serving.house import House

TEXT, OTHER = "the film is good", "the plot is dull and poor"
QUERY, DOCUMENTS = "a warm river", ["the long river", "a cold film", "warm"]


def engine_of(client: Client, name: str) -> Engine:
    return client.house.runs[name].engine


def share(logit: float) -> float:
    """A logit as a score between 0 and 1."""
    return float(1 / (1 + np.exp(-logit)))


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
    raws = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS, raw=True)
    assert [row["index"] for row in reply.json] == [row.index for row in raws]
    assert [row["score"] for row in reply.json] == pytest.approx([share(row.score) for row in raws], abs=1e-5)
    assert all(row["text"] == DOCUMENTS[row["index"]] for row in reply.json)
    raw = all_heads.post(route, {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json
    assert [row["score"] for row in raw] == pytest.approx([row.score for row in raws], abs=1e-4)


def test_scores_are_what_clients_of_a_route_count_on(tmp_path: Path) -> None:
    """TEI, Cohere and Jina have scores between 0 and 1 whatever the folder says; vLLM applies what the folder names."""
    says = {"logits": {"sbert_ce_default_activation_function": kinds.LINEAR}, "nothing": {}}
    for name, entries in says.items():
        cross_encoder_folder(tmp_path / name, **entries)
    body: dict[str, Any] = {"query": QUERY, "documents": DOCUMENTS}
    with served(House([setting(tmp_path, name, means="score") for name in says])) as client:
        for name in says:
            engine, at = engine_of(client, name), f"/run/{name}"
            raw = engine.score([(QUERY, document) for document in DOCUMENTS], raw=True)
            shares = [share(logit) for logit in raw]
            best = pytest.approx(max(shares), abs=1e-5)
            assert client.post(f"{at}/rerank", {"query": QUERY, "texts": DOCUMENTS}).json[0]["score"] == best
            assert client.post(f"{at}/v2/rerank", body).json["results"][0]["relevance_score"] == best
            scored = client.post(f"{at}/score", {"text_1": QUERY, "text_2": DOCUMENTS}).json["data"]
            expected = engine.score([(QUERY, document) for document in DOCUMENTS])
            assert expected.tolist() == pytest.approx(raw.tolist() if name == "logits" else shares, abs=1e-5)
            assert [row["score"] for row in scored] == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_by_documents(all_heads: Client, route: str) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, "model": "reranker", "return_documents": True}
    found = all_heads.post(route, body).json
    expected = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS, top_k=2)
    assert [row["index"] for row in found["results"]] == [row.index for row in expected]
    assert found["results"][0]["document"]["text"] == DOCUMENTS[expected[0].index]
    assert found["usage"]["total_tokens"] > 0 and found["id"] and found["meta"]


def test_documents_are_cut_where_the_client_says(all_heads: Client) -> None:
    body: dict[str, Any] = {"query": QUERY, "documents": ["warm the cold long river", *DOCUMENTS], "model": "reranker"}
    short = all_heads.post("/v2/rerank", {**body, "documents": ["warm the", "the long", "a cold", "warm"]}).json
    found = all_heads.post("/v2/rerank", {**body, "max_tokens_per_doc": 2, "return_documents": True}).json
    scores = [{row["index"]: row["relevance_score"] for row in each["results"]} for each in (found, short)]
    assert scores[0] == pytest.approx(scores[1]) and found["usage"] == short["usage"]
    whole = {row["index"]: row["document"]["text"] for row in found["results"]}
    assert whole[0] == body["documents"][0], "what is given back is the document as it came"
    assert all_heads.post("/v2/rerank", {**body, "max_tokens_per_doc": 500}).json["usage"] != short["usage"]
    assert all_heads.post("/v2/rerank", {**body, "max_tokens_per_doc": 0}).status == 400


def test_documents_have_raw_scores_too(all_heads: Client) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "model": "reranker", "raw_scores": True}
    expected = engine_of(all_heads, "reranker").rank(QUERY, DOCUMENTS, raw=True)
    scores = [row["relevance_score"] for row in all_heads.post("/rerank", body).json["results"]]
    assert scores == pytest.approx([row.score for row in expected], abs=1e-4)


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


def test_a_prompt_stands_before_what_is_tokenized_and_compared(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(all_heads, "embedder")
    monkeypatch.setattr(engine, "head", replace(engine.head, prompts={"query": "warm "}))
    (row,) = all_heads.post("/run/embedder/tokenize", {"inputs": "river", "prompt_name": "query"}).json
    assert [token["text"] for token in row if not token["special"]] == ["warm", "river"]
    for route, body in (
        ("/run/embedder/tokenize", {"inputs": "river", "prompt_name": "title"}),
        ("/run/classes/tokenize", {"inputs": "river", "prompt_name": "query"}),
    ):
        assert "prompt" in all_heads.post(route, body).json["error"]
    inputs = {"source_sentence": "river", "sentences": ["cold river", "film"]}
    given = {"inputs": inputs, "parameters": {"prompt_name": "query", "truncate": True}}
    vectors = engine.embed(["warm river", "warm cold river", "warm film"])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert all_heads.post("/similarity", given).json == pytest.approx(vectors[1:] @ vectors[0], abs=1e-5)
    assert all_heads.post("/similarity", {"inputs": inputs}).json != pytest.approx(vectors[1:] @ vectors[0], abs=1e-5)


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
    (ranked,) = engine_of(alone("reranker"), "reranker").rank(QUERY, ["warm"], raw=True)
    score = alone("reranker").post("/", {"inputs": [QUERY, "warm"]}).json[0]["score"]
    assert score == pytest.approx(share(ranked.score), abs=1e-5)
    ranked = {"query": QUERY, "texts": DOCUMENTS, "return_text": True}
    assert alone("reranker").post("/", ranked).json == alone("reranker").post("/rerank", ranked).json
    assert "missing required field `inputs`" in alone("reranker").post("/", {"query": QUERY}).json["error"]
    raw = alone("classes").post("/", {"inputs": TEXT, "raw_scores": True}).json[0]
    assert sum(row["score"] for row in raw) != pytest.approx(1)
    for function, expected in (("none", raw), ("softmax", alone("classes").post("/", {"inputs": TEXT}).json[0])):
        parameters = {"function_to_apply": function}
        assert alone("classes").post("/", {"inputs": TEXT, "parameters": parameters}).json[0] == expected


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
    # A client of one model is given /run/NAME as its address, and asks for what stands below it.
    one = all_heads.get("/run/reranker/info").json
    assert one["model_id"] == "reranker" and "reranker" in one["model_type"] and len(one["runs"]) == 1
    assert all_heads.get("/run/reranker/health").json["runs"] == {"reranker": "ready"}
    nobody = all_heads.get("/run/nobody/info")
    assert nobody.status == 404 and "no run is called 'nobody'" in nobody.json["error"]
    assert all_heads.get("/run/reranker/docs").status == 404
    document = all_heads.get("/openapi.json").json
    assert set(document["paths"]) >= {"/predict", "/v2/rerank", "/v1/embeddings", "/explain"}


def test_spans_that_nobody_gets_are_refused_before_scores_are_computed(all_heads: Client) -> None:
    body = {"query": QUERY, "documents": ["warm"] * 65, "model": "reranker", "relevant_spans": {}}
    batches = list[Any]()
    all_heads.house.watchers.append(lambda run, batch: batches.append(batch))
    reply = all_heads.post("/v2/rerank", body)
    all_heads.house.watchers.pop()
    assert reply.status == 400 and "relevant_spans of 65 documents; set top_n to at most 64" in reply.json["message"]
    assert not batches


@pytest.mark.parametrize("path", ["/run/nobody/predict", "/run/nobody", "/run//predict"])
def test_an_address_is_of_one_run_even_where_there_is_one_only(alone: Alone, path: str) -> None:
    reply = alone("classes").post(path, {"inputs": TEXT})
    assert reply.status == 404 and "no run is called" in reply.json["error"]
    assert alone("classes").post("/classify", {"input": TEXT, "model": "nobody"}).status == 200


def test_paths_and_methods(all_heads: Client) -> None:
    assert all_heads.post("/run/classes/predict/", {"inputs": TEXT}).status == 200
    assert all_heads.post("/run/classes", {"inputs": TEXT}).status == 200
    wrong = all_heads.get("/predict")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    both = all_heads.post("/info", {})
    assert (both.status, both.headers["allow"]) == (405, "GET, HEAD")
    head = urllib.request.urlopen(urllib.request.Request(all_heads.url + "/livez", method="HEAD"), timeout=60)
    assert head.status == 200 and head.read() == b""


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
