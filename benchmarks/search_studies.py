"""Simulated searches: what the rule of choice keeps, and what it costs. Records, and the table of docs/search.md:

python benchmarks/search_studies.py

Every row has a margin, how much more likely class 1 is than class 0 in truth. A model's margin is the true one plus its
error: the dense model's own, partly replaced in further training, and one that grows as the cost falls. The figures are
set so that scores, changed predictions and standard errors are those of MiniLM-L6 on MRPC and SST-2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from measuring import HERE, RESULTS, Row, keep_rows, made_by, read_rows, write_between_marks
from scipy.special import expit

from thresher.tasks.bootstrap import Floats, drawn_drops, observed_drop
from thresher.tasks.glue import GLUE_TASKS
from thresher.tasks.task import TaskSpec
from thresher.training.search.choice import choose, upper_bounds
from thresher.training.search.expected import Expected, expected_drops, expected_score
from thresher.training.search.plan import Tried, next_target

FILE = RESULTS / "search_studies.jsonl"
PAGE = HERE.parent / "docs" / "search.md"
STUDIES = 200
LIMIT = 0.01
START = 0.6
MAX_TRIALS = 6
SWEEP = 0.9 * 0.915 ** np.arange(16)  # 0.9 to 0.24
EVERYWHERE = 20_000  # rows for the true drop, with true probabilities as labels
EVERY_ROW = np.ones((1, EVERYWHERE))
DIALS = ((1.0, 1.0), (1.09, 1.15), (1.2, 1.3))  # cost over the trained model's, harm over that of training at that cost
CHAIN = 0.6  # of the variance of what training changes, what all trials share


@dataclass(frozen=True)
class World:
    """Row counts, mean and spread of the true margin, the dense model's error, and its part that training keeps."""

    spec: TaskSpec
    selection: int
    official: int
    mean: float
    spread: float
    error: float
    kept: float


MRPC = World(GLUE_TASKS["mrpc"], 367, 408, mean=1.3, spread=2.3, error=1.2, kept=0.88)
SST2 = World(GLUE_TASKS["sst2"], 2000, 872, mean=0.3, spread=10.0, error=3.2, kept=0.92)


@dataclass(frozen=True)
class Model:
    """What the search sees of a model, (rows, 2) logits on the selection rows, and what it does not."""

    target: float
    cost: float
    trained: bool
    logits: Floats
    official_drop: float
    true_drop: float


@dataclass
class Study:
    """One data set, one dense model, and a curve of cost against quality that breaks somewhere."""

    world: World
    seed: int
    known: dict[float, list[Model]] = field(default_factory=dict)
    measured: dict[tuple[Any, ...], Expected] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw, world = np.random.default_rng(self.seed), self.world
        count = world.selection + world.official + EVERYWHERE
        self._margins = draw.normal(world.mean, world.spread, count)
        self._labels = (draw.random(count) < expit(self._margins)).astype(np.int64)
        self._error, self._change, self._harm = draw.normal(size=(3, count))
        self._break, self._width = draw.uniform(0.3, 0.5), draw.uniform(0.04, 0.1)
        self._gain = draw.uniform(0.9, 1.0)  # further training makes all errors smaller
        self._dense = self._margins + world.error * self._error
        self.dense, self.labels = _logits(self._dense[: world.selection]), self._labels[: world.selection]

    def train(self, target: float) -> list[Model]:
        """A model at this cost and two with its thresholds scaled; the same ones whenever it is asked for."""
        if target not in self.known:
            draw = np.random.default_rng([self.seed, round(1e4 * target)])
            own, harm = draw.normal(size=(2, len(self._margins)))
            gain, bias = self._gain * math.exp(draw.normal(0, 0.02)), draw.normal(0, 0.08)
            change = math.sqrt(CHAIN) * self._change + math.sqrt(1 - CHAIN) * own
            harm = math.sqrt(CHAIN) * self._harm + math.sqrt(1 - CHAIN) * harm
            error = gain * (self.world.kept * self._error + math.sqrt(1 - self.world.kept**2) * change)
            models = []
            for factor, worse in DIALS:
                size = math.sqrt(0.12 * worse * math.exp((self._break - target * factor) / self._width))
                margins = self._margins + self.world.error * (error + size * harm) + bias
                models.append(self._model(target, target * factor, margins))
            self.known[target] = models
        return self.known[target]

    def _model(self, target: float, cost: float, margins: Floats) -> Model:
        here, there = self.world.selection, self.world.selection + self.world.official
        official = observed_drop(
            self.world.spec, _logits(self._dense[here:there]), _logits(margins[here:there]), self._labels[here:there]
        )
        chances = expit(self._margins[there:])
        dense, pruned = (
            expected_score(
                self.world.spec, np.stack([1 - chances, chances], axis=1), (one[there:] > 0).astype(int), EVERY_ROW
            )[0]
            for one in (self._dense, margins)
        )
        return Model(target, cost, cost == target, _logits(margins[:here]), official, dense - pruned)


Rule = Callable[[Study, list[Model]], tuple[Floats, Floats]]  # (models,) drops and their upper bounds


