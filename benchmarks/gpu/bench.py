"""Everything that is measured on a GPU, in parts of a minute or two. From the repository's root:

    PYTHONPATH=src python benchmarks/gpu/bench.py PART[,PART...] --out FILE.jsonl [--thresholds T,T,...] [--score value]
        [--profile thresher]

Parts: qnli, squad, sst2 (all engines over batch sizes), torch-compile (the sizes of the targets, beside ours), growth
(length 64..4096), kernels, scores (of the kernels, those that score and prune), profile, latency (one text, engines in
turns), clocks (of the device under load).
Every measurement is written at once; the same command again measures what this commit's rows lack, and nothing is begun
after --limit seconds. The first part that prunes searches for thresholds and prints them; --thresholds skips that.
--score value prunes by the other score, at thresholds of its own that keep as many tokens; --profile thresher by that
too, and as many tokens as the default method's model keeps.
"""

import argparse
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rivals import hugging_face, padded, sorted_batches
from setting import KEPT, LENGTHS, Setting, base_model, lengths_like, texts_of, wait, whole_times
from single_kernels import measure_kernels, measure_scores
from steady import measure_clocks, measure_latency

from thresher.core.cost import engine_macs
from thresher.engine.backends.reference import DTYPES
from thresher.engine.weights import read_weights
from thresher.evaluation.unpadded import UnpaddedDense

BATCHES = (1, 4, 16, 64, 128, 256, 512)
MODES = ("sync", "graph")


def engines(setting: Setting, name: str) -> None:
    """All engines, at every batch size, on the same texts."""
    device, on_gpu = setting.device, setting.device != "cpu"
    batches = BATCHES if not setting.arguments.tiny else (1, 2)
    half = DTYPES[setting.dtype]
    stock = {
        kind: base_model(attention=kind, **setting.sizes).to(device, half) for kind in ("eager", "sdpa")
    }  # fmt: skip
    unpadded = UnpaddedDense(setting.weights, dtype=setting.dtype, device=device)
    ours = {(pruned, mode): setting.engine(pruned=pruned, mode=mode) for pruned in (False, True) for mode in MODES}
    for batch in batches:
        lengths = lengths_like(name, batch)
        texts = texts_of(lengths)
        about: dict[str, Any] = {"bench": "engines", "lengths": name}
        for kind, model in stock.items():
            if not setting.wants(**about, batch=batch, engine=f"hf-{kind}", mode="padded"):
                continue
            with setting.attempt(**about, batch=batch, engine=f"hf-{kind}", mode="padded"):
                work = hugging_face(model, [padded(texts, pinned=on_gpu)], device)
                setting.measure(work, lengths, None, **about, engine=f"hf-{kind}", mode="padded")
        if batch >= 8 and setting.wants(**about, batch=batch, engine="hf-sdpa", mode="sorted"):
            with setting.attempt(**about, batch=batch, engine="hf-sdpa", mode="sorted"):
                work = hugging_face(stock["sdpa"], sorted_batches(texts, pinned=on_gpu), device)
                setting.measure(work, lengths, None, **about, engine="hf-sdpa", mode="sorted")
        if setting.wants(**about, batch=batch, engine="torch-unpadded", mode="dense"):
            with setting.attempt(**about, batch=batch, engine="torch-unpadded", mode="dense"):
                work = partial(unpadded.run, unpadded.pack(texts))
                setting.measure(work, lengths, None, **about, engine="torch-unpadded", mode="dense")
        for (pruned, mode), engine in ours.items():
            kind = setting.name(pruned=pruned)
            if not setting.wants(**about, batch=batch, engine=kind, mode=mode):
                continue
            with setting.attempt(**about, batch=batch, engine=kind, mode=mode):
                measure_ours(setting, engine, texts, **about, engine_name=kind, mode=mode)
    print(f"unpadded torch attention: {unpadded.attention}")
    table(setting, name)


