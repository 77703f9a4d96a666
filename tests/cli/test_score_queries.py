"""A setting without a flag of its own, from the command line to what a run says of itself."""

from pathlib import Path

from tests.cli import tiny
from tests.cli.conftest import Stock
from tests.cli.test_report import page_of


def test_it_is_trained_saved_and_named(stock: Stock, tmp_path: Path) -> None:
    out = tmp_path / "run"
    call = f"prune {{model}} --train {{rows}} --out {{out}} --set score_queries=4 {tiny.QUICK}"
    tiny.succeeds(call, model=stock.head, rows=stock.rows, out=out)
    assert tiny.manifest(out)["prune"]["score_queries"] == 4
    said = tiny.succeeds("explain {run} {text}", run=out, text="the film is very good")
    assert "tokens are judged by what one token in 4 gives them" in " ".join(said.out.split())
    found = tiny.succeeds("explain {run} {text} --json", run=out, text="the film is very good").json()
    assert found["queries"] == "one token in 4"
    tiny.succeeds("report {run} -o {page}", run=out, page=tmp_path / "report.html")
    assert "value, relative, from one token in 4" in page_of(tmp_path / "report.html").text


def test_what_it_may_not_be(stock: Stock, tmp_path: Path) -> None:
    call = f"prune {{model}} --train {{rows}} --out {{out}} --set score_queries=-2 {tiny.QUICK}"
    said = tiny.thresher(call, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    assert said.code != 0 and "score_queries = -2 is below 0, the smallest allowed value" in said.err
