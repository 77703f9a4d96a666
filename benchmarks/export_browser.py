"""What an exported graph gains in a browser: pruned over the stock dense export and over our own dense graph, one text
at a time in onnxruntime-web on one thread, in headless Chromium.

python benchmarks/export_browser.py --run FOLDER --texts FILE.jsonl [--tokens 27,128] [--dtypes fp32,int8] [--rounds 15]
    [--work FOLDER [--prepare]]

Texts and graphs are those of export.py at batch 1. All graphs are in one page (export/browser.html), and take turns in
every round: one untimed text, then all timed. The files of onnxruntime-web come from npm, of the version that
examples/browser uses.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from export import FILE, KEY, cost_of
from export_subject import Subject
from export_turns import busy_seconds
from in_chromium import browser, prepare, reported, served
from measuring import HERE, Row, keep_rows, made_by, shown, spread

from thresher.quiet import quiet_libraries

KINDS = ("stock", "dense", "pruned")
RUNTIME = "onnxruntime-web"
LONGEST = 600  # seconds of one page


def seconds_of(session: int) -> float | None:
    """That the processes of a session have computed, those that ended left out; None where the system does not say."""
    if not sys.platform.startswith("linux"):
        return None
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(words[3]) == session:
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def in_page(folder: Path) -> tuple[Any, float | None]:
    """What the page reports, and how many cores the rest of the machine used meanwhile, on average."""
    ended: dict[str, Any] = {}

    def on_report(session: int) -> None:
        ended.update(busy=busy_seconds([os.getpid()]), own=seconds_of(session), at=time.perf_counter())

    before, began = busy_seconds([os.getpid()]), time.perf_counter()
    with served(folder) as (address, reports):
        found = reported(f"{address}browser.html", reports, seconds=LONGEST, on_report=on_report)
    if "error" in found:
        raise SystemExit(f"the page says: {found['error']}")
    if before is None or ended["own"] is None:
        return found, None
    others = (ended["busy"] - before - ended["own"]) / (ended["at"] - began)
    return found, round(max(0.0, others), 3)


def point(subject: Subject, folder: Path, *, dtype: str, tokens: int, rounds: int) -> Row:
    """All graphs of one arithmetic at one length."""
    for kind in KINDS:
        # One file each: torch's exporter puts weights into another, which a page would have to mount.
        onnx.save(onnx.load(subject.graph(kind, "onnxruntime", dtype)["file"]), str(folder / f"{kind}.onnx"))
    given = subject.batches(batch=1, tokens=tokens)
    texts = [{name: values[0].tolist() for name, values in arrays.items()} for arrays in given]
    asked = {"graphs": KINDS, "texts": texts, "rounds": rounds}
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    found, others = in_page(folder)
    times = {name: np.array(values) for name, values in found["times"].items()}
    spreads = {name: spread(values.ravel().tolist()) for name, values in times.items()}
    medians = {name: values["median"] for name, values in spreads.items()}
    per_round = {name: np.median(values, axis=1) for name, values in times.items()}
    return {
        "batch": 1,
        "tokens": given[0]["input_ids"].shape[1],
        "pruned_over_stock": medians["stock"] / medians["pruned"],
        "pruned_over_own_dense": medians["dense"] / medians["pruned"],
        "relative_flops": cost_of(subject, [int(arrays["attention_mask"].sum()) for arrays in given], found["kept"]),
        "milliseconds": medians,
        "p10_p90": {name: [values["p10"], values["p90"]] for name, values in spreads.items()},
        "over_stock_by_round": spread((per_round["stock"] / per_round["pruned"]).tolist()),
        "rounds": rounds,
        "calls": len(given),
        "cores_of_others": others,
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", default="27,128")
    parser.add_argument("--dtypes", default="fp32,int8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(words)
    quiet_libraries()
    if browser() is None:
        raise SystemExit("no headless Chromium; apt-get install chromium-headless-shell")
    with tempfile.TemporaryDirectory() as name:
        subject = Subject(options.run, options.texts, options.work or Path(name), threads=1)
        folder = subject.work / "page"
        if not (folder / "vendor").exists():
            prepare().fetch_packages(folder)
        shutil.copy(HERE / "export" / "browser.html", folder)
        for dtype in options.dtypes.split(","):
            if options.prepare:
                for kind in KINDS:
                    subject.graph(kind, "onnxruntime", dtype)
                continue
            for tokens in (int(word) for word in options.tokens.split(",")):
                found = point(subject, folder, dtype=dtype, tokens=tokens, rounds=options.rounds)
                about = {"model": shown(options.run), "runtime": RUNTIME, "dtype": dtype}
                row = {**about, **found, "threads": 1, "trained": subject.trained, **made_by("export_browser.py")}
                ratios = f"{row['pruned_over_stock']:.2f}x stock, {row['pruned_over_own_dense']:.2f}x our dense graph"
                print(f"{dtype}, {row['tokens']} tokens: {ratios}; ms: {row['milliseconds']}", flush=True)
                keep_rows(options.out, [row], lambda row: tuple(row[name] for name in KEY))


if __name__ == "__main__":
    main()
