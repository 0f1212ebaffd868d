"""Result files of the study, as its tests make them up."""

import numpy as np

from research.evidence.collect import packed

COUNTS = {"gsm8k": 40, "svamp": 30}


def result(student, study="core", seeds=(42, 43, 44), **gains):
    """A result file; a method's gain is the share of wrong answers of the reference that it gets right."""
    rng = np.random.default_rng(0)

    def answers(right):
        return {name: {"right": packed(row), "tokens": 1000, "cut": 1, "seconds": 2.0} for name, row in right.items()}

    cost = {"seconds": 10.0, "seconds_after_m1": 5.0, "trained_tokens": 1e6, "generated_tokens": 0, "peak_bytes": 1}
    methods = {name: {"seeds": {}, "cost": cost} for name in ("base", "m1", "sft_restart", "sft", *gains)}
    for seed in map(str, seeds):
        reference = {name: rng.random(count) < 0.4 for name, count in COUNTS.items()}
        for name, one in methods.items():
            better = {key: row | (rng.random(len(row)) < gains.get(name, 0)) for key, row in reference.items()}
            one["seeds"][seed] = answers(better)
    items = {name: {"count": count, "ids": "0"} for name, count in COUNTS.items()}
    versions = {"torch": "2.13", "transformers": "5.22", "trl": "1.16"}
    facts = {"version": 1, "study": study, "student": student, "hardware": "one GPU", "jobs": 3, "versions": versions}
    recipe = {"sft": {"learning_rate": 2e-5, "epochs": 1}}
    return facts | {
        "failed": {},
        "recipe": recipe,
        "items": items,
        "methods": methods,
        "file": f"{student}-{study}.json",
    }
