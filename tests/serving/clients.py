"""What each client sees, unchanged, of a server whose model is not for it: the name of the head, as its own error."""

import pytest

QUERY, DOCUMENTS = "a warm river", ["the long river", "a cold film", "warm"]


def openai_is_told(url: str, head: str) -> None:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert len(client.models.list().data) == 1
        with pytest.raises(openai.BadRequestError, match=f"gives {head}, which /v1/embeddings does not serve"):
            client.embeddings.create(model="x", input="a film")


def cohere_is_told(url: str, head: str) -> None:
    import cohere

    for kind in (cohere.ClientV2, cohere.Client):
        with kind("none", base_url=url) as client, pytest.raises(cohere.errors.BadRequestError, match=f"gives {head}"):
            client.rerank(model="x", query=QUERY, documents=DOCUMENTS)


def huggingface_hub_is_told(url: str, says: str) -> None:
    """Of a reranker, which reads pairs, when it is asked for the labels of one text."""
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    with pytest.raises(HfHubHTTPError, match=says):
        InferenceClient(url).text_classification("a film")


def llama_index_is_told(url: str, head: str, *, embeds: bool, ranks: bool) -> None:
    """Its clients take any JSON for an answer, so that they fail at the first use of it."""
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    embedder, reranker = TextEmbeddingsInference(model_name="x", base_url=url), TextEmbeddingInference(base_url=url)
    if not embeds:
        assert f"gives {head}, which /embed does not serve" in embedder._call_api(["a film"])["error"]
    if not ranks:
        assert f"gives {head}, which /rerank does not serve" in reranker._call_api(QUERY, DOCUMENTS)["error"]
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
        with pytest.raises(AssertionError):
            reranker.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))
