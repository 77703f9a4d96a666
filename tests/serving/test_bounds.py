"""What is computed in time must still be small enough to be answered: replies that would fill the memory are refused,
and nobody waits for the tokenizer of somebody's long text."""

import threading
from typing import Any

import pytest

from tests.serving.conftest import Client
from tests.serving.test_faults import until

TEI = "thresher.serving.http.routes.tei"
TEXTS = ["a cold river", "a warm film", "the long river"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/embed", {"inputs": TEXTS}),
        ("/v1/embeddings", {"input": TEXTS, "model": "embedder"}),
        ("/embed_all", {"inputs": TEXTS[0]}),
        ("/run/embedder/", {"inputs": TEXTS}),
    ],
)
def test_vectors_that_would_fill_the_memory_are_refused(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any
) -> None:
    assert all_heads.post(route, body).status == 200
    width = all_heads.house.runs["embedder"].engine.executor.shape.width
    monkeypatch.setattr(f"{TEI}.MOST_NUMBERS", 2 * width)
    reply = all_heads.post(route, body)
    assert reply.status == 413 and "2 are allowed, send fewer texts at a time" in str(reply.json)
    if route == "/embed":
        assert all_heads.post(route, {"inputs": TEXTS[:2]}).status == 200


def test_tokens_that_would_fill_the_memory_are_refused(all_heads: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TEI}.MOST_CHARACTERS", 20)
    assert all_heads.post("/run/classes/tokenize", {"inputs": TEXTS[:1]}).status == 200
    reply = all_heads.post("/run/classes/tokenize", {"inputs": TEXTS})
    assert reply.status == 413 and "37 characters; /tokenize takes 20 at a time" in reply.json["error"]


class Noting:
    """A tokenizer that notes in which threads it reads single texts."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.threads = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode_batch(self, *given: Any, **more: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        return self.inner.encode_batch(*given, **more)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/run/classes/tokenize", {"inputs": "good film " * 1000}),
        ("/v2/rerank", {"query": "a", "documents": ["film " * 2000], "model": "reranker", "max_tokens_per_doc": 3}),
    ],
)
def test_long_texts_are_tokenized_beside_the_event_loop(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any
) -> None:
    run = all_heads.house.runs["reranker" if "rerank" in route else "classes"]
    reader: Any = run.engine.tokenizing.reader
    noting = Noting(reader.inner)
    monkeypatch.setattr(reader, "inner", noting)
    assert all_heads.post(route, body).status == 200
    assert noting.threads and all(name.startswith("tokenizing") for name in noting.threads)


@pytest.mark.parametrize(
    ("name", "route", "body"),
    [
        ("classes", "/predict", {"inputs": "good film " * 2000}),
        ("classes", "/tokenize", {"inputs": "good film " * 2000}),
        ("embedder", "/embed_all", {"inputs": "river " * 4000}),
        ("reranker", "/v2/rerank", {"query": "a", "documents": ["film " * 2000], "max_tokens_per_doc": 3}),
    ],
)
def test_the_tokenizer_has_no_more_time_than_the_request(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch, name: str, route: str, body: Any
) -> None:
    go, run, route = threading.Event(), all_heads.house.runs[name], f"/run/{name}{route}"
    pool: Any = run._tokenizers
    submit = pool.submit
    monkeypatch.setattr(pool, "submit", lambda work: submit(lambda: (go.wait(30), work())[1]))
    try:
        reply = all_heads.post(route, body, {"x-thresher-timeout": "0.5"})
        assert reply.status == 504 and "characters were not tokenized in time" in str(reply.json)
        assert run.reading > 4096  # it is still there
    finally:
        go.set()
    assert until(lambda: run.reading == 0)
    monkeypatch.setattr(pool, "submit", submit)
    assert all_heads.post(route, body).status == 200


class PanicException(BaseException):
    """As Rust's panics reach Python."""


class Poisoned(Noting):
    """A tokenizer that does not survive one of the texts."""

    def encode_batch(self, texts: Any, *given: Any, **more: Any) -> Any:
        if "poison" in texts:
            raise PanicException("index out of bounds")
        return super().encode_batch(texts, *given, **more)


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/run/classes/tokenize", {"inputs": ["good", "poison"]}, 422),
        ("/v2/rerank", {"query": "a", "documents": ["b", "poison"], "model": "reranker", "max_tokens_per_doc": 3}, 400),
    ],
)
def test_a_text_that_makes_the_tokenizer_panic_is_the_requests_error(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch, route: str, body: Any, status: int
) -> None:
    run = all_heads.house.runs["reranker" if "rerank" in route else "classes"]
    reader: Any = run.engine.tokenizing.reader
    monkeypatch.setattr(reader, "inner", Poisoned(reader.inner))
    reply = all_heads.post(route, body)
    assert reply.status == status and "text 1: the tokenizer cannot read the text" in str(reply.json)


def test_a_panic_that_nobody_expects_is_logged_counted_and_json(
    all_heads: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def panics(*given: Any, **more: Any) -> Any:
        raise PanicException("index out of bounds")

    monkeypatch.setattr(all_heads.house, "pick", panics)
    reply = all_heads.post("/embed", {"inputs": TEXTS})
    assert reply.status == 500 and reply.json["error_type"] == "Backend" and "x-request-id" in reply.headers
    assert "request failed" in caplog.text
    counted = 'thresher_requests_total{route="/embed",run="",status="500"}'
    assert counted in all_heads.get("/metrics").body.decode()
