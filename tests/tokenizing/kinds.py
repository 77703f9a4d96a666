"""Tokenizers of many kinds, trained on a few lines: words in pieces, bytes, sentence pieces; with and without types."""

from functools import cache
from typing import Any

CORPUS = [
    "a good film isn't bad, and its plot is warm",
    "the plot, the cast; and 漢字 12 times",
    "schön naïve CAFÉ don't stop 😀 the joke",
    "who wrote it? she wrote it in the year 1923",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
TYPED = ["input_ids", "token_type_ids", "attention_mask"]
KINDS = ("wordpiece", "cased", "untyped", "roberta", "unigram", "bare", "left", "added", "template")


@cache
def tokenizer(kind: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    settings: dict[str, Any] = {"model_input_names": TYPED}
    if kind == "roberta":
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.train_from_iterator(
            CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
        )
        inner.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
        settings = {"model_input_names": ["input_ids", "attention_mask"]}
    elif kind == "unigram":
        inner = Tokenizer(models.Unigram())
        inner.normalizer = normalizers.NFKC()
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
        )
        inner.train_from_iterator(CORPUS, trainer)
    else:
        inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=kind != "cased")
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.train_from_iterator(
            CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
        )
    if kind in ("wordpiece", "cased", "untyped", "left", "added"):
        inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if kind in ("template", "unigram"):  # the second text before the first, types of its own
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A:2 [SEP]",
            pair="[CLS]:3 $B:1 [SEP]:1 $A:0 [SEP]:0",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    if kind == "untyped":
        settings = {"model_input_names": ["input_ids", "attention_mask"]}
    if kind == "left":
        settings |= {"truncation_side": "left", "padding_side": "left"}
    found = PreTrainedTokenizerFast(tokenizer_object=inner, **NAMES, **settings)
    if kind == "added":
        found.add_tokens([AddedToken("good film", lstrip=True), AddedToken("😀")])
    return found
