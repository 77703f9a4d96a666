"""Text from anywhere: whether and how far to read it, and how to show it without obeying it."""

import re
import unicodedata
from itertools import islice
from typing import Any

NOTHING_TO_READ = ("Cc", "Cf", "Zl", "Zp", "Zs")  # control and format characters, separators
# What decoders put where they could not read, and marks that Unicode draws as nothing although it calls them letters,
# marks or symbols: joiners, fillers, variation selectors, the empty braille pattern.
INVISIBLE = re.compile(
    "[\ufffd\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_PLAIN = re.compile("[!-~]")  # nearly every text begins with one of these

# What a terminal obeys instead of showing it: control characters (ESC begins colours, titles and worse, and \x9b is one
# character for ESC [), marks that turn the direction of what follows, and halves of characters, which no file takes.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def is_blank(text: str) -> bool:
    """Whether there is nothing to read: only spaces, control characters, zero-width marks and replaced characters."""
    if _PLAIN.match(text):
        return False
    return all(unicodedata.category(mark) in NOTHING_TO_READ or INVISIBLE.match(mark) is not None for mark in text)


def half_character(text: str) -> str | None:
    """The first lone surrogate, half of a cut emoji, which no tokenizer can encode; None if the text is sound."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


def first_line(error: BaseException) -> str:
    """What an error says, without the rest of it; its kind where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__


def visible(text: str) -> str:
    """The same text with what a terminal would obey written out, as JSON writes it: \\u001b. Lines and tabs stay."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown(value: Any) -> str:
    """As Python writes it, or the beginning of that; whole numbers of thousands of digits are not written at all."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


def shortened(text: str, most: int = 200) -> str:
    """So many characters of it, for a message that says what somebody sent."""
    return text if len(text) <= most else f"{text[:most]}..."


FAR = 50  # characters for each token that a model can take: a text beyond that is worth cutting before it is tokenized
_WORD_BEFORE_A_SPACE = re.compile("[A-Za-z0-9](?= )")


def beginning(text: str, tokens: int) -> str:
    """The text up to the end of its word number `tokens` + 1, before a space; all of a text that is not far longer.

    Of a tokenizer that `reads_word_by_word`, the tokens of this are the first tokens of the whole. They are usually
    more than `tokens`; whoever counts fewer must tokenize the whole.
    """
    if len(text) <= FAR * tokens:
        return text
    end = next(islice(_WORD_BEFORE_A_SPACE.finditer(text), tokens, None), None)
    return text if end is None else text[: end.end()]


def reads_word_by_word(tokenizer: Any) -> bool:
    """Whether what follows a space cannot change the tokens before it, and truncation leaves out the end.

    So it is for WordPiece on BERT's words and for byte-level BPE: their rules look at single characters, or at runs
    that a space after a letter ends. Others (SentencePiece's models, normalizers that join characters, added tokens
    with spaces in them) may be so, too, but there is no proof.
    """
    inner: Any = getattr(tokenizer, "backend_tokenizer", None)
    parts = tuple(type(getattr(inner, name, None)).__name__ for name in ("normalizer", "pre_tokenizer", "model"))
    known = {
        ("BertNormalizer", "BertPreTokenizer", "WordPiece"),
        ("NoneType", "BertPreTokenizer", "WordPiece"),
        ("NoneType", "ByteLevel", "BPE"),
    }
    if parts not in known or getattr(tokenizer, "truncation_side", "") != "right":
        return False
    if parts[1] == "ByteLevel" and not inner.pre_tokenizer.use_regex:
        return False
    return not any(re.search(r"\s", str(token)) for token in tokenizer.added_tokens_decoder.values())
