"""The load generator and its parts, tried on a tiny model: records have what the table needs."""

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


def test_a_summary_counts_what_was_answered(script: Any) -> None:
    replies = [script.Reply(0.01 * (i + 1), 200, "positive", i % 2) for i in range(10)]
    replies += [script.Reply(0.5, 429, None, 0), script.Reply(0.5, 503, None, 0)]
    found = script.summed_up(replies, 2.0, TEXTS)
    assert (found["requests_per_s"], found["refused"], found["failed"], found["quality"]) == (5.0, 1, 1, 0.5)
    assert found["p50_ms"] == 55.0


@pytest.mark.slow
@pytest.mark.parametrize("server", ["thresher", "fastapi batching"])
def test_servers_are_loaded_and_recorded(
    script: Any, server: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "records.jsonl"
    words = ["serve.py", "curve", "--run", str(run), "--servers", server, "--seconds", "0.5", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(script, "read_texts", lambda count: TEXTS)
    monkeypatch.setattr(script, "LONGEST", 20)
    script.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["loop"] for row in rows] == ["closed", "open", "open", "open"]
    for row in rows:
        assert row["server"] == server and row["failed"] == 0 and row["requests_per_s"] > 0
        assert {"model", "p50_ms", "p95_ms", "p99_ms", "refused", "quality", "command"} <= set(row)


@pytest.mark.slow
def test_the_core_is_measured_without_http(
    script: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "records.jsonl"
    words = ["serve.py", "core", "--run", str(run), "--seconds", "0.5", "--clients", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(script, "read_texts", lambda count: TEXTS)
    script.main()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["loop"] for row in rows] == ["closed", "open"] and all(row["answered"] > 0 for row in rows)


def test_a_server_that_is_not_there_is_a_failed_request(script: Any) -> None:
    reply = asyncio.run(script.timed(script.Connection(script.free_port()), [b"{}"], 0, 0.0))
    assert reply.status == 0 and reply.label is None
