"""benchmarks/embedder_free.py on a tiny embedder: every target is a row, and the table is drawn."""

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel

from tests.models.families import randomize_, tiny_config
from tests.words import word_tokenizer

WORDS = tuple("abcdefghijklmnopqrstuvwxyz")


def write_stsb(folder: Path) -> None:
    """Every pair of letters is a sentence with more letters behind it."""
    for part, count in (("train", 60), ("validation", 12)):
        rows = [
            {
                "sentence1": " ".join(WORDS[i % 20 : i % 20 + 6]),
                "sentence2": f"{WORDS[i % 26]} {WORDS[i // 26]} a b c",
                "label": i % 5,
            }
            for i in range(count)
        ]
        with lzma.open(folder / "stsb" / f"{part}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def test_every_target_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import embedder_free  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    encoder: Any = AutoModel.from_config(tiny_config("nomic_bert"))
    randomize_(encoder, 0)
    encoder.save_pretrained(tmp_path / "tiny")
    word_tokenizer(WORDS).save_pretrained(tmp_path / "tiny")
    (tmp_path / "stsb").mkdir()
    write_stsb(tmp_path)
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    page.write_text("<!-- embedder-free -->\n<!-- end -->\n", encoding="utf-8")
    words = [str(tmp_path / "tiny"), "--data", str(tmp_path), "--prompt", "z ", "--targets", "1,0.7"]
    monkeypatch.setattr(sys, "argv", ["embedder_free.py", *words, "--out", str(out), "--page", str(page)])
    embedder_free.main()
    whole, pruned = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert whole["relative_flops"] == 1 and whole["cosine"] > 0.999 and whole["pruned"] == pytest.approx(whole["dense"])
    assert 0.5 < pruned["relative_flops"] < 0.95 and pruned["cosine"] < 0.9999
    assert f"| tiny | {pruned['relative_flops']:.2f} | " in page.read_text(encoding="utf-8")
