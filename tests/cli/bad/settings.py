"""Bad settings, in flags, in files and in tasks."""

from tests.cli.bad.case import PRUNE, Bad

SETTINGS = [
    Bad("target 0", PRUNE + " --target-flops 0", ("target_flops = 0.0", "must be greater than 0"), 2),
    Bad("target above 1", PRUNE + " --target-flops 1.5", ("target_flops = 1.5", "above 1.0, the largest allowed"), 2),
    Bad("target out of reach", PRUNE + " --target-flops 0.05", ("target_flops = 0.05", "ask for more"), 2),
    Bad("target not a number", PRUNE + " --target-flops nan", ("target_flops = nan", "finite"), 2),
    Bad("negative lambda", PRUNE + " --lambda -1", ("lambda_ = -1.0", "below 0.0, the smallest allowed"), 2),
    Bad(
        "target and lambda",
        PRUNE + " --lambda 0.1 --target-flops 0.5",
        ("target_flops = 0.5 and lambda_ = 0.1", "give exactly one"),
        2,
    ),
    Bad("unknown recipe", PRUNE + " --recipe soup", ("recipe = 'soup'", "default, paper"), 2),
    Bad("unknown method", PRUNE + " --method magic", ("method = 'magic'", "thresher, ltp, manual"), 2),
    Bad("a method's former name", PRUNE + " --method soft", ("method = 'soft' is now called 'ltp'", "give that"), 2),
    Bad("by --set", PRUNE + " --set method=learned", ("method = 'learned' is now called 'thresher'",), 2),
    Bad("price for a ramp", PRUNE + " --method manual --lambda 0.1", ("'manual' learns nothing", "target_flops"), 2),
    Bad("paper's price for top-k", PRUNE + " --method spatten --recipe paper", ("'spatten' learns nothing",), 2),
    Bad(
        "top-k out of reach", PRUNE + " --method spatten --target-flops 0.5", ("cannot be reached", "such as manual"), 2
    ),
    Bad("batch of none", PRUNE + " --batch-size 0", ("batch_size = 0", "below 1"), 2),
    Bad("accumulate beyond batch", PRUNE + " --batch-size 2 --accumulate 4", ("accumulate = 4", "batch_size = 2"), 2),
    Bad("accumulate beyond rows", PRUNE + " --batch-size 99 --accumulate 90", ("accumulate = 90", "39 training"), 2),
    Bad("learning rate 0", PRUNE + " --lr 0", ("lr = 0.0", "must be greater than 0"), 2),
    Bad("learning rate not a number", PRUNE + " --lr nan", ("lr = nan", "finite"), 2),
    Bad("temperature 0", PRUNE + " --temperature 0", ("temperature = 0.0", "must be greater than 0"), 2),
    Bad("zero given twice", PRUNE + " --distill 0 --set distill=0.5", ("distill is given twice", "give it once"), 2),
    Bad(
        "a drop and a target by name",
        PRUNE + " --max-drop 1% --set target_flops=0.3",
        ("--max-drop 1% finds the cost itself",),
        2,
    ),
    Bad("a setting given twice", PRUNE + " --lr 1e-3 --set lr=1e-4", ("lr is given twice", "give it once"), 2),
    Bad(
        "recipe's price for ours",
        PRUNE + " --recipe paper --method thresher",
        ("lambda_ = 0.1 could price (recipe paper has it)", "give target_flops"),
        2,
    ),
    Bad(
        "a setting of another method",
        PRUNE + " --set soft_mask=plain",
        ("soft_mask is a setting of method ltp", "method thresher does not read it"),
        2,
    ),
    Bad("distillation above 1", PRUNE + " --distill 2", ("distill = 2.0", "above 1.0"), 2),
    Bad("endless epochs", PRUNE + " --soft-epochs inf", ("soft_epochs = inf", "finite"), 2),
    Bad("seed too large", PRUNE + f" --seed {2**70}", (f"seed = {2**70}", "the largest allowed"), 2),
    Bad("no steps", PRUNE + " --max-steps 0", ("max_steps = 0", "below 1"), 2),
    Bad("negative seed", PRUNE + " --seed -1", ("seed = -1", "below 0"), 2),
    Bad("too short", PRUNE + " --max-length 3", ("max_length = 3", "below 4"), 2),
    Bad("unknown precision", PRUNE + " --precision fp8", ("precision = 'fp8'", "auto, fp32, bf16"), 2),
    Bad("unknown scale", PRUNE + " --scale log", ("scale = 'log'", "relative, paper"), 2),
    Bad("unknown protection", PRUNE + " --protect verbs", ("protect = 'verbs'", "first, separators"), 2),
    Bad("none and first", PRUNE + " --protect none --protect first", ("mixes 'none'", "one or the other"), 2),
    Bad("nothing protected", PRUNE + " --protect none", ("the first token must be protected", "collapse_last"), 2),
    Bad("unknown device", PRUNE + " --device tpu", ("device = 'tpu'", "auto, cpu, cuda"), 2),
    Bad("unknown finetune", PRUNE + " --finetune maybe", ("finetune = 'maybe'", "auto, always, never"), 2),
    Bad("task and file", PRUNE + " --task sst2", ("--task NAME or --train FILE",), 2),
    Bad("neither task nor file", "prune {head} --out {tmp}/out", ("--task NAME or --train FILE",), 2),
    Bad(
        "test file with a task",
        "prune {head} --out {tmp}/out --task sst2 --test {test}",
        ("--test", "test.csv", "goes with --train"),
        2,
    ),
    Bad(
        "selection file with a task",
        "prune {head} --out {tmp}/out --task sst2 --selection {test}",
        ("--selection", "test.csv", "goes with --train", "its own selection rows"),
        2,
    ),
    Bad(
        "choosing by the test rows",
        PRUNE + " --test {test} --selection {test}",
        ("test.csv and the test rows have", "in common", "must not test it"),
        1,
    ),
]

