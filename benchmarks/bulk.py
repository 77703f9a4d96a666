"""A long file through `thresher score`: is memory flat, and does kill -9 change a byte?

    python benchmarks/bulk.py [--rows 1000000] [--kills 10] [--crews local,ray-2,ray-4]

A tiny model with random weights (1 layer, 32 wide) scores rows of 3 to 12 words, every thousandth of them bad, once
without a break. Then every crew does it again into a place of its own, killed at random moments, and every output is
compared with the first. Memory is that of the command's process in the unbroken run. `ray-2` has two actors of one CPU
each, `ray-4` four of half a CPU.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import RESULTS, Row, keep_rows, made_by, read_rows, write_between_marks

FILE = RESULTS / "bulk.jsonl"
WORDS = tuple(f"word{i}" for i in range(60))
CREWS: dict[str, list[str]] = {
    "local": [],
    "ray-2": ["--ray", "--actors", "2"],
    "ray-4": ["--ray", "--actors", "4", "--cpus-per-actor", "0.5"],
}


def make_model(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    tokens = {word: number for number, word in enumerate((*special, *WORDS))}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokens), max_position_embeddings=32, initializer_range=0.3, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    inner = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=inner, **named).save_pretrained(folder)
    return folder


def make_rows(file: Path, count: int) -> Path:
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as out:
        for number in range(count):
            text = " " if number % 1000 == 999 else " ".join(draw.choices(WORDS, k=draw.randint(3, 12)))
            out.write(json.dumps({"id": number, "text": text}) + "\n")
    return file


def begin(model: Path, source: Path, out: Path, words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "thresher", "score", model, source, "--out", out, "--dtype", "fp32", "--json"]
    # Of a second thread such a small model makes nothing but waiting.
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, *words], env=settings, text=True, **streams)


def resident_mib(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20
    except (OSError, IndexError):
        return 0.0


def ended(process: subprocess.Popen[str]) -> tuple[Row, list[float]]:
    """What it says of itself, and its memory twice a second."""
    memory = []
    while process.poll() is None:
        memory.append(round(resident_mib(process.pid), 1))
        time.sleep(0.5)
    assert process.stdout is not None
    said = process.stdout.read()
    if process.returncode != 0:
        raise SystemExit(f"thresher score ended with {process.returncode}; run it by hand to see why")
    return json.loads(said), memory


def killed(process: subprocess.Popen[str], parts: Path, wait: float) -> bool:
    """Kill it some seconds after it has done something new; False if it ended before."""
    before = len(list(parts.glob("*.part")))
    while process.poll() is None and len(list(parts.glob("*.part"))) <= before:
        time.sleep(0.05)
    time.sleep(wait)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def measure(place: Path, rows: int, kills: int, crews: list[str]) -> None:
    model, source, draw = make_model(place / "model"), make_rows(place / "in.jsonl", rows), random.Random(1)
    whole, memory = ended(begin(model, source, place / "whole.jsonl", []))
    memory = [mib for mib in memory if mib > 0]
    expected = digest(place / "whole.jsonl")
    print({name: whole[name] for name in ("rows", "errors", "seconds", "texts_per_s")}, "peak MiB", max(memory))
    for crew in crews:
        out, count, began = place / f"{crew}.jsonl", 0, time.perf_counter()
        parts = out.with_name(out.name + ".partial") / "shards" / "00000"
        for _ in range(kills):
            process = begin(model, source, out, CREWS[crew])
            count += killed(process, parts, draw.uniform(0, whole["seconds"] / (kills + 1)))
        last, _ = ended(begin(model, source, out, CREWS[crew]))
        row: Row = {
            "crew": crew,
            "rows": whole["rows"],
            "errors": last["errors"],
            "kills": count,
            "identical": digest(out) == expected,
            "seconds": round(time.perf_counter() - began, 1),
            "rows_after_last_kill": last["computed"],
            "texts_per_s_after_last_kill": last["texts_per_s"],
            "unbroken": {"seconds": whole["seconds"], "texts_per_s": whole["texts_per_s"]},
            "resident_mib": memory[:: max(1, len(memory) // 20)],
            "peak_mib": max(memory),
            "output_mib": round(out.stat().st_size / 2**20),
            **made_by("bulk.py"),
        }
        print({name: row[name] for name in ("crew", "kills", "identical", "seconds", "texts_per_s_after_last_kill")})
        keep_rows(FILE, [row], lambda row: (row["device"], row["crew"], row["rows"]))
        out.unlink()


def table() -> str:
    rows = read_rows(FILE)
    lines = ["| crew | rows | kills | identical | seconds with kills | texts/s after the last kill |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        same, speed = "yes" if row["identical"] else "NO", f"{row['texts_per_s_after_last_kill']:,.0f}"
        lines.append(f"| {row['crew']} | {row['rows']:,} | {row['kills']} | {same} | {row['seconds']:.0f} | {speed} |")
    for row in rows[-1:]:
        memory, unbroken = row["resident_mib"], row["unbroken"]
        at = ", ".join(f"{memory[i]:.0f}" for i in (len(memory) // 10, len(memory) // 2, -1))
        speed = f"{unbroken['seconds']:.0f} seconds, {unbroken['texts_per_s']:,.0f} texts/s"
        lines += ["", f"Without a break, here: {speed}; {at} MiB of memory\nafter a tenth, a half and at the end."]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--crews", default=",".join(CREWS), help="of: " + ", ".join(CREWS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.rows, options.kills, options.crews.split(","))
    write_between_marks("bulk", table())
