"""The routes of text-embeddings-inference, and the one that huggingface_hub posts to."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from thresher.engine.answers import Answers
from thresher.engine.predictions import sigmoid
from thresher.engine.windows import Item
from thresher.errors import ConfigError, is_failure
from thresher.serving.errors import BadRequest, BadText, EmptyRequest, TooLarge
from thresher.serving.explaining import token_states
from thresher.serving.http.call import Call
from thresher.serving.http.schemas import (
    AnswerQuestions,
    Embed,
    Predict,
    Rerank,
    Sentences,
    Similarity,
    SimilarityParameters,
    Tag,
    Task,
    Tokenize,
)
from thresher.serving.run import ServedRun, check_texts
from thresher.text import first_line, shown
from thresher.tokenizing.fast import FastTokenizer

CLASSIFIERS = ("classes", "labels", "value")
OWN_FUNCTIONS = {"classes": "softmax", "labels": "sigmoid"}  # as huggingface_hub calls them
RERANKERS = ("score", "value")  # many a folder of a reranker does not say that its one output is a score
MOST_NUMBERS = 2**23  # of a reply's vectors: about a quarter of a gigabyte before they are JSON
MOST_CHARACTERS = 2**20  # that are tokenized for a client, who gets several times as much back
EVERY = (*CLASSIFIERS, "score", "embedding", "span", "tags")


def pairs_and_texts(inputs: Any) -> tuple[list[Item], bool]:
    """A text, a pair ["a", "b"] or a batch [["a"], ["b", "c"]], and whether it was a batch."""
    if isinstance(inputs, str):
        return [inputs], False
    if not inputs:
        raise EmptyRequest("inputs is empty; give a text, a pair of texts, or a list of these")
    if all(isinstance(part, str) for part in inputs):
        return [_item(inputs)], False
    if not all(isinstance(part, list) for part in inputs):
        raise BadRequest('inputs mixes texts and lists; a batch is a list of lists: [["a"], ["b", "c"]]')
    return [_item(part) for part in inputs], True


def _item(part: list[str]) -> Item:
    if len(part) not in (1, 2):
        raise BadRequest(f"an input of {len(part)} texts; give one text, or a pair of two")
    return part[0] if len(part) == 1 else (part[0], part[1])


def ranked_labels(answers: Answers, *, raw: bool) -> list[list[dict[str, Any]]]:
    """For each text its labels with their scores, falling: softmax, or of several labels each one's own."""
    if answers.head.means == "value":
        return [[{"score": value, "label": "value"}] for value in answers.values.tolist()]
    rows = (answers.outputs if raw else answers.probabilities).tolist()
    named = ([{"score": score, "label": name} for name, score in zip(answers.names, row, strict=True)] for row in rows)
    return [sorted(row, key=lambda each: -each["score"]) for row in named]


async def predict(given: Predict, call: Call) -> Any:
    call.choose(CLASSIFIERS)
    items, batch = pairs_and_texts(given.inputs)
    found = ranked_labels(await call.compute(items, truncate=truncates(given)), raw=given.raw_scores)
    return found if batch else found[0]


def scores_of(answers: Answers, *, raw: bool = False) -> Any:
    """(texts,) a reranker's logits, or scores between 0 and 1, which clients of TEI, Cohere and Jina count on, whatever
    the folder makes of them elsewhere."""
    logits = answers.outputs[:, 0]
    return logits if raw else sigmoid(logits)


async def rerank(given: Rerank, call: Call) -> Any:
    """Which of the two schemas it is, the field says: `texts` or `documents`."""
    if given.texts is None:
        from thresher.serving.http.routes.ranking import rank_documents

        return await rank_documents(given, call)
    call.choose(RERANKERS)
    answers = await call.compute([(given.query, text) for text in given.texts], truncate=truncates(given))
    scores = scores_of(answers, raw=given.raw_scores)
    found: list[dict[str, Any]] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        text = {"text": given.texts[index]} if given.return_text else {}
        found.append({"index": index, "score": float(scores[index]), **text})
    return found


async def embed(given: Embed | Task, call: Call) -> Any:
    run = call.choose(("embedding",))
    items = embeddable(given.inputs)
    check_reply(run, vectors=len(items))
    answers = await call.compute(items, truncate=truncates(given), prompt_name=given.prompt_name)
    return vectors(answers, normalize=given.normalize, dimensions=given.dimensions).tolist()