TOML = [
    Bad("no such settings file", PRUNE + " --config {tmp}/no.toml", ("no.toml", "does not exist"), 2),
    Bad("not TOML", PRUNE + " --config {tmp}/a.toml", ("a.toml", "not valid TOML"), 2, {"a.toml": "[train\n"}),
    Bad("not text", PRUNE + " --config {tmp}/a.toml", ("a.toml", "not valid TOML"), 2, {"a.toml": b"\xff\xfe\x00"}),
    Bad(
        "unknown table",
        PRUNE + " --config {tmp}/a.toml",
        ("'training'", "[prune] and [train]"),
        2,
        {"a.toml": "[training]\nlr = 1e-4\n"},
    ),
    Bad(
        "unknown key",
        PRUNE + " --config {tmp}/a.toml",
        ("unknown setting 'learning_rate'", "known settings: recipe"),
        2,
        {"a.toml": "[train]\nlearning_rate = 1e-4\n"},
    ),
    Bad(
        "wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("lr = '1e-4'", "must be float"),
        2,
        {"a.toml": "[train]\nlr = '1e-4'\n"},
    ),
    Bad(
        "recipe of a wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("recipe = ['paper']", "default, paper"),
        2,
        {"a.toml": "[train]\nrecipe = ['paper']\n"},
    ),
    Bad(
        "list of a wrong type",
        PRUNE + " --config {tmp}/a.toml",
        ("protect = 'first'", "tuple"),
        2,
        {"a.toml": "[prune]\nprotect = 'first'\n"},
    ),
]

TOML += [
    Bad(
        "collapse without a first token",
        PRUNE + " --config {tmp}/a.toml --method collapse",
        ("'collapse' keeps only protected tokens", "add 'first'"),
        2,
        {"a.toml": "[prune]\nprotect = ['none']\ncollapse_last = false\n"},
    ),
    Bad(
        "lengths that drop all",
        PRUNE + " --config {tmp}/a.toml --method lat",
        ("length_drop = 1.0", "above 0.9"),
        2,
        {"a.toml": "[train]\nlength_drop = 1\n"},
    ),
]

TASKS = [
    Bad("task out of reach", "prune {head} --task rte --out {tmp}/out", ("task rte", "--data DIR")),
    Bad(
        "unknown task", "prune {head} --task sst3 --out {tmp}/out", ("unknown task 'sst3'", "known tasks: movies, mnli")
    ),
    Bad(
        "no such data folder",
        "prune {head} --task sst2 --data {tmp}/no --out {tmp}/out",
        ("/no", "sst2/train*.jsonl", "hub"),
    ),
    Bad(
        "folder without the task",
        "prune {head} --task sst2 --data {tmp} --out {tmp}/out",
        ("no folder 'sst2'", "train"),
    ),
    Bad(
        "folder without a split",
        "prune {head} --task sst2 --data {tmp} --out {tmp}/out",
        ("no file validation*.jsonl", "add it"),
        files={"sst2/train.jsonl": '{"sentence": "a film", "label": 0}\n'},
    ),
    Bad("data for movies", "prune {head} --task movies --data {tmp} --out {tmp}/out", ("movies", "leave --data out")),
]
