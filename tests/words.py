"""A tokenizer of whole words for tests, with BERT's wrapping: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, then the words."""

from collections.abc import Sequence
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def word_tokenizer(words: Sequence[str], **settings: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *words])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **settings,
    )
