"""Dense against pruned, as sets of runs: every run is one `thresher prune` command, every number its output.

    python experiments/train.py SET --models DIR --data DIR --work DIR [--minutes 9] [--parallel 6]

SET is a folder beside this file. DIR of models holds Hugging Face folders, DIR of data GLUE's. Finished runs are in
SET/records.jsonl and not repeated; a run cut off by --minutes goes on from its last saved state at the next call.
Without --models, only the table in SET/README.md is made anew from the records.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
HALF = ["--method", "soft", "--target-flops", "0.5", "--lr", "5e-5"]
ABOUT_HALF = ["--method", "soft", "--target-flops", "0.52", "--lr", "3e-5"]


def epochs(finetune: float, soft: float, hard: float, *, batch: int) -> list[str]:
    words = {"--finetune-epochs": finetune, "--soft-epochs": soft, "--hard-epochs": hard, "--batch-size": batch}
    return [word for name, value in words.items() for word in (name, f"{value:g}")]


# set -> (models, seeds, task -> settings). The epochs follow the size of the training set.
SETS: dict[str, tuple[tuple[str, ...], tuple[int, ...], dict[str, list[str]]]] = {
    "foundation": (
        ("minilm-l6", "gte-small"),
        (0, 1, 2),
        {"sst2": HALF + epochs(2, 1, 2, batch=64), "mrpc": HALF + epochs(5, 5, 8, batch=32)},
    ),
    "mpnet": (
        ("mpnet-base",),
        (0,),
        {"sst2": ABOUT_HALF + epochs(1, 0.5, 1.5, batch=64), "qnli": ABOUT_HALF + epochs(3, 2, 5, batch=32)},
    ),
}


def command(kind: str, model: str, task: str, seed: int, *, models: str, data: str, work: str) -> list[str]:
    out = f"{work}/{task}-{model}-{seed}"
    words = ["-m", "thresher", "prune", f"{models}/{model}", "--task", task, "--data", data, *SETS[kind][2][task]]
    return [*words, "--finetune", "always", "--seed", str(seed), "--out", out]


def record(kind: str, model: str, task: str, seed: int, work: str) -> dict:
    manifest = json.loads(Path(f"{work}/{task}-{model}-{seed}/thresher.json").read_text(encoding="utf-8"))
    (found,) = manifest["quality"].values()
    where = manifest["provenance"]
    return {
        "task": task,
        "model": model,
        "method": "soft",
        "seed": seed,
        "dense": found["dense"]["metrics"],
        "pruned": found["pruned"]["metrics"],
        "gflops_dense": found["dense"]["gflops"],
        "gflops_pruned": found["pruned"]["gflops"],
        "relative_flops": found["pruned"]["relative_flops"],
        "kept_per_layer": found["pruned"]["kept_per_layer"],
        "mean_length": found["pruned"]["mean_length"],
        "quartiles": found["pruned"]["quartiles"],
        "thresholds": manifest["thresholds"],
        "train_seconds": manifest["seconds"],
        "device": where["device"],
        "versions": where["versions"],
        "commit": where["commit"],
        "command": " ".join(
            ["thresher", *command(kind, model, task, seed, models="models", data="data", work="runs")[2:]]
        ),
    }


def read_records(kind: str) -> list[dict]:
    file = HERE / kind / "records.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def train(options: argparse.Namespace) -> None:
    """Start runs while there is room, collect the finished ones, and stop them all when the time is over."""
    kind = options.set
    models, seeds, tasks = SETS[kind]
    done = {(row["model"], row["task"], row["seed"]) for row in read_records(kind)}
    waiting = [(m, t, s) for t in tasks for s in seeds for m in models if (m, t, s) not in done]
    waiting = [item for item in waiting if Path(options.models, item[0]).is_dir()]
    running: dict[tuple[str, str, int], subprocess.Popen] = {}
    end = time.monotonic() + 60 * options.minutes
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < options.parallel:
            model, task, seed = waiting.pop(0)
            words = command(kind, model, task, seed, models=options.models, data=options.data, work=options.work)
            if Path(f"{words[-1]}.partial/state").exists():
                words.append("--resume")
            elif Path(f"{words[-1]}.partial").exists():
                words.append("--overwrite")
            log = open(f"{options.work}/{task}-{model}-{seed}.log", "a")  # closed with the process
            running[(model, task, seed)] = subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        for item, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[item]
            if process.returncode == 0:
                with open(HERE / kind / "records.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(record(kind, *item, options.work)) + "\n")
            print("finished" if process.returncode == 0 else "FAILED", item, flush=True)
        time.sleep(0.5)
    for process in running.values():
        process.terminate()
    print(f"{len(read_records(kind))} records, {len(running)} runs cut off, {len(waiting)} not started")


def table(kind: str) -> str:
    lines = ["| task | model | seed | dense | pruned | drop | relative FLOPs | GFLOPs dense -> pruned |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in sorted(read_records(kind), key=lambda row: (row["task"], row["model"], row["seed"])):
        groups.setdefault((row["task"], row["model"]), []).append(row)
    for (task, model), rows in groups.items():
        for row in rows:
            lines.append(line(task, model, str(row["seed"]), [row]))
        if len(rows) > 1:
            lines.append(line(f"**{task}**", f"**{model}**", "**mean**", rows))
    return "\n".join(lines)


def line(task: str, model: str, seed: str, rows: list[dict]) -> str:
    """One table row: the mean over these records."""
    mean = {
        name: statistics.mean(row[name] for row in rows) for name in ("relative_flops", "gflops_dense", "gflops_pruned")
    }
    dense, pruned = (100 * statistics.mean(row[name]["score"] for row in rows) for name in ("dense", "pruned"))
    cost = f"{mean['gflops_dense']:.3f} -> {mean['gflops_pruned']:.3f}"
    numbers = f"{dense:.2f} | {pruned:.2f} | {dense - pruned:+.2f} | {mean['relative_flops']:.3f} | {cost}"
    return f"| {task} | {model} | {seed} | {numbers} |"


def write_table(kind: str) -> None:
    """Replace what stands between the two marks in README.md."""
    file = HERE / kind / "README.md"
    before, _, rest = file.read_text(encoding="utf-8").partition("<!-- table -->\n")
    after = rest.partition("<!-- end -->")[2]
    file.write_text(f"{before}<!-- table -->\n{table(kind)}\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--models")
    parser.add_argument("--data")
    parser.add_argument("--work", default="runs/experiments")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--parallel", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.models:
        Path(arguments.work).mkdir(parents=True, exist_ok=True)
        train(arguments)
    write_table(arguments.set)
