"""calibrate, quantize and explain for rerankers, embedding models and several labels a text."""

from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.kinds import calibrated, pair_lines, save_models, words, write_texts
from thresher.engine.backends.linear import check_int8
from thresher.engine.engine import Engine
from thresher.errors import ConfigError
from thresher.evaluation.explain import explain
from thresher.models.checkpoint import load
from thresher.tasks.metrics import cosines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    return calibrated(folder)


@pytest.mark.parametrize(
    ("kind", "says", "protect"),
    [
        ("embedder", "mean cosine", ["first"]),
        ("reranker", "correlation", ["first", "first_segment"]),
        ("labels", "same labels", ["first"]),
    ],
)
def test_calibrate(kind: str, says: str, protect: list[str], folder: Path, tmp_path: Path) -> None:
    call = "calibrate {dir}/{kind} --texts {dir}/{kind}.txt --agreement 0.9 --out {out} --json"
    done = tiny.succeeds(call, dir=folder, kind=kind, out=tmp_path / "run")
    found, about = done.json(), tiny.manifest(tmp_path / "run")
    assert found["fit"]["agreement"] >= 0.9 and 0 < found["expected"]["relative_flops"] < 1
    expected = found["expected"]["agreement"]
    assert says in expected["kind"] and expected["low"] <= expected["value"] <= expected["high"]
    assert about["prune"]["protect"] == protect and about["prune"]["score"] == "value"
    assert found["texts"]["pairs"] is (kind == "reranker")
    last = about["thresholds"][-1]
    if kind == "embedder":  # all states are read: the last layer is free to keep them
        assert about["prune"]["collapse_last"] is False and last != "inf"
        assert about["recipe"]["max_length"] == 16  # as its folder says
    else:
        assert last == "inf"


def test_an_embedder_that_may_not_change_keeps_everything(folder: Path, tmp_path: Path) -> None:
    """Where nothing is allowed, the last layer prunes nothing either."""
    call = "calibrate {dir}/embedder --texts {dir}/embedder.txt --agreement 100% --out {out} --json"
    found = tiny.succeeds(call, dir=folder, out=tmp_path / "run").json()
    assert found["fit"] == {"agreement": pytest.approx(1.0), "relative_flops": 1.0}
    assert tiny.manifest(tmp_path / "run")["thresholds"] == [0.0] * len(tiny.manifest(tmp_path / "run")["thresholds"])


def test_a_calibrated_reranker_costs_what_eval_counts(runs: Path, folder: Path, tmp_path: Path) -> None:
    """Its query stays in the last layer of the model, whatever the engine computes of it."""
    call = "calibrate {dir}/reranker --texts {dir}/reranker.txt --agreement 0.9 --out {out} --json"
    found = tiny.succeeds(call, dir=folder, out=tmp_path / "run").json()
    rows = [dict(zip(("text", "pair"), line.split("\t"), strict=True)) for line in pair_lines(96)]
    test = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    call = "eval {run} --test {test} --pair-column pair --device cpu --json"
    quality = tiny.succeeds(call, run=tmp_path / "run", test=test).json()["splits"]["test"]["pruned"]
    fit, judged = found["fit"]["relative_flops"], found["expected"]["relative_flops"]
    assert min(fit, judged) <= quality["relative_flops"] <= max(fit, judged)
    assert {"pearson", "spearman", "top1"} <= quality["metrics"].keys()


def test_a_number_that_is_a_score_when_told_so(folder: Path, tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(num_labels=1))
    lines = [f"{tiny.NOUNS[i // 4 % 7]} {tiny.GOOD[i // 28]}\t{text}" for i, (text, _) in enumerate(tiny.sentences(96))]
    texts = write_texts(tmp_path / "pairs.txt", lines)
    call = "calibrate {model} --texts {texts} --rerank --agreement 0.9 --out {out}"
    tiny.succeeds(call, model=model, texts=texts, out=tmp_path / "run")
    about = tiny.manifest(tmp_path / "run")
    assert about["head"]["means"] == "score" and about["prune"]["protect"] == ["first", "first_segment"]
    query, document = lines[0].split("\t")
    assert 0 < Engine.load(tmp_path / "run", device="cpu", dtype="fp32").score([(query, document)])[0] < 1


