"""Whether our engine got slower: the sources of another commit against these, on a model that both know.

    git archive COMMIT src | tar x -C FOLDER
    python benchmarks/before_after.py --old FOLDER/src [--device cuda] [--shape deberta-v3] [--dtype int8-static]

RoBERTa-base's shape, or another of families.py, with random weights, dense and pruned to half the FLOPs, with the same
thresholds, and scales for static int8, in both. Each side has a process of its own, which holds the same model; they
take turns, and the first of a pair is once this one and once the other. Recorded is the median of the pairs' ratios
(above 1, these are faster), and which commit the old sources say that they are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
LENGTHS = ("sst2", "qnli", "512 tokens")  # of families.py
BATCHES = {"cpu": (1, 4), "cuda": (1, 64, 512)}  # texts
WITH_SCALES = ("int8-static", "fp8")
TURN = 0.05  # seconds, at least one call


def work_for(job: dict[str, Any]) -> None:
    """In a side's process, with that side's package: milliseconds of a call for each question."""
    from transformers import AutoModelForSequenceClassification

    # What both sides have, whatever the commit; nothing of this folder, which goes with one of them.
    from thresher.core.plan import PruningPlan
    from thresher.engine.choose import Choice
    from thresher.engine.weights import read_weights
    from thresher.records import commit

    weights = read_weights(AutoModelForSequenceClassification.from_pretrained(job["model"]).eval())
    plans = {name: PruningPlan(thresholds=tuple(values)) for name, values in job["plans"].items()}
    engines: dict[str, Any] = {}
    for name, plan in plans.items():
        given = {"scales": scales_in(Path(job["scales"][name]))} if name in job["scales"] else {}
        engines[name] = Choice(job["device"], job["device"], job["dtype"], "asked for", **given).build(weights, plan)
    packed: dict[str, Any] = {}
    print(f"ready {commit()}", flush=True)
    for line in sys.stdin:
        plan, lengths, count = json.loads(line)
        if line not in packed:
            packed[line] = engines[plan].pack(job["texts"][lengths][:count])
        times: list[float] = []
        while sum(times) < TURN:
            began = time.perf_counter()
            engines[plan].run(packed[line])
            times.append(time.perf_counter() - began)
        print(1000 * median(times), flush=True)


def scales_in(folder: Path) -> tuple[Any, ...]:
    """Of every layer, as `write_scales` writes them; how they are read has changed between commits."""
    from safetensors.torch import load_file

    from thresher.engine.weights import LayerScales

    found, names = load_file(folder / "int8_scales.safetensors"), [field.name for field in fields(LayerScales)]
    return tuple(LayerScales(**{name: found[f"{i}.{name}"] for name in names}) for i in range(len(found) // len(names)))


def side(sources: Path, job: Path) -> "tuple[subprocess.Popen[str], str]":
    """Its process, and the commit that its sources are of."""
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(job)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    state, _, commit = process.stdout.readline().strip().partition(" ")
    if state != "ready" or commit == "None":
        process.communicate()
        why = (
            "do not know their commit: git archive writes it into them" if state == "ready" else "could not be measured"
        )
        raise SystemExit(f"the sources in {sources} {why}; what they say stands above")
    return process, commit


def asked(process: "subprocess.Popen[str]", question: str) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compared(sides: "list[subprocess.Popen[str]]", question: str, turns: int) -> dict[str, float]:
    """Of the old and the new side, in this order."""
    pairs = []
    for turn in range(-3, turns):  # the first three warm up
        order = (0, 1) if turn % 2 else (1, 0)
        found = {number: asked(sides[number], question) for number in order}
        if turn >= 0:
            pairs.append((found[0], found[1]))
    old, new = (list(times) for times in zip(*pairs, strict=True))
    ratio = median(before / after for before, after in pairs)
    return {"old_ms": median(old), "new_ms": median(new), "speedup": ratio, "speedup_of_minima": min(old) / min(new)}


def scales_of(weights: Any, plan: Any, texts: list[list[int]]) -> list[Any]:
    """For static int8, of every layer, from what reaches it after pruning."""
    from thresher.engine.find_scales import Observing
    from thresher.engine.packed import PackedExecutor

    observing = Observing(weights, plan)
    PackedExecutor(observing).compute(texts)
    return [observing.found(index) for index in range(len(observing.layers))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--old", type=Path, help="the src folder of the other commit")
    parser.add_argument("--device", default="cpu", choices=list(BATCHES))
    parser.add_argument("--shape", default="roberta", help="one of families.py")
    parser.add_argument("--dtype", help="bf16 on a CPU and fp16 on a GPU if not given")
    parser.add_argument("--turns", type=int, help="70 on a CPU and 25 on a GPU if not given")
    parser.add_argument("--batches", help="texts of a batch, such as 1,16")
    parser.add_argument("--lengths", help=f"all if not given: {','.join(LENGTHS)}")
    parser.add_argument("--out", type=Path, help="before_after.jsonl of the device's records if not given")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work_for(json.loads(options.worker.read_text(encoding="utf-8")))
    if options.old is None or not (options.old / "thresher").is_dir():
        parser.error("--old: give the other commit's src folder, which has thresher in it")
    on_cpu = options.device == "cpu"
    dtype, turns = options.dtype or ("bf16" if on_cpu else "fp16"), options.turns or (70 if on_cpu else 25)
    batches = [int(word) for word in options.batches.split(",")] if options.batches else BATCHES[options.device]

    from families import SHAPES, model_of, plan_for, texts_of
    from measuring import RESULTS, made_by

    from thresher.core.plan import PruningPlan
    from thresher.engine.scales import write_scales
    from thresher.engine.weights import read_weights
    from thresher.records import append_record

    if options.shape not in SHAPES:
        parser.error(f"--shape {options.shape} is not known; there are: {', '.join(SHAPES)}")
    wanted = options.lengths.split(",") if options.lengths else LENGTHS
    if unknown := [name for name in wanted if name not in LENGTHS]:
        parser.error(f"--lengths {','.join(unknown)} is not known; there are: {', '.join(LENGTHS)}")
    model = model_of(options.shape)
    texts = {name: texts_of(name, max(batches)) for name in wanted}
    weights, usual = read_weights(model), texts_of("qnli", 64)
    plan = plan_for(weights, usual, device=options.device)
    plans = {"dense": [0.0] * weights.shape.layers, "pruned": list(plan.thresholds)}
    file = options.out or (RESULTS if on_cpu else HERE / "gpu") / "before_after.jsonl"
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(Path(work) / "model")
        job: dict[str, Any] = {
            "model": str(Path(work) / "model"),
            "device": options.device,
            "dtype": dtype,
            "scales": {},
        }
        for name in plans if dtype in WITH_SCALES else ():
            folder = Path(work) / name
            folder.mkdir()
            write_scales(folder, scales_of(weights, PruningPlan(thresholds=tuple(plans[name])), usual))
            job["scales"] = {**job["scales"], name: str(folder)}
        place = Path(work) / "job.json"
        place.write_text(json.dumps({**job, "plans": plans, "texts": texts}), encoding="utf-8")
        sides: list[subprocess.Popen[str]] = []
        try:
            commits = []
            for sources in (options.old, SOURCES):
                process, commit = side(sources, place)
                sides.append(process)
                commits.append(commit)
            for name in plans:
                for lengths in wanted:
                    for count in batches:
                        found = compared(sides, json.dumps([name, lengths, count]), turns)
                        row = {
                            "shape": options.shape,
                            "engine": f"thresher {name}",
                            "lengths": lengths,
                            "texts": count,
                            "dtype": dtype,
                            "old_commit": commits[0],
                            **found,
                        }
                        print(row, flush=True)
                        append_record(
                            file, {**row, "turns": turns, **made_by("before_after.py", device=options.device)}
                        )
        finally:
            for process in sides:
                process.communicate()  # closes what it reads from, at whose end it ends


if __name__ == "__main__":
    main()
