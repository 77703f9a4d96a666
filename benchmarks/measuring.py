"""What the benchmark scripts share: times, memory, record files, and the generated parts of README.md."""

import argparse
import ctypes
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thresher.config import trained_length
from thresher.experiments import publish
from thresher.jobs.rows import load_test_rows
from thresher.models.checkpoint import Checkpoint, load, read_manifest
from thresher.models.defaults import positions_of
from thresher.quiet import quiet_libraries
from thresher.records import provenance, write_text
from thresher.tasks import Example, Task
from thresher.tasks.encode import EncodedSet, encode

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "cpu"
Row = dict[str, Any]


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median, the quantiles around it, and the mean (which the paper reports), to four digits."""
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9)).tolist()
    found = {"median": middle, "p10": low, "p90": high, "mean": float(np.mean(times))}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


# For the environment of a process that measures memory: every block from 64 KiB on is mapped from the kernel and goes
# back when freed. With the usual heap, the peak of the same batch depended on what had been run before.
MAPPED_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(64 * 2**10)}


def peak_increase_mib(work: Callable[[], object]) -> float | None:
    """How far `work` raises the process's resident memory at its highest, in MiB; None where the system cannot tell.

    Needs a process started with MAPPED_BLOCKS.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: the peak starts again from now
        before = _peak_kib()
    except (OSError, AttributeError):
        return None
    work()
    return round((_peak_kib() - before) / 1024, 2)


def _peak_kib() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    if found is None:
        raise OSError("/proc/self/status has no VmHWM")
    return int(found[1])


def shown(path: Path) -> str:
    """A path without the machine in it: from the repository's root, or its last part."""
    whole = path.expanduser().resolve()
    return whole.relative_to(HERE.parent).as_posix() if whole.is_relative_to(HERE.parent) else whole.name


def made_by(script: str, *, device: str = "cpu") -> Row:
    """Where a record comes from, with the command as it would be typed in the repository's root."""
    words = ["python", f"benchmarks/{script}", *shown_words(sys.argv[1:])]
    return {**provenance(device=device, seed=None), "command": " ".join(words)}


def shown_words(words: Sequence[str]) -> list[str]:
    """Of a command, without the machine in them."""
    return [shown(Path(word)) if "/" in word else word for word in words]


def run_options(page: str | None, **more: str) -> argparse.Namespace:
    """The options of a script that measures a run; `more` are further ones with their defaults."""
    parser = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="measure this run; without it, only the table is made anew")
    parser.add_argument("--data", type=Path, help="folder with the run's GLUE task")
    parser.add_argument("--threads", type=int)
    for name, default in more.items():
        parser.add_argument(f"--{name}", default=default)
    options = parser.parse_args()
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


def open_run(run: Path, data: Path | None) -> tuple[Checkpoint, Task, EncodedSet]:
    """A run, the task it was made for, and the first test split as the run was trained to read it."""
    manifest = read_manifest(run)
    task = load_test_rows(run, manifest, task=None, data=data, test=None, columns=(None, None, None))
    checkpoint = load(run)
    return checkpoint, task, encoded_for(checkpoint, next(iter(task.test.values())))


def encoded_for(checkpoint: Checkpoint, rows: Sequence[Example]) -> EncodedSet:
    length = trained_length(checkpoint.manifest)
    return encode(checkpoint.tokenizer, rows, max_length=length, positions=positions_of(checkpoint.model, length))


def read_rows(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def keep_rows(file: Path, new: Sequence[Row], key: Callable[[Row], object]) -> None:
    """Add rows to a JSON lines file, each in place of the one with the same key."""
    rows = {key(row): row for row in read_rows(file)}
    for row in new:
        rows.pop(key(row), None)  # so that the newest row stands last
        rows[key(row)] = row
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows.values()))


def latest_setting(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows that share these fields with the newest row: a figure mixes neither machines nor models."""
    return [row for row in rows if all(row[name] == rows[-1][name] for name in names)]


def write_between_marks(mark: str, text: str, file: Path = HERE / "README.md") -> None:
    """Replace what stands between `<!-- mark -->` and the next `<!-- end -->`."""
    publish.write_between_marks(file, mark, text)


def plotting() -> Any:
    """pyplot without a screen, in the style of our figures."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit(
            "the records are kept, but figures need matplotlib: pip install -e '.[figures]', then --figure"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "axes.axisbelow": True,
            "svg.hashsalt": "thresher",  # the same records give the same file
        }
    )
    return pyplot


def save_figure(figure: Any, file: Path) -> None:
    """As .png and .svg, without the date, so that drawing anew changes nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file.with_suffix(".png"), dpi=160, bbox_inches="tight")
    figure.savefig(file.with_suffix(".svg"), bbox_inches="tight", metadata={"Date": None})


def log_ticks(axes: Any) -> None:
    """Plain numbers at 1, 2 and 5 of every power of ten: a short logarithmic axis would else show one number."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]], *, gap: float = 0.08) -> None:
    """Name lines at their right ends (x, y, name, colour) on a logarithmic axis whose limits are final.

    Names closer than `gap` of the axis's height move apart; a thin line leads from each end to its name.
    """
    bottom, top = (float(np.log10(value)) for value in axes.get_ylim())
    ordered = sorted(ends, key=lambda end: end[1])
    places = [(float(np.log10(y)) - bottom) / (top - bottom) for _, y, _, _ in ordered]
    for _ in range(200):  # neighbours push each other, half each, until all are far enough apart
        for i in range(len(places) - 1):
            missing = gap - (places[i + 1] - places[i])
            if missing > 0:
                places[i], places[i + 1] = places[i] - missing / 2, places[i + 1] + missing / 2
        places = [min(max(place, 0.0), 1.0) for place in places]
    for (x, y, name, colour), place in zip(ordered, places, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 3, "relpos": (0, 0.5)}
        to = {"xytext": (1.09, place), "textcoords": "axes fraction", "va": "center", "fontsize": 9}
        axes.annotate(name, (x, y), color=colour, arrowprops=leader, annotation_clip=False, **to)


def threads_of(row: Row) -> str:
    return "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
