"""Time and memory of one batch against its length and its size: packed engine, dense and pruned, and Hugging Face.

    python benchmarks/scaling.py --run FOLDER [--data DIR] [--dtypes bf16,int8] [--threads N]
    python benchmarks/scaling.py --figure

The first measures and draws, the second only draws. Finished points are in scaling.jsonl and not repeated, so an
interrupted call goes on where it stopped; --again measures them anew.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import (
    MAPPED_BLOCKS,
    RESULTS,
    Row,
    keep_rows,
    label_ends,
    latest_setting,
    log_ticks,
    made_by,
    milliseconds,
    peak_increase_mib,
    plotting,
    read_rows,
    save_figure,
    shown,
    spread,
    threads_of,
    write_between_marks,
)
from rich.progress import Progress
from torch import Tensor

from thresher.core.cost import EncoderShape, engine_relative_flops
from thresher.engine.engine import Engine
from thresher.hardware import native_bf16_on_cpu
from thresher.jobs.rows import load_test_rows
from thresher.models.attach import encoder_shape
from thresher.models.checkpoint import load, load_dense, read_manifest
from thresher.quiet import quiet_libraries
from thresher.tasks import Example
from thresher.tasks.encode import Encoded, collate

NAME = "scaling"
LENGTHS, BATCH_SIZES = (16, 32, 64, 128, 256, 512), (1, 4, 16, 64, 256)
SETTING = ("device", "threads", "run")  # what all points of one figure share
COLOURS = {"hugging face": "#666666", "fp32": "#8a5a00", "bf16": "#1f6fb4", "int8": "#c2410c"}

Run = Callable[[Sequence[Encoded]], Tensor | None]  # a batch in; kept counts (batch, layers) out, where there are any


@dataclass(frozen=True)
class Contender:
    engine: str
    dtype: str
    run: Run
    alone: int | None = None  # our engine's layer that passes on first tokens only


@dataclass(frozen=True)
class Subject:
    """What is measured: the contenders of one run, and texts of its task in any exact length."""

    run: str
    contenders: list[Contender]
    shape: EncoderShape
    positions: int
    texts: "ExactTexts"


class ExactTexts:
    """Real rows, cut and joined to an exact length, inside the special tokens that the tokenizer puts around them.

    A text starts where a row starts and goes on with the next rows, so that its words, and what the thresholds make of
    them, are the task's own. Of a pair, both texts get their usual share of the length.
    """

    def __init__(self, tokenizer: Any, examples: Sequence[Example]) -> None:
        pairs = None if examples[0].pair is None else [example.pair for example in examples]
        found = tokenizer([example.text for example in examples], pairs, padding=False, verbose=False)
        types = found["token_type_ids"] if "token_type_ids" in found else None
        self.rows: list[list[list[int]]] = []  # per row and segment, the tokens
        self.frame: list[tuple[int | None, int, int]] = []  # segment or None, token id if None, token type
        for number, ids in enumerate(found["input_ids"]):
            owners = found.sequence_ids(number)
            segments = range(1 if pairs is None else 2)
            self.rows.append([[i for i, owner in zip(ids, owners, strict=True) if owner == s] for s in segments])
            if number == 0:
                for place, owner in enumerate(owners):
                    if owner is None or owner not in [segment for segment, _, _ in self.frame]:
                        self.frame.append((owner, ids[place], types[0][place] if types else 0))
        self.typed = types is not None

    def make(self, length: int, count: int) -> list[Encoded]:
        """`count` texts of exactly `length` tokens, each starting at the row after the last one used."""
        tokens = [sum(len(row[s]) for row in self.rows) for s in range(len(self.rows[0]))]
        room = length - sum(segment is None for segment, _, _ in self.frame)
        if room < len(tokens):
            raise SystemExit(f"{length} tokens leave no room for text beside the special tokens; give a longer length")
        first = min(max(1, round(room * tokens[0] / sum(tokens))), room - len(tokens) + 1)
        sizes = [first, room - first][: len(tokens)]
        texts, place = [], 0
        for _ in range(count):
            parts: list[list[int]] = [[] for _ in tokens]
            while any(len(part) < size for part, size in zip(parts, sizes, strict=True)):
                for part, more in zip(parts, self.rows[place % len(self.rows)], strict=True):
                    part += more
                place += 1
            texts.append(self._framed([part[:size] for part, size in zip(parts, sizes, strict=True)]))
        return texts

    def _framed(self, parts: list[list[int]]) -> Encoded:
        ids: list[int] = []
        types: list[int] = []
        for segment, token, kind in self.frame:
            piece = [token] if segment is None else parts[segment]
            ids += piece
            types += [kind] * len(piece)
        return Encoded(ids, types if self.typed else None, label=0)


def packed(name: str, engine: Engine) -> Contender:
    def run(texts: Sequence[Encoded]) -> Tensor:
        return engine.executor.compute([text.input_ids for text in texts], [text.token_type_ids for text in texts]).kept

    return Contender(name, engine.executor.dtype, run, engine.executor.plan.alone)


def hugging_face(model: Any, pad_id: int) -> Contender:
    """The stock model in fp32. Equal lengths need no padding, so this is its best case."""

    def run(texts: Sequence[Encoded]) -> None:
        batch = collate(texts, pad_id=pad_id)
        model(**{name: value for name, value in batch.items() if name != "labels"})

    return Contender(f"hugging face {model.config._attn_implementation}", "fp32", run)


def open_run(folder: Path, *, dtypes: Sequence[str], data: Path | None = None, test: Path | None = None) -> Subject:
    """The run's dense model where it has one (else the same weights unpruned) and its pruned model."""
    manifest = read_manifest(folder)
    rows = load_test_rows(folder, manifest, task=None, data=data, test=test, columns=(None, None, None))
    checkpoint = load(folder)
    dense = load_dense(folder / "dense" if (folder / "dense").is_dir() else folder, whole=True)[0].eval()
    contenders = [hugging_face(dense, checkpoint.tokenizer.pad_token_id)]
    positions = 0
    for dtype in dtypes:
        for name, model in (("thresher dense", dense), ("thresher pruned", checkpoint.model)):
            engine = Engine.from_model(model, checkpoint.tokenizer, device="cpu", dtype=dtype)
            positions = engine.executor.tables.positions
            contenders.append(packed(name, engine))
    return Subject(
        run=shown(folder),
        contenders=contenders,
        shape=encoder_shape(checkpoint.model),
        positions=positions,
        texts=ExactTexts(checkpoint.tokenizer, next(iter(rows.test.values()))),
    )


