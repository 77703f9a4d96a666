"""Rows of the Length-Adaptive Transformer: trained once, and then searched for every cost, as published."""

from thresher.baselines.lat import chosen_for
from thresher.experiments.experiment import Key, Row, Setting
from thresher.experiments.finished import opened
from thresher.experiments.trained import row_of, shown, trained_run


def measure_on_front(key: Key, setting: Setting) -> Row | None:
    """The lengths of the saved front that suit the key's target, on the test rows; None where the deadline came first.

    All targets share the run at the middle one, where its checkpoints are compared.
    """
    from thresher.evaluation.quality import evaluate
    from thresher.models.attach import gates_of
    from thresher.models.rules import TopCount
    from thresher.tasks import load_task

    targets = sorted(setting.config["targets"])
    shared = {**key, "target": targets[len(targets) // 2]}
    run = trained_run(shared, setting)
    if run is None:
        return None
    task = load_task(key["task"], data=setting.data_folder())
    with opened(run) as saved:
        rule = gates_of(saved.model).rule
        assert isinstance(rule, TopCount)  # what LAT leaves behind
        chosen = chosen_for(key["target"], saved.manifest["front"])
        rule.set_counts(chosen.lengths)
        found = evaluate(saved.model, saved.tokenizer, task, max_length=saved.manifest["recipe"]["max_length"])
    pruned = {
        "pruned": found.metrics["score"],
        "gflops_pruned": found.gflops,
        "relative_flops": found.relative_flops,
        "kept_per_layer": found.kept_per_layer,
        "selection_score": chosen.score,
    }
    return {**row_of(saved.manifest), **pruned, "command": shown(shared, setting.config)}
