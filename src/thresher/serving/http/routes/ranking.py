"""Documents for a query as Cohere, Jina, vLLM and infinity have it."""

import uuid
from functools import partial
from typing import Any

import numpy as np

from thresher.serving.errors import BadRequest, EmptyRequest
from thresher.serving.explaining import explain_items, relevant_spans
from thresher.serving.http.call import Call
from thresher.serving.http.routes.tei import RERANKERS, characters_of, encoded, scores_of, truncates
from thresher.serving.http.schemas import CohereRerank, Rerank, Spans
from thresher.serving.run import ServedRun

THRESHOLD = 0.1  # of spans, where none is given, as Cohere's
MOST_EXPLAINED = 64  # documents whose spans are looked for in one request


def texts_of(documents: list[str | dict[str, Any]]) -> list[str]:
    """Documents are texts, or objects with a text."""
    found = []
    for number, document in enumerate(documents):
        text = document if isinstance(document, str) else document.get("text")
        if not isinstance(text, str):
            raise BadRequest(f"document {number} has no text; give a string, or an object with one under 'text'")
        found.append(text)
    return found


async def rank_documents(given: Rerank | CohereRerank, call: Call) -> Any:
    """The schema that they have in common: results by falling score, and what they cost."""
    if given.documents is None:
        raise BadRequest("neither texts nor documents are given; give one of them")
    run = call.choose(RERANKERS, given.model)
    if given.top_n is not None and given.top_n < 1:
        raise BadRequest(f"top_n = {given.top_n} must be at least 1")
    texts = texts_of(given.documents)
    if not texts:
        raise EmptyRequest("documents is empty; give at least one")
    wanted = getattr(given, "relevant_spans", None)
    spans: Spans | None = wanted if wanted is not None and wanted.mode == "enabled" else None
    if spans is not None:
        _check_spans(run, min(len(texts), given.top_n or len(texts)))
    most = getattr(given, "max_tokens_per_doc", None)
    pairs = [
        (given.query, text) for text in (texts if most is None else await _shortened(texts, most, run, call.deadline))
    ]
    answers = await call.compute(pairs, truncate=not isinstance(given, Rerank) or truncates(given))
    scores = scores_of(answers, raw=getattr(given, "raw_scores", False))
    order = np.argsort(-scores, kind="stable")[: given.top_n].tolist()
    results: list[dict[str, Any]] = []
    for index in order:
        document = {"document": {"text": texts[index]}} if given.return_documents else {}
        results.append({"index": index, "relevance_score": float(scores[index]), **document})
    if spans is not None:
        tokens = int(answers.tokens[order].sum())
        await _add_spans(results, [pairs[index] for index in order], spans, call, tokens=tokens)
    tokens = int(answers.tokens.sum())
    return {
        "id": str(uuid.uuid4()),
        "model": run.name,
        "results": results,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens},
        },
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def _shortened(texts: list[str], most: int, run: ServedRun, deadline: float) -> list[str]:
    """Each up to the end of so many of its tokens."""
    if most < 1:
        raise BadRequest(f"max_tokens_per_doc = {most} must be at least 1")
    reader = characters_of(run)

    def cut() -> list[str]:
        found = [each.offsets for each in encoded(reader, texts, special=False)]
        return [
            text if len(places) <= most else text[: places[most - 1][1]]
            for text, places in zip(texts, found, strict=True)
        ]

    shortened: list[str] = await run.tokenizing(sum(map(len, texts)), cut, deadline=deadline)
    return shortened


def _check_spans(run: ServedRun, documents: int) -> None:
    """Before anything is computed in vain."""
    if documents > MOST_EXPLAINED:
        raise BadRequest(f"relevant_spans of {documents} documents; set top_n to at most {MOST_EXPLAINED}")
    if run.engine.executor.plan.dial == 0 or not run.engine.executor.plan.pruning_layers:
        raise BadRequest(f"{run.name} drops no tokens, so that it has no relevant_spans; serve a pruned run")


async def _add_spans(
    results: list[dict[str, Any]], pairs: list[tuple[str, str]], spans: Spans, call: Call, *, tokens: int
) -> None:
    """Tokens that survive pruning are what the score was made of."""
    run = call.run
    assert run is not None  # it was chosen before
    threshold = THRESHOLD if spans.threshold is None else spans.threshold
    work = partial(explain_items, run, pairs, dial=run.setting.dial)
    explained = await call.aside(lambda wanted: work(wanted=wanted), tokens=tokens)
    for result, each in zip(results, explained, strict=True):
        result["relevant_spans"] = relevant_spans(each, threshold=threshold, most=spans.max_spans)
