"""eval, explain, doctor and the help pages: for people in colour, for machines as one JSON line."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli import tiny
from tests.cli.conftest import Stock
from thresher.cli import app

EVERY = [str(info.name) for info in app.registered_commands]


class TestEval:
    def test_tables(self, stock: Stock, finished: Path) -> None:
        done = tiny.succeeds("eval {run} --test {test}", run=finished, test=stock.test)
        assert done.err == ""
        for words in ("test", "pruned", "accuracy", "relative FLOPs", "tokens kept", "by length quartile"):
            assert words in done.out

    def test_without_rows_it_takes_those_that_the_run_held_out(self, finished: Path) -> None:
        done = tiny.succeeds("eval {run} --json", run=finished)
        (split,), made = done.json()["splits"], tiny.manifest(finished)["quality"]
        assert split == "held_out"
        assert done.json()["splits"][split]["pruned"]["metrics"] == made[split]["pruned"]["metrics"]
        assert "rows held out of" in " ".join(done.err.split())

    def test_rows_of_the_training_are_warned_of(self, stock: Stock, finished: Path, tmp_path: Path) -> None:
        shutil.copy(stock.rows, tmp_path / "other-name.csv")
        for file, warned in ((stock.rows, True), (tmp_path / "other-name.csv", True), (stock.test, False)):
            done = tiny.succeeds("eval {run} --test {test}", run=finished, test=file)
            said = " ".join(done.out.split())
            assert ("is the file that the run was trained on" in said) == warned

    def test_json(self, stock: Stock, finished: Path) -> None:
        done = tiny.succeeds("eval {run} --test {test} --json", run=finished, test=stock.test)
        found = done.json()
        assert found["run"] == str(finished)
        assert set(found["versions"]) >= {"python", "torch", "transformers"}
        pruned, dense = found["splits"]["test"]["pruned"], found["splits"]["test"]["unpruned"]
        assert 0 <= pruned["metrics"]["accuracy"] <= 1
        assert 0 < pruned["relative_flops"] < 1
        assert dense["relative_flops"] is None
        assert len(pruned["kept_per_layer"]) == tiny.LAYERS
        assert pruned["rows"] == dense["rows"] == 16
        assert sum(part["rows"] for part in pruned["quartiles"]) == 16
        assert set(pruned["quartiles"][0]) == {"shortest", "longest", "rows", "score", "relative_flops"}
        assert "relative FLOPs" in done.err, "people read standard error then"

    def test_the_legend_explains_the_rows_that_are_there(self, stock: Stock, finished: Path, tmp_path: Path) -> None:
        shutil.copytree(finished, tmp_path / "run")
        manifest = {**tiny.manifest(finished), "quantization": {}}
        (tmp_path / "run" / "thresher.json").write_text(json.dumps(manifest))
        shutil.copytree(stock.head, tmp_path / "run" / "dense")
        plain, both = (
            " ".join(tiny.succeeds("eval {run} --test {test}", run=run, test=stock.test).out.split())
            for run in (finished, tmp_path / "run")
        )
        assert plain.endswith("dense: the base model head; unpruned: this run's weights, nothing dropped")
        assert "dense: the dense model fine-tuned with the run (dense/)" in both
        assert both.endswith("serve this run in int8: thresher quantize measured that")

    def test_a_dense_model_that_is_gone_is_missed_aloud(self, stock: Stock, finished: Path, tmp_path: Path) -> None:
        command = "eval {run} --test {test} --json"
        shutil.copytree(finished, tmp_path / "run")
        manifest = {**tiny.manifest(finished), "base_model": str(tmp_path / "gone")}
        (tmp_path / "run" / "thresher.json").write_text(json.dumps(manifest))
        said = tiny.succeeds(command, run=tmp_path / "run", test=stock.test)
        assert "dense" not in said.json()["splits"]["test"]
        assert "so what pruning lost is not known" in " ".join(said.err.split())

    def test_agrees_with_what_the_run_saved(self, stock: Stock, tmp_path: Path) -> None:
        command = f"prune {{model}} --train {{rows}} --test {{test}} --out {{out}} {tiny.QUICK}"
        tiny.succeeds(command, model=stock.head, rows=stock.rows, test=stock.test, out=tmp_path / "run")
        again = tiny.succeeds("eval {run} --test {test} --json", run=tmp_path / "run", test=stock.test).json()
        saved = tiny.manifest(tmp_path / "run")["quality"]["test"]
        assert {name: again["splits"]["test"][name] for name in saved} == saved, "the dense model is the base model"

    def test_truncation_is_counted(self, stock: Stock, finished: Path) -> None:
        done = tiny.succeeds("eval {run} --test {test} --max-length 6", run=finished, test=stock.test)
        assert " texts of 16 rows were truncated" in done.out

    def test_task_by_name(self, stock: Stock, tmp_path: Path) -> None:
        """GLUE from a folder; eval then needs no more than the run and the folder."""
        (tmp_path / "sst2").mkdir()
        rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(64)]
        tiny.write_rows(tmp_path / "sst2" / "train.jsonl", rows[:48])
        tiny.write_rows(tmp_path / "sst2" / "validation.jsonl", rows[48:])
        command = f"prune {{model}} --task sst2 --data {{data}} --out {{out}} {tiny.QUICK}"
        tiny.succeeds(command, model=stock.head, data=tmp_path, out=tmp_path / "run")
        for task in ("", "--task sst2"):
            found = tiny.succeeds(f"eval {{run}} {task} --data {{data}} --json", run=tmp_path / "run", data=tmp_path)
            assert found.json()["task"] == "sst2"
            assert set(found.json()["splits"]) == {"validation"}


class TestExplain:
    def test_text(self, finished: Path) -> None:
        done = tiny.succeeds("explain {run} 'the film is very good'", run=finished)
        assert done.err == ""
        assert "[CLS]" in done.out and "film" in done.out
        assert "relative FLOPs" in done.out
        assert "negative (" in done.out or "positive (" in done.out

    def test_json(self, finished: Path) -> None:
        found = tiny.succeeds("explain {run} 'the film is very good' --json", run=finished).json()
        assert found["dense"]["label"] in ("negative", "positive") and 0.5 <= found["dense"]["probability"] <= 1
        assert found["tokens"] == ["[CLS]", "the", "film", "is", "very", "good", "[SEP]"]
        assert found["dropped_at"][0] is None, "the first token is protected"
        assert found["label"] in ("negative", "positive")
        assert 0.5 <= found["probability"] <= 1
        assert found["truncated"] is False
        alive = [
            sum(layer is None or layer > after for layer in found["dropped_at"]) for after in range(1, tiny.LAYERS + 1)
        ]
        assert found["kept_per_layer"] == alive

    def test_pair(self, finished: Path, tmp_path: Path) -> None:
        run, manifest = tmp_path / "run", tiny.manifest(finished)
        shutil.copytree(finished, run)
        manifest["task"]["columns"]["pair"] = "other"
        (run / "thresher.json").write_text(json.dumps(manifest), encoding="utf-8")
        found = tiny.succeeds("explain {run} 'the film' 'a joke' --json", run=run).json()
        assert found["tokens"] == ["[CLS]", "the", "film", "[SEP]", "a", "joke", "[SEP]"]

    def test_long_text_is_truncated_and_says_so(self, finished: Path) -> None:
        text = "very " * 60 + "good"
        assert tiny.succeeds("explain {run} {text} --json", run=finished, text=text).json()["truncated"] is True
        assert "truncated" in tiny.succeeds("explain {run} {text}", run=finished, text=text).out

    def test_picture(self, finished: Path, tmp_path: Path) -> None:
        from xml.etree import ElementTree

        tiny.succeeds("explain {run} 'the film is good' --svg {svg}", run=finished, svg=tmp_path / "new" / "a.svg")
        drawn = (tmp_path / "new" / "a.svg").read_text(encoding="utf-8")
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        assert "film" in drawn
        assert "@font-face" not in drawn and "url(" not in drawn.replace("url(#", ""), "an image must load nothing"


class TestDoctor:
    def test_table(self) -> None:
        done = tiny.succeeds("doctor")
        for words in ("torch", "avx512", "CUDA", "device chosen", "training precision", "bert"):
            assert words in done.out

    def test_json(self) -> None:
        found = tiny.succeeds("doctor --json").json()
        assert set(found["versions"]) >= {"python", "thresher", "torch", "transformers"}
        assert set(found["features"]) >= {"avx512", "avx512_bf16", "avx512_vnni", "amx_bf16"}
        assert isinstance(found["cuda"], list)
        assert found["device"] in ("cpu", "cuda") and found["device_reason"]
        assert found["precision"] in ("fp32", "bf16") and found["precision_reason"]
        assert "bert" in found["model_families"]
        assert set(found["packages"]) >= {"demo", "parquet", "hub"}

    def test_missing_extra_names_the_way_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib.util

        stock = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else stock(name))
        assert "thresher[parquet]" in tiny.succeeds("doctor --json").json()["packages"]["parquet"]
        assert "thresher[parquet]" in tiny.succeeds("doctor").out.replace("\n", "")


@pytest.mark.parametrize("command", EVERY)
def test_help_has_an_example(command: str) -> None:
    done = tiny.succeeds(f"{command} --help")
    assert "\n Example: thresher " + command in done.out, "an example stands in a line of its own"
    assert ("--json" in done.out) == (command not in ("serve", "reproduce"))


@pytest.mark.parametrize("command", EVERY)
def test_sentences_of_help_are_broken_by_the_terminal_alone(command: str) -> None:
    """Not where the source breaks them, too: a line ends where the next word would not have fitted."""
    before = [line.strip() for line in tiny.succeeds(f"{command} --help").out.partition("╭")[0].splitlines()]
    assert len(before) > 4
    for line, following in zip(before, before[1:], strict=False):
        assert not line or not following or len(f" {line} {following.split()[0]}") > 79, f"{line!r} ends early"


def test_help_lists_every_command() -> None:
    done = tiny.succeeds("--help")
    for command in EVERY:
        assert command in done.out


def test_no_command_shows_the_help() -> None:
    done = tiny.thresher("")
    assert "Usage" in done.out + done.err
    assert done.code == 2


def test_manifest_is_plain_json(finished: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads((finished / "thresher.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_run_saved_from_python_can_be_measured(stock: Stock, tmp_path: Path) -> None:
    """The README's example: what the trainer knows of the task is saved with the model."""
    import thresher as package
    from thresher.models.checkpoint import load_dense

    model, tokenizer = load_dense(stock.bare, num_labels=2)
    task = package.load_file_task(str(stock.rows), class_names=["negative", "positive"])
    package.prune_(model)
    config = package.TrainConfig(max_steps=2, target_flops=0.6, precision="fp32", evals_per_stage=1)
    package.Trainer(model, tokenizer, task, config, device="cpu").fit()
    package.save(model, tokenizer, tmp_path / "mine")
    found = json.loads(tiny.succeeds("eval {run} --test {test} --json", run=tmp_path / "mine", test=stock.test).out)
    assert set(found["splits"]["test"]) == {"pruned", "unpruned"}
    said = tiny.succeeds("explain {run} film", run=tmp_path / "mine").out
    assert "negative" in said or "positive" in said


def test_version() -> None:
    import thresher as package

    assert tiny.succeeds("--version").out.strip() == package.__version__


def test_help_shows_the_tables_of_the_configuration_file() -> None:
    assert "[prune] and [train]" in " ".join(tiny.succeeds("prune --help").out.replace("│", " ").split())
