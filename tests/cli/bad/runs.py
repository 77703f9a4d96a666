"""Bad output folders and runs."""

import shutil

from tests.cli.bad.case import (
    EVAL,
    PRUNE,
    QUANTIZE,
    ROWS,
    Bad,
    broken_manifest,
    copied_run,
    csv,
    damaged_state,
    interrupted,
    leftovers,
    partial,
    run_in_out,
    three_classes,
)

OUTPUT = [
    Bad("out is a file", PRUNE, ("/out is a file", "must name a folder"), files={"out": "notes"}),
    Bad(
        "out below a file",
        "prune {head} --train {rows} --out {tmp}/a/out",
        ("a: Not a directory", "another --out"),
        files={"a": "notes"},
    ),
    Bad("out without a name", "prune {head} --train {rows} --out .", ("--out .", "such as runs/first"), 2),
    Bad(
        "out where nothing can be written", "prune {head} --train {rows} --out /proc/out", ("in /proc", "another --out")
    ),
    Bad(
        "out holds other things", PRUNE, ("/out exists and is not a thresher run", "another --out"), files={"out/a": ""}
    ),
    Bad("overwriting other things", PRUNE + " --overwrite", ("is not a thresher run",), files={"out/a": ""}),
    Bad("out holds a run", PRUNE, ("already holds a run", "--overwrite"), prepare=run_in_out),
    Bad("interrupted run in the way", PRUNE, ("out.partial holds an interrupted run", "--resume"), prepare=partial),
    Bad("resumed and replaced", PRUNE + " --resume --overwrite", ("give one of them",), code=2, prepare=partial),
    Bad(
        "a folder for records", "bench {run} --test {test} --record {tmp}", ("cannot write records to", "another file")
    ),
    Bad("nothing to resume", PRUNE + " --resume", ("nothing to resume", "out.partial", "without --resume")),
    Bad("no state to resume", PRUNE + " --resume", ("nothing to resume", "without --resume"), prepare=partial),
    Bad("nothing saved in the way", PRUNE, ("nothing is saved to go on from", "--overwrite"), prepare=leftovers),
    Bad("nothing saved to resume", PRUNE + " --resume", ("no saved state yet", "--overwrite"), prepare=leftovers),
    Bad("damaged state", PRUNE + " --resume", ("/state is damaged", "--overwrite"), prepare=damaged_state),
    Bad(
        "resumed with other settings",
        PRUNE + " --resume --lr 0.1 --seed 5",
        ("other settings for: data, finetune, lr, model, prune settings, seed", "the same ones"),
        prepare=interrupted,
    ),
]

RUNS = [
    Bad("no such run", "eval {tmp}/run --test {test}", ("/run is not a thresher run", "thresher prune")),
    Bad("eval of a dense model", "eval {head} --test {test}", ("not a thresher run", "thresher.json")),
    Bad("explain of a dense model", "explain {head} film", ("not a thresher run", "thresher.json")),
    Bad(
        "run with an unknown rule",
        EVAL,
        ("thresher.json", "rule 'bottom' is not one of: top_share, top_count"),
        prepare=copied_run(rule={"name": "bottom"}),
    ),
    Bad(
        "run of a newer format", EVAL, ("format version 99", "upgrade thresher"), prepare=copied_run(format_version=99)
    ),
    Bad(
        "run without a version", EVAL, ("no format_version", "not written by"), prepare=copied_run(format_version=None)
    ),
    Bad("broken thresher.json", EVAL, ("thresher.json is not valid JSON",), prepare=broken_manifest),
    Bad("thresher.json without a part", EVAL, ("no valid 'prune'", "damaged"), prepare=copied_run(prune=None)),
    Bad("task that is no table", EVAL, ("no valid 'task'", "damaged"), prepare=copied_run(task="sst2")),
    Bad("unknown setting in thresher.json", EVAL, ("unknown setting 'x'",), prepare=copied_run(prune={"x": 1})),
    Bad("thresholds missing", EVAL, ("2 thresholds for 4 layers",), prepare=copied_run(thresholds=[0.1, 0.2])),
    Bad(
        "thresholds for another depth",
        EVAL,
        ("2 thresholds", "4 layers"),
        prepare=copied_run(thresholds=[0.1, 0.2], layers=2),
    ),
    Bad(
        "NaN among the thresholds",
        EVAL,
        ("threshold that is not a number",),
        prepare=copied_run(thresholds=[0.0, "nan", 0.5, "inf"]),
    ),
    Bad("run of another family", EVAL, ("model type 'roberta'", "'bert'"), prepare=copied_run(model_type="roberta")),
    Bad("run with other outputs", EVAL, ("3 outputs", "has 2"), prepare=three_classes),
    Bad("data with own rows", "eval {run} --test {test} --data {tmp}", ("--data", "goes with --task NAME"), 2),
    Bad("columns without rows", "eval {run} --task movies --text-column a", ("go with --test FILE",), 2),
    Bad(
        "eval on nothing",
        "eval {tmp}/run",
        ("trained on your own files", "--test FILE"),
        2,
        prepare=copied_run(task={"name": "rows", "labels": ["negative", "positive"], "files": {}}),
    ),
    Bad("eval on two things", "eval {run} --task sst2 --test {test}", ("--task NAME or --test FILE",), 2),
    Bad("eval too short", "eval {run} --test {test} --max-length 2", ("max_length = 2", "below 4"), 2),
    Bad("eval on an unknown device", "eval {run} --test {test} --device tpu", ("device = 'tpu'", "auto, cpu, cuda"), 2),
    Bad("explain nothing", "explain {run} ' '", ("the text is empty", "at least one word")),
    Bad(
        "picture where nothing can be written", "explain {run} film --svg /proc/a.svg", ("/proc/a.svg", "another --svg")
    ),
    Bad("picture over a folder", "explain {run} film --svg {tmp}", ("cannot write", "another --svg")),
    Bad("explain half a pair", "explain {run} film ''", ("the text is empty", "at least one word")),
    Bad("explain half a character", "explain {run} 'film \ud83d'", ("\\ud83d", "half a character")),
]