@torch.inference_mode()
def measure_cell(
    subject: Subject, contenders: Sequence[Contender], *, length: int, batch_size: int, repeats: int, seconds: float
) -> list[Row]:
    """One record per contender at one (length, batch size).

    They take turns, so that a slow spell of the machine hits all; a contender is timed `repeats` times, or fewer when
    its `seconds` are over, but at least three times.
    """
    texts = subject.texts.make(length, batch_size)
    kept = [contender.run(texts) for contender in contenders]  # the warm-up
    times: list[list[float]] = [[] for _ in contenders]
    for turn in range(repeats):
        for i, contender in enumerate(contenders):
            if turn < 3 or sum(times[i]) < 1000 * seconds:
                times[i].append(milliseconds(partial(contender.run, texts)))
    rows = []
    lengths = torch.full((batch_size,), length)
    for contender, counts, taken in zip(contenders, kept, times, strict=True):
        rows.append(
            {
                "run": subject.run,
                "engine": contender.engine,
                "dtype": contender.dtype,
                "length": length,
                "batch_size": batch_size,
                "ms": spread(taken),
                "repeats": len(taken),
                "engine_relative_flops": None
                if counts is None
                else round(engine_relative_flops(subject.shape, lengths, counts, alone=contender.alone), 4),
                "kept_per_layer": None if counts is None else [round(n, 2) for n in counts.float().mean(0).tolist()],
                "threads": torch.get_num_threads(),
            }
        )
    return rows


def key(row: Row) -> object:
    return tuple(row[name] for name in (*SETTING, "engine", "dtype", "length", "batch_size"))


