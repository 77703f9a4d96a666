"""All routes that answer with a model: what they take, who calls them, and how their errors look."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from thresher.serving.http import schemas
from thresher.serving.http.replies import COHERE, OPENAI, TEI
from thresher.serving.http.routes import openai, own, ranking, reading, tei, vllm

Answer = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class ModelRoute:
    """`example`: a body to try."""

    path: str
    takes: type[Any]
    answer: Answer
    style: str
    clients: str
    says: str
    example: dict[str, Any]


ROUTES = (
    ModelRoute(
        "/predict", schemas.Predict, tei.predict, TEI, "text-embeddings-inference",
        "labels of a text, a pair or a batch of both, the likeliest first", {"inputs": "a gripping film"},
    ),
    ModelRoute(
        "/rerank", schemas.Rerank, tei.rerank, TEI, "text-embeddings-inference, vLLM, infinity",
        "documents by falling score; `texts` or `documents` says in which schema",
        {"query": "who wrote it?", "texts": ["a film by her", "a river in the north"]},
    ),
    ModelRoute(
        "/embed", schemas.Embed, tei.embed, TEI, "text-embeddings-inference",
        "one vector for each text", {"inputs": ["a gripping film"]},
    ),
    ModelRoute(
        "/embed_all", schemas.Embed, tei.embed_all, TEI, "text-embeddings-inference",
        "the state of every token", {"inputs": ["a gripping film"]},
    ),
    ModelRoute(
        "/similarity", schemas.Similarity, tei.similarity, TEI, "text-embeddings-inference",
        "cosines of one text to others", {"inputs": {"source_sentence": "a film", "sentences": ["a movie"]}},
    ),
    ModelRoute(
        "/tokenize", schemas.Tokenize, tei.tokenize, TEI, "text-embeddings-inference",
        "tokens with their ids and characters", {"inputs": "a gripping film"},
    ),
    ModelRoute(
        "/", schemas.Task, tei.task, TEI, "huggingface_hub",
        "what the run's head does", {"inputs": "a gripping film"},
    ),
    ModelRoute(
        "/v1/embeddings", schemas.OpenAIEmbeddings, openai.embeddings, OPENAI, "openai",
        "one vector for each text, as numbers or in base64", {"input": ["a gripping film"], "model": "any"},
    ),
    ModelRoute(
        "/v1/rerank", schemas.CohereRerank, ranking.rank_documents, COHERE, "Cohere v1, Jina, vLLM",
        "documents by falling relevance", {"query": "who wrote it?", "documents": ["a film by her"], "model": "any"},
    ),
    ModelRoute(
        "/v2/rerank", schemas.CohereRerank, ranking.rank_documents, COHERE, "Cohere v2, vLLM",
        "the same, with relevant_spans made of the tokens that survive",
        {"query": "who wrote it?", "documents": ["a film by her"], "model": "any"},
    ),
    ModelRoute(
        "/classify", schemas.Classify, vllm.classify, OPENAI, "vLLM",
        "probabilities of all classes", {"input": ["a gripping film"]},
    ),
    ModelRoute(
        "/score", schemas.Score, vllm.score, OPENAI, "vLLM",
        "how well two texts fit", {"text_1": "who wrote it?", "text_2": ["a film by her"]},
    ),
    ModelRoute(
        "/answer", schemas.AnswerQuestions, reading.answer, TEI, "this server",
        "the answer to a question in a context, of any length",
        {"question": "Who wrote it?", "context": "The letter was written by Ada."},
    ),
    ModelRoute(
        "/tag", schemas.Tag, reading.tag, TEI, "this server",
        "entities of texts of any length", {"inputs": "Ada was born in London."},
    ),
    ModelRoute(
        "/explain", schemas.Explain, own.explain, TEI, "this server's page",
        "which layer dropped which token, at one dial or several", {"text": "a gripping film", "dials": [0, 1]},
    ),
)  # fmt: skip
