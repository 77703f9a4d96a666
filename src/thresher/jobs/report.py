"""The report job: what is known of a run, and twenty texts with what became of their tokens, as one HTML file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from thresher.errors import CheckpointError, ConfigError, DataError
from thresher.jobs.evaluate import evaluate_run
from thresher.jobs.measure import plain, remarks_on
from thresher.jobs.places import check_file
from thresher.jobs.request import Note, asked, heard
from thresher.jobs.rows import Rows
from thresher.jobs.texts import as_inputs, unlabelled_task
from thresher.quiet import quiet

if TYPE_CHECKING:
    from thresher.evaluation.explain import Explanation
    from thresher.evaluation.quality import Quality
    from thresher.models.checkpoint import Checkpoint
    from thresher.report.page import Content, ExampleText
    from thresher.tasks import Example, Task
    from thresher.training.progress import Silent

    Splits = dict[str, dict[str, Quality]]

BENCH = "bench.jsonl"  # beside a run's weights: records of its benchmarks
PARETO = "pareto.json"  # what a search measured
# Settings that a control may have otherwise: what it prunes, and how it is called.
OWN_TO_PRUNING = ("method", "recipe", "target_flops", "lambda_", "widths", "floors", "evals_per_stage")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Rows):
    """What `write_report` is asked for: a run's folder, and the file `out`. `control` is the run of the dense model
    that was trained as long (`--method dense`), `bench` a file of records that `thresher bench` appended to.

    Test rows are the run's own, or those that are given; or `texts`, a file without labels with one a line. Where none
    are given the quality is what the run remembers; otherwise it is measured. So many `examples` of them are shown.
    """

    PATHS: ClassVar[tuple[str, ...]] = (*Rows.PATHS, "run", "out", "texts", "control", "bench")
    COUNTS: ClassVar[tuple[str, ...]] = ("examples",)

    run: Path
    out: Path = Path("report.html")
    texts: Path | None = None
    control: Path | None = None
    bench: Path | None = None
    examples: int = 20

    @property
    def rows_given(self) -> bool:
        return any((self.task, self.test, self.texts))


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """The file, and what is in it. `quality` is split -> model -> Quality; `measured` says that it was measured for
    this report, and is not what the run remembers."""

    out: Path
    run: Path
    quality: "Splits"
    measured: bool
    examples: int
    benches: int

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "out": str(self.out), "run": str(self.run), "quality": plain(self.quality)}


def write_report(
    run: str | Path | ReportRequest, *, progress: "Silent | None" = None, note: Note | None = None, **given: Any
) -> ReportResult:
    """Write one self-contained HTML file on a run: quality and cost, tokens kept, examples, speed, where it comes from.

    `given` are fields of `ReportRequest`: `write_report("runs/sst2", out="report.html", data="glue")`.
    """
    from thresher.models.checkpoint import load, read_manifest
    from thresher.records import write_text
    from thresher.report.page import MARK, report_page

    shown, say = heard(progress, note)
    request = asked(ReportRequest, run, given, name="run")
    manifest = read_manifest(request.run)
    check_file(request.out, mark=MARK, what="a report")
    records = _bench_records(request)
    with quiet():
        checkpoint = load(request.run)
        rows = _load_rows(request, checkpoint)
        quality, measured = _quality(request, manifest, rows, shown, say)
        notes = _add_control_(quality, request, rows, measured, shown)
        if not any("control" in models for models in quality.values()):  # else the comparison to ask for is there
            notes = [*remarks_on(quality, manifest.get("recipe"), rows), *notes]
        with _readable(request.run):
            content = _content(request, manifest, rows, quality, notes, records)
            report_page(content)  # what cannot be shown is found out before the models compute
        content = replace(content, examples=_examples(request, checkpoint, rows, shown))
    write_text(request.out, report_page(content))
    return ReportResult(
        out=request.out,
        run=request.run,
        quality=quality,
        measured=measured,
        examples=len(content.examples),
        benches=len(records),
    )


@contextmanager
def _readable(place: Path) -> Iterator[None]:
    """What others may have written is shown as it is, or not at all."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CheckpointError(f"{place} tells of measurements that cannot be shown ({error}); it is damaged") from error


def _load_rows(request: ReportRequest, checkpoint: "Checkpoint") -> "Task":
    from thresher.models.heads import head_of
    from thresher.tasks.files import read_texts

    if request.texts is None:
        return request.load_test(request.run, checkpoint.manifest, ways="--texts FILE, --test FILE or --task NAME")
    if any((request.task, request.data, request.test, *request.columns)):
        raise ConfigError(f"--texts {request.texts} stands alone; leave out --task, --data, --test and the columns")
    means, names = head_of(checkpoint.model).means, checkpoint.model.config.id2label
    inputs = as_inputs(read_texts(request.texts), request.texts, checkpoint.manifest, means=means, name=request.run)
    labels = tuple(str(names[i]) for i in range(len(names))) if means in ("classes", "labels") else ()
    return unlabelled_task(request.texts, [], inputs, means=means, labels=labels)


