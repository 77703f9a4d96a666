"""calibrate, quantize, bench and explain for rerankers, embedding models and several labels a text."""

from pathlib import Path

import pytest

from tests.cli import tiny
from tests.models.sentences import WORDS as SENTENCE_WORDS
from tests.models.sentences import cross_encoder_folder, embedder_folder
from thresher.engine.engine import Engine


def words(count: int) -> list[str]:
    """Different texts of the words that the sentence models know."""
    some = [word for word in SENTENCE_WORDS if word.isalpha()]
    found = [" ".join(some[(i * step) % len(some)] for step in range(1, 4 + i % 7)) for i in range(1, 8 * count)]
    return list(dict.fromkeys(found))[:count]


def write_texts(file: Path, lines: list[str]) -> Path:
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def pair_lines(count: int) -> list[str]:
    """Queries with four documents each, and a tab between."""
    texts = words(count)
    return [f"{texts[i // 4]}\t{text}" for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of the three kinds, and texts for them."""
    place = tmp_path_factory.mktemp("heads")
    embedder_folder(place / "embedder")
    cross_encoder_folder(place / "reranker", sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    names = ("cold", "long", "warm")
    tiny.save_model(place / "labels", tiny.classifier_config(names, problem_type="multi_label_classification"))
    write_texts(place / "embedder.txt", words(90))
    write_texts(place / "reranker.txt", pair_lines(96))
    write_texts(place / "labels.txt", [text for text, _ in tiny.sentences(90)])
    return place


@pytest.fixture(scope="module")
def runs(folder: Path) -> Path:
    """A calibrated run of each kind, in runs/."""
    for kind in ("embedder", "reranker", "labels"):
        tiny.succeeds(
            "calibrate {dir}/{kind} --texts {dir}/{kind}.txt --agreement 0.9 --out {dir}/runs/{kind}",
            dir=folder,
            kind=kind,
        )
    return folder / "runs"


@pytest.mark.parametrize(
    ("kind", "says", "protect"),
    [
        ("embedder", "mean cosine", ["first"]),
        ("reranker", "correlation", ["first", "first_segment"]),
        ("labels", "same labels", ["first"]),
    ],
)
def test_calibrate(kind: str, says: str, protect: list[str], folder: Path, tmp_path: Path) -> None:
    call = "calibrate {dir}/{kind} --texts {dir}/{kind}.txt --agreement 0.9 --out {out} --json"
    done = tiny.succeeds(call, dir=folder, kind=kind, out=tmp_path / "run")
    found, about = done.json(), tiny.manifest(tmp_path / "run")
    assert found["fit"]["agreement"] >= 0.9 and 0 < found["expected"]["relative_flops"] < 1
    expected = found["expected"]["agreement"]
    assert says in expected["kind"] and expected["low"] <= expected["value"] <= expected["high"]
    assert about["prune"]["protect"] == protect and about["prune"]["score"] == "value"
    assert found["texts"]["pairs"] is (kind == "reranker")
    last = about["thresholds"][-1]
    if kind == "embedder":  # all states are read: the last layer is free to keep them
        assert about["prune"]["collapse_last"] is False and last != "inf"
        assert about["recipe"]["max_length"] == 16  # as its folder says
    else:
        assert last == "inf"


def test_an_embedder_that_may_not_change_keeps_everything(folder: Path, tmp_path: Path) -> None:
    """Where nothing is allowed, the last layer prunes nothing either."""
    call = "calibrate {dir}/embedder --texts {dir}/embedder.txt --agreement 100% --out {out} --json"
    found = tiny.succeeds(call, dir=folder, out=tmp_path / "run").json()
    assert found["fit"] == {"agreement": pytest.approx(1.0), "relative_flops": 1.0}
    assert tiny.manifest(tmp_path / "run")["thresholds"] == [0.0] * len(tiny.manifest(tmp_path / "run")["thresholds"])


def test_a_calibrated_reranker_costs_what_eval_counts(runs: Path, folder: Path, tmp_path: Path) -> None:
    """Its query stays in the last layer of the model, whatever the engine computes of it."""
    call = "calibrate {dir}/reranker --texts {dir}/reranker.txt --agreement 0.9 --out {out} --json"
    found = tiny.succeeds(call, dir=folder, out=tmp_path / "run").json()
    rows = [dict(zip(("text", "pair"), line.split("\t"), strict=True)) for line in pair_lines(96)]
    test = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    call = "eval {run} --test {test} --pair-column pair --device cpu --json"
    quality = tiny.succeeds(call, run=tmp_path / "run", test=test).json()["splits"]["test"]["pruned"]
    fit, judged = found["fit"]["relative_flops"], found["expected"]["relative_flops"]
    assert min(fit, judged) <= quality["relative_flops"] <= max(fit, judged)
    assert {"pearson", "spearman", "top1"} <= quality["metrics"].keys()


def test_a_number_that_is_a_score_when_told_so(folder: Path, tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.config(num_labels=1))
    lines = [f"{tiny.NOUNS[i // 4 % 7]} {tiny.GOOD[i // 28]}\t{text}" for i, (text, _) in enumerate(tiny.sentences(96))]
    texts = write_texts(tmp_path / "pairs.txt", lines)
    call = "calibrate {model} --texts {texts} --rerank --agreement 0.9 --out {out}"
    tiny.succeeds(call, model=model, texts=texts, out=tmp_path / "run")
    about = tiny.manifest(tmp_path / "run")
    assert about["head"]["means"] == "score" and about["prune"]["protect"] == ["first", "first_segment"]
    query, document = lines[0].split("\t")
    assert 0 < Engine.load(tmp_path / "run", device="cpu", dtype="fp32").score([(query, document)])[0] < 1


@pytest.mark.parametrize(
    ("kind", "lines", "says"),
    [
        ("reranker", words(90), "is a reranker; "),
        ("reranker", [f"fog\t{text}" for text in words(90)], "1 different queries, which do not split"),
        ("labels", pair_lines(70)[:20], "20 different texts are too few"),
    ],
)
def test_texts_that_do_not_fit(kind: str, lines: list[str], says: str, folder: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.txt", lines)
    call = "calibrate {dir}/{kind} --texts {texts} --out {out}"
    done = tiny.thresher(call, dir=folder, kind=kind, texts=texts, out=tmp_path / "run")
    assert done.code == 1 and says in done.err and len(done.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_cost_that_a_query_forbids(folder: Path, tmp_path: Path) -> None:
    """Protected tokens stay after every layer; a cost below theirs is refused, not missed in silence."""
    lines = [f"{text} {text}\tfog" for text in words(90)]
    texts = write_texts(tmp_path / "texts.txt", lines)
    call = "calibrate {dir}/reranker --texts {texts} --target-flops 0.6 --max-length 40 --out {out}"
    done = tiny.thresher(call, dir=folder, texts=texts, out=tmp_path / "run")
    assert done.code == 2 and "the protected tokens (a reranker's query) alone" in done.err


def test_embedding_pairs_are_two_texts_each(folder: Path, tmp_path: Path) -> None:
    texts = write_texts(
        tmp_path / "pairs.txt", [f"{a}\t{b}" for a, b in zip(words(80)[:40], words(80)[40:], strict=True)]
    )
    call = "calibrate {dir}/embedder --texts {texts} --out {out} --json"
    found = tiny.succeeds(call, dir=folder, texts=texts, out=tmp_path / "run").json()
    assert found["texts"]["fit"] + found["texts"]["judge"] == 80 and found["texts"]["pairs"] is False