def measure_ours(setting: Setting, engine: Any, texts: list[list[int]], *, engine_name: str, **row: Any) -> float:
    """From a packed batch on the host to logits on the host, as rivals are given padded ones; packing apart."""
    packed = engine.pack(texts)
    kept = engine.run(packed).kept
    packing = whole_times(lambda: engine.pack(texts), "cpu", seconds=0.02, warm=1)
    lengths = [len(text) for text in texts]
    return setting.measure(
        lambda: engine.run(packed),
        lengths,
        kept,
        alone=engine.plan.alone,
        **row,
        engine=engine_name,
        pack_ms=sorted(packing)[len(packing) // 2],
    )


def table(setting: Setting, name: str) -> None:
    """Milliseconds by engine and batch size."""
    rows = [row for row in setting.rows if row.get("lengths") == name and "ms_p50" in row]
    batches = sorted({row["batch"] for row in rows})
    print(f"\n{name} (mean {LENGTHS[name][0]} tokens), ms" + "".join(f"{batch:>10}" for batch in batches))
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        found[f"{row['engine']} {row['mode']}"][row["batch"]] = row["ms_p50"]
    for engine, times in found.items():
        cells = "".join(f"{times[batch]:>10.3f}" if batch in times else f"{'-':>10}" for batch in batches)
        print(f"{engine:<28}{cells}")
    print(flush=True)


def torch_compile(setting: Setting) -> None:
    """Minutes of compilation, so only the two sizes of the targets."""
    compiled = setting.compiled()
    for batch in (1, 256):
        lengths = lengths_like("qnli", batch)
        about: dict[str, Any] = {"bench": "engines", "lengths": "qnli", "engine": "hf-compile", "mode": "padded"}
        if not setting.wants(**about, batch=batch):
            continue
        with setting.attempt(**about, batch=batch):
            inputs = [padded(texts_of(lengths), pinned=setting.device != "cpu")]
            setting.measure(hugging_face(compiled, inputs, setting.device), lengths, None, **about)


def growth(setting: Setting) -> None:
    """Equal numbers of tokens in ever longer texts, and at one length ever more texts: cost follows live tokens."""
    tiny = setting.arguments.tiny
    weights = read_weights(base_model(positions=4096, **setting.sizes))
    tokens = 16384 if not tiny else 128
    shapes = [(tokens // n, n) for n in ((64, 128, 256, 512, 1024, 2048, 4096) if not tiny else (64,))]
    shapes += [(count, 128) for count in ((1, 4, 16, 64, 256) if not tiny else (1,))]
    for pruned in (False, True):
        for mode in MODES:
            engine = setting.engine(pruned=pruned, mode=mode, weights=weights)
            kind = setting.name(pruned=pruned)
            for count, length in shapes:
                about: dict[str, Any] = {"bench": "growth", "mode": mode, "lengths": f"n={length}"}
                if not setting.wants(**about, engine=kind, batch=count):
                    continue
                with setting.attempt(**about, engine=kind, batch=count):
                    measure_ours(setting, engine, texts_of([length] * count), engine_name=kind, **about)


KINDS = {
    "attention": (
        "_whole_runs",
        "long_runs",
        "received_in_long_runs",
        "_counted_rows",
        "_first_tokens",
        "flash",
        "fmha",
    ),
    "prune": ("_decide", "_compact"),
    "add_norm": ("_add_norm",),
    "embed": ("_embed",),
    "copies": ("Memcpy", "Memset"),
    "products": ("_linear", "gemm", "nvjet", "cutlass", "cublas", "splitK"),
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, marks in KINDS.items() if any(mark in kernel for mark in marks)), "other")


def profile(setting: Setting) -> None:
    """Where the device's time goes, by kind of kernel, in one forward."""
    from torch.profiler import ProfilerActivity

    activity = ProfilerActivity.CPU if setting.device == "cpu" else ProfilerActivity.CUDA
    repeats = 10 if not setting.arguments.tiny else 1
    for batch in (256, 1) if not setting.arguments.tiny else (1,):
        texts = texts_of(lengths_like("qnli", batch))
        for pruned in (False, True):
            for mode in MODES:
                kind = setting.name(pruned=pruned)
                about: dict[str, Any] = {"bench": "profile", "engine": kind, "mode": mode, "lengths": "qnli"}
                if not setting.wants(**about, batch=batch):
                    continue
                with setting.attempt(**about, batch=batch):
                    engine = setting.engine(pruned=pruned, mode=mode)
                    packed = engine.pack(texts)
                    times = whole_times(partial(engine.run, packed), setting.device, seconds=0.1)
                    whole = sorted(times)[len(times) // 2]
                    with torch.profiler.profile(activities=[activity]) as profiler:
                        for _ in range(repeats):
                            engine.run(packed)
                        wait(setting.device)
                    microseconds: dict[str, float] = defaultdict(float)
                    launches: dict[str, int] = defaultdict(int)
                    for event in profiler.key_averages():
                        spent = float(getattr(event, "self_device_time_total", 0.0))
                        if spent > 0:
                            microseconds[kind_of(event.key)] += spent / repeats
                            launches[kind_of(event.key)] += event.count // repeats
                    found = {key: round(value, 1) for key, value in sorted(microseconds.items(), key=lambda i: -i[1])}
                    macs = int(
                        engine_macs(
                            engine.shape, packed.lengths, engine.run(packed).kept, alone=engine.plan.alone
                        ).sum()
                    )
                    setting.record(
                        **about,
                        batch=batch,
                        ms_p50=whole,
                        useful_tflops=2 * macs / whole / 1e9,
                        busy_ms=sum(found.values()) / 1000,
                        microseconds=found,
                        launches=dict(launches),
                    )
                    print(f"  busy {sum(found.values()) / 1000:.3f} of {whole:.3f} ms  {found}  {dict(launches)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", help="comma-separated")
    parser.add_argument("--out", required=True, help="JSON lines are added to this file")
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16", "fp32"))
    parser.add_argument("--thresholds", help="one for each layer, as an earlier part printed them")
    parser.add_argument(
        "--score", choices=("attention", "value"), help="what tokens are judged by, if not as the profile's method does"
    )
    parser.add_argument(
        "--profile", default="ltp", choices=tuple(KEPT), help="the method whose trained model says what is kept where"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement")
    parser.add_argument("--limit", type=float, default=540, help="seconds after which nothing is begun")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and few sizes, to try the script itself")
    arguments = parser.parse_args()
    parts: dict[str, Any] = {
        **{name: partial(engines, name=name) for name in LENGTHS},
        "torch-compile": torch_compile,
        "growth": growth,
        "kernels": measure_kernels,
        "scores": measure_scores,
        "profile": profile,
        "latency": measure_latency,
        "clocks": measure_clocks,
    }
    wanted = arguments.parts.split(",")
    for name in wanted:
        if name not in parts:
            parser.error(f"part {name!r} is not one of {', '.join(parts)}")
    setting = Setting(arguments)
    print(f"{setting.book}; parts: {', '.join(wanted)}", flush=True)
    for name in wanted:
        if setting.book.left < 0:
            print(f"part {name}: no time is left for it", flush=True)
            continue
        began = time.perf_counter()
        with setting.attempt(bench=name):
            parts[name](setting)
        print(f"part {name}: {time.perf_counter() - began:.0f} s\n", flush=True)
        Path(arguments.out).touch()
    setting.book.end()


if __name__ == "__main__":
    main()
