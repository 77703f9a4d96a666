"""Routes of our own: what is served, and which layer dropped which token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET

from thresher.engine.of_tokens import Tagged
from thresher.engine.token_answers import TokenAnswers
from thresher.engine.windows import Item
from thresher.errors import ConfigError
from thresher.models.plan import check_dial
from thresher.records import thresher_version
from thresher.serving.errors import BadRequest
from thresher.serving.explaining import Explained, explain_items
from thresher.serving.http.call import Call
from thresher.serving.http.routes.reading import answer_rows, entity_rows
from thresher.serving.http.routes.tei import CLASSIFIERS, EVERY, ranked_labels
from thresher.serving.http.schemas import Explain
from thresher.serving.run import ServedRun, characters_of

LONGEST = 200_000  # characters of a text that is explained
MOST_DIALS = 4


async def explain(given: Explain, call: Call) -> Any:
    """The text's tokens with the layer that dropped each, what was decided, and the same at other dials."""
    run = call.choose(EVERY)
    if len(given.text) + len(given.pair or "") > LONGEST:
        raise BadRequest(f"the text is longer than {LONGEST} characters; explain a part of it")
    dials = [run.setting.dial] if given.dials is UNSET else given.dials
    if not 1 <= len(dials) <= MOST_DIALS:
        raise BadRequest(f"{len(dials)} dials; give 1 to {MOST_DIALS}")
    try:
        dials = [check_dial(dial) for dial in dials]
    except ConfigError as error:
        raise BadRequest(str(error)) from error
    item: Item = given.text if given.pair is None else (given.text, given.pair)
    least = run.least_tokens([item], characters_of([item]))
    found = [await call.aside(partial(_explained, run, item, dial), tokens=least) for dial in dials]
    return {"run": run.name, "head": run.engine.head.means, "explanations": found}


def _explained(run: ServedRun, item: Item, dial: float, wanted: Callable[[], None]) -> dict[str, Any]:
    (explained,) = explain_items(run, [item], dial=dial, wanted=wanted, timed=True)
    return {"dial": dial, **decision(explained), **_shape(explained), "ms": 1000 * explained.seconds}


def _shape(explained: Explained) -> dict[str, Any]:
    tokens = [
        {"text": piece.text, "part": piece.part, "start": piece.start, "end": piece.end, "dropped_at": piece.dropped_at}
        for piece in explained.pieces
    ]
    return {
        "tokens": tokens,
        "layers": explained.layers,
        "kept_per_layer": explained.kept_per_layer,
        "kept_ratio": explained.kept_ratio,
        "truncated": bool(explained.answers.truncated[0]),
    }


def decision(explained: Explained) -> dict[str, Any]:
    """What the head says of a text, by what its outputs mean."""
    if isinstance(explained.answers, TokenAnswers):
        found = explained.read
        return {"entities": entity_rows(found)} if isinstance(found, Tagged) else {"answers": answer_rows(found, 3)}
    answers = explained.answers
    if answers.problems:
        raise BadRequest(f"the text cannot be computed: {answers.problems[0]}")
    if answers.head.means in CLASSIFIERS:
        return {"labels": ranked_labels(answers, raw=False)[0]}
    if answers.head.means == "score":
        return {"score": float(answers.values[0])}
    return {"embedding": answers.outputs[0].tolist()}


def info(runs: Sequence[ServedRun]) -> dict[str, Any]:
    """The server and these runs; of a single run also what clients of text-embeddings-inference look for."""
    found: dict[str, Any] = {"version": thresher_version(), "server": "thresher", "runs": [_about(run) for run in runs]}
    if len(runs) > 1:
        return found
    (run,) = runs
    head = run.engine.head
    kinds: dict[str, Any] = {
        "embedding": {"embedding": {"pooling": head.reads}},
        "score": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
    }
    names = run.engine.labels or ["LABEL_0"]
    by_name = {"id2label": {str(i): name for i, name in enumerate(names)}}
    by_name["label2id"] = {name: i for i, name in enumerate(names)}  # type: ignore[misc]  # as the client has it
    return found | {
        "model_id": run.name,
        "model_sha": None,
        "model_dtype": run.engine.executor.dtype,
        "model_type": kinds.get(head.means, {"classifier": by_name}),
        "max_input_length": run.engine.max_length,
        "max_batch_tokens": run.queue.pace.most_tokens,
        "max_concurrent_requests": None,
        "max_client_batch_size": run.queue.limits.queue_tokens,
        "auto_truncate": True,
        "tokenization_workers": 1,
    }


def _about(run: ServedRun) -> dict[str, Any]:
    about = run.engine.describe()
    keep = ("backend", "device", "dtype", "dial", "layers", "width", "max_length", "why", "threads", "graphs")
    return {
        "name": run.name,
        "head": run.engine.head.means,
        "labels": run.engine.labels,
        **{name: about[name] for name in keep if name in about},
        "pairs": run.engine.tokenizing.pairs,
        "prompts": dict(run.engine.head.prompts),
        "gears": [{"dial": gear.dial, "agreement": gear.agreement, "speed": gear.speed} for gear in run.gears.gears],
        "drift": {"index": run.drift.index, "agreement": run.drift.agreement, "drifted": run.drift.drifted},
        "warm_up": run.warm_up,
        "tokens_per_s": round(1 / run.queue.pace.seconds_per_token),
        "timeout_s": run.queue.limits.timeout_s,
    }
