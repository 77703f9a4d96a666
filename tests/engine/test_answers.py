"""engine.answer and engine.tag: characters are exact, windows are joined, and bad texts have one clear error."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

import thresher
from tests.models.families import randomize_
from tests.words import SPECIAL
from thresher.config import PruneConfig
from thresher.core.heads import Head
from thresher.engine import token_stream
from thresher.engine.engine import Engine
from thresher.engine.of_tokens import Answer, Tagged
from thresher.errors import ConfigError, DataError, ModelError
from thresher.models.attach import gates_of, prune_
from thresher.models.heads import auto_class, set_head_

LETTERS = [chr(code) for code in range(33, 127)]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]


def character_tokenizer() -> Any:
    """Every character is a token, a word one where spaces are: any text has exact offsets to be compared with."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *LETTERS, *(f"##{one}" for one in LETTERS)])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names: Any = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, **names, model_input_names=["input_ids", "token_type_ids", "attention_mask"]
    )


def model_for(means: str, *, positions: int = 64, name: str = "bert") -> Any:
    config = AutoConfig.for_model(
        name,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=len(SPECIAL) + 2 * len(LETTERS),
        max_position_embeddings=positions,
        num_labels=2 if means == "span" else len(TAGS),
    )
    if means == "tags":
        config.id2label = dict(enumerate(TAGS))
        config.label2id = {tag: number for number, tag in enumerate(TAGS)}
    model = auto_class(means).from_config(config).eval()
    randomize_(model, 0)
    return model


def engine_for(means: str, **options: Any) -> Engine:
    positions = options.pop("positions", 64)
    return Engine.from_model(
        model_for(means, positions=positions), character_tokenizer(), device="cpu", dtype="fp32", **options
    )


HARD = [
    "e\u0301te\u0301 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e17\u0e35\u0e48 \U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea",
    "ab\tcd  ef\n\ngh",
    "caf\u0065\u0301 na\u00efve \U0001f469\u200d\U0001f4bb \u05e9\u05dc\u05d5\u05dd \u4f60\u597d x",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud558\u11ab \u0e19\u0e49\u0e33 \u0646\u200c\u0647 \uff76\uff9e",
    "\U0001f1eb\U0001f1f7 flags \U0001f3f3\ufe0f\u200d\U0001f308 and words",
]


@pytest.mark.parametrize("context", HARD)
def test_a_span_is_exactly_its_characters(context: str) -> None:
    found = engine_for("span").answer("where ?", context, null_threshold=math.inf)
    assert isinstance(found, Answer) and found.text
    for span in found.best:
        assert span.text == context[span.start : span.end] and span.text.strip() == span.text != ""
    assert (found.text, found.start, found.end) == (found.best[0].text, found.best[0].start, found.best[0].end)
    assert not found.text.startswith("\u0301") and "\u200d" not in found.text[-1:]


@pytest.mark.parametrize("text", HARD)
def test_an_entity_is_exactly_its_characters(text: str) -> None:
    (found,) = engine_for("tags").tag([text])
    assert found.error is None
    for entity in found.entities:
        assert entity.text == text[entity.start : entity.end] and entity.label in ("PER", "LOC")
        assert 0 < entity.score <= 1


