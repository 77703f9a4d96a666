"""Graphs and engines that take turns, each in a process of its own: what export.py and export_text.py measure with.

Several sessions in one process disturb each other: of two graphs that are nearly the same, one took twice as long. So
every contender has a process, which waits on a pipe while others have their turn. In a turn it first computes twice
untimed, because others had the caches in between. Threads are as the runtimes have them by themselves; a pause before
each turn lets those of the one before stop spinning.

python benchmarks/export_turns.py '{"file": FILE, ...}' is such a process; it speaks JSON lines, and imports what its
contender needs and no more.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Spec = dict[str, Any]  # of a graph: file; of an engine: run, backend, dtype, scales (a file or None); and threads
PAUSE = 0.02  # seconds
UNTIMED = 2
LONGEST, MOST = 0.06, 8  # a turn of one contender: about so many seconds, and so many calls at most


class Contender:
    """A process with one graph or engine."""

    def __init__(self, spec: Spec) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.__exit__(kind, error, trace)  # closes the pipes, which ends it, and waits

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a contender's process ended; what it printed says why")
        return json.loads(line)


def write_batches(file: Path, batches: Sequence[Arrays]) -> Path:
    np.savez(file, **{f"{i}.{name}": values for i, batch in enumerate(batches) for name, values in batch.items()})
    return file


def read_batches(file: Path) -> list[Arrays]:
    found: dict[int, Arrays] = {}
    with np.load(file) as stored:
        for key in stored.files:
            number, _, name = key.partition(".")
            found.setdefault(int(number), {})[name] = stored[key]
    return [found[i] for i in range(len(found))]


def turns(contenders: Mapping[str, Contender], *, batches: int, rounds: int) -> dict[str, NDArray[np.float64]]:
    """Milliseconds of each, (rounds, calls): all in turn in every round, the first another one each time.

    They have read their batches. In a round all compute the same ones, and the next round goes on behind them.
    """
    slowest = max(np.median(one.ask(places=[0] * 3)) for one in contenders.values())
    calls = int(np.clip(1000 * LONGEST / slowest, 1, MOST))
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        places = [(number * calls + i) % batches for i in range(calls)]
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(PAUSE)
            times[name].append(contenders[name].ask(places=places))
    return {name: np.array(found) for name, found in times.items()}


def cores_of_others(work: Callable[[], Any], contenders: Sequence[Contender]) -> tuple[Any, float | None]:
    """What the work gives, and how many cores the rest of the machine used meanwhile, on average; None where the system
    does not say."""
    pids = [os.getpid(), *(one.process.pid for one in contenders)]
    before, began = busy_seconds(pids), time.perf_counter()
    found = work()
    after, seconds = busy_seconds(pids), time.perf_counter() - began
    if before is None or after is None:
        return found, None
    return found, round(max(0.0, after - before) / seconds, 3)


def busy_seconds(pids: Sequence[int]) -> float | None:
    """Seconds that cores were busy, or held by another machine on the same host, beside these processes."""
    if not sys.platform.startswith("linux"):
        return None
    values = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    ticks = sum(values) - values[3] - values[4]  # idle, and waiting for a disk
    for pid in pids:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks -= int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def started(stack: ExitStack, specs: Mapping[str, Spec]) -> dict[str, Contender]:
    return {name: stack.enter_context(Contender(spec)) for name, spec in specs.items()}


# ---- inside a contender's process


def opened(spec: Spec) -> tuple[Callable[[Arrays], object], Callable[[Arrays], Any]]:
    """What computes a batch, and what counts the tokens that its layers keep."""
    if "file" in spec:
        from thresher.engine.graphs.opened import open_file

        graph = open_file(Path(spec["file"]), threads=spec["threads"])
        return lambda batch: graph(graph.names[:1], batch), lambda batch: graph(["kept"], batch)[0]
    import torch

    from thresher.engine.choose import choose
    from thresher.engine.scales import load_scales
    from thresher.engine.weights import read_weights
    from thresher.models.checkpoint import load
    from thresher.models.plan import plan_of

    torch.set_num_threads(spec["threads"])
    model = load(Path(spec["run"])).model
    scales = [] if spec["scales"] is None else load_scales(Path(spec["scales"]))
    engine = choose(spec["backend"], spec["dtype"], scales=scales).build(read_weights(model), plan_of(model))

    def compute(batch: Arrays) -> Any:
        types = batch.get("token_type_ids")
        return engine.compute(batch["input_ids"].tolist(), None if types is None else types.tolist())

    return compute, lambda batch: compute(batch).kept.numpy()


def serve(spec: Spec) -> None:
    """Requests: {"batches": FILE} reads them and computes each once, {"places": [...]} times these, {"kept": true}
    counts the tokens kept of all."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    compute, kept = opened(spec)
    batches: list[Arrays] = []

    def timed(place: int) -> float:
        began = time.perf_counter()
        compute(batches[place])
        return 1000 * (time.perf_counter() - began)

    for line in sys.stdin:
        request = json.loads(line)
        if "batches" in request:
            batches = read_batches(Path(request["batches"]))
            answer: Any = [timed(place) for place in range(len(batches))]
        elif "kept" in request:
            answer = [row for batch in batches for row in kept(batch).tolist()]
        else:
            for _ in range(UNTIMED):
                compute(batches[request["places"][0]])
            answer = [timed(place) for place in request["places"]]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
