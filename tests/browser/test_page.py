"""examples/browser in headless Chromium: the exported run answers there as in the engine, from local files alone."""

import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from in_chromium import browser, prepare, reported, served

import thresher
from tests.engine.graphs.running import gated
from tests.models.families import LAYERS
from tests.models.sentences import TEXTS, WORDS
from tests.words import word_tokenizer
from thresher.engine.engine import Engine
from thresher.models.checkpoint import save

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="no headless Chromium; apt-get install chromium-headless-shell"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="no npm to fetch onnxruntime-web with"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's folder with a tiny run that was never trained; the run lies beside it."""
    folder = tmp_path_factory.mktemp("browser")
    save(gated("bert", score="value").float(), word_tokenizer(WORDS, model_max_length=64), folder / "run")
    try:
        prepare().fetch_packages(folder / "page")
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"npm cannot fetch the packages here: {why}")
    for name, ways in (("pruned", {"passed": True}), ("dense", {"dense": True})):
        thresher.export(folder / "run", out=folder / "page" / "models" / name, batch_one=True, **ways)
    for name in prepare().PAGE:
        shutil.copy(EXAMPLE / name, folder / "page" / name)
    return folder / "page"


def test_the_page_answers_as_the_engine_does(page: Path, tmp_path: Path) -> None:
    text = TEXTS[0]
    with served(page) as (address, reports):
        found = reported(f"{address}?report&text={quote(text)}", reports, seconds=120)
    assert "error" not in found, found
    for dial, name in ((1.0, "logits"), (0.0, "dense_logits")):
        engine = Engine.load(page.parent / "run", device="cpu", backend="reference", dtype="fp32", dial=dial)
        expected = engine.predict_arrays([text])
        np.testing.assert_allclose(found[name], expected.outputs[0], atol=1e-4, rtol=1e-4)
        if dial:
            counts = [sum(passed > layer for passed in found["passed"]) for layer in range(LAYERS)]
            assert counts == expected.kept[0].tolist()
    assert len(found["tokens"]) == len(found["passed"]) and min(found["passed"]) < LAYERS
    assert all(value > 0 for value in found["times"].values())


def test_a_picture_shows_the_words_and_both_times(page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    with served(page) as (address, reports):
        reported(f"{address}?report", reports, seconds=120, shot=shot)
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000


def test_a_missing_model_is_said(page: Path, tmp_path: Path) -> None:
    shutil.copytree(page, tmp_path / "page", ignore=shutil.ignore_patterns("models"))
    with served(tmp_path / "page") as (address, reports):
        found = reported(f"{address}?report", reports, seconds=120)
    assert "json is not there; run prepare.py first" in found["error"]