async def embed_all(given: Embed, call: Call) -> Any:
    run = call.choose(("embedding",))
    items = embeddable(given.inputs)
    characters = sum(len(item) for item in items)
    tokens = await run.read(items, characters, given.prompt_name, deadline=call.deadline)
    check_texts(tokens, truncate=truncates(given), longest=run.engine.max_length)
    check_reply(run, vectors=tokens.total)
    return await call.aside(partial(token_states, run, tokens), tokens=tokens.total)


async def similarity(given: Similarity, call: Call) -> Any:
    call.choose(("embedding",))
    inputs, how = given.inputs, given.parameters or SimilarityParameters()
    texts = [inputs.source_sentence, *inputs.sentences]
    answers = await call.compute(texts, truncate=truncates(how), prompt_name=how.prompt_name)
    found = vectors(answers, normalize=True, dimensions=None)
    return (found[1:] @ found[0]).tolist()


async def tokenize(given: Tokenize, call: Call) -> Any:
    """Tokens with their ids and characters; special ones have none."""
    run = call.choose(EVERY)
    texts = [given.inputs] if isinstance(given.inputs, str) else given.inputs
    if not texts:
        raise EmptyRequest("inputs is empty; give a text or a list of texts")
    characters = sum(map(len, texts))
    if characters > MOST_CHARACTERS:
        raise TooLarge(f"{characters} characters; /tokenize takes {MOST_CHARACTERS} at a time, send fewer texts")
    reader = characters_of(run)
    if given.prompt_name is not None and run.engine.head.means != "embedding":
        raise BadRequest(f"{run.name} embeds nothing, and has no prompts; leave prompt_name out")
    try:
        texts = list(run.engine.prompted(texts, name=given.prompt_name))
    except ConfigError as error:
        raise BadRequest(str(error)) from error

    def rows() -> list[list[dict[str, Any]]]:
        found = encoded(reader, texts, special=given.add_special_tokens)
        return [_tokens(each, text) for each, text in zip(found, texts, strict=True)]

    return await run.tokenizing(characters, rows, deadline=call.deadline)


def characters_of(run: ServedRun) -> FastTokenizer:
    """A tokenizer that knows which characters a token is of."""
    reader = run.engine.tokenizing.reader
    if not isinstance(reader, FastTokenizer):
        raise BadRequest("the run's tokenizer does not say which characters a token is of; use a fast one")
    return reader


def encoded(reader: FastTokenizer, texts: Sequence[str], *, special: bool) -> Iterator[Any]:
    """What the tokenizers library makes of each text; one that it fails on is the request's error."""
    for number, text in enumerate(texts):
        try:
            # A batch leaves the interpreter to the event loop meanwhile; a single text would not.
            yield reader.inner.encode_batch([text], add_special_tokens=special)[0]
        except BaseException as error:  # panics too
            if not is_failure(error):
                raise
            raise BadText(f"text {number}: the tokenizer cannot read the text: {first_line(error)}") from error


def _tokens(each: Any, text: str) -> list[dict[str, Any]]:
    found = []
    # Lists of the tokenizers library are made anew whenever they are asked for.
    for token_id, name, part, place in zip(each.ids, each.tokens, each.sequence_ids, each.offsets, strict=True):
        start, stop = (None, None) if part is None else place
        said = name if part is None else text[start:stop]
        found.append({"id": token_id, "text": said, "special": part is None, "start": start, "stop": stop})
    return found


