"""thresher search and its files: one small search, its JSON, its figure, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.training.search import store as search_store

QUICK = "--max-steps 4 --batch-size 8 --lr 1e-3 --precision fp32 --device cpu --start-flops 0.8 --max-trials 2"


@pytest.fixture(scope="module")
def found(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> tuple[tiny.Said, Path]:
    out = tmp_path_factory.mktemp("search") / "run"
    limits = "--max-drop 30% --confidence 0.99"
    command = f"search {{model}} --train {{rows}} --test {{test}} --out {{out}} {limits} {QUICK} --json"
    return tiny.succeeds(command, model=stock.bare, rows=stock.rows, test=stock.test, out=out), out


def test_it_leaves_a_run_with_its_report_and_figure(found: tuple[tiny.Said, Path]) -> None:
    said, out = found
    assert {"thresher.json", "pareto.json", "pareto.svg", "pareto.png", "dense"} <= tiny.tree(out)
    assert not out.with_name("run.partial").exists()
    report = json.loads((out / "pareto.json").read_text(encoding="utf-8"))
    (chosen,) = (point for point in report["points"] if point["chosen"])
    line = said.json()
    assert line["selection"] == chosen and line["statement"] == report["statement"]
    assert line["held_out_drop"]["test"]["rows"] == 16
    quality = line["quality"]["test"]
    drop = quality["dense"]["metrics"]["score"] - quality["pruned"]["metrics"]["score"]
    assert line["held_out_drop"]["test"]["drop"] == pytest.approx(drop)
    assert tiny.manifest(out)["held_out_drop"] == line["held_out_drop"]


def test_a_stop_before_the_figure_loses_nothing(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's folder appears whole, with its report and figure, and the state goes after it."""

    def stop(report: object, folder: Path) -> None:
        raise KeyboardInterrupt

    command = f"search {{model}} --train {{rows}} --test {{test}} --out {{out}} --max-drop 1% {QUICK}"
    places = {"model": stock.head, "rows": stock.rows, "test": stock.test, "out": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr("thresher.report.pareto.draw_pareto", stop)
        assert tiny.thresher(command, **places).code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["run.partial"]
    tiny.succeeds(command + " --resume", **places)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {"thresher.json", "pareto.json", "pareto.svg", "pareto.png"} <= tiny.tree(tmp_path / "run")


def test_five_selection_rows_prove_nothing_and_it_says_so(found: tuple[tiny.Said, Path]) -> None:
    said, _ = found
    assert not said.json()["within"]
    assert "No model is within 30 points with 99% confidence" in " ".join(said.err.split())
    words = " ".join(said.err.split())
    assert re.search(r"(drop|gain) \d+\.\d\d points on 16 rows that took no part", words)
    assert "drop -" not in words.replace("interval of the drop -", ""), "a negative drop is a gain"


def test_the_run_opens_like_any_other(found: tuple[tiny.Said, Path], stock: Stock) -> None:
    said, out = found
    again = tiny.succeeds("eval {run} --test {test} --json", run=out, test=stock.test).json()
    pruned = said.json()["quality"]["test"]["pruned"]["metrics"]
    assert str(pruned["score"]) in json.dumps(again)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--max-drop abc", "--max-drop 'abc' must be from 0% to 50%; write one point of the score as 1% or 0.01"),
        ("--max-drop 150%", "--max-drop '150%' must be from 0% to 50%"),
        ("--max-drop=-1%", "--max-drop '-1%' must be from 0% to 50%"),
        ("--max-drop 1", "--max-drop '1' must be from 0% to 50%"),
        ("--max-drop nan%", "--max-drop 'nan%' must be from 0% to 50%"),
        ("--confidence 1.5", "confidence = 1.5 is above 0.99"),
        ("--budget-minutes 0", "budget_minutes = 0.0 must be greater than 0"),
        ("--workers 5000", "workers = 5000 is more than the"),
        ("--data {tmp}", "goes with --task NAME"),
        ("--task sst2", "give either --task NAME or --train FILE"),
    ],
)
def test_bad_settings_are_usage_errors(words: str, says: str, stock: Stock, tmp_path: Path) -> None:
    command = f"search {{model}} --train {{rows}} --out {{tmp}}/out --device cpu {words}"
    said = tiny.thresher(command, model=stock.head, rows=stock.rows, tmp=tmp_path)
    assert said.code == 2 and says in said.err and len(said.err.splitlines()) == 1
    assert not any(tmp_path.iterdir())


