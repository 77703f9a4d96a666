"""Texts without labels as a model's inputs: read from a file with one a line, and split in two halves."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import DataError

if TYPE_CHECKING:
    from thresher.tasks import Example, Task


def as_inputs(
    texts: "list[Example]", file: Path, manifest: dict[str, Any], *, means: str, name: object
) -> "list[Example]":
    """What `read_texts` gave of a file as a head's inputs, without labels. `manifest` and `name` are the run's.

    A reranker's lines have a query, a tab and a document, those for answers a question, a tab and a context. For
    embeddings both texts of a line count, each alone.
    """
    from thresher.models.pairs import check_pairs
    from thresher.tasks.task import Example, model_inputs

    examples = [Example(row.text, row.pair, None) for row in texts]
    paired = examples[0].pair is not None  # read_texts wants all alike
    if means == "score" and not paired:
        raise DataError(f"{name} is a reranker; {file} must have a query, a tab and a document in every line")
    if means == "span" and not paired:
        raise DataError(f"{name} answers questions; {file} must have a question, a tab and a context in every line")
    check_pairs(manifest, given_pairs=paired, name=name)
    return model_inputs(means, examples)


def unlabelled_task(
    file: Path, rows: "list[Example]", measured: "list[Example]", *, means: str, labels: tuple[str, ...]
) -> "Task":
    """Inputs of a file as a task that is judged by agreement with other outputs. `labels`: the head's classes."""
    from thresher.tasks.metrics import LABELLED
    from thresher.tasks.task import Task, TaskSpec

    spec = TaskSpec(
        name=file.name.split(".")[0],
        text_column="text",
        pair_column=None if measured[0].pair is None else "pair",
        labels=labels,
        metrics=LABELLED[means][1][:1],
        means=means,
    )
    return Task(spec, rows, [], {"texts": measured}, f"{file}: {len(rows) + len(measured):,} texts")


def halves(
    examples: "list[Example]", *, means: str, rows: int | None = None, fewest: int
) -> "tuple[list[Example], list[Example]]":
    """At most `rows` different texts, evenly spread, in two halves by hash: no text is in both, nor a reranker's query.

    With fewer than `fewest` of them, the second half would judge nothing.
    """
    from thresher.tasks.splits import fingerprint, hold_out, query_of, spread

    different = list({fingerprint(example): example for example in examples}.values())
    if len(different) < fewest:
        raise DataError(f"{len(different)} different texts are too few; give at least {fewest}, better 500 or more")
    chosen = spread(different, rows or len(different))
    first, second = hold_out(chosen, share=0.5, at_most=len(chosen), key=query_of if means == "score" else fingerprint)
    if means == "score" and 4 * min(len(first), len(second)) < len(chosen):
        raise DataError(
            f"the {len(chosen)} pairs have {len({row.text for row in chosen})} different queries, which do not split "
            "into two halves; give documents of more queries, each with about as many"
        )
    return first, second
