"""What Prometheus asks for. Names of runs and routes are labels, texts never are."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from thresher.serving.house import House
from thresher.serving.run import ServedRun
from thresher.serving.worker import Batch

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = (16, 64, 256, 1024, 4096, 16_384, 65_536)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
# What is looked up when somebody asks: name, what it is, and where it stands.
STANDING: dict[str, tuple[str, Callable[[ServedRun], float | None]]] = {
    "queue_tokens": ("tokens that wait", lambda run: run.queue.waiting),
    "flying_tokens": ("tokens that are computed now", lambda run: run.queue.flying),
    "estimated_wait_seconds": ("until all that waits is computed", lambda run: run.queue.pace.wait(run.queue.load)),
    "tokens_per_second": ("pace of full batches", lambda run: 1 / run.queue.pace.seconds_per_token),
    "dial": (
        "dial of the gear that is on",
        lambda run: 0.0 if run.drift.dense else run.gears.gear.dial * run.setting.dial,
    ),
    "engine_silent_seconds": ("since the engine's last sign of life", lambda run: run.worker.silent),
    "drift_index": ("stability index of kept ratios against the calibration", lambda run: run.drift.index),
    "drift_agreement": ("of a sample of answers with the dense model's", lambda run: run.drift.agreement),
    "drifted": (
        "1 where texts are not like those of the calibration",
        lambda run: float(run.drift.drifted is not None),
    ),
    "answers_dense": ("1 where drift made all answers dense", lambda run: float(run.drift.dense)),
}


class Metrics:
    """Of one server, in a registry of its own."""

    def __init__(self, house: House) -> None:
        self.house, self.registry = house, CollectorRegistry()
        with_registry: dict[str, Any] = {"namespace": "thresher", "registry": self.registry}
        self.requests = Counter("requests", "by route, run and status", ["route", "run", "status"], **with_registry)
        self.errors = Counter("errors", "by kind", ["kind", "run"], **with_registry)
        self.seconds = Histogram("request_seconds", "of a request", ["route"], buckets=SECONDS, **with_registry)
        each: dict[str, Any] = {"labelnames": ["run"], **with_registry}
        self.queue_s = Histogram("queue_seconds", "a text waited", buckets=SECONDS, **each)
        self.batch_texts = Histogram("batch_texts", "texts of a batch", buckets=TEXTS, **each)
        self.batch_tokens = Histogram("batch_tokens", "tokens of a batch", buckets=TOKENS, **each)
        self.batch_s = Histogram("batch_seconds", "computing of a batch", buckets=SECONDS, **each)
        self.tokens = Counter("tokens", "tokens computed", **each)
        self.kept = Counter("kept_tokens", "tokens that layers passed on, in the mean of the layers", **each)
        self.degraded = Counter("degraded_texts", "texts computed above the run's own dial", **each)
        self.registry.register(self)
        house.watchers.append(self.watch)

    def watch(self, run: ServedRun, batch: Batch) -> None:
        """In the engine's thread."""
        name = run.name
        self.batch_texts.labels(name).observe(len(batch.texts))
        self.batch_tokens.labels(name).observe(batch.tokens.total)
        self.batch_s.labels(name).observe(batch.seconds)
        self.tokens.labels(name).inc(batch.tokens.total)
        self.kept.labels(name).inc(float(batch.answers.kept.mean(axis=1).sum()))
        queue_s = self.queue_s.labels(name)
        for waited in batch.waited:
            queue_s.observe(waited)
        if batch.gear.dial != 1:
            self.degraded.labels(name).inc(len(batch.texts))

    def collect(self) -> Iterator[Any]:
        """What stands somewhere else, when it is asked for."""
        for name, (help_text, look) in STANDING.items():
            family = GaugeMetricFamily(f"thresher_{name}", help_text, labels=["run"])
            for run in self.house.runs.values():
                if (value := look(run)) is not None:
                    family.add_metric([run.name], value)
            yield family
        reloads = CounterMetricFamily("thresher_reloads", "of runs, by how they ended", labels=["outcome"])
        for outcome, count in self.house.reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads

    def text(self) -> bytes:
        return generate_latest(self.registry)
