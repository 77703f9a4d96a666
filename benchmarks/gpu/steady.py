"""What single measurements cannot tell: one text in turns, as hosts are not steady, and the clock under load."""

import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rivals import hugging_face, padded
from setting import Setting, lengths_like, texts_of, whole_times

ASKED = ("clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "clocks_event_reasons.active")
EVERY_MS, PAUSE = 50, 0.03  # between two readings of the clock; between two calls where the device may rest


def measure_latency(setting: Setting) -> None:
    """One text, engines in turns: the median of the rounds' medians."""
    tiny, device = setting.arguments.tiny, setting.device
    texts = texts_of(lengths_like("qnli", 1))
    works: dict[tuple[str, str], Callable[[], object]] = {}
    for pruned in (False, True):
        engine = setting.engine(pruned=pruned, mode="graph")
        works[setting.name(pruned=pruned), "graph"] = partial(engine.run, engine.pack(texts))
    if device != "cpu":
        works["hf-compile", "padded"] = hugging_face(setting.compiled(), [padded(texts, pinned=True)], device)
    rounds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    for _ in range(2 if tiny else 15):
        for key, work in works.items():
            rounds[key].append(float(np.median(whole_times(work, device, seconds=0.01 if tiny else 0.05))))
    for (engine_name, mode), times in rounds.items():
        row = {"bench": "latency", "engine": engine_name, "mode": mode, "lengths": "qnli", "batch": 1}
        low, middle, high = np.quantile(times, (0.1, 0.5, 0.9)).tolist()
        setting.record(**row, ms_p50=middle, ms_p10=low, ms_p90=high, repeats=len(times))


def measure_clocks(setting: Setting) -> None:
    """The dense engine without a pause and with pauses, and what the device says of its clock and power meanwhile."""
    lengths = lengths_like("qnli", 256 if not setting.arguments.tiny else 2)
    engine = setting.engine(pruned=False, mode="graph")
    packed = engine.pack(texts_of(lengths))
    seconds = 3.0 if not setting.arguments.tiny else 0.2
    kept = engine.run(packed).kept
    for mode, pause in (("without a pause", 0.0), ("with pauses", PAUSE)):
        with Readings(setting.device) as readings:
            times = timed(lambda: engine.run(packed), seconds=seconds, pause=pause)
        cost, middle = setting.cost(lengths, kept, engine.plan.alone), float(np.median(times))
        row: dict[str, Any] = {"bench": "clocks", "engine": "thresher-dense", "mode": mode, "lengths": "qnli"}
        setting.record(
            **row,
            batch=len(lengths),
            ms_p50=middle,
            useful_tflops=cost["flops"] / middle / 1e9,
            repeats=len(times),
            **readings.summary(),
        )


def timed(work: Callable[[], object], *, seconds: float, pause: float) -> list[float]:
    """Milliseconds of calls that end on the host, after as much again to warm up."""
    times: list[float] = []
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < 2 * seconds or not times:
        start = time.perf_counter()
        work()
        if spent > seconds:
            times.append(1000 * (time.perf_counter() - start))
        time.sleep(pause)
    return times


class Readings:
    """Of nvidia-smi, while the block runs; the second half counts."""

    def __init__(self, device: str) -> None:
        self._on_gpu, self._text = device != "cpu", ""
        number = torch.cuda.current_device() if self._on_gpu else 0
        self._command = ["nvidia-smi", f"--id={number}", f"--query-gpu={','.join(ASKED)}"]
        self._command += ["--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}"]

    def __enter__(self) -> "Readings":
        if self._on_gpu:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._on_gpu:
            self._process.terminate()
            self._text = self._process.communicate()[0]

    def summary(self) -> dict[str, Any]:
        if not self._on_gpu:
            return {}
        lines = [line.split(", ") for line in self._text.splitlines() if line.count(",") == len(ASKED) - 1]
        if not lines:
            raise RuntimeError(f"nvidia-smi gave no readings: {self._text[:200]!r}")
        return summary_of(lines[len(lines) // 2 :])


def summary_of(lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Medians of numbers; of the reasons for a lower clock, each bit mask that was seen."""
    names = ("sm_mhz", "most_sm_mhz", "watts", "most_watts")
    columns = list(zip(*lines, strict=True))
    found: dict[str, Any] = {
        name: float(np.median([float(value) for value in column]))
        for name, column in zip(names, columns[:4], strict=True)
    }
    return found | {"reasons": sorted(set(columns[4])), "readings": len(lines)}