QUANTIZED = [
    Bad("quantize no run", "quantize {tmp}/no --train {rows} --out {tmp}/out", ("/no is not a thresher run",)),
    Bad("quantize a dense model", "quantize {head} --train {rows} --out {tmp}/out", ("not a thresher run",)),
    Bad("quantize into a run", QUANTIZE, ("already holds a run", "--overwrite"), prepare=run_in_out),
    Bad("quantize into other things", QUANTIZE, ("/out exists and is not a thresher run",), files={"out/a": ""}),
    Bad("quantize over other things", QUANTIZE + " --overwrite", ("is not a thresher run",), files={"out/a": ""}),
    Bad("quantize onto a file", QUANTIZE, ("/out is a file", "must name a folder"), files={"out": "notes"}),
    Bad(
        "quantize below a file", QUANTIZE + "/deeper", ("out: Not a directory", "another --out"), files={"out": "notes"}
    ),
    Bad(
        "quantize where nothing can be written",
        "quantize {run} --train {rows} --out /proc/out",
        ("cannot make /proc/out in /proc", "another --out"),
    ),
    Bad(
        "quantize into the run itself",
        "quantize {tmp}/run --train {rows} --out {tmp}/run/int8 --overwrite",
        ("lie in one another", "a folder of its own"),
        prepare=copied_run(),
    ),
    Bad(
        "quantize a quantized run",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("/run is already quantized", "made from"),
        prepare=copied_run(quantization={}),
    ),
    Bad(
        "quantize without rows",
        "quantize {tmp}/run --out {tmp}/out",
        ("your own files", "--train FILE"),
        2,
        prepare=copied_run(task={"name": "rows", "labels": ["negative", "positive"], "files": {}}),
    ),
    Bad("quantize on test rows", "quantize {run} --test {test} --out {tmp}/out", ("goes with --train FILE",), 2),
    Bad("quantize on two things", QUANTIZE + " --task sst2", ("--task NAME or --train FILE",), 2),
    Bad("quantize with a data folder", QUANTIZE + " --data {tmp}", ("--data", "goes with --task NAME"), 2),
    Bad(
        "quantize with columns of no file",
        "quantize {run} --task movies --text-column a --out {tmp}/out",
        ("go with --train FILE",),
        2,
    ),
    Bad("quantize on missing rows", "quantize {run} --train {tmp}/a.csv --out {tmp}/out", ("a.csv",)),
    Bad("quantize on another column", QUANTIZE + " --text-column review", ("'review'",)),
    Bad(
        "quantize on other labels",
        "quantize {run} --train {tmp}/a.csv --out {tmp}/out",
        ("has the labels no, yes", "but the classes are negative, positive"),
        files={"a.csv": csv(*(f"{row.split(',')[0]},{'no' if i % 2 else 'yes'}" for i, row in enumerate(ROWS)))},
    ),
    Bad(
        "quantize on training rows that are all test rows",
        "quantize {run} --train {rows} --test {rows} --out {tmp}/out",
        ("rows.csv",),
    ),
    Bad(
        "quantize with a task that is no table",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("no valid 'task'", "damaged"),
        prepare=copied_run(task="sst2"),
    ),
    Bad(
        "quantize a run with other outputs",
        "quantize {tmp}/run --train {rows} --out {tmp}/out",
        ("3 outputs", "has 2"),
        prepare=three_classes,
    ),
]

