"""What clients send. Fields that we do not know are left alone: a newer client may have more of them."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

Texts = str | list[str]
Inputs = str | list[str | list[str]]  # a text, a pair, or a batch of both
Embeddable = str | list[str | int | list[int]]  # a text, texts, token ids, or lists of token ids
Direction = Literal["left", "right", "Left", "Right"]


class Common(Struct, kw_only=True):
    """Of every request: "never" is computed at the run's own dial, whatever the load."""

    degrade: Literal["never", "allow"] = "allow"


class Predict(Common):
    inputs: Inputs
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    raw_scores: bool = False


class Embed(Common):
    inputs: Embeddable
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None


class Sentences(Struct):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct):
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    prompt_name: str | None = None


class Similarity(Common):
    inputs: Sentences
    parameters: SimilarityParameters | None = None


class Tokenize(Common):
    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


class Rerank(Common):
    """`texts` as text-embeddings-inference has it, or `documents` as vLLM, infinity and Jina do."""

    query: str
    texts: list[str] | None = None
    documents: list[str | dict[str, Any]] | None = None
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    raw_scores: bool = False
    return_text: bool = False
    return_documents: bool | None = None
    top_n: int | None = None
    model: str | None = None


class Spans(Struct):
    mode: str = "enabled"
    threshold: float | None = None
    max_spans: int | None = None


class CohereRerank(Common):
    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    relevant_spans: Spans | None = None


class OpenAIEmbeddings(Common):
    input: Embeddable
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class Classify(Common):
    input: Texts
    model: str | None = None


class Score(Common):
    model: str | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None


class Task(Common):
    """What huggingface_hub posts to a model's own address, and text-embeddings-inference takes there; what `inputs` is
    depends on the head, and a reranker also takes a query with its texts."""

    inputs: Any = UNSET
    query: str | None = None
    texts: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    parameters: dict[str, Any] | None = None
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: int | None = None


class Question(Struct):
    question: str
    context: str


class AnswerQuestions(Common):
    """One question with its context, or several as `inputs`."""

    question: str | None = None
    context: str | None = None
    inputs: Question | list[Question] | None = None
    top_k: int = 1


class Tag(Common):
    inputs: Texts


class Explain(Common):
    """Which layer dropped which token; `dials` are tried on the same text, 0 is the dense model."""

    text: str
    pair: str | None = None
    dials: list[float] | UnsetType = UNSET


def decode(body: bytes, kind: type[Any]) -> Any:
    """A request, or a ValueError in one line."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the body is not JSON: {error}") from error
