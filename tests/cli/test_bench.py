"""thresher bench on a tiny run: every contender, honest fields, a record file."""

import json
from pathlib import Path

from tests.cli import tiny
from tests.cli.conftest import Stock

BENCH = "bench {run} --test {test} --rounds 2 --batch-size 4 --texts 10"


def test_bench_reports_every_contender(finished: Path, stock: Stock, tmp_path: Path) -> None:
    record = tmp_path / "records" / "bench.jsonl"
    found = tiny.succeeds(BENCH + " --record {record} --json", run=finished, test=stock.test, record=record)
    result = json.loads(found.out)
    assert json.loads(record.read_text(encoding="utf-8")) == result
    rows = {(row["engine"], row["dtype"]): row for row in result["rows"]}
    assert {("hugging face", "fp32"), ("hugging face, sorted", "fp32")} <= set(rows)
    assert {("thresher dense", "fp32"), ("thresher pruned", "fp32"), ("thresher pruned", "int8")} <= set(rows)
    assert rows[("hugging face", "fp32")]["agreement"] == 1.0
    assert rows[("thresher dense", "fp32")]["agreement"] == 1.0
    assert rows[("thresher dense", "fp32")]["engine_relative_flops"] == 1.0
    assert rows[("thresher pruned", "fp32")]["engine_relative_flops"] < 1.0
    for row in result["rows"]:
        assert 0 < row["texts_per_s_low"] <= row["texts_per_s"] <= row["texts_per_s_high"]
        assert 0 < row["latency_ms_p50"] <= row["latency_ms_p95"]
        assert 0 <= row["quality"] <= 1


def test_bench_says_whether_pruning_pays(finished: Path, stock: Stock) -> None:
    found = tiny.succeeds(BENCH, run=finished, test=stock.test)
    assert "pruning makes the packed engine" in " ".join(found.out.split())