def by_expectation(confidence: float) -> Rule:
    """As the search decides."""
    return lambda study, models: _judged(study, models, expected_drops, confidence)


def by_answers(confidence: float) -> Rule:
    """From right and wrong answers alone."""

    def plain_drops(spec: TaskSpec, dense: Floats, pruned: list[Floats], labels: Any, *, draws: int) -> Expected:
        drops = [observed_drop(spec, dense, one, labels) for one in pruned]
        return Expected(np.array(drops), drawn_drops(spec, dense, pruned, labels, draws=draws))

    return lambda study, models: _judged(study, models, plain_drops, confidence)


def _judged(
    study: Study, models: list[Model], measure: Callable[..., Expected], confidence: float
) -> tuple[Floats, Floats]:
    """Drops and bounds; every model is measured once, whatever the confidence."""
    found = []
    for model in models:
        key = (measure.__name__, model.target, model.cost)
        if key not in study.measured:
            given = study.world.spec, study.dense, [model.logits], study.labels
            study.measured[key] = measure(*given, draws=300)
        found.append(study.measured[key])
    drops = np.concatenate([one.drops for one in found])
    draws = np.concatenate([one.draws for one in found], axis=1)
    return drops, upper_bounds(Expected(drops, draws), rows=len(study.labels), confidence=confidence)


def by_truth(limit: float) -> Rule:
    """Knows the true drops, and takes what is within `limit`: no rule on selection rows can do better."""

    def rule(study: Study, models: list[Model]) -> tuple[Floats, Floats]:
        drops = np.array([model.true_drop for model in models]) + LIMIT - limit
        return drops, drops

    return rule


def search(study: Study, rule: Rule, *, max_trials: int = MAX_TRIALS) -> tuple[Model, int]:
    """The chosen model, and how many trials there were."""
    models, target = list[Model](), START
    for _ in range(max_trials):
        models += study.train(target)
        drops, bounds = rule(study, models)
        tried = [
            Tried(model.target if model.trained else model.cost, bool(drop <= LIMIT))
            for model, drop in zip(models, drops, strict=True)
            if model.trained or drop <= LIMIT
        ]
        following = next_target(tried, [], lowest=0.2)
        if following is None:
            break
        target = following
    costs = np.array([model.cost for model in models])
    return models[choose(costs, bounds, limit=LIMIT).index], sum(model.trained for model in models)


def best_of_sweep(study: Study) -> float:
    """Cost of the cheapest of sixteen full runs that is truly within the limit."""
    good = [model.cost for model in (study.train(float(target))[0] for target in SWEEP) if model.true_drop <= LIMIT]
    return min(good, default=float(SWEEP[0]))


@dataclass(frozen=True)
class Tally:
    """Means over studies: drop on the official rows within the limit, true drop within it, cost over that of the
    sweep's best, that at most a tenth above it, trials."""

    official: float
    true: float
    cost: float
    near: float
    trials: float


def tally(world: World, rules: dict[str, Rule], *, studies: int, max_trials: int = MAX_TRIALS) -> dict[str, Tally]:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in rules}
    for seed in range(studies):
        study = Study(world, seed)
        best = best_of_sweep(study)
        for name, rule in rules.items():
            model, trials = search(study, rule, max_trials=max_trials)
            within = model.official_drop <= LIMIT, model.true_drop <= LIMIT
            found[name].append((*within, model.cost / best, model.cost <= 1.1 * best, trials))
    return {name: Tally(*np.mean(rows, axis=0).tolist()) for name, rows in found.items()}


def study(*, studies: int = STUDIES) -> list[Row]:
    """A record for every kind of rows and every rule."""
    rules = {
        **{f"answers, {confidence}": by_answers(confidence) for confidence in (0.5, 0.8)},
        **{f"expected, {confidence}": by_expectation(confidence) for confidence in (0.5, 0.7, 0.8, 0.9)},
        **{f"true drop at most {100 * limit:g}": by_truth(limit) for limit in (0.004, 0.006, 0.01)},
    }
    made, rows = made_by("search_studies.py"), []
    for world in (MRPC, SST2):
        found = tally(world, rules, studies=studies)
        found |= tally(world, {"expected, 0.8, nine trials": by_expectation(0.8)}, studies=studies, max_trials=9)
        about = {"rows_like": world.spec.name, "studies": studies}
        rows += [{**about, "rule": name, **asdict(one), **made} for name, one in found.items()]
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| rows like | rule | official drop within 1 | true drop within 1 | cost | cost at most 1.1 | trials |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        within = f"{row['official']:.0%} | {row['true']:.0%}"
        cost = f"{row['cost']:.2f} | {row['near']:.0%} | {row['trials']:.1f}"
        lines.append(f"| {row['rows_like']} | {row['rule']} | {within} | {cost} |")
    return "\n".join(lines)


def _logits(margins: Floats) -> Floats:
    """(rows, 2)"""
    return np.stack([np.zeros(len(margins)), margins], axis=1)


if __name__ == "__main__":
    keep_rows(FILE, study(), lambda row: (row["rows_like"], row["rule"]))
    write_between_marks("search_studies", table(read_rows(FILE)), PAGE)
