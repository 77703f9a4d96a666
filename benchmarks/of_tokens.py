"""From text to answer, or to tags, on a CPU: our engine, dense and pruned, beside transformers with the same windows.

    python benchmarks/of_tokens.py RUN --task squad_v2 --data DIR
    python benchmarks/of_tokens.py RUN --task conll2003 --data DIR

A run whose thresholds were set without training, as fitted_run.py makes, is good for this: its weights are the dense
model's. Texts are cut into the same windows for all, and answers or entities are found by the same code; transformers
gets the windows sorted by length, padded, in batches of --batch-size. Rows take turns in each round; no round begins
after --seconds, and a row's fastest round counts: whatever else the machine does slows all the others. Rows are
compared where each has a second round that is nearly as fast; one alone may be anything.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import HERE, made_by, read_rows, write_between_marks

from thresher.core.cost import engine_relative_flops, relative_flops
from thresher.engine.engine import Engine
from thresher.engine.of_tokens import Computed, answers_in, tagged_in
from thresher.evaluation.contenders import Spec, build, load_ours
from thresher.evaluation.of_tokens import in_order
from thresher.hardware import native_bf16_on_cpu
from thresher.models.attach import encoder_shape
from thresher.quiet import quiet_libraries
from thresher.records import append_record
from thresher.tasks import load_task
from thresher.tasks.splits import spread
from thresher.tokenizing.windows import Windows

OUT = HERE / "cpu" / "of_tokens.jsonl"
NEAR = 1.1
NAMES = {"transformers": "transformers", "dense": "thresher, dense", "pruned": "**thresher, pruned**"}


class Stock:
    """transformers on the windows of an engine."""

    def __init__(self, engine: Engine, run: Path, *, dtype: str, batch_size: int) -> None:
        self.engine, self.batch_size, means = engine, batch_size, engine.head.means
        pad, threads = engine.tokenizer.pad_token_id, torch.get_num_threads()
        self.run = build(Spec("hugging face", dtype, run, pad_id=pad, threads=threads, means=means)).run

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        engine, windows = self.engine, self.engine.windows(items)
        outputs = self.outputs(windows)
        found = Computed(windows, outputs, np.zeros((len(windows.rows), 1), np.int32), {})
        if engine.head.means == "span":
            return list(answers_in(found, [context for _, context in items]))
        return list(tagged_in(found, items, engine.labels))

    def outputs(self, windows: Windows) -> Any:
        """(total, outputs) of every token, in the windows' order."""
        lengths = windows.tokens.lengths
        order = np.argsort(lengths, kind="stable").tolist()
        parts = []
        for start in range(0, len(order), self.batch_size):
            rows = windows.tokens.take(order[start : start + self.batch_size]).rows()
            parts.append(self.run([Row(*row) for row in rows])[0])
        return in_order(parts, order, lengths.tolist(), self.engine.head.means)


class Row:
    """One window, as contenders of a bench get it."""

    def __init__(self, input_ids: list[int], token_type_ids: list[int] | None) -> None:
        self.input_ids, self.token_type_ids = input_ids, token_type_ids


