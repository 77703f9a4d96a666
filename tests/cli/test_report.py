"""thresher report: one file that shows what the run knows, for every head, and refuses what is not its business."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

import thresher
from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.cli.kinds import KINDS, calibrated, save_models
from tests.cli.test_tokens import STEPS, question_rows, tag_rows
from thresher.errors import DataError


class Page(HTMLParser):
    """The text of a page, and what it would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.fetches: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetches += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(file: Path) -> Page:
    html = file.read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == [] and page.fetches == [], "a report needs nothing from elsewhere"
    assert "url(" not in html and "@import" not in html and "http" not in re.sub("http-equiv", "", html)
    return page


@pytest.fixture(scope="module")
def control(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("control") / "dense"
    quick = tiny.QUICK.replace("--target-flops 0.6", "--method dense")
    done = tiny.succeeds(
        f"prune {{head}} --train {{rows}} --out {{out}} {quick}", head=stock.head, rows=stock.rows, out=out
    )
    assert "method dense, nothing is dropped" in done.out and "trained on" in done.out and "pruned │" not in done.out
    assert "tokens kept" not in done.out and "thresher report RUN --control" in done.out
    return out


def test_it_shows_what_the_run_remembers(finished: Path, tmp_path: Path) -> None:
    said = tiny.succeeds("report {run} -o {out} --json", run=finished, out=tmp_path / "report.html").json()
    page = page_of(tmp_path / "report.html")
    quality = tiny.manifest(finished)["quality"]["held_out"]
    assert said["quality"]["held_out"]["pruned"] == quality["pruned"] and said["measured"] is False
    assert f"{100 * quality['pruned']['metrics']['score']:.2f}" in page.text
    assert f"{100 * quality['pruned']['relative_flops']:.1f}%" in page.text
    assert f"{quality['pruned']['mean_length']:.1f} at the input" in page.text
    assert "No control" in page.text and "--method dense" in page.text
    assert "thresher prune" in page.text and "Where the numbers come from" in page.text
    assert said["examples"] == (tmp_path / "report.html").read_text("utf-8").count('<div class="example">') > 0
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_other_rows_are_measured_and_the_control_stands_beside(
    finished: Path, control: Path, stock: Stock, tmp_path: Path
) -> None:
    call = "report {run} --test {test} --control {control} --examples 3 -o {out} --json"
    said = tiny.succeeds(call, run=finished, test=stock.test, control=control, out=tmp_path / "a.html").json()
    assert said["measured"] is True and said["examples"] == 3
    assert set(said["quality"]["test"]) == {"dense", "pruned", "unpruned", "control"}
    assert said["quality"]["test"]["control"]["rows"] == 16
    text = page_of(tmp_path / "a.html").text
    assert "dense, trained as long (control)" in text and "No control" not in text


def test_a_gain_over_dense_asks_for_the_control_until_it_is_there(
    finished: Path, control: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    about = tiny.manifest(finished)
    about["quality"]["held_out"]["dense"]["metrics"]["score"] = 0.0
    (run / "thresher.json").write_text(json.dumps(about), encoding="utf-8")
    for given in ({}, {"control": control}):
        thresher.write_report(run, out=tmp_path / "a.html", **given)
        assert ("The fair control is" in page_of(tmp_path / "a.html").text) is not bool(given)


def test_the_control_of_what_is_remembered_was_measured_on_the_same_rows(
    finished: Path, control: Path, stock: Stock, tmp_path: Path
) -> None:
    found = thresher.write_report(finished, out=tmp_path / "a.html", control=control)
    assert found.quality["held_out"]["control"].rows == found.quality["held_out"]["pruned"].rows
    with pytest.raises(DataError, match="method thresher; a control is the dense model trained as long"):
        thresher.write_report(finished, out=tmp_path / "b.html", control=finished)
    shutil.copytree(control, tmp_path / "other")
    about = tiny.manifest(control)
    about["quality"]["test"] = about["quality"].pop("held_out")
    (tmp_path / "other" / "thresher.json").write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(DataError, match="was not measured on the rows of held_out"):
        thresher.write_report(finished, out=tmp_path / "b.html", control=tmp_path / "other")
    assert not (tmp_path / "b.html").exists()


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = save_models(tmp_path_factory.mktemp("heads"))
    calibrated(place)
    return place


@pytest.mark.parametrize(
    ("kind", "says"),
    [("embedder", "cosine "), ("reranker", r"score -?\d\.\d"), ("labels", r"cold \("), ("labels", "dense ")],
)
def test_every_head_has_a_report(kind: str, says: str, heads: Path, tmp_path: Path) -> None:
    call = "report {dir}/runs/{kind} --texts {dir}/{kind}.txt -o {out} --json"
    said = tiny.succeeds(call, dir=heads, kind=kind, out=tmp_path / "a.html").json()
    text = page_of(tmp_path / "a.html").text
    assert said["examples"] == 20 and said["quality"]["texts"]["pruned"]["rows"] > 20
    assert re.search(says, text) and "with the dense model, on" in text
    assert kind in KINDS


def test_a_regression_shows_values(stock: Stock, tmp_path: Path) -> None:
    rows = [{"text": text, "label": len(text) / 10} for text, _ in tiny.sentences(64)]
    tiny.write_rows(tmp_path / "a.csv", rows)
    call = f"prune {{bare}} --train {{rows}} --out {{out}} --regression {tiny.QUICK}"
    tiny.succeeds(call, bare=stock.bare, rows=tmp_path / "a.csv", out=tmp_path / "run")
    tiny.succeeds("report {run} -o {out}", run=tmp_path / "run", out=tmp_path / "a.html")
    text = page_of(tmp_path / "a.html").text
    assert re.search(r"value -?\d\.\d{3} ?, dense value -?\d\.\d{3}; label \d", text) and "wrong" not in text


@pytest.mark.parametrize("kind", ["answers", "tags"])
def test_heads_that_read_every_token(kind: str, stock: Stock, tmp_path: Path) -> None:
    rows = question_rows(80) if kind == "answers" else tag_rows(80)
    tiny.write_rows(tmp_path / "a.jsonl", rows)
    call = f"prune {{bare}} --train {{rows}} --{kind} --out {{out}} {STEPS}"
    tiny.succeeds(call, bare=stock.bare, rows=tmp_path / "a.jsonl", out=tmp_path / "run")
    said = tiny.succeeds("report {run} -o {out} --json", run=tmp_path / "run", out=tmp_path / "a.html").json()
    text = page_of(tmp_path / "a.html").text
    assert said["examples"] > 3 and "; label " in text
    assert ("no answer" in text) if kind == "answers" else ("NOUN" in text)
    if kind == "answers":  # a difference of logits, and no share of anything
        thresholds = [one["metrics"]["null_threshold"] for one in said["quality"]["held_out"].values()]
        assert all(f" {value:.2f} " in f" {text} " for value in thresholds)


def bench_record(run: Path, test: Path, file: Path) -> None:
    call = "bench {run} --test {test} --engines thresher --rounds 1 --rows 8 --no-memory --record {file}"
    tiny.succeeds(call, run=run, test=test, file=file)


def test_speed_is_shown_from_a_file_and_from_the_run(finished: Path, stock: Stock, tmp_path: Path) -> None:
    bench_record(finished, stock.test, tmp_path / "a.jsonl")
    tiny.succeeds("report {run} -o {tmp}/a.html --bench {tmp}/a.jsonl", run=finished, tmp=tmp_path)
    text = page_of(tmp_path / "a.html").text
    record = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8"))
    for row in record["rows"]:
        assert f"{row['texts_per_s']:,.0f}" in text
    assert "pruned is" in text and "speed of pruned over dense" in text
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "run" / "bench.jsonl")
    assert thresher.write_report(tmp_path / "run", out=tmp_path / "b.html").benches == 1


def test_a_search_and_int8_are_shown(finished: Path, stock: Stock, tmp_path: Path) -> None:
    quick = "--max-steps 2 --batch-size 8 --precision fp32 --device cpu --start-flops 0.8 --max-trials 1"
    call = f"search {{head}} --train {{rows}} --test {{test}} --max-drop 30% --out {{tmp}}/found {quick}"
    tiny.succeeds(call, head=stock.head, rows=stock.rows, test=stock.test, tmp=tmp_path)
    tiny.succeeds("report {tmp}/found -o {tmp}/a.html", tmp=tmp_path)
    statement = json.loads((tmp_path / "found" / "pareto.json").read_text(encoding="utf-8"))["statement"]
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert statement.split(";")[0] in page_of(tmp_path / "a.html").text and 'class="chosen"' in html
    measured = {"metrics": {"accuracy": 0.9, "score": 0.9}, "agreement": 0.987, "kept": 0.5}
    block = {
        "kind": "static symmetric int8",
        "calibration": {"rows": 40, "source": "training rows of rows"},
        "quality": {"split": "held_out", "rows": 5, "fp32": measured, "int8-static": measured, "agreement": 0.987},
    }
    shutil.copytree(finished, tmp_path / "int8")
    about = {**tiny.manifest(finished), "quantization": block}
    (tmp_path / "int8" / "thresher.json").write_text(json.dumps(about), encoding="utf-8")
    thresher.write_report(tmp_path / "int8", out=tmp_path / "b.html")
    assert "98.7%" in page_of(tmp_path / "b.html").text


def test_only_a_report_is_replaced(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    tiny.succeeds("report {run} -o {out} --examples 1", run=finished, out=out)
    tiny.succeeds("report {run} -o {out} --examples 2", run=finished, out=out)
    assert out.read_text(encoding="utf-8").count('<div class="example">') == 2
    out.write_text("<html>mine</html>", encoding="utf-8")
    done = tiny.thresher("report {run} -o {out}", run=finished, out=out)
    assert done.code == 1 and done.err.startswith("error: ") and "is not a report; choose another --out" in done.err
    assert out.read_text(encoding="utf-8") == "<html>mine</html>"


def test_a_text_that_is_markup_stays_a_text(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<script>alert(1)</script> a film\nthe plot is </style> bad\n", encoding="utf-8")
    thresher.write_report(finished, texts=tmp_path / "a.txt", out=tmp_path / "a.html")
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert html.count("<script>") == 1 and html.count("</style>") == 1
