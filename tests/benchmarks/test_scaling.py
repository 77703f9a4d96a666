"""benchmarks/scaling.py on a tiny run: exact texts, honest records, resuming, the figure."""

from pathlib import Path

import pytest
import scaling
from measuring import read_rows

from tests.cli import tiny
from thresher.tasks import Example

SMALL = "--lengths 4,8,64 --batch-sizes 1,2 --batch-size 2 --length 8 --repeats 3 --dtypes fp32,int8 --threads 1"


def call(run: Path, rows: Path, out: Path) -> None:
    scaling.main(["--run", str(run), "--test", str(rows), "--out", str(out), *SMALL.split()])


def ids(words: str) -> list[int]:
    found: list[int] = tiny.tokenizer().convert_tokens_to_ids(words.split())
    return found


def test_texts_are_rows_cut_and_joined_between_special_tokens() -> None:
    texts = scaling.ExactTexts(
        tiny.tokenizer(),
        [Example("good plot", None, 0), Example("bad cast and film", None, 1), Example("joke", None, 0)],
    )
    first, second, third = texts.make(5, 3)
    assert first.input_ids == ids("[CLS] good plot bad [SEP]")
    assert second.input_ids == ids("[CLS] joke good plot [SEP]")
    assert third.input_ids == ids("[CLS] bad cast and [SEP]")
    assert {len(text.input_ids) for text in texts.make(31, 4)} == {31}
    assert first.token_type_ids == [0] * 5
    with pytest.raises(SystemExit, match="2 tokens leave no room"):
        texts.make(2, 1)


def test_pairs_share_the_length_as_they_usually_do() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = pair_wrapping()
    texts = scaling.ExactTexts(tokenizer, [Example("good", "bad cast and", 0), Example("joke", "the film is", 1)])
    (text,) = texts.make(11, 1)
    assert text.input_ids == ids("[CLS] good joke [SEP] bad cast and the film is [SEP]")
    assert text.token_type_ids == [0] * 4 + [1] * 7
    assert texts.make(5, 1)[0].input_ids == ids("[CLS] good [SEP] bad [SEP]")


def pair_wrapping() -> object:
    from tokenizers.processors import TemplateProcessing

    special = [("[CLS]", 2), ("[SEP]", 3)]
    return TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special)


def test_measures_every_point_once_and_draws(
    run: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(run, rows, tmp_path)
    assert "length 64 left out: the model reads at most 32 tokens" in capsys.readouterr().out
    found = read_rows(tmp_path / "scaling.jsonl")
    assert sorted({(row["length"], row["batch_size"]) for row in found}) == [(4, 2), (8, 1), (8, 2)]
    assert len(found) == 3 * 5  # Hugging Face, and dense and pruned in two dtypes
    for row in found:
        assert 0 < row["ms"]["p10"] <= row["ms"]["median"] <= row["ms"]["p90"]
        assert row["repeats"] == 3 and row["threads"] == 1
        assert row["memory_mib"] is None or row["memory_mib"] >= 0
        assert row["run"] == "run" and str(tmp_path) not in row["command"] and str(run) not in row["command"]
    shares = {row["engine"]: row["engine_relative_flops"] for row in found if row["length"] == 8}
    assert shares["hugging face sdpa"] is None and shares["thresher dense"] == 1 and shares["thresher pruned"] < 1
    assert (tmp_path / "scaling.png").stat().st_size > 10_000 and (tmp_path / "scaling.svg").exists()
    assert scaling.table(found).count("\n") == 4

    call(run, rows, tmp_path)
    assert read_rows(tmp_path / "scaling.jsonl") == found  # nothing was measured again
    subject = scaling.open_run(run, dtypes=["fp32"], test=rows)
    scaling.measure(subject, {(8, 1)}, tmp_path / "scaling.jsonl", repeats=1, seconds=1, again=True)
    anew = read_rows(tmp_path / "scaling.jsonl")
    assert len(anew) == len(found) and [row["repeats"] for row in anew[-3:]] == [1, 1, 1]


def test_figure_alone_needs_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="holds nothing to draw; measure with --run"):
        scaling.main(["--figure", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        scaling.main([])
    assert "give --run FOLDER to measure" in capsys.readouterr().err