def _quality(
    request: ReportRequest, manifest: Mapping[str, Any], rows: "Task", progress: "Silent", note: Note
) -> "tuple[Splits, bool]":
    """What the run remembers of its own rows, or what is measured on others; and which of both it is."""
    if not request.rows_given and "quality" in manifest:
        return _remembered(request.run, manifest), False
    return evaluate_run(request.run, task=rows, progress=progress, note=note).splits, True


def _remembered(run: Path, manifest: Mapping[str, Any]) -> "Splits":
    from thresher.evaluation.quality import Quality
    from thresher.models.manifest import MANIFEST

    try:
        found = {
            str(split): {str(name): Quality.from_dict(saved) for name, saved in models.items()}
            for split, models in manifest["quality"].items()
        }
        if not found or not all("pruned" in models for models in found.values()):
            raise ValueError("it has no pruned model")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{run / MANIFEST} has no valid 'quality'; the file is damaged") from error
    return found


def _add_control_(
    quality: "Splits", request: ReportRequest, rows: "Task", measured: bool, progress: "Silent"
) -> list[str]:
    """The control into every split, and what is to be said of it."""
    from thresher.evaluation.gain import CONTROL
    from thresher.models.checkpoint import read_manifest

    if request.control is None:
        return [f"No control: the dense model trained as long is a run of --method {CONTROL}, given as --control RUN."]
    manifest = read_manifest(request.control)
    recipe = manifest.get("recipe")
    method = recipe.get("method") if isinstance(recipe, dict) else None
    if method != CONTROL:
        rule = f"a control is the dense model trained as long, a run of --method {CONTROL}"
        raise DataError(f"{request.control} was made with method {method}; {rule}")
    if measured:
        found = evaluate_run(request.control, task=rows, progress=progress).splits
    else:
        found = _remembered(request.control, manifest)
    for split, models in quality.items():
        if split not in found or found[split]["pruned"].rows != models["pruned"].rows:
            raise DataError(
                f"{request.control} was not measured on the rows of {split}; give both runs the same --test"
            )
        models["control"] = found[split]["pruned"]
    own = read_manifest(request.run).get("recipe")
    differ = _other_settings(own, recipe)
    return [f"The control was trained with other settings of: {', '.join(differ)}."] if differ else []


def _other_settings(own: Any, control: Any) -> list[str]:
    if not isinstance(own, dict) or not isinstance(control, dict):
        return []
    return sorted(name for name in {*own, *control} - {*OWN_TO_PRUNING} if own.get(name) != control.get(name))


def _bench_records(request: ReportRequest) -> list[dict[str, Any]]:
    """The newest records of the run's own benchmarks and of the file that was given, with what is said of each."""
    from thresher.evaluation.verdict import judge

    files = [file for file in (request.run / BENCH, request.bench) if file is not None]
    found = []
    for file in files:
        if file != request.bench and not file.is_file():
            continue
        try:
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            ours = [line for line in lines if line["bench"] == "engines"]
            if not ours:
                raise ValueError("it has no record of thresher bench")
            verdict = judge(ours[-1]["rows"])
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; write one with: thresher bench --record") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{file} is no file of thresher bench --record: {error}") from error
        found.append({**ours[-1], "said": "" if verdict is None else verdict.text()})
    return found


def _examples(
    request: ReportRequest, checkpoint: "Checkpoint", rows: "Task", progress: "Silent"
) -> "list[ExampleText]":
    """Rows from the shortest to the longest, evenly spread, through the pruned model and the dense one."""
    from thresher.config import trained_length
    from thresher.evaluation.explain import explain, unpruned
    from thresher.evaluation.lineup import dense_of
    from thresher.models.heads import head_of
    from thresher.tasks.splits import spread
    from thresher.tasks.task import model_inputs

    head, length = head_of(checkpoint.model), trained_length(checkpoint.manifest)
    inputs = model_inputs(head.means, next(iter(rows.test.values())))
    chosen = spread(sorted(inputs, key=lambda row: len(row.text) + len(row.pair or "")), request.examples)
    folder = dense_of(request.run, checkpoint).folder
    other = None if folder == request.run else unpruned(folder, checkpoint)
    found = []
    with progress.brief() as bars:
        bars.begin("examples", total=len(chosen))
        for row in chosen:
            pruned = explain(checkpoint.model, checkpoint.tokenizer, row.text, row.pair, max_length=length)
            dense = None if other is None else explain(*other, row.text, row.pair, max_length=length)
            found.append(_example(pruned, dense, _label(row, rows)))
            bars.step()
    return found