def answers_of(engine: Engine) -> Callable[[Sequence[Any]], list[Any]]:
    if engine.head.means == "tags":
        return engine.tag
    return lambda items: engine.answer([question for question, _ in items], [context for _, context in items])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    task = load_task(options.task, data=options.data)
    rows = spread(next(iter(task.test.values())), options.rows)
    items: list[Any] = [list(row.words) if row.words else (row.text, row.pair) for row in rows]
    dtypes = options.dtypes.split(",")
    works: dict[tuple[str, str], Callable[[Sequence[Any]], list[Any]]] = {}
    engines = {}
    for dtype in dtypes:
        for kind in ("dense", "pruned"):
            model, tokenizer = load_ours(f"thresher {kind}", options.run)
            engines[kind, dtype] = Engine.from_model(model, tokenizer, device="cpu", dtype=dtype)
            works[kind, dtype] = answers_of(engines[kind, dtype])
        works["transformers", dtype] = Stock(
            engines["dense", dtype], options.run, dtype=dtype, batch_size=options.batch_size
        )
    pruned = engines["pruned", dtypes[0]]
    windows = pruned.windows(items)
    lengths = torch.from_numpy(windows.tokens.lengths.copy())
    kept = torch.from_numpy(pruned.finish_tokens(pruned.begin(windows.tokens)).kept.astype(np.int64))
    shape = encoder_shape(load_ours("thresher dense", options.run)[0])
    cost = {"paper": relative_flops(shape, lengths, kept), "engine": engine_relative_flops(shape, lengths, kept)}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
    started = time.perf_counter()
    for turn in range(options.rounds + 1):
        if turn > 1 and time.perf_counter() - started > options.seconds:
            break
        for key, work in works.items():
            given = items[:4] if turn == 0 else items
            began = time.perf_counter()
            found = work(given)
            if turn:
                seconds[key].append(time.perf_counter() - began)
            wrong = [one.error for one in found if one.error is not None]
            if wrong:
                raise SystemExit(f"a text was not answered: {wrong[0]}")
    return [
        {
            "task": options.task,
            "run": options.run.name,
            "engine": engine,
            "dtype": dtype,
            "texts": len(items),
            "windows": len(windows.rows),
            "tokens": round(float(lengths.double().mean()), 1),
            "batch_size": options.batch_size,
            "threads": torch.get_num_threads(),
            "texts_per_s": round(len(items) / min(times), 3),
            "rounds": [round(len(items) / each, 3) for each in times],
            "relative_flops": round(float(cost["paper"]), 4) if engine == "pruned" else 1.0,
            "engine_relative_flops": round(float(cost["engine"]), 4) if engine == "pruned" else 1.0,
            **made_by("of_tokens.py"),
        }
        for (engine, dtype), times in seconds.items()
    ]


def settled(row: dict[str, Any]) -> bool:
    """Whether the fastest round is no lucky one, nor the only quiet one."""
    *_, second, first = [0.0, *sorted(row["rounds"])]
    return bool(second * NEAR >= first)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The newest rows of every task: a line for each engine and arithmetic."""
    lines = ["| | texts/s | over transformers | over dense | of the FLOPs ratio |", "|" + "---|" * 5]
    for task in dict.fromkeys(row["task"] for row in rows):
        newest = {(row["engine"], row["dtype"]): row for row in rows if row["task"] == task}
        first = next(iter(newest.values()))
        lines.append(
            f"| {task}: {first['texts']} texts, {first['windows']} windows of {first['tokens']} tokens | | | | |"
        )
        speeds = {key: max(row["rounds"]) for key, row in newest.items()}
        for key in sorted(newest, key=lambda one: (one[1] != "fp32", speeds[one])):
            engine, dtype = key
            dense = speeds[key] / speeds["dense", dtype]
            ours = [f"{dense:.2f}x", f"{100 * dense * newest[key]['engine_relative_flops']:.0f}%"]
            pairs = [settled(newest[key]) and settled(newest[other, dtype]) for other in ("transformers", "dense")]
            over = [f"{speeds[key] / speeds['transformers', dtype]:.2f}x" if pairs[0] else ""]
            over += ours if engine == "pruned" and pairs[1] else ["", ""]
            lines.append(f"| {NAMES[engine]}, {dtype} | {speeds[key]:.2f} | {' | '.join(over)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="without it, only the table is written")
    parser.add_argument("--task", default="squad_v2")
    parser.add_argument("--data", type=Path)
    for name, value in (("rows", 48), ("rounds", 3), ("batch-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--dtypes", default="fp32,bf16" if native_bf16_on_cpu() else "fp32")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, default=HERE / "README.md")
    options = parser.parse_args(words)
    quiet_libraries()
    if options.run is not None:
        for row in measure(options):
            append_record(options.out, row)
            print({name: row[name] for name in ("engine", "dtype", "texts_per_s", "rounds", "engine_relative_flops")})
    write_between_marks("of_tokens", table(read_rows(options.out)), options.page)


if __name__ == "__main__":
    main()
