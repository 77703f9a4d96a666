"""Choosing the tokens to keep by top-k against a threshold: the figure in the paper's appendix, on this machine.

    python benchmarks/topk_vs_threshold.py [--threads N]
    python benchmarks/topk_vs_threshold.py --figure

The first measures and draws, the second only draws. As in the paper: a batch of 32 score rows, retain ratios of 10% to
50%, 1000 independent runs. `select` is the operation alone, which is what the paper times: torch.topk (or a sort)
against one comparison. `compact` goes on to what saves work afterwards: the kept rows of the hidden states, gathered;
a fifth of the runs are enough for it. Finished points are in topk_vs_threshold.jsonl and not repeated;
--again measures them anew.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import (
    RESULTS,
    Row,
    keep_rows,
    label_ends,
    latest_setting,
    log_ticks,
    made_by,
    milliseconds,
    plotting,
    read_rows,
    save_figure,
    spread,
    threads_of,
    write_between_marks,
)
from rich.progress import Progress
from torch import Tensor

from thresher.engine.ragged import Ragged

NAME = "topk_vs_threshold"
BATCH_SIZE, LENGTHS, RATIOS = 32, (128, 256, 512, 1024), (0.1, 0.2, 0.3, 0.4, 0.5)
SETTING = ("device", "threads", "batch_size", "width", "runs")
PAPER = {128: "7.4x", 1024: "33.4x"}  # its text: "up to", Intel Haswell, threads not stated
COLOURS = {"sort": "#8a5a00", "top-k": "#c2410c", "threshold": "#1f6fb4"}


def select_topk(scores: Tensor, kept: int) -> Tensor:
    """scores: (batch, length) -> (batch, kept) places. Unordered, which is the faster form."""
    return torch.topk(scores, kept, dim=-1, sorted=False).indices


def select_sort(scores: Tensor, kept: int) -> Tensor:
    """The same by sorting whole rows."""
    return torch.sort(scores, dim=-1, descending=True).indices[:, :kept]


def select_threshold(scores: Tensor, threshold: float) -> Tensor:
    """scores: (batch, length) -> (batch, length) mask."""
    return scores > threshold


def compact_topk(scores: Tensor, kept: int, hidden: Tensor) -> Tensor:
    """hidden: (batch x length, width) -> (batch x kept, width)."""
    starts = torch.arange(0, scores.numel(), scores.shape[1])[:, None]
    return hidden[(select_topk(scores, kept) + starts).flatten()]


def compact_threshold(scores: Tensor, threshold: float, hidden: Tensor, runs: Ragged) -> Tensor:
    """The same for a threshold, with the bookkeeping of runs of unequal length that the engine needs."""
    _, rows = runs.compact(select_threshold(scores, threshold).flatten(), longest_first=True)
    return hidden[rows]


@torch.inference_mode()
def measure_cell(*, length: int, ratio: float, batch_size: int, width: int, runs: int) -> Row:
    """Times of all methods, which take turns on the same scores, fresh ones in every run; ten runs warm up.

    Selection is timed before compaction begins: a gather of megabytes would leave the next comparison a cold cache.
    """
    generator = torch.Generator().manual_seed(0)
    kept = max(1, round(ratio * length))
    threshold = 1 - ratio  # scores are uniform, so this keeps the same number on average
    hidden = torch.randn(batch_size * length, width, generator=generator)
    ragged = Ragged.pack([torch.zeros(length, dtype=torch.long)] * batch_size)
    select: dict[str, Callable[[Tensor], Tensor]] = {
        "select sort": partial(select_sort, kept=kept),
        "select top-k": partial(select_topk, kept=kept),
        "select threshold": partial(select_threshold, threshold=threshold),
    }
    compact: dict[str, Callable[[Tensor], Tensor]] = {
        "compact top-k": partial(compact_topk, kept=kept, hidden=hidden),
        "compact threshold": partial(compact_threshold, threshold=threshold, hidden=hidden, runs=ragged),
    }
    times: dict[str, list[float]] = {name: [] for name in (*select, *compact)}
    for methods, count in ((select, runs), (compact, -(-runs // 5))):
        for number in range(-10, count):
            scores = torch.rand(batch_size, length, generator=generator)
            scores[:, 0] = 1  # the first token always stays, as in the engine, which needs a token of every text
            for name, method in methods.items():
                taken = milliseconds(partial(method, scores))
                if number >= 0:
                    times[name].append(taken)
    return {
        "length": length,
        "ratio": ratio,
        "batch_size": batch_size,
        "width": width,
        "runs": runs,
        "threads": torch.get_num_threads(),
        "ms": {name: {**spread(taken), "runs": len(taken)} for name, taken in times.items()},
    }


def key(row: Row) -> object:
    return tuple(row[name] for name in (*SETTING, "length", "ratio"))


def measure(lengths: Sequence[int], file: Path, *, width: int, runs: int, again: bool = False) -> None:
    """Measure what the file does not hold yet, and write after every point."""
    about = made_by(f"{NAME}.py")
    setting = {"batch_size": BATCH_SIZE, "width": width, "runs": runs}
    done = set() if again else {key(row) for row in read_rows(file)}
    with Progress() as bars:
        bar = bars.add_task("measuring", total=len(lengths) * len(RATIOS))
        for length in lengths:
            for ratio in RATIOS:
                bars.update(bar, description=f"{length} tokens, {ratio:.0%} kept")
                here = {**setting, "device": about["device"], "threads": torch.get_num_threads()}
                if key({**here, "length": length, "ratio": ratio}) not in done:
                    row = measure_cell(length=length, ratio=ratio, **setting)
                    keep_rows(file, [{**row, **about}], key)
                bars.advance(bar)


def draw(rows: Sequence[Row], file: Path) -> None:
    """A column per length, as in the paper; selection alone above, with compaction below."""
    pyplot = plotting()
    lengths = sorted({row["length"] for row in rows})
    size = {"figsize": (1.5 + 2.5 * len(lengths), 6.2), "sharex": True, "sharey": "row", "squeeze": False}
    figure, grid = pyplot.subplots(2, len(lengths), constrained_layout=True, **size)
    for column, length in enumerate(lengths):
        here = sorted((row for row in rows if row["length"] == length), key=lambda row: row["ratio"])
        for axes, step in zip(grid[:, column], ("select", "compact"), strict=True):
            _lines(axes, here, step)
            low, high = ratios(here, step)
            factor = f"top-k / threshold: {low:.2g} to {high:.2g}"
            axes.set_title(f"{length} tokens\n{factor}" if step == "select" else factor, fontsize=9)
        grid[1][column].set_xlabel("tokens kept, %")
    for step, axes in zip(("select", "compact"), grid[:, -1], strict=True):  # limits are final only now
        label_ends(axes, _ends(here, step))
    grid[0][0].set_ylabel("choose, ms")
    grid[1][0].set_ylabel("choose and gather, ms")
    newest = rows[-1]
    figure.suptitle(
        f"Batch {newest['batch_size']}, width {newest['width']}, {newest['runs']} runs, {threads_of(newest)}, "
        f"{newest['device']}\nmedian, band: 10% to 90% of the runs",
        fontsize=11,
    )
    save_figure(figure, file)
    pyplot.close(figure)


def _methods(row: Row, step: str) -> list[str]:
    return [name for name in row["ms"] if name.startswith(step)]


def _lines(axes: Any, rows: Sequence[Row], step: str) -> None:
    axes.set_yscale("log")
    percent = [round(100 * row["ratio"]) for row in rows]
    for name in _methods(rows[0], step):
        colour = COLOURS[name.split()[-1]]
        axes.plot(percent, [row["ms"][name]["median"] for row in rows], color=colour, marker="o", markersize=3.5)
        bounds = [[row["ms"][name][bound] for row in rows] for bound in ("p10", "p90")]
        axes.fill_between(percent, *bounds, color=colour, alpha=0.15, linewidth=0)
    axes.set_xticks(percent)
    log_ticks(axes)


def _ends(rows: Sequence[Row], step: str) -> list[tuple[float, float, str, str]]:
    names = [(name, name.split()[-1]) for name in _methods(rows[-1], step)]
    return [(100 * rows[-1]["ratio"], rows[-1]["ms"][name]["median"], short, COLOURS[short]) for name, short in names]


def ratios(rows: Sequence[Row], step: str) -> tuple[float, float]:
    """Top-k over threshold, medians: the smallest and the largest over the retain ratios."""
    found = [row["ms"][f"{step} top-k"]["median"] / row["ms"][f"{step} threshold"]["median"] for row in rows]
    return min(found), max(found)


def table(rows: Sequence[Row]) -> str:
    """Per length, over the retain ratios: how many times the threshold's time top-k takes."""
    lines = [
        "| length | top-k / threshold, choosing | in the paper, up to | choosing and gathering |",
        "|---|---|---|---|",
    ]
    for length in sorted({row["length"] for row in rows}):
        here = [row for row in rows if row["length"] == length]
        (low, high), (least, most) = ratios(here, "select"), ratios(here, "compact")
        paper = PAPER.get(length, "")
        lines.append(f"| {length} | {low:.2g}x to {high:.2g}x | {paper} | {least:.2g}x to {most:.2g}x |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--width", type=int, default=768, help="of the hidden states that are gathered")
    parser.add_argument("--lengths", type=lambda text: [int(word) for word in text.split(",")], default=LENGTHS)
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--again", action="store_true", help="also measure what the file holds already")
    parser.add_argument("--figure", action="store_true", help="measure nothing, draw what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(words)
    file = options.out / f"{NAME}.jsonl"
    if not options.figure:
        if options.threads:
            torch.set_num_threads(options.threads)
        measure(options.lengths, file, width=options.width, runs=options.runs, again=options.again)
    rows = read_rows(file)
    if not rows:
        raise SystemExit(f"{file} holds nothing to draw; measure without --figure")
    rows = latest_setting(rows, SETTING)
    draw(rows, file)
    if options.out == RESULTS:
        write_between_marks(NAME, f"![top-k against threshold](cpu/{NAME}.png)\n\n{table(rows)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nstopped; the same command goes on from here") from None
