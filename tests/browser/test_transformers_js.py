"""transformers.js in node loads an exported folder as it is, and answers as the engine does."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import thresher
from tests.engine.graphs.running import gated
from tests.models.sentences import TEXTS, WORDS
from tests.words import word_tokenizer
from thresher.engine.engine import Engine
from thresher.models.checkpoint import save

PACKAGE = "@huggingface/transformers@4.3.1"
SCRIPT = """
import { env, pipeline } from "@huggingface/transformers";
env.allowRemoteModels = false;
env.localModelPath = "./";
const [folder, ...texts] = process.argv.slice(2);
const classify = await pipeline("text-classification", folder, { dtype: "fp32" });
const found = [];
for (const text of texts) found.push(await classify(text, { top_k: null }));
console.log(JSON.stringify(found));
"""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None, reason="no npm to fetch transformers.js with"),
]


def test_a_pipeline_gives_the_probabilities_of_the_engine(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(gated("bert", score="value").float(), word_tokenizer(WORDS, model_max_length=64), run)
    thresher.export(run, out=tmp_path / "exported")
    command = ["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(tmp_path), PACKAGE]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"npm cannot fetch {PACKAGE} here: {why}")
    (tmp_path / "ask.mjs").write_text(SCRIPT, encoding="utf-8")
    asked = ["node", "ask.mjs", "exported", *TEXTS[:3]]
    said = subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    engine = Engine.load(run, device="cpu", backend="reference", dtype="fp32")
    names = engine.labels
    for found, expected in zip(json.loads(said), engine.predict_arrays(TEXTS[:3]).outputs, strict=True):
        powers = np.exp(expected - expected.max())
        by_name = {each["label"]: each["score"] for each in found}
        np.testing.assert_allclose([by_name[name] for name in names], powers / powers.sum(), atol=1e-4)
