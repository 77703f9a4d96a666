"""thresher prune: every kind of input gives a whole run that other programs can open."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli import tiny
from tests.cli.conftest import Stock

PRUNE = f"prune {{model}} --train {{rows}} --out {{out}} {tiny.QUICK}"


def paired(count: int = 40) -> list[dict[str, Any]]:
    texts = tiny.sentences(count)
    return [
        {"first": text, "second": texts[(index * 7 + 3) % count][0], "same": "yes" if index % 3 else "no"}
        for index, (text, _) in enumerate(texts)
    ]


def graded(count: int = 40) -> list[dict[str, Any]]:
    """Numbers to predict: a fraction of the words is good."""
    return [
        {"text": text, "label": round(sum(word in tiny.GOOD for word in text.split()) / len(text.split()) + 0.01, 3)}
        for text, _ in tiny.sentences(count)
    ]


def check_run(out: Path) -> dict[str, Any]:
    """What every run must hold; returns its manifest."""
    manifest = tiny.manifest(out)
    assert manifest["format_version"] == 1
    assert len(manifest["thresholds"]) == manifest["layers"] == tiny.LAYERS
    for models in manifest["quality"].values():
        assert set(models) == {"dense", "pruned"}
        kept = models["pruned"]["kept_per_layer"]
        assert kept == sorted(kept, reverse=True), "a dropped token never comes back"
        assert kept[-1] < models["pruned"]["mean_length"], "nothing was dropped"
        assert models["dense"]["kept_per_layer"] is None
    assert manifest["history"][-1]["stage"] == "hard"
    assert not out.with_name(out.name + ".partial").exists()
    assert {path.name for path in out.parent.iterdir() if path.name.startswith(".")} == set()
    assert not [name for name in tiny.tree(out) if name.endswith((".bin", ".pt", ".pkl"))]
    return manifest


def test_run_of_a_classifier(stock: Stock, finished: Path) -> None:
    manifest = check_run(finished)
    assert manifest["task"]["name"] == "rows"
    assert manifest["task"]["labels"] == ["negative", "positive"]
    assert manifest["base_model"] == str(stock.head)
    assert manifest["provenance"]["command"].startswith("thresher prune ")
    assert manifest["provenance"]["seed"] == 0
    # The model had a head, so its own weights are the baseline and need no copy.
    assert not (finished / "dense").exists()
    stages = {row["stage"] for row in manifest["history"]}
    assert stages == {"hard"}
    assert manifest["prune"]["score"] == "value", "the default method's"


def test_settings_are_saved_as_resolved(finished: Path) -> None:
    manifest = tiny.manifest(finished)
    assert manifest["recipe"]["recipe"] == "default"
    assert manifest["recipe"]["target_flops"] == 0.6
    assert manifest["recipe"]["max_steps"] == 2
    assert manifest["recipe"]["hard_epochs"] == 3.0
    assert manifest["prune"]["protect"] == ["first"]
    assert manifest["prune"]["scale"] == "relative"


def test_run_opens_as_a_plain_model(stock: Stock, finished: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    import thresher

    model, loaded = AutoModelForSequenceClassification.from_pretrained(finished, output_loading_info=True)
    assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.id2label == {0: "negative", 1: "positive"}
    batch = AutoTokenizer.from_pretrained(finished)("the film is good", return_tensors="pt")
    run = thresher.load(finished).model
    thresher.gates_of(run).set_mode("off")
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(**batch).logits, run(**batch).logits)


def test_new_head_keeps_the_dense_model(stock: Stock, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    done = tiny.succeeds(PRUNE + " --finetune auto", model=stock.bare, rows=stock.rows, out=tmp_path / "run")
    manifest = check_run(tmp_path / "run")
    assert "fine-tuned here" in manifest["base_model"]
    assert {row["stage"] for row in manifest["history"]} == {"finetune", "hard"}
    for folder in (tmp_path / "run", tmp_path / "run" / "dense"):
        model, loaded = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert model.config.id2label == {0: "negative", 1: "positive"}
    dense, pruned = tiny.weights(tmp_path / "run" / "dense"), tiny.weights(tmp_path / "run")
    assert set(dense) == set(pruned)
    assert not torch.equal(dense["classifier.weight"], pruned["classifier.weight"])
    assert "saved" in done.out and "thresher explain" in done.out
    # dense/ is a model like any other: pruning can start from it.
    tiny.succeeds(
        PRUNE + " --finetune never", model=tmp_path / "run" / "dense", rows=stock.rows, out=tmp_path / "again"
    )
    check_run(tmp_path / "again")


def test_a_head_with_another_number_of_outputs_is_trained_anew_only_when_asked_for(
    stock: Stock, tmp_path: Path
) -> None:
    rows = [
        {"text": text, "label": ("low", "middle", "high")[index % 3]}
        for index, (text, _) in enumerate(tiny.sentences(40))
    ]
    places = {"model": stock.head, "rows": tiny.write_rows(tmp_path / "three.tsv", rows), "out": tmp_path / "run"}
    refused = tiny.thresher(PRUNE, **places)
    assert refused.code == 1 and "is a classifier, but not with the 3 outputs of the task" in refused.err
    assert not (tmp_path / "run").exists()
    tiny.succeeds(f"{PRUNE} --finetune always", **places)
    assert check_run(tmp_path / "run")["task"]["labels"] == ["high", "low", "middle"]
    assert tiny.weights(tmp_path / "run")["classifier.weight"].shape == (3, 32)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_pairs_in_every_format(ending: str, stock: Stock, tmp_path: Path) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rows = tiny.write_rows(tmp_path / f"pairs.{ending}", paired())
    columns = "--text-column first --pair-column second --label-column same"
    done = tiny.succeeds(f"{PRUNE} {columns} --json", model=stock.bare, rows=rows, out=tmp_path / "run")
    check_run(tmp_path / "run")
    answer = done.json()
    assert answer["out"] == str(tmp_path / "run")
    quality = answer["quality"]["held_out"]["pruned"]
    assert 0 < quality["relative_flops"] < 1
    assert len(quality["kept_per_layer"]) == tiny.LAYERS
    assert quality["mean_length"] > 10, "both texts of a pair count"
    explained = tiny.succeeds("explain {run} 'the film is good' 'the plot is bad' --json", run=tmp_path / "run").json()
    assert explained["tokens"].count("[SEP]") == 2
    assert explained["label"] in ("no", "yes")


def test_regression(stock: Stock, tmp_path: Path) -> None:
    rows = tiny.write_rows(tmp_path / "graded.csv", graded())
    tiny.succeeds(PRUNE, model=stock.bare, rows=rows, out=tmp_path / "run")
    manifest = check_run(tmp_path / "run")
    assert manifest["task"]["labels"] == []
    assert set(manifest["quality"]["held_out"]["pruned"]["metrics"]) == {"pearson", "spearman", "score"}
    measured = tiny.succeeds("eval {run} --test {rows} --json", run=tmp_path / "run", rows=rows).json()
    assert set(measured["splits"]["test"]["pruned"]["metrics"]) == {"pearson", "spearman", "score"}
    explained = tiny.succeeds("explain {run} 'the film is good' --json", run=tmp_path / "run").json()
    assert explained["probability"] is None
    assert isinstance(explained["value"], float)
    assert (
        f"value {explained['value']:.3f}" in tiny.succeeds("explain {run} 'the film is good'", run=tmp_path / "run").out
    )


def test_own_test_rows(stock: Stock, tmp_path: Path) -> None:
    tiny.succeeds(PRUNE + " --test {test}", model=stock.head, rows=stock.rows, test=stock.test, out=tmp_path / "run")
    assert set(check_run(tmp_path / "run")["quality"]) == {"test"}
    assert check_run(tmp_path / "run")["quality"]["test"]["pruned"]["rows"] == 16


def test_paper_recipe_with_lambda(stock: Stock, tmp_path: Path) -> None:
    command = "prune {model} --train {rows} --out {out} --recipe paper --lambda 0.05 --max-steps 2 --device cpu"
    tiny.succeeds(command, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    manifest = tiny.manifest(tmp_path / "run")
    assert manifest["recipe"]["recipe"] == "paper"
    assert manifest["recipe"]["lambda_"] == 0.05
    assert manifest["recipe"]["target_flops"] is None
    assert manifest["recipe"]["soft_mask"] == "plain"
    assert manifest["prune"]["scale"] == "paper"
    assert all(isinstance(value, float) for value in manifest["thresholds"]), (
        "the paper's last layer has a threshold too"
    )


def test_lambda_alone_replaces_the_target(stock: Stock, tmp_path: Path) -> None:
    command = "prune {model} --train {rows} --out {out} --lambda 0.05 --max-steps 1 --device cpu"
    tiny.succeeds(command, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    recipe = tiny.manifest(tmp_path / "run")["recipe"]
    assert (recipe["recipe"], recipe["lambda_"], recipe["target_flops"]) == ("default", 0.05, None)


def test_protected_separators(stock: Stock, tmp_path: Path) -> None:
    """The command line looks up the separator's id itself."""
    command = PRUNE + " --protect first --protect separators"
    tiny.succeeds(command, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    prune = check_run(tmp_path / "run")["prune"]
    assert prune["protect"] == ["first", "separators"]
    assert prune["separator_id"] == 3
    explained = tiny.succeeds("explain {run} 'the film is good' --json", run=tmp_path / "run").json()
    assert [
        layer for token, layer in zip(explained["tokens"], explained["dropped_at"], strict=True) if token == "[SEP]"
    ] == [None]


class TestPrecedence:
    """Flag before TOML before recipe."""

    TABLES = """
        [train]
        recipe = "paper"
        lambda_ = 0.2
        lr = 1e-4
        hard_epochs = 2

        [prune]
        final_threshold = 0.02
        protect = ["first", "separators"]
    """

    def resolve(self, tmp_path: Path, recipe: str | None = None, text: str = TABLES, **flags: Any) -> tuple[Any, Any]:
        from thresher.jobs.settings import resolve

        (tmp_path / "settings.toml").write_text(text, encoding="utf-8")
        prune_flags = {name: flags.pop(name) for name in ("protect", "scale") if name in flags}
        return resolve(recipe, tmp_path / "settings.toml", train_flags=flags, prune_flags=prune_flags)

    def test_file_over_recipe(self, tmp_path: Path) -> None:
        train, prune = self.resolve(tmp_path)
        assert (train.recipe, train.lambda_, train.lr, train.hard_epochs) == ("paper", 0.2, 1e-4, 2.0)
        assert train.soft_epochs == 5.0, "what the file leaves out is the recipe's"
        assert prune["final_threshold"] == 0.02
        assert prune["scale"] == "paper"

    def test_flag_over_file(self, tmp_path: Path) -> None:
        train, prune = self.resolve(tmp_path, lr=1e-3, protect=["first"])
        assert (train.lr, train.hard_epochs) == (1e-3, 2.0)
        assert prune["protect"] == ["first"]

    def test_recipe_flag_over_recipe_of_the_file(self, tmp_path: Path) -> None:
        train, prune = self.resolve(tmp_path, recipe="default")
        assert (train.recipe, train.soft_mask, train.lr) == ("default", "cumulative", 1e-4)
        assert "scale" not in prune

    def test_target_replaces_lambda_of_the_file(self, tmp_path: Path) -> None:
        train, _ = self.resolve(tmp_path, target_flops=0.4)
        assert (train.target_flops, train.lambda_) == (0.4, None)

    def test_lambda_replaces_target_of_the_file(self, tmp_path: Path) -> None:
        train, _ = self.resolve(tmp_path, text="[train]\ntarget_flops = 0.4\n", lambda_=0.1)
        assert (train.target_flops, train.lambda_) == (None, 0.1)

    def test_through_the_command_line(self, stock: Stock, tmp_path: Path) -> None:
        text = "[train]\nlr = 1e-4\nseed = 3\ntarget_flops = 0.7\nevals_per_stage = 1\n[prune]\nramp = 'plain'\n"
        (tmp_path / "settings.toml").write_text(text, encoding="utf-8")
        command = PRUNE + " --config {settings} --seed 4"
        tiny.succeeds(
            command, model=stock.head, rows=stock.rows, out=tmp_path / "run", settings=tmp_path / "settings.toml"
        )
        manifest = check_run(tmp_path / "run")
        recipe = manifest["recipe"]
        assert (recipe["lr"], recipe["seed"], recipe["target_flops"]) == (1e-4, 4, 0.6)
        assert manifest["prune"]["ramp"] == "plain"
        assert len(manifest["history"]) == 1, "one evaluation in the one stage"


def test_overwrite_replaces_the_whole_run(stock: Stock, tmp_path: Path) -> None:
    places = {"model": stock.head, "rows": stock.rows, "out": tmp_path / "run"}
    tiny.succeeds(PRUNE, **places)
    (tmp_path / "run" / "notes.txt").write_text("of the first run", encoding="utf-8")
    first = tiny.manifest(tmp_path / "run")
    (tmp_path / "run.partial").mkdir()
    tiny.succeeds(PRUNE + " --overwrite --seed 1", **places)
    assert check_run(tmp_path / "run")["recipe"]["seed"] == 1 != first["recipe"]["seed"]
    assert not (tmp_path / "run" / "notes.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_may_be_the_output(stock: Stock, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    tiny.succeeds(PRUNE, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    check_run(tmp_path / "run")


def test_same_seed_same_run(stock: Stock, finished: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        tiny.succeeds(f"{PRUNE} --seed {seed}", model=stock.head, rows=stock.rows, out=tmp_path / name)
    one, same, other = (tiny.weights(folder) for folder in (finished, tmp_path / "same", tmp_path / "other"))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert tiny.manifest(finished)["thresholds"] == tiny.manifest(tmp_path / "same")["thresholds"]


def test_brackets_in_names_are_no_markup(stock: Stock, tmp_path: Path) -> None:
    """rich reads [words] as styles; a file or class of that name must come through, and not end the program."""
    rows = [{"text": text, "label": ("[/b]", "[red]")[index % 2]} for index, (text, _) in enumerate(tiny.sentences(30))]
    file = tiny.write_rows(tmp_path / "rows [v2].csv", rows)
    done = tiny.succeeds(PRUNE, model=stock.bare, rows=file, out=tmp_path / "run [a]")
    assert "rows [v2]" in done.out.replace("\n", "")
    assert "run [a]" in done.out.replace("\n", "")
    said = tiny.succeeds("explain {run} film", run=tmp_path / "run [a]").out
    assert "-> [/b]" in said or "-> [red]" in said


def test_a_run_says_what_it_will_do(stock: Stock, tmp_path: Path) -> None:
    said = tiny.succeeds(PRUNE, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    assert "recipe default: method thresher, scores by value, 0.6 of the FLOPs" in said.out


@pytest.mark.parametrize("call", [PRUNE, "eval {finished} --test {test}"])
def test_a_gain_over_the_dense_model_is_put_right(
    call: str, stock: Stock, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("thresher.evaluation.gain.gain_notes", lambda *what: given.append(what) or ["trained longer"])
    places = {"model": stock.head, "rows": stock.rows, "out": tmp_path / "run", "finished": finished}
    said = tiny.succeeds(call, test=stock.test, **places)
    assert "trained longer" in said.out
    quality, recipe = given[0]
    assert recipe["method"] == "thresher" and all({"dense", "pruned"} <= set(models) for models in quality.values())


def test_other_class_names_are_taken_where_that_is_asked_for(stock: Stock, tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", tiny.classifier_config(("no", "yes")))
    places = {"model": model, "rows": stock.rows, "out": tmp_path / "run"}
    for call in (PRUNE, PRUNE + " --finetune never"):
        refused = tiny.thresher(call, **places)
        assert refused.code == 1 and "--class-names negative,positive" in refused.err
    tiny.succeeds(PRUNE + " --class-names negative,positive", **places)
    assert tiny.manifest(tmp_path / "run")["task"]["labels"] == ["negative", "positive"]


def test_a_classifier_without_class_names_is_told_which_is_which(stock: Stock, tmp_path: Path) -> None:
    """Taken in alphabetical order, a model whose first class is the positive one would be right on the wrong rows."""
    from transformers import AutoConfig

    model = tiny.save_model(tmp_path / "model", tiny.config(num_labels=2))
    places = {"model": model, "rows": stock.rows, "out": tmp_path / "run"}
    refused = tiny.thresher(PRUNE, **places)
    assert refused.code == 1 and "LABEL_0, LABEL_1" in refused.err and "nothing says which is which" in refused.err
    assert not (tmp_path / "run").exists()
    tiny.succeeds(PRUNE + " --class-names positive,negative", **places)
    assert AutoConfig.from_pretrained(tmp_path / "run").id2label == {0: "positive", 1: "negative"}
    found = tiny.succeeds("eval {run} --test {test}", run=tmp_path / "run", test=stock.test)
    assert "accuracy" in found.out


def test_a_head_without_weights_is_not_made_up(stock: Stock, tmp_path: Path) -> None:
    """The folder says that it has a head; the library would give it a random one."""
    from safetensors.torch import save_file

    folder = tmp_path / "headless"
    shutil.copytree(stock.head, folder)
    kept = {name: value for name, value in tiny.weights(folder).items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    done = tiny.thresher(
        "prune {model} --train {rows} --out {out}", model=folder, rows=stock.rows, out=tmp_path / "run"
    )
    assert done.code == 1 and "classifier" in done.err and not (tmp_path / "run").exists()


def test_a_target_that_was_missed_is_named(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.training.trainer.SLACK", -0.9)
    done = tiny.succeeds(PRUNE, model=stock.head, rows=stock.rows, out=tmp_path / "run")
    assert "no checkpoint came down to the 0.6 of the FLOPs asked for" in " ".join(done.out.split())


def test_truncated_rows_are_counted(stock: Stock, tmp_path: Path) -> None:
    done = tiny.succeeds(PRUNE + " --max-length 5", model=stock.head, rows=stock.rows, out=tmp_path / "run")
    said = " ".join(done.out.split())
    assert "training rows truncated to 5 tokens" in said and "selection rows truncated to 5 tokens" in said
