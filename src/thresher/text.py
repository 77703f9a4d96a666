"""Text from anywhere: whether there is something to read in it, and how to show it without obeying it."""

import re
import unicodedata
from typing import Any

NOTHING_TO_READ = ("Cc", "Cf", "Zl", "Zp", "Zs")  # control and format characters, separators
REPLACEMENT = "\ufffd"  # what decoders put where they could not read

# What a terminal obeys instead of showing it: control characters (ESC begins colours, titles and worse, and \x9b is one
# character for ESC [), marks that turn the direction of what follows, and halves of characters, which no file takes.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def is_blank(text: str) -> bool:
    """Whether there is nothing to read: only spaces, control characters, zero-width marks and replaced characters."""
    return all(mark == REPLACEMENT or unicodedata.category(mark) in NOTHING_TO_READ for mark in text)


def half_character(text: str) -> str | None:
    """The first lone surrogate, half of a cut emoji, which no tokenizer can encode; None if the text is sound."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


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