def measure(
    subject: Subject, cells: set[tuple[int, int]], file: Path, *, repeats: int, seconds: float, again: bool = False
) -> None:
    """Measure what the file does not hold yet, smallest batches first, and write after every cell."""
    done = set() if again else {key(row) for row in read_rows(file)}
    about = made_by("scaling.py")
    setting = {"device": about["device"], "threads": torch.get_num_threads(), "run": subject.run}
    with Progress() as bars:
        bar = bars.add_task("measuring", total=len(cells))
        for length, batch_size in sorted(cells, key=lambda cell: (cell[0] * cell[1], cell)):
            bars.update(bar, description=f"{batch_size} texts of {length} tokens")
            here = {**setting, "length": length, "batch_size": batch_size}
            todo = [c for c in subject.contenders if key({**here, "engine": c.engine, "dtype": c.dtype}) not in done]
            if length > subject.positions:
                bars.print(f"length {length} left out: the model reads at most {subject.positions} tokens")
            elif todo:
                rows = measure_cell(
                    subject, todo, length=length, batch_size=batch_size, repeats=repeats, seconds=seconds
                )
                keep_rows(file, [{**row, **about} for row in rows], key)
            bars.advance(bar)


@torch.inference_mode()
def measure_memory(subject: Subject, file: Path) -> None:
    """Add the memory to those records of this setting that have only times."""
    device = made_by("scaling.py")["device"]
    contenders = {(contender.engine, contender.dtype): contender for contender in subject.contenders}
    setting = [device, torch.get_num_threads(), subject.run]
    rows = [row for row in read_rows(file) if "memory_mib" not in row and [row[name] for name in SETTING] == setting]
    rows = [row for row in rows if (row["engine"], row["dtype"]) in contenders]
    with Progress() as bars:
        for row in bars.track(rows, description="memory"):
            texts = subject.texts.make(row["length"], row["batch_size"])
            work = partial(contenders[row["engine"], row["dtype"]].run, texts)
            work()  # the warm-up: what a first call allocates for good is not the batch's
            keep_rows(file, [{**row, "memory_mib": peak_increase_mib(work)}], key)


def draw(rows: Sequence[Row], file: Path, *, batch_size: int, length: int) -> None:
    """Time above, memory below; against length at one batch size on the left, against batch size on the right."""
    pyplot = plotting()
    figure, grid = pyplot.subplots(2, 2, figsize=(10.5, 7.5), sharex="col", constrained_layout=True)
    sides = (("length", f"tokens per text ({batch_size} texts)"), ("batch_size", f"texts per batch ({length} tokens)"))
    for column, (field, title) in enumerate(sides):
        other, fixed = ("batch_size", batch_size) if field == "length" else ("length", length)
        chosen = sorted((row for row in rows if row[other] == fixed), key=lambda row: row[field])
        for axes, value in zip(grid[:, column], ("ms", "memory_mib"), strict=True):
            _panel(axes, chosen, field=field, value=value)
        grid[1][column].set_xlabel(title)
    grid[0][0].set_ylabel("milliseconds per batch")
    grid[1][0].set_ylabel("peak memory of the batch, MiB")
    newest = rows[-1]
    figure.suptitle(
        f"One batch of equal lengths: {newest['run']}, {threads_of(newest)}, {newest['device']}\n"
        "median, band: 10% to 90% of the repeats",
        fontsize=11,
    )
    save_figure(figure, file)
    pyplot.close(figure)