def letters_tokenizer() -> Any:
    """Every character is a token, marks and white space among them, as in byte-level tokenizers."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(SPECIAL)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names: Any = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names, model_input_names=["input_ids", "attention_mask"])


@pytest.mark.parametrize("means", ["span", "tags"])
def test_no_span_cuts_what_the_eye_takes_for_one_character(means: str) -> None:
    regex = pytest.importorskip("regex")
    engine = Engine.from_model(model_for(means), letters_tokenizer(), device="cpu", dtype="fp32")
    for text in HARD:
        whole = {found.start() for found in regex.finditer(r"\X", text)} | {len(text)}
        if means == "span":
            found = engine.answer("?", text, null_threshold=math.inf)
            places = [(span.start, span.end) for span in found.best]
            assert len(set(places)) == len(places), "the same characters are one answer"
            assert sum(span.probability for span in found.best) <= 1 + 1e-9
        else:
            places = [(entity.start, entity.end) for entity in engine.tag([text])[0].entities]
        assert places and {place for span in places for place in span} <= whole
        assert all(text[slice(*span)].strip() in (text[slice(*span)], "") for span in places)


def stock_best(model: Any, question: str, context: str) -> tuple[int, int]:
    """The best span by the stock model, in characters: one window."""
    inputs = character_tokenizer()(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    inner = [place for place, kind in enumerate(inputs.sequence_ids(0)) if kind == 1]
    with torch.no_grad():
        output = model(**inputs)
    scores = {
        (i, j): float(output.start_logits[0, i] + output.end_logits[0, j])
        for i in inner
        for j in inner
        if i <= j < i + 30
    }
    first, last = max(scores, key=lambda span: scores[span])
    return offsets[first][0], offsets[last][1]


def test_it_answers_what_the_stock_model_says() -> None:
    engine, model, context = engine_for("span"), model_for("span"), "a quick brown fox jumps over"
    found = engine.answer("who ?", context, null_threshold=math.inf)
    assert (found.start, found.end) == stock_best(model, "who ?", context)
    assert found.windows == 1 and found.tokens == 3 + 4 + len(context.replace(" ", ""))


def test_many_are_answered_as_one_is_and_in_order() -> None:
    draw, engine = random.Random(1), engine_for("span")
    contexts = ["".join(draw.choices("abcdef gh", k=draw.randint(2, 300))).strip() + "x" for _ in range(30)]
    together = engine.answer("who ?", contexts)
    for context, found in zip(contexts, together, strict=True):
        alone = engine.answer("who ?", context)
        assert (alone.text, alone.start, alone.windows) == (found.text, found.start, found.windows)
        assert alone.score == pytest.approx(found.score, abs=1e-3)
    streamed = list(engine.answer_stream((("who ?", context) for context in contexts), window=7))
    assert [one.text for one in streamed] == [one.text for one in together]
    assert max(one.windows for one in together) > 5


def test_the_null_threshold_decides() -> None:
    model = model_for("span")
    engine = Engine.from_model(model, character_tokenizer(), device="cpu", dtype="fp32")
    given = engine.answer("who ?", "a fox", null_threshold=math.inf)
    assert given.text and given.score is not None and given.null_score is not None
    margin = given.null_score - given.score
    assert engine.answer("who ?", "a fox", null_threshold=margin - 0.01).text == ""
    nothing = engine.answer("who ?", "a fox", null_threshold=margin - 0.01)
    assert nothing.start is nothing.end is None and nothing.best == given.best and nothing.score == given.score
    set_head_(model, Head(reads="tokens", means="span", null_threshold=margin - 0.01))
    own = Engine.from_model(model, character_tokenizer(), device="cpu", dtype="fp32")
    assert own.answer("who ?", "a fox").text == "" and own.answer("who ?", "a fox", null_threshold=margin + 1).text
    total = sum(span.probability for span in given.best)
    assert nothing.probability == pytest.approx(1 - total) and given.probability == given.best[0].probability


def test_an_empty_context_has_no_answer() -> None:
    found = engine_for("span").answer("who ?", "")
    assert (found.text, found.start, found.best, found.error) == ("", None, (), None)
    assert found.score is None and found.null_score is not None


@pytest.mark.parametrize("context", ["", " \n"])
def test_nothing_to_choose_from_is_no_answer_at_any_threshold(context: str) -> None:
    engine = engine_for("span")
    assert engine.answer("who ?", context, null_threshold=math.inf) == engine.answer("who ?", context)
    nothing, some = engine.answer("who ?", [context, "a fox"], null_threshold=math.inf)
    assert nothing.text == "" and nothing.error is None and some.text


def test_long_contexts_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of books would else be cut into windows whole."""
    sizes: list[int] = []
    made = token_stream.TokenStream.windows

    def windows(own: token_stream.TokenStream, items: Any, make: Any) -> Any:
        sizes.append(len(items))
        return made(own, items, make)

    engine, contexts = engine_for("span"), ["a fox", "a fox and a dog", "x" * 40, "", "it", "a b"]
    wanted = engine.answer("who ?", contexts)
    monkeypatch.setattr(token_stream.TokenStream, "windows", windows)
    assert engine.answer("who ?", contexts) == wanted and sizes == [6]
    monkeypatch.setattr(token_stream, "CHARACTERS", 30)
    sizes.clear()
    assert engine.answer("who ?", contexts) == wanted and sizes == [2, 1, 3]


