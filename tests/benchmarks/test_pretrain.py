"""Pre-training by hidden words, tried for a second on a tiny model."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    import pretrain  # type: ignore[import-not-found]  # from benchmarks/, see conftest.py

    monkeypatch.setattr(pretrain, "KEPT_BACK", 4)
    kinds = {kind: (name, {**sizes, **TINY}) for kind, (name, sizes) in pretrain.KINDS.items()}
    monkeypatch.setattr(pretrain, "KINDS", kinds)
    return pretrain


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with texts.jsonl and a tokenizer that has a mask token."""
    import end_to_end  # type: ignore[import-not-found]

    texts = [f"a film of {number} parts, and every part was worse than the last" for number in range(12)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(lines, encoding="utf-8")
    tokenizer = end_to_end.trained_tokenizer(texts)
    tokenizer.mask_token = "[MASK]"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def call(script: Any, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [kind, "--texts", folder / "texts.jsonl", "--tokenizer", folder / "tokenizer", "--out", folder / "model"]
    words += ["--minutes", "0.01", "--batch", "3", "--record", folder / "rows.jsonl"]
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *map(str, words)])
    script.main()


@pytest.mark.parametrize("kind", ["modernbert", "deberta-v3"])
def test_a_model_that_can_be_gone_on_with(
    script: Any, places: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from transformers import AutoModelForSequenceClassification

    call(script, kind, places, monkeypatch)
    (row,) = [json.loads(line) for line in (places / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert row["texts"] == 8 and row["steps"] > 0 and row["words"] > 0
    assert row["loss"] > 0 and 0 <= row["accuracy"] <= 1 and 0 < row["commonest"] <= 1
    model = AutoModelForSequenceClassification.from_pretrained(places / "model")
    assert model.config.model_type == script.KINDS[kind][0]


def test_too_few_texts(script: Any, places: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (places / "texts.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    with pytest.raises(SystemExit):
        call(script, "modernbert", places, monkeypatch)
    assert "has 1 texts; 4 are kept back, so give a file with more" in capsys.readouterr().err


def test_hidden_words_are_no_padding_and_no_special_tokens(script: Any, places: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(places / "tokenizer")
    ids = torch.tensor([[2, 9, 10, 11, 12, 13, 14, 3, 0, 0]]).repeat(50, 1)
    torch.manual_seed(0)
    inputs, labels = script.masked(ids, (ids != 0).long(), tokenizer)
    hidden = inputs == tokenizer.mask_token_id
    assert torch.equal(hidden, labels != script.IGNORED) and torch.equal(labels[hidden], ids[hidden])
    assert torch.equal(inputs[~hidden], ids[~hidden])
    assert 0.2 < float(hidden[:, 1:7].float().mean()) < 0.4 and not hidden[:, [0, 7, 8, 9]].any()