REPORT = "report {run} -o {tmp}/a.html"
QUALITY = {"rows": 5, "mean_length": 8.0, "metrics": {"score": 1.0}, "gflops_dense": 1.0, "gflops": 0.5}

REPORTED = [
    Bad("report of no run", "report {tmp}/no -o {tmp}/a.html", ("/no is not a thresher run", "thresher prune")),
    Bad("report of a dense model", "report {head} -o {tmp}/a.html", ("not a thresher run",)),
    Bad("report onto a folder", "report {run} -o {tmp}", ("is a folder", "must name a file")),
    Bad("report onto a page of mine", REPORT, ("is not a report", "another --out"), files={"a.html": "<p>mine</p>"}),
    Bad("report onto a picture", REPORT, ("is not a report", "another --out"), files={"a.html": b"\x89PNG\xff\x00"}),
    Bad("report below a file", "report {run} -o {tmp}/b/a.html", ("Not a directory", "another --out"), files={"b": ""}),
    Bad("report where nothing can be written", "report {run} -o /proc/a.html", ("in /proc", "another --out")),
    Bad("report of nothing", REPORT + " --texts {tmp}/no.txt", ("no.txt", "does not exist")),
    Bad("report of empty texts", REPORT + " --texts {tmp}/a.txt", ("a.txt",), files={"a.txt": "\n\n"}),
    Bad("report of texts and rows", REPORT + " --texts {test} --test {test}", ("stands alone",), 2),
    Bad(
        "report of pairs",
        REPORT + " --texts {tmp}/a.txt",
        ("is for single texts",),
        files={"a.txt": "a film\ta cast\n"},
    ),
    Bad("report beside no control", REPORT + " --control {tmp}/no", ("/no is not a thresher run",)),
    Bad("report beside itself", REPORT + " --control {run}", ("method thresher", "--method dense")),
    Bad("report with no such bench", REPORT + " --bench {tmp}/no.jsonl", ("cannot read", "thresher bench --record")),
    Bad("report with a folder of benches", REPORT + " --bench {tmp}", ("cannot read", "thresher bench --record")),
    Bad("report with another file", REPORT + " --bench {rows}", ("rows.csv is no file of thresher bench",)),
    Bad(
        "report with other records",
        REPORT + " --bench {tmp}/a.jsonl",
        ("no record of thresher bench",),
        files={"a.jsonl": '{"bench": "other"}\n'},
    ),
    Bad(
        "report with half a record",
        REPORT + " --bench {tmp}/a.jsonl",
        ("a.jsonl is no file of thresher bench",),
        files={"a.jsonl": '{"bench": "engines", "rows": [{"engine": "thresher pruned"}]}\n'},
    ),
    *(
        Bad(
            f"report of a run that remembers {name}",
            "report {tmp}/run --test {test} -o {tmp}/a.html"
            if "search" in name
            else "report {tmp}/run -o {tmp}/a.html",
            (says,),
            prepare=copied_run(**changes),
        )
        for name, says, changes in (
            ("a word as quality", "no valid 'quality'", {"quality": "good"}),
            ("no quality at all", "no valid 'quality'", {"quality": {}}),
            ("half a quality", "no valid 'quality'", {"quality": {"held_out": {"pruned": {"rows": 5}}}}),
            ("only a dense model", "no valid 'quality'", {"quality": {"held_out": {"dense": QUALITY}}}),
            ("rows as a word", "no valid 'quality'", {"quality": {"held_out": {"pruned": {**QUALITY, "rows": "x"}}}}),
            ("no layers", "cannot be shown", {"quality": {"held_out": {"pruned": QUALITY}}}),
            ("int8 as a list", "cannot be shown", {"quantization": [1]}),
            ("agreement as a list", "cannot be shown", {"training_free": []}),
            ("versions as a number", "cannot be shown", {"provenance": {"versions": 5}}),
        )
    ),
    Bad(
        "report of a damaged search",
        "report {tmp}/run -o {tmp}/a.html",
        ("pareto.json is not valid JSON",),
        files={"run/pareto.json": "[" * 100_000},
        prepare=lambda tmp, stock, run: shutil.copytree(run, tmp / "run", dirs_exist_ok=True) and None,
    ),
    Bad(
        "report of a search without points",
        "report {tmp}/run -o {tmp}/a.html",
        ("cannot be shown",),
        files={"run/pareto.json": '{"points": 5}'},
        prepare=lambda tmp, stock, run: shutil.copytree(run, tmp / "run", dirs_exist_ok=True) and None,
    ),
]