def _example(pruned: "Explanation", dense: "Explanation | None", label: str | None) -> "ExampleText":
    from thresher.report.page import ExampleText

    decided = pruned.label or None
    return ExampleText(
        pieces=pruned.pieces,
        dropped_at=pruned.dropped_at,
        kept_per_layer=pruned.kept_per_layer,
        flops=pruned.relative_flops,
        truncated=pruned.truncated,
        pruned=pruned.decision(dense),
        dense=None if dense is None or dense.embedding is not None else dense.decision(),
        label=label,
        wrong=decided is not None and label is not None and decided != label,
        differs=dense is not None and _decided(pruned) != _decided(dense),
    )


def _decided(found: "Explanation") -> tuple[Any, ...]:
    """What can be the same or another; numbers and vectors are always a little different."""
    entities = [(one.label, one.text) for one in found.entities or ()]
    return found.label, set(found.labels or ()), found.answer, entities


def _label(row: "Example", rows: "Task") -> str | None:
    """A row's own label, as people write it."""
    from thresher.tasks.truth import Answers

    names, label = rows.spec.labels, row.label
    if label is None:
        return None
    if isinstance(label, Answers):
        return label.texts[0] if label.texts else "no answer"
    if isinstance(label, tuple) and rows.spec.means == "tags":
        return ", ".join(
            f"{word} {names[tag]}" for word, tag in zip(row.words, label, strict=True) if names[tag] != "O"
        )
    if isinstance(label, tuple):
        return ", ".join(name for name, given in zip(names, label, strict=True) if given) or "no label"
    return names[int(label)] if names else f"{label:g}"


def _content(
    request: ReportRequest,
    manifest: Mapping[str, Any],
    rows: "Task",
    quality: "Splits",
    notes: Sequence[str],
    records: Sequence[Mapping[str, Any]],
) -> "Content":
    from thresher.records import read_json
    from thresher.report.page import Content

    pareto = request.run / PARETO
    saved = manifest.get("recipe")
    recipe: dict[str, Any] = saved if isinstance(saved, dict) else {}
    how = recipe.get("method") or recipe.get("recipe") or "an unknown method"
    return Content(
        name=request.run.resolve().name,
        about=f"task {rows.spec.name}; {manifest['model_type']}, {manifest['layers']} layers; pruned by {how}",
        layers=manifest["layers"],
        quality=plain(quality),
        notes=notes,
        tiles=_tiles(manifest, records),
        examples_note=f"{rows.source}. Evenly spread from the shortest row to the longest, not chosen by hand.",
        benches=records,
        search=read_json(pareto, error=CheckpointError) if pareto.is_file() else None,
        int8=manifest.get("quantization"),
        provenance=_provenance(manifest, recipe, rows),
    )


def _tiles(manifest: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is to be known first of speed, and of a run that was calibrated without labels."""
    found = []
    free = manifest.get("training_free")
    if free is not None:
        agreement = free["expected"]["agreement"]
        text = f"{agreement['kind']} with the dense model, on {agreement['texts']} texts without a part in the fit"
        found.append((f"{100 * agreement['value']:.1f}%", text))
    for record in records[-1:]:
        verdict = record["verdict"]
        if verdict is not None:
            found.append((f"{verdict['speedup']:.2f}x", f"speed of pruned over dense, in batches, {verdict['dtype']}"))
    return found


def _provenance(manifest: Mapping[str, Any], recipe: Mapping[str, Any], rows: "Task") -> list[tuple[str, str]]:
    from thresher.core.scores import queries_in_words
    from thresher.models.manifest import UNSAID
    from thresher.records import provenance

    judged = {**UNSAID, **manifest["prune"]}
    made, now = manifest.get("provenance") or {}, provenance(device="cpu", seed=None)
    versions = made.get("versions") or {}
    found = {
        "started from": manifest.get("base_model"),
        "rows": rows.source,
        "command": made.get("command"),
        "made": made.get("created"),
        "on": made.get("device"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": made.get("commit"),
        "seed": made.get("seed"),
        "training took": f"{manifest['seconds']:,.0f} s" if "seconds" in manifest else None,
        "settings": ", ".join(f"{name} = {value}" for name, value in recipe.items() if value is not None),
        "scores": f"{judged['score']}, {judged['scale']}, from {queries_in_words(judged['score_queries'])}",
        "thresholds": ", ".join(f"{float(value):.4g}" for value in manifest["thresholds"]),
        "this page": f"{now['created']}, thresher {now['versions']['thresher']}",
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]
