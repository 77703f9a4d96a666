"""vLLM's classify and score."""

import time
import uuid
from typing import Any

import numpy as np

from thresher.serving.errors import BadRequest, EmptyRequest
from thresher.serving.http.call import Call
from thresher.serving.http.routes.tei import RERANKERS, scores_of, vectors
from thresher.serving.http.schemas import Classify, Score


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _reply(kind: str, call: Call, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": call.run.name if call.run is not None else "",
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


async def classify(given: Classify, call: Call) -> Any:
    """Probabilities of all classes; the label is the likeliest."""
    call.choose(("classes", "labels"), given.model)
    answers = await call.compute(_listed(given.input))
    data: list[dict[str, Any]] = []
    for index, probs in enumerate(answers.probabilities.tolist()):
        best = max(range(len(probs)), key=probs.__getitem__)
        data.append({"index": index, "label": answers.names[best], "probs": probs, "num_classes": len(probs)})
    return _reply("classify", call, data, int(answers.tokens.sum()))


async def score(given: Score, call: Call) -> Any:
    """One text with many, or pair by pair: a reranker's score, or the cosine of two embeddings."""
    run = call.choose((*RERANKERS, "embedding"), given.model)
    first = given.text_1 if given.text_1 is not None else given.queries
    second = given.text_2 if given.text_2 is not None else given.documents
    if first is None or second is None:
        raise BadRequest("two sides are needed: text_1 and text_2, or queries and documents")
    ours, theirs = _listed(first), _listed(second)
    if not ours or not theirs:
        raise EmptyRequest("a side is empty; give at least one text on each")
    if len(ours) not in (1, len(theirs)):
        raise BadRequest(f"{len(ours)} texts against {len(theirs)}; give one on the first side, or as many on both")
    if run.engine.head.means in RERANKERS:
        answers = await call.compute([(ours[i % len(ours)], text) for i, text in enumerate(theirs)])
        own = answers.head.means == "score"  # vLLM applies the folder's activation, and a sigmoid where it names none
        scores = (answers.values if own else scores_of(answers)).tolist()
    else:
        answers = await call.compute([*ours, *theirs])
        found = vectors(answers, normalize=True, dimensions=None)
        scores = np.sum(found[: len(ours)] * found[len(ours) :], axis=1).tolist()
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    return _reply("score", call, data, int(answers.tokens.sum()))
