"""Every bad request gets its status and one line of JSON in the schema of its route, and harms nobody else."""

import json
from typing import Any

import pytest

from tests.serving.conftest import Client

GOOD = {"inputs": "the film is good"}
PREDICT, EMBED, RERANK, CLASSIFY = "/run/classes/predict", "/embed", "/rerank", "/run/classes/classify"
QUERY = {"query": "river", "texts": ["warm"]}
TWO = {"source_sentence": "river", "sentences": ["warm"]}
ASK = {"query": "river", "documents": ["warm"], "model": "reranker"}

CASES: list[tuple[str, Any, int, str]] = [
    # No JSON, or not what the schema says.
    (PREDICT, b"", 422, "not JSON"),
    (PREDICT, b"{", 422, "not JSON"),
    (PREDICT, b"\xff\xfe", 422, "not JSON"),
    (PREDICT, b"[1, 2", 422, "Expected `object`"),
    (PREDICT, b"[" * 100_000, 422, "Expected `object`"),
    (PREDICT, b'{"x":' * 100_000, 422, ""),
    (PREDICT, b'"text"', 422, "Expected `object`"),
    (PREDICT, [], 422, "Expected `object`"),
    (PREDICT, {}, 422, "missing required field `inputs`"),
    (PREDICT, {"inputs": 3}, 422, "Expected"),
    (PREDICT, {"inputs": None}, 422, "Expected"),
    (PREDICT, {"inputs": [[1]]}, 422, "Expected `str`"),
    (PREDICT, {**GOOD, "truncate": "yes"}, 422, "Expected `bool"),
    (PREDICT, {**GOOD, "degrade": "sometimes"}, 422, "Invalid enum value"),
    # What is there, but cannot be answered.
    (PREDICT, {"inputs": []}, 400, "inputs is empty"),
    (PREDICT, {"inputs": [[]]}, 422, "an input of 0 texts"),
    (PREDICT, {"inputs": ["a", "b", "c"]}, 422, "an input of 3 texts"),
    (PREDICT, {"inputs": ["a", ["b"]]}, 422, "mixes texts and lists"),
    (PREDICT, {"inputs": ["good", "film"]}, 422, "single texts"),
    (PREDICT, {"inputs": ""}, 422, "the text is empty"),
    (PREDICT, {"inputs": " \u200b\n"}, 422, "the text is empty"),
    (PREDICT, {"inputs": [["good"], [" "]]}, 422, "text 1: the text is empty"),
    (PREDICT, b'{"inputs": "a \\ud800 b"}', 422, ""),
    (PREDICT, {"inputs": "good " * 100, "truncate": False}, 422, "truncate is false"),
    (PREDICT, {**GOOD, "truncation_direction": "left"}, 422, "truncation_direction"),
    (RERANK, {"query": "river"}, 422, "neither texts nor documents"),
    (RERANK, {"query": "river", "texts": []}, 400, "no text is given"),
    (RERANK, {"query": "", "texts": ["warm"]}, 422, "the text is empty"),
    (RERANK, {"texts": ["warm"]}, 422, "missing required field `query`"),
    (RERANK, {"query": "river " * 100, "texts": ["warm"]}, 422, ""),
    (RERANK, {**QUERY, "truncation_direction": "left"}, 422, "truncation_direction"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": 3}, 422, "Expected"),
    (EMBED, {"inputs": [1, "a"]}, 422, "mixes texts and token ids"),
    (EMBED, {"inputs": [99_999_999]}, 422, "outside the model's vocabulary"),
    (EMBED, {"inputs": [[]]}, 422, "no tokens"),
    (EMBED, {"inputs": [5, 6], "prompt_name": "query"}, 422, "prompt_name does not go with token ids"),
    # The same at a model's own address.
    ("/run/classes/", {"inputs": "good " * 100, "truncate": False}, 422, "truncate is false"),
    ("/run/classes/", {**GOOD, "parameters": {"function_to_apply": "sigmoid"}}, 422, "function_to_apply = 'sigmoid'"),
    ("/run/classes/", {**GOOD, "truncation_direction": "Left"}, 422, "truncation_direction"),
    ("/run/embedder/", {"inputs": "river", "truncation_direction": "Left"}, 422, "truncation_direction"),
    ("/run/embedder/", {"inputs": TWO, "parameters": {"truncation_direction": "Left"}}, 422, "truncation_direction"),
    ("/run/reranker/", {"inputs": TWO, "truncation_direction": "Left"}, 422, "truncation_direction"),
    ("/run/reranker/", {**QUERY, "truncation_direction": "Left"}, 422, "truncation_direction"),
    ("/run/reranker/", {"inputs": ["river", "warm " * 100], "truncate": False}, 422, "truncate is false"),
    (EMBED, {"inputs": "a river", "dimensions": 0}, 422, "dimensions = 0"),
    (EMBED, {"inputs": "a river", "dimensions": 10_000}, 422, "dimensions = 10000"),
    (EMBED, {"inputs": "a river", "prompt_name": "none such"}, 422, "not one of the model's prompts"),
    ("/similarity", {"inputs": {"source_sentence": "a"}}, 422, "missing required field `sentences`"),
    ("/run/classes/tokenize", {"inputs": []}, 400, "inputs is empty"),
    ("/run/classes/explain", {"text": "good", "dials": []}, 422, "0 dials"),
    ("/run/classes/explain", {"text": "good", "dials": [-1]}, 422, "dial = -1"),
    ("/run/classes/explain", {"text": ""}, 422, "the text is empty"),
    ("/run/classes/explain", {"text": "good " * 100_000}, 422, "longer than"),
    # Routes that the head, or no run, serves.
    ("/run/classes/embed", {"inputs": "good"}, 422, "gives classes, which /embed does not serve; use /predict"),
    ("/run/embedder/predict", GOOD, 422, "gives embedding, which /predict does not serve; use /embed"),
    ("/run/embedder/rerank", QUERY, 422, "gives embedding"),
    ("/run/reranker/predict", GOOD, 422, "gives score"),
    ("/predict", GOOD, 422, "several runs serve /predict: classes, labels; call /run/NAME/predict"),
    ("/run/nobody/predict", GOOD, 404, "no run is called 'nobody'"),
    ("/nothing", GOOD, 404, "no route /nothing"),
    # The same in the schemas of others, whose bad requests are 400.
    ("/v1/embeddings", {"input": [], "model": "embedder"}, 400, "empty"),
    ("/v1/embeddings", {"model": "embedder"}, 400, "missing required field `input`"),
    ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, "no run is called 'gpt'"),
    ("/v1/embeddings", {"input": "a", "model": "embedder", "encoding_format": "hex"}, 400, "Invalid enum value"),
    ("/v2/rerank", {**ASK, "top_n": 0}, 400, "top_n = 0"),
    ("/v2/rerank", {**ASK, "documents": []}, 400, "documents is empty"),
    ("/v2/rerank", {**ASK, "documents": [{"title": "x"}]}, 400, "document 0 has no text"),
    ("/v2/rerank", {**ASK, "model": "classes"}, 400, "gives classes"),
    ("/score", {"text_1": "a", "model": "reranker"}, 400, "two sides are needed"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c"], "model": "reranker"}, 400, "2 texts against 1"),
    (CLASSIFY, {"input": 5}, 400, "Expected"),
]


def message_of(body: Any) -> str:
    """Wherever the schema has it."""
    if "message" in body:
        return str(body["message"])
    error = body["error"]
    return str(error["message"]) if isinstance(error, dict) else str(error)


@pytest.mark.parametrize(("route", "body", "status", "says"), CASES)
def test_a_bad_request_gets_its_status_and_one_line(
    all_heads: Client, route: str, body: Any, status: int, says: str
) -> None:
    reply = all_heads.post(route, body)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json"), reply.body[:300]
    assert says in message_of(reply.json) and b"\n" not in reply.body and len(reply.body) < 1000
    assert all_heads.post(PREDICT, GOOD).status == 200


def test_each_schema_has_its_own_errors(all_heads: Client) -> None:
    assert set(all_heads.post(PREDICT, {}).json) == {"error", "error_type"}
    assert all_heads.post(PREDICT, {}).json["error_type"] == "Validation"
    assert all_heads.post(PREDICT, {"inputs": []}).json["error_type"] == "Empty"
    assert set(all_heads.post("/v1/embeddings", {}).json["error"]) == {"message", "type", "param", "code"}
    assert "message" in all_heads.post("/v2/rerank", {}).json


def test_methods_and_timeouts(all_heads: Client) -> None:
    assert all_heads.get("/predict").status == 405 and "GET is not for" in all_heads.get("/predict").json["error"]
    for wrong in ("soon", "-1", "nan", "0"):
        assert all_heads.post(PREDICT, GOOD, {"x-thresher-timeout": wrong}).status == 422
    assert all_heads.post(PREDICT, GOOD, {"x-thresher-timeout": "20"}).status == 200
    wrong = all_heads.post(PREDICT, GOOD, {"x-thresher-degrade": "nevr"})
    assert wrong.status == 422 and "x-thresher-degrade = 'nevr' is not one of: never, allow" in wrong.json["error"]
    late = all_heads.post(PREDICT, GOOD, {"x-thresher-timeout": "0.0000001"})
    assert late.status in (413, 504), late.body


@pytest.mark.parametrize(
    "text",
    [
        "\u202e good film \u0000 end",
        "good" * 200_000,
        "🎬" * 5_000,
        "\u0301" * 5_000 + "film",
        "film " * 200_000,
        "[CLS] [SEP] [PAD] film",
        json.dumps({"inputs": "film"}),
    ],
)
def test_poisoned_texts_are_answered(all_heads: Client, text: str) -> None:
    reply = all_heads.post(PREDICT, {"inputs": text})
    assert reply.status in (200, 422), reply.body
    assert all_heads.post(PREDICT, GOOD).status == 200
