"""The load generator and its parts, tried on a tiny model: records have what the page needs."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

TEXTS = [("the film is good", "positive"), ("the plot is dull", "negative")] * 4


@pytest.fixture(scope="module")
def script() -> Any:
    import serve  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    return serve


def test_every_part_of_the_range_of_lengths_is_there(script: Any) -> None:
    lengths = sorted(len(text.split()) * 4 // 3 for text, _ in script.read_texts(100))
    assert len(lengths) == 100 and lengths[0] < 60 and lengths[-1] > 450
    assert 100 < lengths[50] < 400


def test_texts_are_written_for_other_commands(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import serve_servers  # type: ignore[import-not-found]  # from benchmarks/

    load = {text for text, _ in script.read_texts(100)}
    assert not load & {text for text, _ in script.read_texts(50, after=100)}
    for name in ("others.jsonl", "others.txt"):
        words = ["--out", str(tmp_path / name), "--count", "50", "--after", "100"]
        monkeypatch.setattr(sys, "argv", ["serve_servers.py", *words])
        serve_servers.main()
    lines = (tmp_path / "others.txt").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in (tmp_path / "others.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == len(rows) == 50 and {row["label"] for row in rows} == {"positive", "negative"}
    assert [" ".join(row["text"].split()) for row in rows] == lines and not load & {row["text"] for row in rows}


def test_answers_at_random_have_no_quality(script: Any, tmp_path: Path) -> None:
    options = argparse.Namespace(run=tmp_path, texts=20)
    bodies, labels = script.asked_of(options)
    assert len(bodies) == len(labels) == 20
    (tmp_path / "thresher.json").write_text(json.dumps({"fitted": {"for": "speed alone"}}), encoding="utf-8")
    assert script.asked_of(options) == (bodies, None)


def test_a_summary_counts_what_was_answered(script: Any) -> None:
    replies = [script.Reply(0.01 * (i + 1), 200, "positive", i % 2) for i in range(10)]
    replies += [script.Reply(0.5, 429, None, 0), script.Reply(0.5, 503, None, 0)]
    found = script.summed_up(replies, 2.0, [label for _, label in TEXTS])
    assert (found["requests_per_s"], found["refused"], found["failed"], found["quality"]) == (5.0, 1, 1, 0.5)
    assert found["p50_ms"] == 55.0
    assert script.p95_of_all(replies) == float("inf")  # two of twelve got no answer
    assert script.p95_of_all(replies[:10] * 10) == pytest.approx(100)


@pytest.mark.parametrize("first", [5.0, 20.0, 60.0])
def test_the_search_ends_just_below_what_holds(script: Any, first: float) -> None:
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= 23.0

    found = script.search(holds, first)
    assert found <= 23.0 < found * script.FACTOR ** (1 / 2**script.HALVINGS) * 1.001 and len(tried) < 12
    assert script.search(lambda rate: False, first) == 0.0


def test_rivals_pad_little_and_leave_nobody_out() -> None:
    import serve_rivals  # type: ignore[import-not-found]  # from benchmarks/

    texts = ["x" * (40 * (number * 7 % 50 + 1)) for number in range(50)]
    batches = serve_rivals.cut(texts)
    assert sorted(number for batch in batches for number in batch) == list(range(50))
    for batch in batches:
        padded = len(batch) * max(len(texts[number]) for number in batch) / 4
        assert len(batch) == 1 or padded <= serve_rivals.PADDED
        shortest, longest = (len(texts[number]) / 4 for number in (batch[0], batch[-1]))
        assert longest <= 32 + 1.5 * shortest
    assert len(batches) < 25


def run_script(script: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> list[dict[str, Any]]:
    import serve_servers  # type: ignore[import-not-found]  # from benchmarks/

    monkeypatch.setattr(sys, "argv", ["serve.py", *words, "--out", str(out)])
    monkeypatch.setattr(script, "read_texts", lambda count: TEXTS)
    monkeypatch.setattr(serve_servers, "LONGEST", 20)
    script.main()
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("server", ["thresher", "fastapi batching"])
def test_servers_are_driven_to_their_limit(
    script: Any, server: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "search", lambda holds, first: first / 2 if holds(first / 2) else 0.0)
    words = ["limit", "--run", str(run), "--servers", server, "--seconds", "0.5", "--turns", "1", "--p95", "60000"]
    rows = run_script(script, monkeypatch, tmp_path / "records.jsonl", *words)
    assert [(row["part"], row["loop"]) for row in rows] == [("load", "closed"), ("load", "open"), ("limit", "open")]
    for row in rows:
        assert row["server"] == server and row["failed"] == 0 and row["requests_per_s"] > 0
        assert {"model", "device", "p50_ms", "p95_ms", "p99_ms", "refused", "quality", "command"} <= set(row)


@pytest.mark.slow
def test_overload_says_who_was_let_in_and_how_memory_went(
    script: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["overload", "--run", str(run), "--seconds", "1", "--capacity", "20", "--timeout", "60"]
    (row,) = run_script(script, monkeypatch, tmp_path / "records.jsonl", *words)
    assert row["requests"] == row["let_in"] + row["refused"] and 0 <= row["in_time"] <= 1
    assert len(row["memory_mib"]) > 5 and row["alive"] and row["offered"] == 40


def test_a_server_that_is_not_there_is_a_failed_request(script: Any) -> None:
    import serve_load  # type: ignore[import-not-found]  # from benchmarks/
    import serve_servers  # from benchmarks/

    one = serve_load.Connection(serve_servers.free_port())
    reply = asyncio.run(serve_load.timed(one, [b"{}"], 0, 0.0))
    assert reply.status == 0 and reply.label is None


def test_the_page_is_made_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import serve_page  # type: ignore[import-not-found]  # from benchmarks/

    about = {
        "model": "demo",
        "session": "new",
        "loop": "open",
        "limit_ms": 500.0,
        "p50_ms": 1,
        "p95_ms": 2,
        "p99_ms": 3,
        "turn": 0,
    }
    rates = {"thresher": 30.0, "fastapi": 5.0, "fastapi batching": 10.0}
    rows = [
        {**about, "part": "limit", "server": server, "requests_per_s": rate, "quality": None}
        for server, rate in rates.items()
    ]
    text = serve_page.limits([{**rows[1], "session": "old", "requests_per_s": 99.0}, *rows])
    alone = {"part": "overhead", "model": "demo", "predict_texts_per_s": 200.0}
    alone |= {"texts_per_s_requests_of_1": 150.0, "texts_per_s_requests_of_32": 190.0, "commit": "abcdefghi"}
    turns = [{**alone, "created": "2"}, {**alone, "created": "1", "texts_per_s_requests_of_32": 234.0}]
    later = {**alone, "created": "3", "commit": "b", "predict_texts_per_s_by_clients": 170.0}
    found = serve_page.overheads([*rows, later, *turns])
    first, second = (
        f"| demo | {what} |"
        for what in (
            "abcdefg | 2 | 200.0 | - | 150.0, 25% less | 212.0, 6% more",
            "b | 1 | 200.0 | 170.0, 15% less | 150.0, 25% less | 190.0, 5% less",
        )
    )
    assert first in found and found.index(first) < found.index(second)
    assert "| thresher | 30.0 | 3.00x | 1 | 2 | 3 | - |" in text and "| fastapi | 5.0 | 0.50x |" in text


@pytest.mark.slow
def test_the_server_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import serve_gpu  # type: ignore[import-not-found]  # from benchmarks/
    import serve_page  # type: ignore[import-not-found]  # from benchmarks/

    out = tmp_path / "out.jsonl"
    words = "--no-model --processes 1 --clients 8 --seconds 0.5 --first 0.5".split()
    monkeypatch.setattr(sys, "argv", ["serve_gpu.py", *words, "--out", str(out)])
    serve_gpu.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    whens = ["first seconds", "afterwards", None]
    assert [(row["texts_a_request"], row.get("when")) for row in rows] == [(n, when) for n in (1, 32) for when in whens]
    for row in rows:
        assert row["part"] == "http" and row["model"] == "none" and row["graphs_captured"] == 0
        assert row["failed"] == row["refused"] == 0 < row["answered"]
    assert serve_page.ceilings(rows).count("\n") == 5
