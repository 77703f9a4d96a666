"""A text on a page, every token coloured by the layer that dropped it, and a slider through the layers.

A page needs `token_styles`, `TOKEN_SCRIPT` and one `slider` in front of any number of `coloured_text`s. Without the
script, and on paper, the page shows what is left after the last layer.
"""

import json
from collections.abc import Sequence

from markupsafe import Markup, escape

from thresher.report.colours import colour_of, ink_on
from thresher.text import visible

TOKEN_STYLES = """
.tokens { line-height: 2; overflow-wrap: anywhere; margin: 0; }
.tokens span { padding: .1em .15em; border-radius: .2em; }
.tokens .kept, .legend .kept { background: #1b7f3b; color: #fff; font-weight: 600; }
.tokens sub { font-size: .6em; opacity: .8; margin-left: .1em; }
.tokens .alive { background: none; color: inherit; font-weight: inherit; }
.tokens .alive sub { visibility: hidden; }
.tokens .back, .legend .back { background: none; color: inherit; box-shadow: inset 0 -.15em var(--layer); }
.legend span { padding: .1em .45em; border-radius: .2em; }
.slider { display: flex; gap: 1em; align-items: center; flex-wrap: wrap; }
.slider input { flex: 1; min-width: 10em; accent-color: #1b7f3b; }
.slider output { min-width: 9em; }
@media print { .slider { display: none; } }
"""

# Tokens below the slider's layer are as they were; where it stands at the end, survivors are marked. Those that a layer
# dropped are underlined in its colour from the layer on that they take part in again.
TOKEN_SCRIPT = """
for (const range of document.querySelectorAll(".slider input")) {
  const show = () => {
    const step = +range.value, last = +range.max;
    range.parentElement.querySelector("output").value =
      step === 0 ? "at the input" : "after layer " + step + " of " + last;
    for (const text of document.querySelectorAll(".tokens")) {
      const left = JSON.parse(text.dataset.left), back = +(text.dataset.back || last + 1);
      for (const token of text.querySelectorAll("span")) {
        const dropped = +(token.dataset.layer || last);
        token.classList.toggle("alive", token.dataset.layer ? dropped > step : step < last);
        token.classList.toggle("back", Boolean(token.dataset.layer) && step >= back);
      }
      const count = text.parentElement.querySelector(".left");
      if (count) count.textContent = left[step] + " of " + left[0] + " tokens";
    }
  };
  range.addEventListener("input", show);
  show();
}
"""


def token_styles(layers: int) -> str:
    """CSS for texts of models with so many layers."""
    rules = []
    for layer in range(1, layers + 1):
        colour = colour_of(layer, layers)
        rules.append(f".layer-{layer} {{ --layer: rgb{colour}; background: var(--layer); color: {ink_on(colour)}; }}")
    return TOKEN_STYLES.replace("\n.tokens .alive {", "\n" + "\n".join(rules) + "\n.tokens .alive {", 1)


def back_in(dropped_at: Sequence[int | None], kept_per_layer: Sequence[int]) -> int | None:
    """The layer (counted from 1) in which dropped tokens take part again: the first after them that leaves all."""
    first = min((layer for layer in dropped_at if layer is not None), default=len(kept_per_layer))
    later = enumerate(kept_per_layer[first:], first + 1)
    return next((layer for layer, count in later if count == len(dropped_at)), None)


def coloured_text(pieces: Sequence[str], dropped_at: Sequence[int | None], kept_per_layer: Sequence[int]) -> Markup:
    """One text. pieces: its tokens for people, with a space in front where a word begins; dropped_at: the layer
    (counted from 1) that dropped each, None for survivors; as an `Explanation` has them."""
    words, back = [], back_in(dropped_at, kept_per_layer)
    kind, says = ("", "") if back is None else (" back", f", back in layer {back}")
    mark = Markup(
        '<span class="layer-{0}{1}" data-layer="{0}" title="dropped by layer {0}{2}">{3}<sub>{0}</sub></span>'
    )
    for piece, layer in zip(pieces, dropped_at, strict=True):
        space = " " if piece.startswith(" ") else ""
        text = visible(piece.strip())
        if layer is None:
            words.append(Markup('{}<span class="kept">{}</span>').format(space, text))
        else:
            words.append(space + mark.format(layer, kind, says, text))
    left = json.dumps([len(pieces), *kept_per_layer])
    place = Markup("") if back is None else Markup(' data-back="{}"').format(back)
    return Markup('<p class="tokens" dir="auto" data-left="{}"{}>{}</p>').format(left, place, Markup("").join(words))


def legend(layers: int, back: int | None = None) -> Markup:
    """What the colours mean. back: the layer that dropped tokens are back in, if they are in one."""
    marks = Markup(" ").join(
        Markup('<span class="layer-{0}">{0}</span>').format(layer) for layer in range(1, layers + 1)
    )
    words = [Markup('<span class="kept">survivors</span> dropped by layer {}').format(marks)]
    if back is not None:
        words.append(
            Markup('<span class="layer-1 back">underlined</span> taking part again from layer {} on').format(back)
        )
    return Markup('<p class="legend">{}</p>').format(Markup("; ").join(words))


def slider(layers: int) -> Markup:
    """Moves all texts of the page from the input to the last layer, where it stands at first."""
    return Markup(
        '<label class="slider">through the layers <input type="range" min="0" max="{0}" value="{0}">'
        "<output>after layer {0} of {0}</output></label>"
    ).format(escape(layers))
