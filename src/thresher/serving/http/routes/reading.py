"""Answers to questions in a context, and entities of texts: heads that read every token."""

from typing import Any

from thresher.engine.of_tokens import Answer, Tagged
from thresher.serving.errors import BadRequest, EmptyRequest
from thresher.serving.http.call import Call
from thresher.serving.http.schemas import AnswerQuestions, Tag

MOST = 20  # answers to one question


async def answer(given: AnswerQuestions, call: Call) -> Any:
    """`top_k` = 1: one object for one question; more of them: a list, the best first."""
    call.choose(("span",))
    if not 1 <= given.top_k <= MOST:
        raise BadRequest(f"top_k = {given.top_k} must be from 1 to {MOST}")
    asked = given.inputs
    if asked is None:
        if given.question is None or given.context is None:
            raise BadRequest("a question and a context are needed, or a list of both as inputs")
        pairs = [(given.question, given.context)]
    else:
        pairs = [(one.question, one.context) for one in (asked if isinstance(asked, list) else [asked])]
    if not pairs:
        raise EmptyRequest("inputs is empty; give at least one question")
    found = await _read(call, pairs, n_best=max(given.top_k, MOST))
    rows = [answer_rows(one, given.top_k) for one in found]
    one = [row[0] if given.top_k == 1 else row for row in rows]
    return one if isinstance(asked, list) else one[0]


def answer_rows(found: Answer, most: int) -> list[dict[str, Any]]:
    """As pipelines and huggingface_hub have them; no answer is an empty one."""
    if found.error is not None:
        raise BadRequest(found.error)
    best = [{"answer": one.text, "score": one.probability, "start": one.start, "end": one.end} for one in found.best]
    if found.start is None:
        best.insert(0, {"answer": "", "score": found.probability, "start": 0, "end": 0})
    return best[:most] or [{"answer": "", "score": found.probability, "start": 0, "end": 0}]


async def tag(given: Tag, call: Call) -> Any:
    call.choose(("tags",))
    texts = [given.inputs] if isinstance(given.inputs, str) else given.inputs
    if not texts:
        raise EmptyRequest("inputs is empty; give at least one text")
    return [entity_rows(one) for one in await _read(call, texts)]


async def _read(call: Call, items: list[Any], **options: int) -> Any:
    """An Answer, or a Tagged, for each item, of the outputs of all its windows."""
    answers = await call.compute(items)
    windows = call.served[-1].windows
    assert call.run is not None and windows is not None  # such heads read windows
    return call.run.engine.answers_of(windows, answers, items, **options)


def entity_rows(found: Tagged) -> list[dict[str, Any]]:
    if found.error is not None:
        raise BadRequest(found.error)
    return [
        {"entity_group": one.label, "score": one.score, "word": one.text, "start": one.start, "end": one.end}
        for one in found.entities
    ]
