"""The gears of a run: how fast faster dials are, and how far their answers are from the dense model's."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import ConfigError
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.engine.answers import Answers
    from thresher.engine.engine import Engine
    from thresher.jobs.bench import BenchRequest
    from thresher.serving.gears import Measured

DIALS = (1.0, 1.1, 1.2, 1.35, 1.5, 2.0)
ROUNDS = 3
WARM_TEXTS = 32


def measure_gears(request: "BenchRequest") -> "Measured":
    """Measured on the rows of a `bench`, and written into the run, where `thresher serve` finds it."""
    from thresher.engine.engine import Engine
    from thresher.jobs.bench import load_rows
    from thresher.models.checkpoint import read_manifest
    from thresher.models.pairs import means_of
    from thresher.records import provenance, write_json
    from thresher.serving.gears import FILE, Measured
    from thresher.tasks.task import labelled, model_inputs

    manifest = read_manifest(request.run)
    means = means_of(manifest) or "classes"
    if means in ("span", "tags"):
        raise ConfigError(f"{request.run} has a head that gives {means}, whose gears are not measured yet")
    task, examples = load_rows(request, manifest)
    examples = examples[: request.most_rows]
    inputs = model_inputs(means, examples)
    items: list[Any] = [row.text if row.pair is None else (row.text, row.pair) for row in inputs]
    options: dict[str, Any] = {"device": request.device, "threads": request.threads, "max_length": request.max_length}
    with quiet():
        engine = Engine.load(request.run, **options, dtype=request.dtype or "auto")
        dense = Engine.load(request.run, **options, dtype=request.dtype or "auto", dial=0.0).predict_arrays(items)
        found = _race({dial: engine if dial == 1 else engine.at_dial(dial) for dial in DIALS}, items)
    truth = None
    if task is not None and labelled(examples, name=task.spec.name):
        truth = task.spec.truth(examples)
    scores: dict[float, float | None] = {
        dial: task.score(answers.outputs, truth)["score"] if task is not None and truth is not None else None
        for dial, (answers, _) in found.items()
    }
    measured = Measured(
        gears=_gears(found, dense, scores),
        kept=_deciles(found[1.0][0]),
        texts=len(items),
        made_by=provenance(device=engine.executor.device, seed=None),
    )
    write_json(Path(request.run) / FILE, measured.to_dict())
    return measured


def _race(engines: "dict[float, Engine]", items: list[Any]) -> "dict[float, tuple[Answers, float]]":
    """The answers of each, and the least of its times; they take turns."""
    for engine in engines.values():
        engine.predict_arrays(items[:WARM_TEXTS])
    found: dict[float, tuple[Answers, float]] = {}
    for _ in range(ROUNDS):
        for dial, engine in engines.items():
            began = time.perf_counter()
            answers = engine.predict_arrays(items)
            seconds = time.perf_counter() - began
            found[dial] = (answers, min(seconds, found[dial][1]) if dial in found else seconds)
    return found


def _gears(found: "dict[float, tuple[Answers, float]]", dense: "Answers", scores: dict[float, float | None]) -> Any:
    import numpy as np

    from thresher.serving.drift import agreements
    from thresher.serving.gears import Gear

    own = found[1.0][1]
    return tuple(
        Gear(
            dial=dial,
            speed=round(own / seconds, 4),
            agreement=round(float(np.mean(agreements(answers, dense))), 4),
            texts_per_s=round(len(answers) / seconds, 2),
            score=scores[dial],
        )
        for dial, (answers, seconds) in found.items()
    )


def _deciles(answers: "Answers") -> tuple[float, ...]:
    """Of the share of its tokens that a text keeps."""
    import numpy as np

    from thresher.serving.run import kept_ratios

    ratios = kept_ratios(answers)[answers.good]
    return tuple(round(float(value), 6) for value in np.quantile(ratios, np.linspace(0, 1, 11)))