def _panel(axes: Any, rows: Sequence[Row], *, field: str, value: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ends = []
    for engine, dtype in sorted({(row["engine"], row["dtype"]) for row in rows}):
        # A logarithmic axis has no place for a batch that stays below the kernel's resolution.
        line = [row for row in rows if (row["engine"], row["dtype"]) == (engine, dtype) and row.get(value)]
        if not line:
            continue
        stock, dense = engine.startswith("hugging face"), engine == "thresher dense"
        colour = COLOURS["hugging face" if stock else dtype]
        x = [row[field] for row in line]
        y = [row["ms"]["median"] if value == "ms" else row[value] for row in line]
        axes.plot(x, y, color=colour, linestyle=":" if stock else "--" if dense else "-", marker="o", markersize=3.5)
        if value == "ms":
            bounds = [[row["ms"][name] for row in line] for name in ("p10", "p90")]
            axes.fill_between(x, *bounds, color=colour, alpha=0.15, linewidth=0)
        ends.append((x[-1], y[-1], f"{'HF' if stock else 'dense' if dense else 'pruned'} {dtype}", colour))
    ticks = sorted({row[field] for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.minorticks_off()
    log_ticks(axes)
    if ends:
        label_ends(axes, ends)


def table(rows: Sequence[Row]) -> str:
    """Every point: milliseconds / MiB, and the share of the dense engine's work that pruning leaves."""
    names = sorted({(row["engine"], row["dtype"]) for row in rows})
    found = {(row["length"], row["batch_size"], row["engine"], row["dtype"]): row for row in rows}
    lines = ["| length | batch | " + " | ".join(" ".join(name) for name in names) + " | FLOPs, pruned / dense |"]
    lines.append("|---" * (len(names) + 3) + "|")
    for length, batch_size in sorted({(row["length"], row["batch_size"]) for row in rows}):
        here = [found.get((length, batch_size, *name)) for name in names]
        pruned = [row["engine_relative_flops"] for row in here if row and row["engine"] == "thresher pruned"]
        cells = ["" if row is None else _cell(row) for row in here]
        share = f"{pruned[0]:.2f}" if pruned else ""
        lines.append(f"| {length} | {batch_size} | " + " | ".join(cells) + f" | {share} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    memory = "-" if row.get("memory_mib") is None else f"{row['memory_mib']:.1f}"
    return f"{row['ms']['median']:.4g} / {memory}"


def numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: every number must be at least 1")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a folder written by thresher prune")
    parser.add_argument("--data", type=Path, help="folder of the GLUE data, where the run's task is one")
    parser.add_argument("--test", type=Path, help="rows to make texts of, where the run was trained on own files")
    parser.add_argument("--dtypes", default="bf16,int8" if native_bf16_on_cpu() else "fp32,int8")
    parser.add_argument("--lengths", type=numbers, default=LENGTHS)
    parser.add_argument("--batch-sizes", type=numbers, default=BATCH_SIZES)
    parser.add_argument("--batch-size", type=int, default=16, help="of the points against length")
    parser.add_argument("--length", type=int, default=128, help="of the points against batch size")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10, help="of a contender at a point, after three repeats")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--again", action="store_true", help="also measure what the file holds already")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)  # the second process
    parser.add_argument("--figure", action="store_true", help="draw what the file holds; needs no --run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(words)
    if not (options.run or options.figure):
        parser.error("give --run FOLDER to measure, or --figure to draw what was measured")
    file = options.out / f"{NAME}.jsonl"
    if options.run:
        quiet_libraries()
        if options.threads:
            torch.set_num_threads(options.threads)
        cells = {(length, options.batch_size) for length in options.lengths}
        cells |= {(options.length, size) for size in options.batch_sizes}
        subject = open_run(options.run, dtypes=options.dtypes.split(","), data=options.data, test=options.test)
        if options.memory:
            return measure_memory(subject, file)
        measure(subject, cells, file, repeats=options.repeats, seconds=options.seconds, again=options.again)
        if any("memory_mib" not in row for row in read_rows(file)):
            given = sys.argv[1:] if words is None else words
            again = [sys.executable, __file__, *given, "--memory"]
            subprocess.run(again, env={**os.environ, **MAPPED_BLOCKS}, check=True)
    rows = read_rows(file)
    if not rows:
        raise SystemExit(f"{file} holds nothing to draw; measure with --run FOLDER")
    rows = latest_setting(rows, SETTING)
    draw(rows, file, batch_size=options.batch_size, length=options.length)
    if options.out == RESULTS:
        write_between_marks(NAME, f"![time and memory of a batch](cpu/{NAME}.png)\n\n{table(rows)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; the same command goes on from here") from None
