"""Rows of the Length-Adaptive Transformer: trained once for each rate of dropping, and then searched for every cost."""

import json
from collections.abc import Sequence

from thresher.baselines.lat import chosen_for, fitness
from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.finished import opened
from thresher.experiments.trained import Fields, fields_of, row_of, shown, trained_run


def measure_on_front(
    key: Key,
    setting: Setting,
    *,
    rows: Sequence[str] | None = None,
    name: str | None = None,
    fields: Fields = lambda version, metrics: {},
) -> Row | None:
    """The lengths of the saved fronts that suit the key's target, on the test rows; None where the deadline came first.

    All targets share the runs at the middle one, where checkpoints are compared: a run for each of the configuration's
    variants, such as rates of dropping, or one. Selection rows choose among them. `rows`, `name` and `fields` as in
    `measure_trained`.
    """
    from thresher.evaluation.quality import chosen_threshold, evaluate
    from thresher.models.attach import gates_of
    from thresher.models.rules import TopCount
    from thresher.tasks import load_task

    targets = sorted(setting.config["targets"])
    shared = [
        {**key, "target": targets[len(targets) // 2], **variant}
        for variant in [{"variant": name} for name in setting.config.get("variants", {})] or [{}]
    ]
    first = targets.index(key["target"]) % len(shared)  # rows that wait for the same runs begin with different ones
    runs = {}
    for place in [*range(first, len(shared)), *range(first)]:
        run = trained_run(shared[place], setting, rows=rows, name=name)
        if run is None:
            return None
        front = json.loads((run / "thresher.json").read_text(encoding="utf-8"))["front"]
        runs[place] = (run, chosen_for(key["target"], front))
    place = max(sorted(runs), key=lambda at: fitness(runs[at][1], key["target"]))
    run, chosen = runs[place]
    task = load_task(key["task"], data=setting.data_folder() if rows is None else rows[-1])
    with opened(run) as saved:
        rule = gates_of(saved.model).rule
        assert isinstance(rule, TopCount)  # what LAT leaves behind
        rule.set_counts(chosen.lengths)
        length = saved.manifest["recipe"]["max_length"]
        threshold = chosen_threshold(saved.model, saved.tokenizer, task, max_length=length)
        found = evaluate(saved.model, saved.tokenizer, task, max_length=length, null_threshold=threshold)
    pruned = {
        "pruned": found.metrics["score"],
        "gflops_pruned": found.gflops,
        "relative_flops": found.relative_flops,
        "kept_per_layer": found.kept_per_layer,
        "selection_score": chosen.score,
    }
    more = {**fields_of(saved.manifest, fields), **fields("pruned", found.metrics)}
    return {**row_of(saved.manifest), **more, **pruned, "command": shown(shared[place], setting.config)}
