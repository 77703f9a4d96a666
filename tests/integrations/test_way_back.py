"""The way back to the stock model, and what an accelerated one or another model says that it cannot do."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import nn

import thresher
from tests.models.saved import contents, refused
from tests.models.sentences import PAIRS, TEXTS, WORDS
from tests.words import word_tokenizer
from thresher.errors import ConfigError, ModelError
from thresher.integrations.sentence_transformers import acceleration_of


def test_the_way_back_is_exact(embedder: Any, reranker: Any) -> None:
    for model, call in ((embedder, lambda: embedder.encode(TEXTS)), (reranker, lambda: reranker.predict(PAIRS))):
        wanted = call()
        thresher.accelerate_(model)
        with refused(ModelError, "accelerated already"):
            thresher.accelerate_(model)
        thresher.unaccelerate_(model)
        assert np.array_equal(call(), wanted)
        with refused(ModelError, "is not accelerated"):
            thresher.unaccelerate_(model)
        with refused(ModelError, "is not accelerated"):
            acceleration_of(model)
        copy.deepcopy(model)


def test_saved_files_are_the_stock_models(tmp_path: Path, embedder: Any, reranker: Any) -> None:
    for name, model in (("embedder", embedder), ("reranker", reranker)):
        model.save(str(tmp_path / name / "before"), create_model_card=False)
        thresher.accelerate_(model)
        model.save(str(tmp_path / name / "after"), create_model_card=False)
        assert contents(tmp_path / name / "before") == contents(tmp_path / name / "after")
        assert len(model.state_dict()) and model.dtype == torch.float32


def test_an_accelerated_model_stays_in_its_process(embedder: Any) -> None:
    thresher.accelerate_(embedder)
    for call in (copy.deepcopy, pickle.dumps):
        with refused(ModelError, "can neither be copied nor sent to another process"):
            call(embedder)


def test_what_an_accelerated_model_cannot_do_it_says(embedder: Any, reranker: Any) -> None:
    thresher.accelerate_(embedder)
    with refused(ModelError, "gives no token_embeddings"):
        embedder.encode(TEXTS, output_value="token_embeddings")
    embedder.set_pooling_include_prompt(False)
    with refused(ModelError, "include_prompt = False"):
        embedder.encode_query(TEXTS)
    embedder.encode(TEXTS)  # without a prompt there is nothing to leave out
    embedder[1].pooling_mode = "cls"
    with refused(ModelError, "pools by 'cls' now, and was accelerated for 'mean'"):
        embedder.encode(TEXTS)
    thresher.accelerate_(reranker)
    reranker.train()
    with refused(ModelError, "does not train"):
        reranker(reranker.preprocess(PAIRS))
    reranker.eval()
    features = reranker.preprocess(PAIRS)
    with refused(ModelError, "takes no position_ids"):
        reranker({**features, "position_ids": features["input_ids"]})
    reranker.tokenizer.padding_side = "left"
    with refused(ModelError, "needs padding at the end"):
        reranker.predict(PAIRS)


def test_a_compiled_model_computes_the_same(reranker: Any) -> None:
    wanted = reranker.predict(PAIRS)
    thresher.accelerate_(reranker)
    reranker.compile(backend="eager", dynamic=True)
    np.testing.assert_allclose(reranker.predict(PAIRS), wanted, atol=1e-5)


# --- models that cannot be accelerated -------------------------------------------------------------------------------


def test_other_models_are_refused_by_name(embedder: Any, reranker: Any) -> None:
    with refused(ModelError, "takes a SentenceTransformer or a CrossEncoder, not a Linear"):
        thresher.accelerate_(nn.Linear(1, 1))
    with refused(ModelError, "takes a SentenceTransformer or a CrossEncoder, not a BertForSequenceClassification"):
        thresher.accelerate_(reranker.model)
    embedder[1].pooling_mode = ("cls", "max")
    with refused(ModelError, "pools by cls and max, which is not supported yet"):
        thresher.accelerate_(embedder)
    with refused(ModelError, "is made of Transformer; accelerate_ needs Transformer and Pooling first"):
        thresher.accelerate_(SentenceTransformer(modules=[embedder[0]], device="cpu"))
    embedder[0].model.forward = embedder[0].model.forward
    with refused(ModelError, "another library has replaced the model's forward"):
        thresher.accelerate_(embedder)


class Adapted(nn.Module):
    """As an adapter's library wraps a product: it shows the weights it wraps, and computes more."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.more = base, nn.Linear(base.in_features, base.out_features)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(values) + self.more(values)
        return found


