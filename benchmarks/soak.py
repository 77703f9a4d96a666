"""A long stream through `Engine.predict`: is memory flat, and does a poisoned text harm only itself?

    python benchmarks/soak.py --run FOLDER [--data DIR] [--texts 100000] [--threads N]

Every thousandth text is one of POISON. Memory is read after every 5,000 texts.
"""

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch
from measuring import RESULTS, keep_rows, made_by, read_rows, run_options, shown, write_between_marks

from thresher.engine.engine import Engine, Item
from thresher.jobs.rows import load_named_task
from thresher.models.checkpoint import read_manifest

FILE = RESULTS / "soak.jsonl"
POISON: list[Item] = ["", " \t\n", "lone \ud800 surrogate", "\x00\x01\x02\x1b", "🙂🙃" * 50, "word " * 200_000]
EVERY, STEP = 1000, 5000


def stream(texts: list[Item], count: int) -> Iterator[Item]:
    poison, good = cycle(POISON), cycle(texts)
    for number in range(count):
        yield next(poison) if number % EVERY == EVERY - 1 else next(good)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def measure(run: Path, data: Path | None, count: int) -> None:
    task = load_named_task(read_manifest(run)["task"]["name"], data)
    texts: list[Item] = [
        example.text if example.pair is None else (example.text, example.pair) for example in task.train
    ]
    engine = Engine.load(run, device="cpu")
    alone = {text: engine.classify([text])[0] for text in texts[:500]}
    wrong, errors, memory, done = 0, 0, [], 0
    began = time.perf_counter()
    for text, found in zip(stream(texts, count), engine.predict(stream(texts, count), progress=True), strict=True):
        done += 1
        errors += found.error is not None
        wrong += text in alone and (found.label, found.kept) != (alone[text].label, alone[text].kept)
        if done % STEP == 0 or done == count:
            memory.append(round(resident_mib(), 1))
    seconds = time.perf_counter() - began
    row = {
        "run": shown(run),
        **{name: engine.describe()[name] for name in ("backend", "dtype")},
        "threads": torch.get_num_threads(),
        "texts": done,
        "seconds": round(seconds, 1),
        "texts_per_s": round(done / seconds, 1),
        "poisoned": done // EVERY,
        "per_item_errors": errors,
        "differ_from_alone": wrong,
        "resident_mib": memory,
        **made_by("soak.py"),
    }
    print(
        {name: row[name] for name in ("texts", "texts_per_s", "per_item_errors", "differ_from_alone", "resident_mib")}
    )
    keep_rows(FILE, [row], lambda row: (row["device"], row["run"], row["texts"]))


def table() -> str:
    lines = [
        "| run | texts | texts/s | MiB after 5,000, 25,000, half, all | errors of poisoned texts | differ from alone |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for row in read_rows(FILE):
        memory = row["resident_mib"]
        at = ", ".join(f"{memory[i]:.0f}" for i in (0, min(4, len(memory) - 1), len(memory) // 2, -1))
        counts = f"{row['per_item_errors']} of {row['poisoned']} | {row['differ_from_alone']}"
        lines.append(
            f"| {row['run']} ({row['dtype']}) | {row['texts']:,} | {row['texts_per_s']:.0f} | {at} | {counts} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    options = run_options(__doc__, texts="100000")
    if options.run:
        measure(options.run, options.data, int(options.texts))
    write_between_marks("soak", table())
