"""Clients that people have, unchanged, over a real socket: openai, cohere, huggingface_hub, and llama-index's for
text-embeddings-inference."""

import math

import numpy as np
import pytest

from tests.serving import clients
from tests.serving.conftest import Alone
from tests.serving.test_routes import share

TEXTS = ["a cold river", "a warm film", "the long river"]
DOCUMENTS = ["the long river", "a cold film", "warm"]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_openai_embeddings_which_asks_for_base64(alone: Alone) -> None:
    import openai

    server = alone("embedder")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
        expected = unit(server.house.runs["embedder"].engine.embed(TEXTS))
        assert np.array([row.embedding for row in found.data]) == pytest.approx(expected, abs=1e-5)
        assert found.usage.total_tokens > 0 and [row.index for row in found.data] == [0, 1, 2]
        short = client.embeddings.create(model="x", input=TEXTS[0], dimensions=4, encoding_format="float")
        assert len(short.data[0].embedding) == 4
        assert [model.id for model in client.models.list()] == ["embedder"]
        with pytest.raises(openai.BadRequestError, match="the text is empty"):
            client.embeddings.create(model="x", input=" ")


def test_cohere_reranks_in_both_versions(alone: Alone) -> None:
    import cohere

    server = alone("reranker")
    expected = server.house.runs["reranker"].engine.rank("a warm river", DOCUMENTS, raw=True)
    with cohere.ClientV2("none", base_url=server.url) as newer, cohere.Client("none", base_url=server.url) as older:
        for client in (newer, older):
            found = client.rerank(model="rerank-v3.5", query="a warm river", documents=DOCUMENTS, top_n=2)
            assert [row.index for row in found.results] == [row.index for row in expected[:2]]
            scores = [row.relevance_score for row in found.results]
            assert scores == pytest.approx([share(row.score) for row in expected[:2]], abs=1e-5)
        spans = cohere.RerankRelevantSpans(mode="enabled", threshold=0.0)
        found = newer.rerank(model="x", query="a warm river", documents=DOCUMENTS, relevant_spans=spans)
        for row in found.results:
            assert all(DOCUMENTS[row.index][span.start : span.end] for span in row.relevant_spans or [])
        with pytest.raises(cohere.errors.BadRequestError, match="documents is empty"):
            newer.rerank(model="x", query="river", documents=[])


def test_huggingface_hub_posts_to_the_models_address(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import InferenceClient

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as tests are; this is here
    embedder = alone("embedder")
    found = InferenceClient(embedder.url).feature_extraction(TEXTS[0])
    expected = unit(embedder.house.runs["embedder"].engine.embed(TEXTS[:1]))
    assert found == pytest.approx(expected, abs=1e-5)
    cosines = InferenceClient(embedder.url).sentence_similarity(TEXTS[0], TEXTS)
    assert cosines[0] == pytest.approx(1, abs=1e-5) and len(cosines) == 3
    classes = alone("classes")
    labels = InferenceClient(classes.url).text_classification("the film is good")
    (expected_label,) = classes.house.runs["classes"].engine.classify(["the film is good"])
    assert labels[0].label == expected_label.label and math.isclose(sum(one.score for one in labels), 1, rel_tol=1e-4)
    (one,) = InferenceClient(classes.url).text_classification("the film is good", top_k=1)
    assert one == labels[0]
    client = InferenceClient(classes.url, provider="hf-inference")  # others have no health
    assert client.health_check() and client.get_endpoint_info()["model_id"] == "classes"


@pytest.mark.filterwarnings("ignore")  # of llama-index's own dependencies, when they are imported
def test_llama_index_takes_it_for_text_embeddings_inference(alone: Alone) -> None:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    embedder, reranker = alone("embedder"), alone("reranker")
    client = TextEmbeddingsInference(model_name="mine", base_url=embedder.url, timeout=60)
    texts = [f"{text}" for text in TEXTS]
    expected = unit(embedder.house.runs["embedder"].engine.embed(texts))
    assert np.array(client.get_text_embedding_batch(texts)) == pytest.approx(expected, abs=1e-5)
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    ranked = TextEmbeddingInference(base_url=reranker.url, top_n=3).postprocess_nodes(
        nodes, query_bundle=QueryBundle("a warm river")
    )
    order = reranker.house.runs["reranker"].engine.rank("a warm river", DOCUMENTS, raw=True)
    assert [node.text for node in ranked] == [DOCUMENTS[row.index] for row in order]
    assert [node.score for node in ranked] == pytest.approx([share(row.score) for row in order], abs=1e-5)


def test_huggingface_hub_compares_with_a_reranker(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import InferenceClient

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as tests are; this is here
    server = alone("reranker")
    scores = InferenceClient(server.url).sentence_similarity("a warm river", other_sentences=DOCUMENTS)
    ranked = server.house.runs["reranker"].engine.rank("a warm river", DOCUMENTS, raw=True)
    assert scores == pytest.approx([share(row.score) for row in sorted(ranked, key=lambda row: row.index)], abs=1e-5)


@pytest.mark.filterwarnings("ignore")  # of llama-index's own dependencies, when they are imported
@pytest.mark.parametrize(
    ("run", "head", "ranks"),
    [("classes", "classes", False), ("reranker", "score", True), ("embedder", "embedding", False)],
)
def test_clients_of_another_head_are_told(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, run: str, head: str, ranks: bool
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as above
    url, embeds = alone(run).url, run == "embedder"
    if not embeds:
        clients.openai_is_told(url, head)
    if not ranks:
        clients.cohere_is_told(url, head)
    else:
        clients.huggingface_hub_is_told(url, "pair")
    clients.llama_index_is_told(url, head, embeds=embeds, ranks=ranks)