def test_products_that_are_more_than_their_weights_are_refused(embedder: Any, reranker: Any) -> None:
    """Left out without a word, they would give other vectors; quantized ones have no weights to read."""
    attention = embedder[0].model.encoder.layer[0].attention.self
    attention.query = Adapted(attention.query)
    with refused(
        ModelError, "Adapted, and the engine reads plain torch.nn.Linear with weights in floating point; merge"
    ):
        thresher.accelerate_(embedder)
    assert "forward" not in vars(embedder[0])
    output = reranker[0].model.bert.encoder.layer[1].output
    output.dense.weight = nn.Parameter(output.dense.weight.to(torch.int8), requires_grad=False)
    with refused(ModelError, "torch.nn.modules.linear.Linear, and the engine reads plain torch.nn.Linear with weights"):
        thresher.accelerate_(reranker)


def test_an_unsupported_family_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"vocab_size": 60, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "num_labels": 1}
    GPT2ForSequenceClassification(GPT2Config(**sizes, pad_token_id=0)).save_pretrained(tmp_path)
    word_tokenizer(WORDS).save_pretrained(tmp_path)
    with refused(ModelError, "model family 'gpt2' is not supported"):
        thresher.accelerate_(CrossEncoder(str(tmp_path), device="cpu"))


def test_settings_are_checked_before_any_work(reranker: Any) -> None:
    for settings, message in (
        ({"dtype": "fp7"}, "dtype = 'fp7' is not one of"),
        ({"device": "tpu"}, "device = 'tpu' is not one of"),
        ({"dial": -1.0}, "dial = -1.0"),
        ({"dtype": "int8-static"}, "int8-static needs a quantized run"),
    ):
        with refused(ConfigError, message):
            thresher.accelerate_(reranker, **settings)
    assert "forward" not in vars(reranker[0])


def test_half_precision_on_a_cpu_is_computed_in_full(reranker: Any) -> None:
    wanted = reranker.predict(PAIRS)
    reranker.half()
    thresher.accelerate_(reranker)
    assert acceleration_of(reranker)["dtype"] == "fp32"
    assert reranker.predict(PAIRS).tolist() == pytest.approx(wanted.tolist(), abs=5e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_results_have_the_dtype_of_the_weights(dtype: torch.dtype, reranker: Any, embedder: Any) -> None:
    near = {"atol": 1e-5 if dtype == torch.float64 else 0.02, "rtol": 0}
    for model, call in ((reranker, reranker.predict), (embedder, embedder.encode)):
        texts = PAIRS if model is reranker else TEXTS
        model.to(dtype)
        wanted, tensor = call(texts), call(texts, convert_to_tensor=True)
        thresher.accelerate_(model)
        found = call(texts)
        assert found.dtype == wanted.dtype and call(texts, convert_to_tensor=True).dtype == tensor.dtype
        np.testing.assert_allclose(found, wanted, **near)


def test_another_arithmetic_can_be_asked_for(reranker: Any) -> None:
    wanted = reranker.predict(PAIRS)
    thresher.accelerate_(reranker, dtype="bf16", device="cpu")
    assert acceleration_of(reranker)["dtype"] == "bf16"
    assert reranker.predict(PAIRS).tolist() == pytest.approx(wanted.tolist(), abs=0.05)
    assert json.dumps(acceleration_of(reranker))


@pytest.mark.gpu
def test_on_a_gpu(reranker: Any, embedder: Any) -> None:
    for model, call in ((reranker, lambda: reranker.predict(PAIRS)), (embedder, lambda: embedder.encode(TEXTS))):
        wanted = call()
        model.to("cuda")
        thresher.accelerate_(model, dtype="fp16")
        assert acceleration_of(model)["device"].startswith("cuda")
        np.testing.assert_allclose(call(), wanted, atol=5e-3)
    assert embedder.encode(TEXTS, convert_to_tensor=True).device.type == "cuda"
