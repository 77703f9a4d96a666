"""Every job with models that answer questions or tag words: what is saved is what was measured, and is served."""

import csv
import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import thresher
from tests.training.test_tokens import model_for, task
from tests.training.tiny import tiny_tokenizer
from thresher.engine.arithmetic import int8_works
from thresher.engine.engine import Engine
from thresher.errors import CheckpointError, ConfigError, DataError, ModelError
from thresher.evaluation import lineup
from thresher.evaluation.explain import unpruned
from thresher.jobs.bench import BenchRequest, load_rows
from thresher.models.attach import unprune_
from thresher.models.checkpoint import read_manifest
from thresher.models.heads import head_of
from thresher.models.manifest import dense_threshold
from thresher.tasks.squad_score import shared_words
from thresher.tokenizing.tags import chunks

SETTINGS: dict[str, Any] = {"max_steps": 12, "batch_size": 16, "max_length": 32, "lr": 3e-3, "device": "cpu"}
MEANS = ("span", "tags")


@pytest.fixture(scope="module", params=MEANS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """What the head means, a run that was made of an encoder, and what pruning said of it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = model_for(request.param)
    unprune_(model)
    model.base_model.save_pretrained(folder / "encoder")
    tiny_tokenizer().save_pretrained(folder / "encoder")
    rows = task(request.param, 256)
    settings = {**SETTINGS, "max_steps": 12 if request.param == "span" else 60}  # sooner, nothing has a tag
    result = thresher.prune(folder / "encoder", out=folder / "run", task=rows, target_flops=0.7, **settings)
    return request.param, folder / "run", result


def test_a_run_is_what_was_measured(made: tuple[str, Path, Any]) -> None:
    means, run, result = made
    quality = result.quality["test"]
    head = read_manifest(run)["head"]
    assert (head["reads"], head["means"]) == ("tokens", means)
    if means == "span":
        assert head["null_threshold"] == quality["pruned"].metrics["null_threshold"]
        assert read_manifest(run)["dense_null_threshold"] == quality["dense"].metrics["null_threshold"]
        assert head["null_threshold"] != quality["dense"].metrics["null_threshold"], "or this test shows nothing"
        assert {"f1", "exact", "hasans_f1", "noans_f1"} <= set(quality["dense"].metrics)
        assert read_manifest(run)["prune"]["protect"] == ["first", "first_segment"]
    rows = task(means, 256)
    for given in (rows, replace(rows, selection=[])):  # as with --test FILE: nothing is chosen on rows that judge
        again = thresher.evaluate_run(run, task=given, device="cpu").splits["test"]
        assert again["pruned"].metrics == pytest.approx(quality["pruned"].metrics)
        assert again["dense"].metrics == pytest.approx(quality["dense"].metrics)
        assert again["pruned"].relative_flops == pytest.approx(quality["pruned"].relative_flops)
        if means == "span":
            assert again["unpruned"].metrics["null_threshold"] == head["null_threshold"], "as it is served"


def test_an_older_run_knows_the_dense_threshold_by_its_quality(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, result = made
    if means != "span":
        pytest.skip("tags are never withheld")
    own = result.quality["test"]["dense"].metrics["null_threshold"]
    manifest = read_manifest(run)
    del manifest["dense_null_threshold"]
    assert dense_threshold(manifest) == own
    assert dense_threshold({**manifest, "quality": {"test": {"pruned": 1}}}) is None
    shutil.copytree(run, tmp_path / "bad")
    (tmp_path / "bad" / "thresher.json").write_text(json.dumps({**manifest, "dense_null_threshold": "much"}))
    with pytest.raises(CheckpointError, match="no valid 'dense_null_threshold'"):
        read_manifest(tmp_path / "bad")
    assert head_of(unpruned(run / "dense", thresher.load(run))[0]).null_threshold == own, "explain says so, too"


def test_the_engine_gives_the_answers_that_were_measured(made: tuple[str, Path, Any]) -> None:
    means, run, result = made
    rows = task(means, 256).test["test"]
    engine = Engine.load(run, device="cpu", dtype="fp32")
    if means == "span":
        found = engine.answer([row.text for row in rows], [row.pair or "" for row in rows])
        right = [shared_words((*row.label.texts, "")[0], one.text) for row, one in zip(rows, found, strict=True)]  # type: ignore[union-attr]
        total = sum(right)
        assert total / len(rows) == pytest.approx(result.quality["test"]["pruned"].metrics["f1"], abs=0.05)
    else:
        assert read_manifest(run)["head"]["words"] == "text"
        texts = [" ".join(row.words) + "!" for row in rows]
        given = [list(row.words) + ["!"] for row in rows]
        strings, words = engine.tag(texts), engine.tag(given)
        # Where "!" stands is the one thing that differs.
        said, given_words = (
            [[one for one in each.entities if one.text != "!"] for each in found] for found in (strings, words)
        )
        assert said == given_words and any(said)
        tags = [found.tags for found in engine.tag([row.words for row in rows])]
        names = engine.labels
        gold = [tuple(names[number] for number in row.label) for row in rows]  # type: ignore[union-attr]
        pairs = [(set(chunks(one or ())), set(chunks(other))) for one, other in zip(tags, gold, strict=True)]
        right, found, there = (sum(map(len, sets)) for sets in zip(*((a & b, a, b) for a, b in pairs), strict=True))
        assert 2 * right / (found + there) == pytest.approx(result.quality["test"]["pruned"].metrics["f1"])
        assert right > 0, "always O is no tagger"


@pytest.mark.parametrize("means", MEANS)
def test_a_head_of_another_kind_is_not_replaced_in_silence(means: str, tmp_path: Path) -> None:
    model = model_for("tags" if means == "span" else "span")
    unprune_(model)
    model.save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="has a head, but not for"):
        thresher.prune(tmp_path / "other", out=tmp_path / "run", task=task(means), **SETTINGS)


def test_search(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, _ = made
    rows, limit = task(means, 64), 0.3
    found = thresher.search(
        run / "dense", out=tmp_path / "found", task=rows, max_drop=limit, max_trials=2, precision="fp32", **SETTINGS
    )
    assert found.held_out_drop["test"].rows == 32 and (tmp_path / "found" / "pareto.json").is_file()
    judged = replace(rows, selection=[], test={"selection": rows.selection})
    again = thresher.evaluate_run(tmp_path / "found", task=judged, device="cpu").splits["selection"]
    drop = again["dense"].metrics["f1"] - again["pruned"].metrics["f1"]
    assert found.within and drop <= found.selection["bound"] <= limit
    assert drop == pytest.approx(found.selection["drop"], abs=1e-6), "what is saved is what was chosen"
    assert again["pruned"].relative_flops == pytest.approx(found.selection["relative_flops"]) != 1
    lost = found.quality["test"]["dense"].metrics["f1"] - found.quality["test"]["pruned"].metrics["f1"]
    assert found.held_out_drop["test"].drop == pytest.approx(lost, abs=1e-6)
    head = read_manifest(tmp_path / "found")["head"]
    assert ("null_threshold" in head) == (means == "span")


def test_quantize(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, result = made
    if not int8_works():
        pytest.skip("the processor has no int8 instructions that torch uses")
    found = thresher.quantize(run, out=tmp_path / "int8", task=task(means, 64))
    exact = found.measured["fp32"].metrics["f1"]
    assert exact == pytest.approx(result.quality["test"]["pruned"].metrics["f1"], abs=1e-6)
    assert found.measured["fp32"].agreement == 1.0 and 0 < found.measured["int8-static"].agreement <= 1
    engine = Engine.load(tmp_path / "int8", device="cpu", dtype="int8-static")
    given = engine.answer("good", "worda good") if means == "span" else engine.tag(["worda good"])[0]
    assert given.error is None


def test_calibrate(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, _ = made
    rows = task(means, 128)
    some = replace(rows, selection=rows.train)
    found = thresher.calibrate(run / "dense", out=tmp_path / "free", task=some, agreement="90%")
    assert found.expected.agreement.value > 0.7 and 0 < found.expected.relative_flops <= 1
    assert read_manifest(tmp_path / "free")["head"]["means"] == means
    word = "start and end" if means == "span" else "tag of a token"
    assert found.expected.agreement.kind == f"same {word}, Wilson interval"
    again = thresher.evaluate_run(tmp_path / "free", task=task(means, 64), device="cpu").splits["test"]["pruned"]
    assert again.relative_flops is not None and again.relative_flops < 1.001
    if means == "span":
        fitted = read_manifest(tmp_path / "free")
        assert again.metrics["null_threshold"] == fitted["head"]["null_threshold"] != 0, "what is measured is served"
        assert fitted["training_free"]["texts"]["source"].endswith("labels unread, but for the null threshold")


def test_calibration_on_texts_keeps_the_dense_threshold(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, _ = made
    if means != "span":
        pytest.skip("tags are never withheld")
    file, rows = tmp_path / "texts.txt", task(means, 128)
    file.write_text("".join(f"{row.text}\t{row.pair}\n" for row in rows.train))
    thresher.calibrate(run / "dense", out=tmp_path / "free", texts=file, agreement="90%")
    own = read_manifest(run)["dense_null_threshold"]
    assert read_manifest(tmp_path / "free")["head"]["null_threshold"] == own
    assert dense_threshold(read_manifest(tmp_path / "free")) == own
    unpruned_alone = thresher.evaluate_run(tmp_path / "free", task=replace(rows, selection=[]), device="cpu")
    assert unpruned_alone.splits["test"]["dense"].metrics["null_threshold"] == own


def test_bench(made: tuple[str, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    means, run, result = made
    every = lineup.groups

    def few(*given: Any, **named: Any) -> dict[str, list[lineup.Group]]:
        """Of the graphs, one pair in one runtime."""
        found = every(*given, **named)
        exported = [group for group in found["export"] if "onnxruntime" in group.names[0] and group.dtype == "fp32"]
        return {**found, "export": exported}

    monkeypatch.setattr(lineup, "groups", few)
    monkeypatch.setattr(lineup, "alone", lambda make, *made: make(*made))  # processes of their own would say the same
    found = thresher.bench(
        run, task=task(means, 64), rounds=1, batch_size=8, engines="hf,thresher,export", memory=False
    )
    rows = {(row["engine"], row["dtype"]): row for row in found.rows}
    yardstick, pruned = rows["hugging face", "fp32"], rows["thresher pruned", "fp32"]
    assert yardstick["agreement"] == rows["hugging face, sorted", "fp32"]["agreement"] == 1.0
    assert rows["thresher dense", "fp32"]["agreement"] == 1.0, "the same windows, the same places"
    assert pruned["quality"] == pytest.approx(result.quality["test"]["pruned"].metrics["f1"], abs=0.02)
    for name in ("hugging face", "thresher dense"):
        assert rows[name, "fp32"]["quality"] == pytest.approx(result.quality["test"]["dense"].metrics["f1"], abs=1e-6)
    assert pruned["relative_flops"] == pytest.approx(result.quality["test"]["pruned"].relative_flops, abs=1e-6)
    if find_spec("onnxruntime") is not None:
        exported = rows["thresher export pruned, onnxruntime", "fp32"]
        assert rows["thresher export dense, onnxruntime", "fp32"]["agreement"] == 1.0, "its outputs lie in their places"
        assert (exported["quality"], exported["agreement"]) == (pruned["quality"], pruned["agreement"])
        assert exported["relative_flops"] == pytest.approx(pruned["relative_flops"], abs=1e-6)
    with pytest.raises(ConfigError, match="engine 'openvino' is not one of: hf, thresher"):
        thresher.bench(run, task=task(means, 64), engines="openvino")
    short = thresher.bench(run, task=task(means, 64), rows=5, rounds=1, engines="thresher", memory=False)
    assert short.about["texts"] >= 5


def test_a_bench_of_a_few_rows_takes_them_from_everywhere(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    """The questions of one paragraph stand together in a file."""
    means, run, _ = made
    test = [replace(row, text=f"{number:03} {row.text}") for number, row in enumerate(task(means).test["test"] * 8)]
    request = BenchRequest(run=run, task=replace(task(means), test={"test": test}))
    _, rows = load_rows(request, read_manifest(run))
    assert sorted(row.text for row in rows) == [row.text for row in test], "all of them, once"
    quarters = {int(row.text[:3]) // 64 for row in rows[:16]}
    assert quarters == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_score(made: tuple[str, Path, Any], tmp_path: Path, kind: str) -> None:
    means, run, _ = made
    rows = task(means, 64).test["test"]
    file, out = tmp_path / "rows.jsonl", tmp_path / f"out.{kind}"
    lines = [{"text": row.text, "context": row.pair} if means == "span" else {"text": row.text} for row in rows]
    lines[3]["text"] = ""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = {"pair_column": "context"} if means == "span" else {}
    result = thresher.score_files(run, inputs=file, out=out, device="cpu", dtype="fp32", **columns)
    assert (result.rows, result.errors, result.means) == (32, 1, means)
    engine = Engine.load(run, device="cpu", dtype="fp32")
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(out).to_pylist()
    elif kind == "csv":
        with out.open(newline="") as opened:
            found = list(csv.DictReader(opened))
    else:
        found = [json.loads(line) for line in out.read_text().splitlines()]
    assert "is empty" in found[3]["error"]
    for number in (0, 1, 31):
        line, row = found[number], rows[number]
        if means == "span":
            answer = engine.answer(row.text, row.pair or "")
            assert (line["answer"] or "") == answer.text and float(line["null_score"]) == pytest.approx(
                answer.null_score, abs=1e-4
            )
            assert str(line["start"] if line["start"] not in (None, "") else None) == str(answer.start)
        else:
            entities = json.loads(line["entities"]) if kind == "csv" else line["entities"]
            own = [(one.label, one.text, one.start, one.end) for one in engine.tag([row.text])[0].entities]
            assert [(one["label"], one["text"], one["start"], one["end"]) for one in entities] == own


def test_scoring_needs_the_heads_columns(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    means, run, _ = made
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "context": "b"}\n')
    columns = {} if means == "span" else {"pair_column": "context"}
    with pytest.raises(DataError, match="is for pairs of texts" if means == "span" else "is for single texts"):
        thresher.score_files(run, inputs=file, out=tmp_path / "out.jsonl", **columns)
