"""Real clients with real models, where somebody names their folders:

THRESHER_REAL_RUNS=demo=runs/demo,ranks=models/ms-marco-minilm-l12,embeds=models/minilm-l6 \
    pytest tests/serving/test_real_models.py
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving import clients
from tests.serving.conftest import Client, served
from thresher.serving.house import House
from thresher.serving.run import Setting

NAMED = dict(part.split("=", 1) for part in os.environ.get("THRESHER_REAL_RUNS", "").split(",") if part)
QUERY = "How many people live in Berlin?"
DOCUMENTS = [
    "New York City is famous for the Metropolitan Museum of Art.",
    "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin is well known for its museums.",
]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Client]:
    name = request.param
    if name not in NAMED:
        pytest.skip(f"names no folder for {name} in THRESHER_REAL_RUNS")
    setting = Setting(path=str(Path(NAMED[name])), name=name, device="cpu")
    with served(House([setting])) as client:
        yield client


@pytest.mark.parametrize("server", ["demo"], indirect=True)
@pytest.mark.filterwarnings("ignore")  # of llama-index's own dependencies, when they are imported
def test_all_clients_with_the_demos_model(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import InferenceClient

    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as tests are; this is here
    good, bad = (
        InferenceClient(server.url).text_classification(text)[0].label
        for text in ("a gripping, wonderful film", "a dull and tedious mess")
    )
    assert (good, bad) == ("positive", "negative")
    clients.openai_is_told(server.url, "classes")
    clients.cohere_is_told(server.url, "classes")
    clients.llama_index_is_told(server.url, "classes", embeds=False, ranks=False)


@pytest.mark.parametrize("server", ["ranks"], indirect=True)
@pytest.mark.filterwarnings("ignore")  # as above
def test_all_clients_with_a_reranker(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import cohere
    from huggingface_hub import InferenceClient
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    with cohere.ClientV2("none", base_url=server.url) as client:
        found = client.rerank(model="x", query=QUERY, documents=DOCUMENTS)
    assert [row.index for row in found.results][0] == 1 and found.results[0].relevance_score > 0.9
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    ranked = TextEmbeddingInference(base_url=server.url, top_n=3).postprocess_nodes(
        nodes, query_bundle=QueryBundle(QUERY)
    )
    assert [node.text for node in ranked] == [DOCUMENTS[row.index] for row in found.results]
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)  # as above
    scores = np.array(InferenceClient(server.url).sentence_similarity(QUERY, other_sentences=DOCUMENTS))
    assert [row.index for row in found.results] == (-scores).argsort().tolist()
    (means,) = (run.engine.head.means for run in server.house.runs.values())
    if means == "score":  # a folder that does not say what its one output is may be for single texts, too
        clients.huggingface_hub_is_told(server.url, "pair")
    clients.openai_is_told(server.url, means)
    clients.llama_index_is_told(server.url, means, embeds=False, ranks=True)


@pytest.mark.parametrize("server", ["embeds"], indirect=True)
@pytest.mark.filterwarnings("ignore")  # as above
def test_openai_and_llama_index_with_an_embedder(server: Client) -> None:
    import openai
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        rows = client.embeddings.create(model="x", input=[QUERY, *DOCUMENTS]).data
    vectors = np.array([row.embedding for row in rows])
    assert int((vectors[1:] @ vectors[0]).argmax()) == 1
    other = TextEmbeddingsInference(model_name="mine", base_url=server.url, timeout=60)
    assert np.array(other.get_text_embedding_batch([QUERY])) == pytest.approx(vectors[:1], abs=1e-3)
