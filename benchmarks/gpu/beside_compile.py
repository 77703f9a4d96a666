"""Our captured graphs beside torch.compile's in one process: `bench` itself, on texts of up to 512 tokens.

    PYTHONPATH=src python benchmarks/gpu/beside_compile.py --out FILE.jsonl [--without]

A run of random weights is made, then `thresher bench RUN --device cuda --engines compile,thresher` races it in a
process of its own, three compiled batch sizes, dense and pruned engines, every peak of memory. `--without` does the
same once more with graphs that keep the library's common workspaces, as they did before `hardware.own_workspaces`: what
ends with a CUDA error there, and not with them, is what they are for. A record says how each process ended, after
`--limit` seconds at the latest; the same command again leaves out what ended well with this commit.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from book import Book
from setting import made_by

from thresher.config import PruneConfig
from thresher.core.plan import PruningPlan
from thresher.engine.backends.reference import Reference
from thresher.engine.packed import PackedExecutor
from thresher.engine.weights import read_weights
from thresher.models.attach import gates_of, prune_
from thresher.models.checkpoint import save

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from end_to_end import SHARPER, made_up_pairs, trained_tokenizer  # noqa: E402

BENCH = "beside torch.compile"
LAYERS, WIDTH, HEADS = 6, 384, 12
SHARES = (1.0, 0.8, 0.45, 0.2, 0.05, 0.0)
WORDS = (150, 420)  # of a text
TEXTS, BATCH = 168, 128  # a whole batch, a rest and single texts: three compiled sizes


def long_texts(count: int) -> list[str]:
    words = " ".join(second for _, second in made_up_pairs(2000)).split()
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words, draw.integers(*WORDS))) for _ in range(count)]


def make_run(folder: Path, texts: list[str], *, layers: int) -> None:
    """Random weights with thresholds that leave the shares above."""
    import transformers

    library: Any = transformers
    tokenizer = trained_tokenizer(texts)
    torch.manual_seed(0)
    model = library.BertForSequenceClassification(
        library.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
            num_labels=2,
        )
    ).eval()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.mul_(SHARPER)
            layer.attention.self.key.weight.mul_(SHARPER)
    config = PruneConfig(score="value")
    executor = PackedExecutor(Reference(read_weights(model), PruningPlan((0.0,) * layers, score=config.score)))
    read = tokenizer(texts[:8], truncation=True, max_length=512)["input_ids"]
    shares = [SHARES[layer * len(SHARES) // layers] for layer in range(layers)]
    found = executor.fit(shares, executor.pack(read))
    prune_(model, config)
    gates_of(model).set_thresholds([0.0 if share == 1 else at for share, at in zip(shares, found, strict=True)])
    save(model, tokenizer, folder)


def race(folder: Path, *, device: str, engines: str, owned: bool) -> None:
    """In this process: what `thresher bench` does."""
    if not owned:
        from thresher.engine.cuda import graphs

        graphs.own_workspaces = contextlib.nullcontext  # type: ignore[assignment]
    from thresher.jobs.bench import bench

    result = bench(
        folder / "run",
        texts=folder / "texts.txt",
        device=device,
        engines=engines,
        rows=TEXTS,
        batch_size=BATCH,
        rounds=2,
    )
    for row in result.rows:
        print(row["engine"], row["mode"], f"{row['texts_per_s']:.0f} texts/s, peak {row['peak_mib']} MiB", flush=True)
    print("missing:", result.missing, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON lines are added to this file")
    parser.add_argument("--without", action="store_true", help="also with workspaces that are not the graphs' own")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engines", default="compile,thresher")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds, of each process")
    parser.add_argument("--race", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shared", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.race:
        return race(options.race, device=options.device, engines=options.engines, owned=not options.shared)
    if not options.out:
        parser.error("give --out FILE.jsonl")
    about, key = made_by("gpu/beside_compile.py", device=options.device), ("bench", "own_workspaces", "exit")
    book = Book(options.out, about, key=key)
    print(f"{book}; at most {1 + options.without} processes of at most {options.limit:g} s", flush=True)
    with tempfile.TemporaryDirectory() as work:
        folder, texts = Path(work), long_texts(options.texts)
        make_run(folder / "run", texts, layers=options.layers)
        (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        for words in [[], ["--shared"]][: 1 + options.without]:
            if book.wants(bench=BENCH, own_workspaces=not words, exit=0):
                row = ended(folder, words, options)
                book.add(**row)
                print(json.dumps(row)[:1500], flush=True)
    book.end()


def ended(folder: Path, words: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """How a process of its own ended."""
    given = [f"--race={folder}", f"--device={options.device}", f"--engines={options.engines}", *words]
    began = time.time()
    row: dict[str, Any] = {"bench": BENCH, "own_workspaces": not words}
    try:
        done = subprocess.run(
            [sys.executable, __file__, *given], capture_output=True, text=True, timeout=options.limit, check=False
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        row |= {"exit": done.returncode, "last_lines": lines[-8:]}
    except subprocess.TimeoutExpired:
        row |= {"exit": None, "last_lines": [f"ended after {options.limit:g} s"]}
    return {**row, "seconds": round(time.time() - began, 1)}


if __name__ == "__main__":
    main()
