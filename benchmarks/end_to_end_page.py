"""Table and picture of docs/text-to-answer.md from benchmarks/gpu/end_to_end.jsonl; needs no GPU.

python benchmarks/end_to_end_page.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from measuring import Row, plotting, read_rows, save_figure, write_between_marks  # noqa: E402

RECORDS, PAGE = HERE / "gpu" / "end_to_end.jsonl", HERE.parent / "docs" / "text-to-answer.md"
PICTURE = HERE / "gpu" / "end_to_end"
TEXTS = {"qnli": "pairs of QNLI, base size", "long": "long pairs, 12 layers of 384"}
NAMES = {
    "pipeline": "transformers' pipeline, fp16",
    "thresher-dense": "thresher, dense",
    "thresher-pruned": "**thresher, pruned**",
    "kernels-dense": "kernels alone, dense",
    "kernels-pruned": "kernels alone, pruned",
}
# Stages in the order in which a text passes them, with their colours.
STAGES = {"tokenize": "#4e79a7", "pack": "#9c755f", "copy": "#59a14f", "compute": "#d1495b", "hand out": "#f28e2b"}


def newest() -> dict[tuple[str, str], Row]:
    return {(row["texts"], row["engine"]): row for row in read_rows(RECORDS)}


def table(rows: dict[tuple[str, str], Row]) -> str:
    """Texts a second, and in brackets how many times the dense engine's."""
    heads = [f"{name}, {rows[texts, 'thresher-dense']['tokens']:.0f} tokens" for texts, name in TEXTS.items()]
    lines = [f"| texts/s | {' | '.join(heads)} |", "|---|---|---|"]
    for engine, name in NAMES.items():
        cells = []
        for texts in TEXTS:
            speed, dense = rows[texts, engine]["texts_per_s"], rows[texts, "thresher-dense"]["texts_per_s"]
            cells.append(f"{speed:,} ({speed / dense:.2f}x)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bars(row: Row) -> dict[str, dict[str, float]]:
    """Microseconds of each stage for each text: before, with today's stages one after the other, and all at once."""
    found = row["stages_us"]
    others = {stage: found[stage.replace(" ", "_")] for stage in STAGES if stage != "tokenize"}
    return {
        "the tokenizer's call,\none stage after the other": {"tokenize": found["tokenize_by_call"], **others},
        "words remembered,\none stage after the other": {"tokenize": found["tokenize"], **others},
    }


def draw(rows: dict[tuple[str, str], Row]) -> None:
    pyplot = plotting()
    figure, panels = pyplot.subplots(len(TEXTS), 1, figsize=(8.4, 4.6), layout="constrained")
    for axes, (texts, title) in zip(panels, TEXTS.items(), strict=True):
        row = rows[texts, "thresher-pruned"]
        for place, stages in enumerate(bars(row).values()):
            start = 0.0
            for stage, colour in STAGES.items():
                axes.barh(place, stages[stage], left=start, color=colour, label=stage if place == 0 else None)
                start += stages[stage]
            axes.text(start, place, f" {start:,.0f} µs", va="center", fontsize=9)
        whole = 1e6 / row["texts_per_s"]
        axes.barh(2, whole, color="#222222", label="everything at once")
        axes.text(whole, 2, f" {whole:,.0f} µs: {row['texts_per_s']:,} texts/s", va="center", fontsize=9)
        axes.set_yticks(range(3), [*bars(row), "as the engine does it"], fontsize=9)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.16)
        axes.set_title(f"{title}, pruned: microseconds for each text", loc="left", fontsize=10)
    panels[0].legend(loc="lower right", fontsize=8, ncols=2, frameon=False)
    save_figure(figure, PICTURE)


def main() -> None:
    rows = newest()
    write_between_marks("end to end", table(rows), PAGE)
    draw(rows)


if __name__ == "__main__":
    main()