async def task(given: Task, call: Call) -> Any:
    """POST /: what the run's head does, as huggingface_hub asks for it."""
    run = call.choose(EVERY)
    means = run.engine.head.means
    if means in RERANKERS and given.query is not None and given.texts is not None:
        names = ("truncate", "truncation_direction", "raw_scores", "return_text")
        options = {name: getattr(given, name) for name in names}
        return await rerank(Rerank(query=given.query, texts=given.texts, **options), call)
    if given.inputs is UNSET:
        raise BadRequest("Object missing required field `inputs`")
    if means == "embedding":
        if isinstance(given.inputs, dict):
            asked = _converted({"inputs": given.inputs, "parameters": given.parameters}, Similarity, whole=True)
            return await similarity(asked, call)
        return await embed(_checked(given), call)
    if means in RERANKERS and isinstance(given.inputs, dict):
        one: Sentences = _converted(given.inputs, Similarity).inputs
        pairs = [(one.source_sentence, text) for text in one.sentences]
        return scores_of(await call.compute(pairs, truncate=truncates(given))).tolist()
    if means in CLASSIFIERS:
        return await _classify(given, call)
    if means == "score":
        pair = _converted({"inputs": given.inputs}, Predict, whole=True)
        items, batch = pairs_and_texts(pair.inputs)
        scores = scores_of(await call.compute(items, truncate=truncates(given)), raw=given.raw_scores)
        found = [[{"score": score, "label": "score"}] for score in scores.tolist()]
        return found if batch else found[0]
    from thresher.serving.http.routes.reading import answer, tag

    if means == "tags":
        inputs = _converted(given.inputs, Tag)
        found = await tag(inputs, call)
        return found[0] if isinstance(inputs.inputs, str) else found
    parameters = given.parameters or {}
    return await answer(
        _converted({"inputs": given.inputs, "top_k": parameters.get("top_k") or 1}, AnswerQuestions, whole=True), call
    )


async def _classify(given: Task, call: Call) -> Any:
    """Nested, as the client of text classification takes its first element."""
    inputs = _converted({"inputs": given.inputs}, Predict, whole=True).inputs
    parameters = given.parameters or {}
    assert call.run is not None  # `task` chose it
    function, means = parameters.get("function_to_apply"), call.run.engine.head.means
    if function not in (None, "none", OWN_FUNCTIONS.get(means)):
        raise BadRequest(f"function_to_apply = {shown(function)} is not what a head of {means} is for; leave it out")
    raw = given.raw_scores or function == "none"
    most = parameters.get("top_k")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise BadRequest(f"top_k = {most!r} must be a whole number of at least 1")
    items, _ = pairs_and_texts(inputs)
    return [row[:most] for row in ranked_labels(await call.compute(items, truncate=truncates(given)), raw=raw)]


def embeddable(inputs: Any) -> list[Any]:
    """Texts, or lists of token ids."""
    if isinstance(inputs, str):
        return [inputs]
    if not inputs:
        raise EmptyRequest("the input is empty; give a text, or a list of texts")
    kinds = {type(part) for part in inputs}
    if kinds == {int}:
        return [inputs]
    if len(kinds) > 1:
        raise BadRequest("the input mixes texts and token ids; give a list of one kind")
    return list(inputs)


def check_reply(run: ServedRun, *, vectors: int) -> None:
    """Refuse what would be computed in time, and then fill the memory on its way out: numbers in JSON are large."""
    most = MOST_NUMBERS // run.engine.executor.shape.width
    if vectors > most:
        raise TooLarge(f"{vectors} vectors in one reply; {most} are allowed, send fewer texts at a time")


def vectors(answers: Answers, *, normalize: bool | None, dimensions: int | None) -> Any:
    """(texts, width): cut to `dimensions`, and of length 1 unless `normalize` is false."""
    found, width = answers.outputs, answers.outputs.shape[1]
    if normalize is False and answers.head.normalised:
        raise BadRequest("normalize is false, but the model's own last step makes vectors of length 1; leave it out")
    if dimensions is not None and not 1 <= dimensions <= width:
        raise BadRequest(f"dimensions = {dimensions} must be from 1 to {width}")
    found = found[:, :dimensions]
    if normalize is False:
        return found
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


def truncates(given: Any) -> bool:
    """Long texts are cut unless a client says that they must not be. We cut where training did, at the end."""
    direction = getattr(given, "truncation_direction", "right")
    if direction.lower() == "left":
        raise BadRequest("truncation_direction = left is not how the model reads texts; leave it out")
    return given.truncate is not False


def _converted(value: Any, kind: type[Any], *, whole: bool = False) -> Any:
    """What a client of a task sent, as the schema of a route has it."""
    try:
        return msgspec.convert(value if whole else {"inputs": value}, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error


def _checked(given: Task) -> Embed:
    names = ("truncate", "truncation_direction", "normalize", "prompt_name", "dimensions")
    options = {name: getattr(given, name) for name in names}
    found: Embed = _converted({"inputs": given.inputs, **options}, Embed, whole=True)
    return found
