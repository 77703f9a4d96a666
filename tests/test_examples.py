"""What the pages tell a reader to type works: Python runs on tiny stand-ins, commands are read by their real parser."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import thresher
from tests.cli import tiny
from tests.models.sentences import cross_encoder_folder, embedder_folder
from thresher.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for room in ("docs", "experiments", "benchmarks") for p in ROOT.glob(room + "/**/*.md"))]
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.S | re.M)
INLINE = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"\s{3,}.*|\s+#.*")  # behind a command, in columns or after a mark
PROGRAMS: Any = typer.main.get_command(app)
OPTIONS = {
    name: {flag for option in program.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
    for name, program in PROGRAMS.commands.items()
}
OTHERS = {"--version", "--check"}  # of thresher itself, and of ruff


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks() -> list[Any]:
    found = [
        (page, code) for page in PAGES for kind, code in FENCED.findall(page.read_text("utf-8")) if kind == "python"
    ]
    return [pytest.param(code, id=f"{name_of(page)}-{number}") for number, (page, code) in enumerate(found)]


def commands() -> list[Any]:
    """Every line of a block, and every piece of code in a sentence, that begins with the program's name."""
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for _, block in FENCED.findall(text):
            lines = re.sub(r"\\\n\s*", "", block).splitlines()
            found += [(page, COMMENT.sub("", line), True) for line in lines if line.startswith("thresher ")]
        for code in INLINE.findall(FENCED.sub("", text)):
            if code.startswith("thresher "):
                found.append((page, " ".join(code.split()), False))
    return [pytest.param(line, whole, id=f"{name_of(page)}: {line}") for page, line, whole in found]


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's models and data by the names that the pages give them, in the current folder."""
    tiny.save_model(tmp_path / "my-finetuned-encoder", tiny.classifier_config())
    tiny.save_model(tmp_path / "my-encoder", tiny.config(), head=False)
    cross_encoder_folder(
        tmp_path / "my-reranker", sbert_ce_default_activation_function="torch.nn.modules.activation.Sigmoid"
    )
    embedder_folder(tmp_path / "my-embedder")
    names = ("cold", "long", "warm")
    several = tiny.classifier_config(names, problem_type="multi_label_classification")
    tiny.save_model(tmp_path / "my-tagger", several)
    tiny.save_model(tmp_path / "my-reader", tiny.config(), kind="AutoModelForQuestionAnswering")
    tags = tiny.classifier_config(("O", "B-NOUN", "I-NOUN"))
    tiny.save_model(tmp_path / "my-name-finder", tags, kind="AutoModelForTokenClassification")
    own = [{"text": text, "label": label} for text, label in tiny.sentences(96)]
    tiny.write_rows(tmp_path / "my.csv", own)
    tiny.write_rows(tmp_path / "stars.csv", [{"text": row["text"], "label": len(row["text"]) / 8} for row in own])
    (tmp_path / "texts.txt").write_text("\n".join(row["text"] for row in own), encoding="utf-8")
    rows = [{"sentence": text, "label": int(label == "positive")} for text, label in tiny.sentences(64)]
    (tmp_path / "glue" / "sst2").mkdir(parents=True)
    tiny.write_rows(tmp_path / "glue" / "sst2" / "train.jsonl", rows[:48])
    tiny.write_rows(tmp_path / "glue" / "sst2" / "validation.jsonl", rows[48:])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", python_blocks())
def test_python_runs(code: str, stand_ins: None) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_every_public_name_has_an_example() -> None:
    """On the page on Python, whose blocks all run."""
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    code = "".join(block for kind, block in FENCED.findall(page) if kind == "python")
    assert set(thresher.__all__) - set(re.findall(r"thresher\.(\w+)", code)) == set()


def test_there_are_examples_to_run() -> None:
    pages = {str(block.id).rpartition("-")[0] for block in python_blocks()}
    assert {"README.md", "docs/sentence-transformers.md"} <= pages
    whole = [block.values[0].split()[1] for block in commands() if block.values[1]]
    assert {"prune", "search", "eval", "calibrate", "explain", "quantize", "bench", "doctor"} <= set(whole)


@pytest.mark.parametrize(("line", "whole"), commands())
def test_commands_have_a_parser(line: str, whole: bool) -> None:
    """Whole ones are parsed; of those in a sentence, which leave out what does not matter there, every flag exists."""
    _, name, *words = shlex.split(line)
    assert name in OPTIONS, f"{name} is not a command"
    if whole:
        PROGRAMS.commands[name].make_context(name, words)
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= OPTIONS[name]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_flags_and_names_in_sentences_exist(page: Path) -> None:
    spans = INLINE.findall(FENCED.sub("", page.read_text("utf-8")))
    flags = {
        flag for code in spans if re.match("--|thresher", code) for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", code)
    }
    if "benchmarks" not in page.parts:  # whose scripts have flags of their own
        assert flags <= OTHERS.union(*OPTIONS.values())
    names = {name for code in spans for name in re.findall(r"\bthresher\.([A-Za-z_]+)", code)} - {"json", "toml"}
    rooms = {folder.name for folder in (ROOT / "src" / "thresher").iterdir() if folder.is_dir()}
    assert names <= rooms.union(thresher.__all__)


def test_targets_of_make_exist() -> None:
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        blocks = "".join(block for _, block in FENCED.findall(page.read_text("utf-8")))
        named = set(re.findall(r"^make ([a-z]+)", blocks, flags=re.M))
        assert named and named <= rules, page.name