def test_bad_places(stock: Stock, found: tuple[tiny.Said, Path], tmp_path: Path) -> None:
    command = "search {model} --train {rows} --device cpu --out {out}"
    (tmp_path / "file").touch()
    said = tiny.thresher(command, model=stock.head, rows=stock.rows, out=tmp_path / "file")
    assert said.code == 1 and "is a file; --out must name a folder" in said.err
    said = tiny.thresher(command, model=stock.head, rows=stock.rows, out=Path("/proc/none/run"))
    assert said.code == 1 and "cannot make" in said.err
    said = tiny.thresher(command, model=stock.head, rows=stock.rows, out=found[1])
    assert said.code == 1 and "already holds a run" in said.err
    said = tiny.thresher(command + " --resume", model=stock.head, rows=stock.rows, out=tmp_path / "new")
    assert said.code == 1 and "nothing to resume" in said.err


def test_without_the_extra(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_store, "find_spec", lambda name: None)
    command = "search {model} --train {rows} --device cpu --out {out}"
    said = tiny.thresher(command, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    assert said.code == 2 and 'needs the package optuna; run: pip install "thresher[search]"' in said.err


def test_the_same_report_gives_the_same_figure(found: tuple[tiny.Said, Path], tmp_path: Path) -> None:
    from thresher.report.pareto import draw_pareto

    _, out = found
    draw_pareto(json.loads((out / "pareto.json").read_text(encoding="utf-8")), tmp_path)
    svg = (tmp_path / "pareto.svg").read_text(encoding="utf-8")
    assert svg == (out / "pareto.svg").read_text(encoding="utf-8")
    assert "selection rows" in svg and "chosen" in svg and "dense" in svg


def test_prune_with_a_drop_searches_too(stock: Stock, tmp_path: Path) -> None:
    quick = "--max-steps 2 --batch-size 8 --precision fp32 --device cpu"
    command = f"prune {{model}} --train {{rows}} --test {{test}} --out {{out}} --max-drop 1% {quick} --json"
    done = tiny.succeeds(command, model=stock.bare, rows=stock.rows, test=stock.test, out=tmp_path / "run")
    assert {"thresher.json", "pareto.json"} <= tiny.tree(tmp_path / "run")
    found = done.json()
    assert isinstance(found["within"], bool) and found["statement"] and "test" in found["held_out_drop"]


def test_a_search_whose_time_was_up_goes_on_with_more(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trial ends in time, the others do not begin."""
    from thresher.training.search import chain

    def points() -> int:
        return len(json.loads((tmp_path / "run" / "pareto.json").read_text(encoding="utf-8"))["points"])

    command = f"search {{model}} --train {{rows}} --test {{test}} --out {{out}} --max-drop 1% {QUICK}"
    places = {"model": stock.head, "rows": stock.rows, "test": stock.test, "out": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr(chain, "_time_over", lambda setup: True)
        said = tiny.succeeds(command, **places)
    assert "--resume with more --budget-minutes goes on" in " ".join(said.out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.partial"]
    before = points()
    tiny.succeeds(command + " --resume", **places)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert points() > before


def test_settings_by_name(stock: Stock, tmp_path: Path) -> None:
    call = "search {model} --train {rows} --out {out} --max-steps 2 --device cpu --max-trials 1 --start-flops 0.8"
    places = {"model": stock.head, "rows": stock.rows, "out": tmp_path / "run"}
    tiny.succeeds(call + " --set clip=0.5 --set record=false", **places)
    assert tiny.manifest(tmp_path / "run")["recipe"]["clip"] == 0.5
    refused = tiny.thresher(call + " --set target_flops=0.4 --overwrite", **places)
    assert refused.code == 2 and "--max-drop 1% finds the cost itself" in " ".join(refused.err.split())


def test_a_drop_and_a_target_exclude_each_other(stock: Stock, tmp_path: Path) -> None:
    command = "prune {model} --train {rows} --out {out} --max-drop 1% --target-flops 0.5"
    said = tiny.thresher(command, model=stock.bare, rows=stock.rows, out=tmp_path / "run")
    assert said.code == 2 and "--max-drop 1% finds the cost itself; leave out --target-flops and --lambda" in " ".join(
        said.err.split()
    )
