"""Ended at any moment, the same call goes on: nothing is lost, nothing computed twice, the same bytes in the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bulk import killed
from tests.bulk.making import TEXTS, rows, score, write
from thresher.bulk import scorer
from thresher.errors import RunError
from thresher.jobs.score import score_files
from thresher.workplace import alone_at, work_of


class Gone(BaseException):
    """Like the end of a process, but without one."""


def stopped_after(parts: int, *args: Any, **given: Any) -> None:
    """Score until so many parts are done."""
    done = 0

    def count(now: Any) -> None:
        nonlocal done
        done = now.rows
        if done >= parts * 7 and done % 7 == 0:
            raise Gone

    with pytest.raises(Gone):
        score(*args, progress=count, **given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in.jsonl", "shards"])
def test_killed_at_every_moment_the_output_is_the_same(name: str, models: Path, tmp_path: Path) -> None:
    source = tmp_path / name
    if name == "shards":
        source.mkdir()
        write(source / "a.jsonl.zst", rows(30))
        write(source / "b.parquet", rows(25))
    else:
        write(source, rows(30))
    out = tmp_path / "there" / ("out" if name == "shards" else "out.jsonl.gz")
    out.parent.mkdir()
    words = [sys.executable, killed.__file__, str(models / "classes"), str(source), str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["moments"] > 20
    assert found["wrong"] == [] and found["code"] == 0, done.stderr


def test_no_part_is_computed_twice(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    whole = tmp_path / "whole.jsonl"
    assert score(models / "classes", source, whole).computed == 50
    stopped_after(3, models / "classes", source, out)
    assert not out.exists() and work_of(out).exists()
    seen: list[int] = []
    answer = scorer.answer

    def counted(engine: Any, items: Any, heard: Any, **more: Any) -> Any:
        seen.append(len(items))
        return answer(engine, items, heard, **more)

    monkeypatch.setattr(scorer, "answer", counted)
    result = score(models / "classes", source, out)
    assert sum(seen) == result.computed < 50
    assert result.rows == 50
    assert out.read_bytes() == whole.read_bytes()


def test_the_arithmetic_of_begun_work_stays(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thresher.engine import choose

    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    monkeypatch.setattr(choose, "choose_dtype", lambda *args, **given: ("bf16", "a moment's choice"))
    stopped_after(2, models / "classes", source, out, dtype="auto")
    monkeypatch.setattr(choose, "choose_dtype", lambda *args, **given: ("fp32", "another moment's"))
    assert score(models / "classes", source, out, dtype="auto").dtype == "bf16"


def test_other_inputs_runs_and_settings_are_refused_with_what_differs(models: Path, tmp_path: Path) -> None:
    import shutil

    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    model = Path(shutil.copytree(models / "classes", tmp_path / "model"))
    stopped_after(2, model, source, out)
    place = f"{work_of(out)} is of other work: ".replace(".", r"\.")
    with pytest.raises(RunError, match=place + "dial was 1.0 and is 0.5; give the same again, or start anew with --ov"):
        score(model, source, out, dial=0.5)
    with pytest.raises(RunError, match="prefix was '' and is 'p_'"):
        score(model, source, out, prefix="p_")
    other = write(tmp_path / "other.jsonl", rows())
    with pytest.raises(RunError, match=r"inputs was \['in.jsonl'\] and is \['other.jsonl'\]"):
        score(model, other, out)
    before = source.read_bytes()
    source.write_bytes(before.replace(b"good", b"poor"))
    with pytest.raises(RunError, match="the input in.jsonl has changed"):
        score(model, source, out)
    source.write_bytes(before)
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(RunError, match="the run's files have changed"):
        score(model, source, out)
    assert score(model, source, out, overwrite=True).computed == 50


def test_an_input_that_grows_while_it_is_read_is_refused(models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows(20)), tmp_path / "out.jsonl"

    def once(now: Any) -> None:
        if now.rows == 7:
            source.write_bytes(source.read_bytes() + b'{"text": "late"}\n')

    with pytest.raises(RunError, match=r"in\.jsonl was changed while it was read"):
        score(models / "classes", source, out, progress=once)
    assert not out.exists()
    touched = lambda now: os.utime(source)  # noqa: E731  # which changes no byte of it
    assert score(models / "classes", source, out, overwrite=True, progress=touched).rows > 20


def test_overwriting_that_is_ended_in_the_middle_of_removing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    stopped_after(2, models / "classes", source, out)

    def half(folder: Path, **options: Any) -> None:
        for file in folder.rglob("manifest.json"):
            file.unlink()
            raise Gone

    with monkeypatch.context() as patch, pytest.raises(Gone):
        patch.setattr(shutil, "rmtree", half)
        score(models / "classes", source, out, dial=2.0, overwrite=True)
    assert score(models / "classes", source, out, dial=2.0).rows == 50
    assert not work_of(out).exists()


def test_a_damaged_part_is_computed_again(models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    whole = tmp_path / "whole.jsonl"
    score(models / "classes", source, whole)
    stopped_after(4, models / "classes", source, out)
    shard = work_of(out) / "shards" / "00000"
    (shard / "000001.part").write_bytes(b"half")
    (shard / "000000.json").write_text('{"number"')
    score(models / "classes", source, out)
    assert out.read_bytes() == whole.read_bytes()


def test_two_jobs_into_one_place(models: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    with alone_at(out), pytest.raises(RunError, match="another run is being written to"):
        score(models / "classes", source, out)


def test_progress_tells_of_rows_bytes_and_time(models: Path, tmp_path: Path) -> None:
    source, seen = write(tmp_path / "in.jsonl.gz", rows()), []
    score_files(
        models / "classes", inputs=source, out=tmp_path / "out.jsonl", part_rows=7, progress=seen.append, device="cpu"
    )
    assert seen[0].rows == 0 and seen[0].seconds_left is None
    assert (seen[-1].rows, seen[-1].bytes_done) == (50, source.stat().st_size)
    assert seen[-1].texts_per_s > 0 and seen[-1].seconds_left == 0


@pytest.mark.slow
def test_sigterm_ends_cleanly_and_says_how_to_go_on(models: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("\n".join(TEXTS * 40_000))  # far from done when the signal comes, however late that is
    words = [sys.executable, "-m", "thresher", "score", models / "classes", source, "--out", out, "--part-rows", "500"]
    begun = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    watch = threading.Timer(300, begun.kill)
    watch.start()
    while begun.poll() is None and not list(work_of(out).glob("shards/00000/*.part")):
        time.sleep(0.05)
    os.kill(begun.pid, signal.SIGTERM)
    _, said = begun.communicate()
    watch.cancel()
    assert begun.returncode == 130, said
    assert f"error: interrupted; {work_of(out)} has what is done, if anything; the same command goes on" in said