def test_a_hundred_pages() -> None:
    engine = engine_for("span", max_length=48)
    context = " ".join(f"w{number}" for number in range(30_000))
    found = engine.answer("who ?", context, null_threshold=math.inf)
    assert found.text == context[found.start : found.end] and found.windows > 1000
    (tagged,) = engine_for("tags").tag([context])
    assert tagged.error is None and all(one.text == context[one.start : one.end] for one in tagged.entities)


@pytest.mark.parametrize(
    ("question", "context", "message"),
    [
        ("q" * 200, "a context", "the question has 200 tokens and leaves none for the context in windows of 64"),
        ("", "a context", "the question is empty"),
        ("who ?", "half \ud800", "half a character"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_error(question: str, context: str, message: str) -> None:
    engine = engine_for("span")
    question = " ".join(question) if len(question) > 50 else question
    with pytest.raises(DataError, match=message):
        engine.answer(question, context)
    bad, good = engine.answer([question, "who ?"], [context, "a fox"])
    assert bad.error is not None and message in bad.error and good.error is None and good.best


def test_wrong_arguments() -> None:
    engine = engine_for("span")
    with pytest.raises(ConfigError, match="2 questions and 3 contexts"):
        engine.answer(["a", "b"], ["c", "d", "e"])
    with pytest.raises(ConfigError, match="context = 5 is of type int"):
        engine.answer("a", 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="null_threshold = 'x' must be a number"):
        engine.answer("a", "b", null_threshold="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="n_best = 0 is below 1"):
        engine.answer("a", "b", n_best=0)
    given: Any = [("who", 3), "alone", None, ("who",), ["who ?", "a fox"]]
    errors = [found.error for found in engine.answer_stream(given)]
    assert errors == [
        "a int is not text; give the context as a string",
        *(f"{item!r} is no question with its context; give two strings" for item in given[1:4]),
        None,
    ]
    same = engine.answer("who ?", "a fox", null_threshold=1.0)
    assert engine.answer("who ?", "a fox", null_threshold=np.float32(1)) == same  # type: ignore[arg-type]
    assert engine.answer([], []) == []
    assert engine.answer((text for text in ("who ?", "where ?")), "a fox") == engine.answer(
        ["who ?", "where ?"], "a fox"
    )


def test_heads_serve_their_own_methods_only() -> None:
    span, tags = engine_for("span"), engine_for("tags")
    with pytest.raises(ModelError, match=r"gives span, which tag does not serve; use answer\(question, context\)"):
        span.tag(["a"])
    with pytest.raises(ModelError, match=r"gives tags, which answer does not serve; use tag\(texts\)"):
        tags.answer("a", "b")
    with pytest.raises(ModelError, match=r"gives tags, which predict does not serve; use tag\(texts\)"):
        tags.classify(["a"])
    assert span.describe()["head"] == "span" and span.describe()["reads"] == "tokens"


def test_words_get_a_tag_each() -> None:
    engine = engine_for("tags")
    words = ["EU", "rejects", "German", "call", "!", "caf\u00e9"] * 20  # more than a window
    found, plain = engine.tag([words, " ".join(words)])
    assert found.tags is not None and len(found.tags) == len(words) and set(found.tags) <= set(TAGS)
    assert plain.tags is None and plain.entities == found.entities, "spaces divide these words, too"
    joined = " ".join(words)
    assert all(entity.text == joined[entity.start : entity.end] for entity in found.entities)
    assert found.windows == plain.windows > 1


def test_bad_texts_among_good_ones() -> None:
    items: list[Any] = ["good", "", ["a", 5], ["a", " "], ("b", "c"), 7]
    found = engine_for("tags").tag(items)
    errors = [one.error or "" for one in found]
    assert [bool(error) for error in errors] == [False, True, True, True, False, True]
    assert "int among the words is not text" in errors[2] and "the word ' ' is empty" in errors[3]
    assert isinstance(found[0], Tagged) and found[4].tags is not None and len(found[4].tags) == 2
    assert list(engine_for("tags").tag_stream(item for item in items)) == found


def test_a_window_that_cannot_be_computed_is_its_texts_error() -> None:
    """A tokenizer with more words than the model: of that text alone."""
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["extra"])
    engine = Engine.from_model(model_for("tags"), tokenizer, device="cpu", dtype="fp32")
    bad, good = engine.tag(["an extra word", "a word"])
    assert "outside the model's vocabulary" in str(bad.error) and good.error is None
    again = engine_for("tags").tag(["a word"])[0]
    assert [(e.label, e.start) for e in again.entities] == [(e.label, e.start) for e in good.entities]


def test_numbers_that_are_none_are_an_error() -> None:
    model = model_for("span")
    with torch.no_grad():
        model.qa_outputs.bias[0] = math.nan
    engine = Engine.from_model(model, character_tokenizer(), device="cpu", dtype="fp32")
    (found,) = engine.answer(["who ?"], ["a fox"])
    assert found.error == "the prediction is not a number in fp32"


def test_a_saved_run_and_a_folder_from_elsewhere(tmp_path: Path) -> None:
    model = model_for("span")
    model.save_pretrained(tmp_path / "stock")
    character_tokenizer().save_pretrained(tmp_path / "stock")
    stock = Engine.load(tmp_path / "stock", device="cpu", dtype="fp32")
    thresher.prune_(model)
    set_head_(model, Head(reads="tokens", means="span", null_threshold=3.0))
    thresher.save(model, character_tokenizer(), tmp_path / "run")
    run = Engine.load(tmp_path / "run", device="cpu", dtype="fp32")
    assert run.head.null_threshold == 3.0 and stock.head.null_threshold is None
    dense = Engine.load(tmp_path / "run", device="cpu", dtype="fp32", dial=0)
    one, other = (each.answer("who ?", "a fox", null_threshold=9.0) for each in (dense, stock))
    assert one.best[0].start == other.best[0].start and np.isclose(one.best[0].score, other.best[0].score, atol=1e-4)
    pruned = run.answer("who ?", "a quick brown fox jumps", null_threshold=math.inf)
    assert pruned.kept and sum(pruned.kept) < 2 * pruned.tokens and pruned.text


def test_windows_are_384_tokens_unless_known_otherwise() -> None:
    assert engine_for("span", positions=512).max_length == 384
    assert engine_for("span", positions=100).max_length == 100
    assert engine_for("span", positions=512, max_length=500).max_length == 500
    assert engine_for("tags", positions=512).max_length == 512


@pytest.mark.parametrize("means", ["span", "tags"])
def test_an_engine_that_was_used_answers_at_another_dial(means: str) -> None:
    model = model_for(means, positions=64)
    prune_(model, PruneConfig(score="value", collapse_last=False))
    gates_of(model).set_thresholds([0.9] * model.config.num_hidden_layers)
    engine = Engine.from_model(model, character_tokenizer(), device="cpu", dtype="fp32")
    ask = {"span": lambda at: at.answer("who ?", "a fox, they say"), "tags": lambda at: at.tag(["a fox, they say"])[0]}
    for dial in (1.0, 0.0, 1.5):
        other = Engine.from_model(model, character_tokenizer(), device="cpu", dtype="fp32", dial=dial)
        assert ask[means](engine.at_dial(dial)) == ask[means](other)
        assert (min(ask[means](engine.at_dial(dial)).kept) < ask[means](engine).tokens) == (dial > 0)


def test_warming_up() -> None:
    engine_for("span").warm_up([("who ?", "a fox")], sizes=[(2, 30)])
    engine_for("tags").warm_up(["a fox"])