@pytest.mark.parametrize(
    ("kind", "lines", "says"),
    [
        ("reranker", words(90), "is a reranker; "),
        ("reranker", [f"fog\t{text}" for text in words(90)], "1 different queries, which do not split"),
        ("labels", pair_lines(70)[:20], "20 different texts are too few"),
    ],
)
def test_texts_that_do_not_fit(kind: str, lines: list[str], says: str, folder: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.txt", lines)
    call = "calibrate {dir}/{kind} --texts {texts} --out {out}"
    done = tiny.thresher(call, dir=folder, kind=kind, texts=texts, out=tmp_path / "run")
    assert done.code == 1 and says in done.err and len(done.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_cost_that_a_query_forbids(folder: Path, tmp_path: Path) -> None:
    """Protected tokens stay after every layer; a cost below theirs is refused, not missed in silence."""
    lines = [f"{text} {text}\tfog" for text in words(90)]
    texts = write_texts(tmp_path / "texts.txt", lines)
    call = "calibrate {dir}/reranker --texts {texts} --target-flops 0.6 --max-length 40 --out {out}"
    done = tiny.thresher(call, dir=folder, texts=texts, out=tmp_path / "run")
    assert done.code == 2 and "the protected tokens (a reranker's query) alone" in done.err


def test_embedding_pairs_are_two_texts_each(folder: Path, tmp_path: Path) -> None:
    texts = write_texts(
        tmp_path / "pairs.txt", [f"{a}\t{b}" for a, b in zip(words(80)[:40], words(80)[40:], strict=True)]
    )
    call = "calibrate {dir}/embedder --texts {texts} --out {out} --json"
    found = tiny.succeeds(call, dir=folder, texts=texts, out=tmp_path / "run").json()
    assert found["texts"]["fit"] + found["texts"]["judge"] == 80 and found["texts"]["pairs"] is False


@pytest.mark.parametrize(
    ("kind", "metrics", "says"),
    [
        ("embedder", {"cosine", "neighbours", "score"}, "agreement: mean cosine to fp32"),
        ("reranker", {"pearson", "spearman", "top1", "score"}, "agreement: correlation with fp32"),
        ("labels", {"agreement", "score"}, "agreement: the same labels, all of them, as fp32"),
    ],
)
def test_quantize_without_labels(
    kind: str, metrics: set[str], says: str, folder: Path, runs: Path, tmp_path: Path
) -> None:
    """A calibrated run has no labels, and needs none: fp32 is what int8 is measured against."""
    check_here()
    call = "quantize {runs}/{kind} --texts {dir}/{kind}.txt --rows 40 --out {out} --json"
    done = tiny.succeeds(call, runs=runs, dir=folder, kind=kind, out=tmp_path / "out")
    quality, calibration = done.json()["quality"], done.json()["calibration"]
    assert calibration == {"rows": 40, "source": f"texts in {kind}.txt"}
    assert quality["split"] == "texts" and 40 <= quality["rows"] <= 56
    assert quality["fp32"]["metrics"].keys() == metrics
    assert quality["fp32"]["agreement"] == pytest.approx(1.0) and 0.5 < quality["agreement"] <= 1.001
    said = " ".join(done.err.split())
    assert says in said and f"texts of {kind}.txt" in said
    assert ("a layer passes on, the last left out" in said) == (kind != "embedder"), "nobody reads its states"
    assert Engine.load(tmp_path / "out", device="cpu", dtype="int8-static").describe()["dtype"] == "int8-static"


def test_quantize_with_the_rows_of_a_trained_reranker(folder: Path, runs: Path, tmp_path: Path) -> None:
    """Labels of the test rows count; training rows need none. Queries stay whole where documents are cut."""
    check_here()
    rows = [dict(zip(("text", "pair"), line.split("\t"), strict=True)) for line in pair_lines(96)]
    train = tiny.write_rows(tmp_path / "train.jsonl", rows[:80])
    graded = [{**row, "label": i % 3} for i, row in enumerate(rows[80:])]
    test = tiny.write_rows(tmp_path / "test.jsonl", graded)
    call = "quantize {runs}/reranker --train {train} --test {test} --pair-column pair --out {out} --json"
    found = tiny.succeeds(call, runs=runs, train=train, test=test, out=tmp_path / "out").json()
    assert "ndcg@10" in found["quality"]["fp32"]["metrics"] and found["quality"]["rows"] == 16


def test_quantize_with_an_embedder_s_pairs(runs: Path, tmp_path: Path) -> None:
    check_here()
    texts = words(90)
    train = tiny.write_rows(tmp_path / "train.jsonl", [{"text": text} for text in texts[:60]])
    pairs = [{"text": texts[60 + i], "pair": texts[70 + i], "label": i / 10} for i in range(10)]
    test = tiny.write_rows(tmp_path / "test.jsonl", pairs)
    call = "quantize {runs}/embedder --train {train} --test {test} --pair-column pair --out {out} --json"
    found = tiny.succeeds(call, runs=runs, train=train, test=test, out=tmp_path / "out").json()
    assert found["quality"]["rows"] == 10 and found["quality"]["fp32"]["metrics"].keys() == {"spearman", "score"}


@pytest.mark.parametrize(
    ("words_of", "says"),
    [
        ("--texts 256", "texts = 256 is a number; texts names a file with one text a line, and the number of rows is "),
        ("--texts {dir}/labels.txt --train {dir}/labels.txt", "stands alone; leave out --task, --data, --train"),
        ("", "or texts without labels with --texts FILE"),
    ],
)
def test_quantize_says_what_texts_are(words_of: str, says: str, folder: Path, runs: Path, tmp_path: Path) -> None:
    check_here()
    done = tiny.thresher(
        f"quantize {{runs}}/labels --out {{out}} {words_of}", runs=runs, dir=folder, out=tmp_path / "o"
    )
    assert done.code == 2 and says in done.err and not (tmp_path / "o").exists()


def check_here() -> None:
    try:
        check_int8()
    except ConfigError as why:
        pytest.skip(str(why))


def test_explain_shows_what_the_head_gives(runs: Path, folder: Path) -> None:
    """Beside what the dense model gives, which is what the stock engine computes."""
    text, pair = words(1)[0], "two hours of fog over the river"
    one = tiny.succeeds("explain {runs}/embedder {text} --json", runs=runs, text=text).json()
    vectors = [
        Engine.load(place, device="cpu", dtype="fp32").embed([text])[0]
        for place in (runs / "embedder", folder / "embedder")
    ]
    assert one["dense"] == {"cosine": pytest.approx(float(cosines(*([v] for v in vectors))[0]), abs=1e-5)}
    assert "embedding" not in one and one["label"] == "" and len(one["dropped_at"]) == len(one["tokens"])
    assert (
        f"-> cosine {one['dense']['cosine']:.4f} to the dense model's"
        in tiny.succeeds("explain {runs}/embedder {text}", runs=runs, text=text).out
    )
    two = tiny.succeeds("explain {runs}/reranker {text} {pair} --json", runs=runs, text=text, pair=pair).json()
    engines = [Engine.load(place / "reranker", device="cpu", dtype="fp32") for place in (runs, folder)]
    wanted = [float(engine.score([(text, pair)])[0]) for engine in engines]
    assert [two["score"], two["dense"]["score"]] == pytest.approx(wanted, abs=1e-5)
    query = two["tokens"].index("[SEP]") + 1
    assert two["dropped_at"][:query] == [None] * query, "the query is kept"
    said = tiny.succeeds("explain {runs}/reranker {text} {pair}", runs=runs, text=text, pair=pair).out
    assert f"-> score {wanted[0]:.3f}, dense score {wanted[1]:.3f}" in said


def test_explain_shows_the_labels(runs: Path, folder: Path) -> None:
    engines = [Engine.load(place / "labels", device="cpu", dtype="fp32") for place in (runs, folder)]
    for text, _ in tiny.sentences(8):
        found = tiny.succeeds("explain {runs}/labels {text} --json", runs=runs, text=text).json()
        wanted = [engine.classify([text])[0].labels for engine in engines]
        assert [tuple(found["labels"]), tuple(found["dense"]["labels"])] == wanted
        assert all(value >= 0.5 for value in found["labels"].values())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("explain {runs}/reranker fog", "is for pairs of texts, but was given single texts"),
        ("explain {runs}/embedder fog river", "an embedding is of one text, but two were given"),
    ],
)
def test_explain_refuses_other_inputs(call: str, says: str, runs: Path) -> None:
    done = tiny.thresher(call, runs=runs)
    assert done.code == 1 and says in done.err


def test_a_reranker_s_document_is_cut_and_not_its_query(runs: Path) -> None:
    checkpoint = load(runs / "reranker")
    found = explain(checkpoint.model, checkpoint.tokenizer, "a film", " ".join(["fog"] * 40), max_length=12)
    assert found.truncated and found.tokens[:4] == ["[CLS]", "a", "film", "[SEP]"] and len(found.tokens) == 12
    long = explain(checkpoint.model, checkpoint.tokenizer, "a film of the river", "fog " * 5, max_length=9)
    assert long.tokens[:7] == ["[CLS]", "a", "film", "of", "the", "river", "[SEP]"]
