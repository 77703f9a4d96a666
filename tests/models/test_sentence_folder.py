"""What sentence-transformers folders of all versions say, and what is refused, in one line each."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models.families import WIDTH
from tests.models.saved import refused
from tests.models.sentences import PAIRS, VERSION_2, config_of, cross_encoder_folder, embedder_folder, write
from thresher.core.heads import Head
from thresher.errors import ModelError
from thresher.models.heads import head_of
from thresher.models.sentence_folder import is_embedder, read_head, read_stored
from thresher.models.stored import Stored, keep_stored_

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
SETTINGS, TRANSFORMER, POOLING = (
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)


def stored_in(folder: Path) -> Stored | None:
    return read_stored(folder, config_of(folder))


def head_in(folder: Path) -> Head | None:
    return read_head(folder, config_of(folder))


# --- embedders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_what_version_6_writes_says_the_same(mode: str, tmp_path: Path) -> None:
    key = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[mode]
    prompts = {"query": "query : ", "document": ""}
    settings = {"prompts": prompts, "truncate_dim": 8, "default_prompt_name": "query"}
    old = embedder_folder(tmp_path / "old", pooling={key: True}, settings=settings)
    SentenceTransformer(str(old), device="cpu").save(str(tmp_path / "new"), create_model_card=False)
    assert json.loads((tmp_path / "new" / POOLING).read_text())["pooling_mode"] == mode
    reads = "first" if mode == "cls" else "mean"
    wanted = Head(
        reads=reads,
        means="embedding",
        normalised=True,
        width=8,
        prompts=prompts,
        default_prompt="query",
    )
    assert head_in(tmp_path / "new") == head_in(old) == wanted
    assert is_embedder(old) and is_embedder(tmp_path / "new")


def test_no_mode_at_all_is_the_mean_as_in_the_library(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path, pooling={"pooling_mode_mean_tokens": False}, kinds=("Transformer", "Pooling"))
    assert head_in(folder) == Head(reads="mean", means="embedding")


def test_prompts_that_are_left_out_of_pooling_matter_only_where_there_are_some(tmp_path: Path) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    folder = embedder_folder(tmp_path, pooling=pooling, settings={"prompts": {"query": "", "other": None}})
    assert head_in(folder) == Head(reads="mean", means="embedding", normalised=True, prompts={"query": ""})
    write(folder / SETTINGS, {"prompts": {"query": "query : "}})
    with refused(ModelError, "leaves prompts out of its pooling (include_prompt = false)"):
        head_in(folder)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        (
            POOLING,
            {"pooling_mode_max_tokens": True},
            "pools by max, which is not supported yet; supported: cls or mean",
        ),
        (POOLING, {"pooling_mode_mean_sqrt_len_tokens": True}, "pools by mean_sqrt_len_tokens"),
        (POOLING, {"pooling_mode_weightedmean_tokens": True}, "pools by weightedmean"),
        (POOLING, {"pooling_mode_lasttoken": True}, "pools by lasttoken"),
        (POOLING, {"pooling_mode": "lasttoken"}, "pools by lasttoken"),
        (POOLING, {"pooling_mode": ["cls", "mean"]}, "pools by cls and mean"),
        (POOLING, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pools by cls and mean"),
        (POOLING, {"pooling_mode": 5}, "pooling_mode = 5; it must be the name of a mode"),
        (POOLING, {"pooling_mode": []}, "pooling_mode = []"),
        (POOLING, {"pooling_mode_cls_token": "yes"}, "pooling_mode_cls_token = 'yes'; it must be true or false"),
        (POOLING, {"include_prompt": 1}, "include_prompt = 1; it must be true or false"),
        (POOLING, {"embedding_dimension": WIDTH + 1}, f"embedding_dimension = {WIDTH + 1}, and the encoder's width is"),
        (POOLING, {"word_embedding_dimension": True}, "word_embedding_dimension = True; it must be a whole number"),
        (POOLING, [], "must be a block of settings, not list"),
        (SETTINGS, {"truncate_dim": 0}, f"truncate_dim = 0; its embeddings have {WIDTH} numbers"),
        (SETTINGS, {"truncate_dim": WIDTH + 1}, f"truncate_dim = {WIDTH + 1}"),
        (SETTINGS, {"truncate_dim": "8"}, "truncate_dim = '8'; it must be a whole number"),
        (SETTINGS, {"prompts": ["a"]}, "prompts = ['a']; it must be a block of settings"),
        (SETTINGS, {"prompts": {"query": 5}}, "prompts = {'query': 5}; they must be texts by their names"),
        (SETTINGS, {"default_prompt_name": "query"}, "default_prompt_name = 'query'; its prompts are (none)"),
        (SETTINGS, {"similarity_fn_name": "maxsim"}, "compares by 'maxsim'"),
        (SETTINGS, {"model_type": "SparseEncoder"}, "model_type = 'SparseEncoder', which is not supported yet"),
        (SETTINGS, {"model_type": ["a"]}, "model_type = ['a']"),
        (TRANSFORMER, {"max_seq_length": "128"}, "max_seq_length = '128'; it must be a whole number"),
        (TRANSFORMER, {"max_seq_length": 0}, "max_seq_length = 0; it must be at least 1"),
        (TRANSFORMER, {"do_lower_case": "no"}, "do_lower_case = 'no'; it must be true or false"),
        (TRANSFORMER, {"transformer_task": "fill-mask"}, "transformer_task = 'fill-mask'"),
        (TRANSFORMER, {"query_expansion": {"length": 32}}, "query_expansion = {'length': 32}, which is not supported"),
        (TRANSFORMER, {"config_args": {"hidden_act": "relu"}}, "sets config_args (hidden_act)"),
        (TRANSFORMER, {"processor_kwargs": {"lowercase": True}}, "sets processor_kwargs (lowercase)"),
        (TRANSFORMER, {"model_args": 5}, "model_args = 5; it must be a block of settings"),
        (
            TRANSFORMER,
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "only text by 'forward' and 'last_hidden_state' is read",
        ),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "normalises 'token_embeddings'"),
        ("modules.json", {}, "must be a list of modules, not dict"),
        ("modules.json", ["a"], "has a module without type and path: 'a'"),
        ("modules.json", [{"type": "os.system", "path": ""}], "names the module os.system, which is code of its own"),
        ("modules.json", [], "made of the modules (none)"),
    ],
)
def test_what_is_not_supported_or_damaged_is_named(file: str, value: Any, message: str, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    write(folder / file, value)
    with refused(ModelError, message):
        head_in(folder)


@pytest.mark.parametrize(
    "kinds", [("Transformer", "Pooling", "Dense"), ("Transformer",), ("Transformer", "Normalize", "Pooling")]
)
def test_other_modules_are_refused_by_name(kinds: tuple[str, ...], tmp_path: Path) -> None:
    with refused(ModelError, f"is made of the modules {', '.join(kinds)}, which is not supported yet"):
        head_in(embedder_folder(tmp_path, kinds=kinds))


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "", "a\\b", "a\0b"])
def test_a_module_folder_lies_inside(path: str, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    modules = [("", "Transformer"), (path, "Pooling")]
    write(folder / "modules.json", [{"path": place, "type": f"{VERSION_2}.{kind}"} for place, kind in modules])
    with refused(ModelError, "it must lie inside the model's folder"):
        head_in(folder)


def test_an_encoder_in_a_folder_of_its_own_says_what_to_do(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    modules = [("0_BERT", "Transformer"), ("1_Pooling", "Pooling")]
    write(folder / "modules.json", [{"path": place, "type": f"{VERSION_2}.{kind}"} for place, kind in modules])
    with refused(ModelError, "keeps its encoder in the folder 0_BERT", "save it again"):
        head_in(folder)


@pytest.mark.parametrize("file", ["modules.json", SETTINGS, TRANSFORMER, POOLING])
@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"truncate_dim": ' + b"9" * 5000 + b"}"])
def test_broken_json_gives_one_line(file: str, damage: bytes, tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    (folder / file).write_bytes(damage)
    with refused(ModelError, Path(file).name, "is not valid JSON"):
        head_in(folder)


def test_a_missing_pooling_is_named(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path)
    (folder / POOLING).unlink()
    with refused(ModelError, "has no 1_Pooling/config.json, which its modules.json asks for"):
        head_in(folder)


# --- cross-encoders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.0.1"}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}}, "identity"),
        ({"sentence_transformers": {"version": "4.0.1"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ({"sbert_ce_default_activation_function": None}, "sigmoid"),
    ],
)
@pytest.mark.parametrize("newest", [False, True])
def test_a_cross_encoder_of_any_version(entries: Any, activation: str, newest: bool, tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path / "old", **entries)
    wanted = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    if newest:
        CrossEncoder(str(folder), device="cpu").save(str(tmp_path / "new"), create_model_card=False)
        folder = tmp_path / "new"
    stored = stored_in(folder)
    assert stored == Stored(Head(means="score", activation=activation), activation=activation)
    assert not is_embedder(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    keep_stored_(model, stored)
    assert head_of(model).means == "score"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    logits = model(**tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")).logits[:, 0]
    found = torch.sigmoid(logits) if activation == "sigmoid" else logits
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=0)
    # What it says of itself survives a plain save, for us and for the library.
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    assert stored_in(tmp_path / "again") == stored
    again = CrossEncoder(str(tmp_path / "again"), device="cpu").predict(PAIRS)
    assert again.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("activation", "problem", "means"),
    [(IDENTITY, None, "classes"), (SIGMOID, None, "labels"), (IDENTITY, "multi_label_classification", "labels")],
)
def test_a_cross_encoder_with_several_outputs(activation: str, problem: str | None, means: str, tmp_path: Path) -> None:
    entries = {"sentence_transformers": {"activation_fn": activation}, "problem_type": problem}
    head = head_in(cross_encoder_folder(tmp_path, labels=3, **entries))
    assert head == Head(means=means)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"sentence_transformers": {"activation_fn": "os.system"}}, "activation 'os.system' is not supported"),
        ({"sentence_transformers": {"activation_fn": 5}}, "activation in config.json is 5; it must be a name"),
        ({"sentence_transformers": "yes"}, "'sentence_transformers' in config.json is 'yes'"),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Softmax"},
            "makes every single score 1",
        ),
        ({"sentence_transformers": {}, "architectures": ["BertModel"]}, "a cross-encoder made of BertModel"),
    ],
)
def test_a_cross_encoder_that_cannot_be_read(entries: Any, message: str, tmp_path: Path) -> None:
    with refused(ModelError, message):
        head_in(cross_encoder_folder(tmp_path, **entries))


@pytest.mark.parametrize(
    ("settings", "kinds", "message"),
    [
        ({"prompts": {"query": "q: "}}, ["Transformer"], "a cross-encoder with prompts (query)"),
        ({}, ["Transformer", "LogitScore"], "a cross-encoder made of the modules Transformer, LogitScore"),
        ({"activation_fn": "my.Own"}, ["Transformer"], "activation 'my.Own' is not supported"),
    ],
)
def test_a_new_cross_encoder_that_cannot_be_read(settings: Any, kinds: Any, message: str, tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path)
    write(folder / SETTINGS, {"model_type": "CrossEncoder"} | settings)
    write(folder / "modules.json", [{"path": "", "type": f"sentence_transformers.base.{kind}"} for kind in kinds])
    with refused(ModelError, message):
        head_in(folder)


# --- plain folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "problem", "means"),
    [
        (1, None, "value"),
        (1, "regression", "value"),
        (3, None, "classes"),
        (3, "single_label_classification", "classes"),
        (3, "multi_label_classification", "labels"),
        (1, "multi_label_classification", "labels"),
    ],
)
def test_a_plain_classifier(labels: int, problem: str | None, means: str, tmp_path: Path) -> None:
    folder = cross_encoder_folder(tmp_path, labels=labels, problem_type=problem)
    assert head_in(folder) == Head(means=means) == head_of(AutoModelForSequenceClassification.from_pretrained(folder))


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForPreTraining", None])
def test_a_pretrained_encoder_has_no_head_to_keep(architecture: str | None, tmp_path: Path) -> None:
    names = None if architecture is None else [architecture]
    assert stored_in(cross_encoder_folder(tmp_path, architectures=names)) is None


@pytest.mark.parametrize("architecture", ["BertForMultipleChoice", "BertForNextSentencePrediction"])
def test_another_head_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    with refused(ModelError, f"{architecture} is not supported yet"):
        head_in(cross_encoder_folder(tmp_path, architectures=[architecture]))


def test_a_name_that_the_hub_cannot_answer_for(tmp_path: Path) -> None:
    assert not is_embedder("no-such-owner/no-such-model")  # offline, nothing is there
