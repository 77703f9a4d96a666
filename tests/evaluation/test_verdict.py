"""Ratios and the verdict, on made-up rows whose answers are plain to see."""

from typing import Any

import pytest

from thresher.evaluation.verdict import add_ratios_, judge


def row(engine: str, dtype: str, rate: float, **more: Any) -> dict[str, Any]:
    common = {"mode": None, "quality": 0.9, "relative_flops": 1.0, "engine_relative_flops": None}
    common |= {"latency_ms_p50": 1000 / rate}
    return {"engine": engine, "dtype": dtype, "texts_per_s": rate, **common, **more}


def table(pruned: float) -> list[dict[str, Any]]:
    return [
        row("hugging face", "fp32", 10.0),
        row("onnxruntime", "int8", 40.0),
        row("openvino", "int8", 50.0, quality=0.88),
        row("openvino, sorted", "int8", 100.0),
        row("thresher dense", "int8", 100.0, engine_relative_flops=1.0),
        row("thresher pruned", "int8", pruned, relative_flops=0.4, engine_relative_flops=0.5),
    ]


def test_a_ratio_of_rows_that_did_not_settle_is_not_to_be_quoted() -> None:
    said = "these two rows did not settle (~), so their ratio is not to be quoted"
    rows = table(150.0)
    for settled in (True, False):
        rows[4]["settled"] = settled  # dense; pruned is of a record that does not say
        verdict = judge(rows)
        assert verdict is not None and (said in verdict.text()) is not settled


def test_a_ratio_far_above_that_of_flops_is_doubted() -> None:
    for rate, doubted in ((235.0, False), (245.0, True)):  # dense makes 100, with twice the FLOPs
        verdict = judge(table(rate))
        assert verdict is not None and ("more than the FLOPs explain" in verdict.text()) is doubted


def test_ratios_are_to_the_padded_fp32_row_and_to_the_best_row_that_is_not_ours() -> None:
    rows = table(150.0)
    add_ratios_(rows)
    assert rows[-1]["ratio_hugging_face"] == 15.0
    assert rows[-1]["ratio_best_rival"] == 1.5


def test_the_verdict_gives_the_share_of_the_flops_ratio_and_the_best_int8_rivals() -> None:
    verdict = judge(table(150.0))
    assert verdict is not None and verdict.pays
    assert (verdict.speedup, verdict.flops_ratio, verdict.share) == (1.5, 2.0, 0.75)
    assert (verdict.paper_flops_ratio, verdict.paper_share) == (2.5, 0.6)
    assert verdict.int8_unsorted is not None and verdict.int8_unsorted.engine == "openvino"
    assert verdict.int8_unsorted.speedup == 3.0
    assert verdict.int8_unsorted.quality_difference == pytest.approx(0.02)
    assert verdict.int8_sorted is not None and verdict.int8_sorted.speedup == 1.5
    lines = verdict.text().splitlines()
    assert lines[0] == (
        "pruned is 1.50x faster than dense in int8; 2.00x fewer FLOPs in the engine, 2.50x in the paper's count"
    )
    assert "pruned int8 is 3.00x faster than the best int8 rival on unsorted texts, openvino, at +2.00" in lines[1]


@pytest.mark.parametrize(("pruned", "words"), [(80.0, "1.25x slower than dense"), (101.0, "as fast as dense")])
def test_it_says_when_pruning_does_not_pay_and_by_how_much(pruned: float, words: str) -> None:
    verdict = judge(table(pruned))
    assert verdict is not None and not verdict.pays
    assert f"pruned is {words} in int8; 2.00x fewer FLOPs" in verdict.text()
    assert "\npruning does not pay here; use the dense engine" in verdict.text()


def one_text(**latencies: float) -> str:
    rows = [*table(150.0), row("thresher dense", "bf16", 90.0, engine_relative_flops=1.0)]
    for found in rows:
        name = found["engine"].removeprefix("thresher ").split(",")[0]
        found["latency_ms_p50"] = latencies.get(f"{name}_{found['dtype']}", 20.0)
    verdict = judge(rows)
    assert verdict is not None and verdict.one_text is not None
    return verdict.one_text.text()


def test_one_text_that_is_slower_pruned_than_dense_or_than_a_rival_is_said_to_be() -> None:
    said = one_text(pruned_int8=8.1, dense_int8=7.3, dense_bf16=9.0, onnxruntime_int8=4.1)
    first, second = said.splitlines()
    assert first == (
        "one text alone: thresher pruned int8 8.10 ms, thresher dense int8 7.30 ms, the fastest rival, "
        "onnxruntime int8 4.10 ms"
    )
    assert second == (
        "for one text at a time pruning does not pay here: pruned is 1.11x slower than dense and 1.98x slower than "
        "that rival"
    )
    assert "pruned is 1.98x slower than that rival" in one_text(pruned_int8=8.1, dense_int8=9.0, onnxruntime_int8=4.1)
    assert "slower" not in one_text(pruned_int8=3.0, dense_int8=7.3, dense_bf16=3.02, onnxruntime_int8=4.1)


def test_dense_is_taken_in_the_arithmetic_of_pruned_even_where_another_is_faster() -> None:
    verdict = judge([*table(150.0), row("thresher dense", "bf16", 140.0, engine_relative_flops=1.0)])
    assert verdict is not None and (verdict.dtype, verdict.speedup) == ("int8", 1.5)


def test_absent_rows_are_said_to_be_absent() -> None:
    rows = [r for r in table(150.0) if not r["engine"].startswith(("openvino", "onnx"))]
    verdict = judge(rows)
    assert verdict is not None
    assert "no int8 rival was measured on sorted texts" in verdict.text()
    assert judge(rows[:1]) is None


def test_on_a_gpu_each_side_runs_in_its_fastest_mode_and_all_rivals_count() -> None:
    cost = {"relative_flops": 0.4, "engine_relative_flops": 0.5}
    rows = [
        row("hugging face", "fp32", 10.0),
        row("hugging face, sorted", "fp16", 90.0, quality=0.91),
        row("thresher dense", "fp16", 80.0, mode="graph", engine_relative_flops=1.0),
        row("thresher pruned", "fp16", 180.0, mode="graph", **cost),
        row("thresher dense", "fp16", 120.0, mode="sync", engine_relative_flops=1.0),
        row("thresher pruned", "fp16", 150.0, mode="sync", **cost),
    ]
    verdict = judge(rows)
    assert verdict is not None and (verdict.mode, verdict.dense_mode, verdict.speedup) == ("graph", "sync", 1.5)
    assert verdict.best_rival is not None and verdict.best_rival.speedup == 2.0
    assert "pruned is 1.50x faster than dense in fp16 (graph against sync); 2.00x fewer FLOPs" in verdict.text()
    assert "2.00x faster than the best rival, hugging face, sorted, at -1.00 points of quality" in verdict.text()
    assert "int8" not in verdict.text()
