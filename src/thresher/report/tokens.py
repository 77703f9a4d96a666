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
.legend span { padding: .1em .45em; border-radius: .2em; }
.slider { display: flex; gap: 1em; align-items: center; flex-wrap: wrap; }
.slider input { flex: 1; min-width: 10em; accent-color: #1b7f3b; }
.slider output { min-width: 9em; }
@media print { .slider { display: none; } }
"""

# Tokens below the slider's layer are as they were; where it stands at the end, survivors are marked.
TOKEN_SCRIPT = """
for (const range of document.querySelectorAll(".slider input")) {
  const show = () => {
    const step = +range.value, last = +range.max;
    range.parentElement.querySelector("output").value =
      step === 0 ? "at the input" : "after layer " + step + " of " + last;
    for (const text of document.querySelectorAll(".tokens")) {
      const left = JSON.parse(text.dataset.left);
      for (const token of text.querySelectorAll("span")) {
        const dropped = +(token.dataset.layer || last);
        token.classList.toggle("alive", token.dataset.layer ? dropped > step : step < last);
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
        rules.append(f".layer-{layer} {{ background: rgb{colour}; color: {ink_on(colour)}; }}")
    return TOKEN_STYLES.replace("\n.tokens .alive {", "\n" + "\n".join(rules) + "\n.tokens .alive {", 1)


def coloured_text(pieces: Sequence[str], dropped_at: Sequence[int | None], kept_per_layer: Sequence[int]) -> Markup:
    """One text. pieces: its tokens for people, with a space in front where a word begins; dropped_at: the layer
    (counted from 1) that dropped each, None for survivors; as an `Explanation` has them."""
    words = []
    for piece, layer in zip(pieces, dropped_at, strict=True):
        space = " " if piece.startswith(" ") else ""
        text = visible(piece.strip())
        if layer is None:
            words.append(Markup('{}<span class="kept">{}</span>').format(space, text))
        else:
            mark = Markup('<span class="layer-{0}" data-layer="{0}" title="dropped by layer {0}">').format(layer)
            words.append(Markup("{}{}{}<sub>{}</sub></span>").format(space, mark, text, layer))
    left = json.dumps([len(pieces), *kept_per_layer])
    return Markup('<p class="tokens" dir="auto" data-left="{}">{}</p>').format(left, Markup("").join(words))


def legend(layers: int) -> Markup:
    """What the colours mean."""
    marks = Markup(" ").join(
        Markup('<span class="layer-{0}">{0}</span>').format(layer) for layer in range(1, layers + 1)
    )
    return Markup('<p class="legend"><span class="kept">survivors</span> dropped by layer {}</p>').format(marks)


def slider(layers: int) -> Markup:
    """Moves all texts of the page from the input to the last layer, where it stands at first."""
    return Markup(
        '<label class="slider">through the layers <input type="range" min="0" max="{0}" value="{0}">'
        "<output>after layer {0} of {0}</output></label>"
    ).format(escape(layers))
