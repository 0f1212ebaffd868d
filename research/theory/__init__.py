"""The paper's statements about mixed logits, as checks on any logits; docs/background/theory.md explains them.

Start with `mixing` (one token: Sec. 5, App. C). `dynamics` is about a training step and its curvature (App. D), `rates`
about norms, rates and draws. `counterexamples` has logits for which a statement fails. No models run here.
"""

from research.theory.dynamics import hessian, sgd_step, shielding
from research.theory.mixing import (
    branch_amplification,
    branch_gradients,
    convexity,
    entry_gap_bound,
    hard_negatives,
    log_odds,
    mixed_margins,
    negative_mass,
    relative_odds,
    shift_invariance,
    token_amplification,
    total_variation_bound,
)
from research.theory.rates import (
    centered_norm,
    crossover,
    first_order_rate,
    norm_parts,
    sensitivity_ratio,
    slowest_weight,
    unique_rows,
)

__all__ = [
    "branch_amplification",
    "branch_gradients",
    "centered_norm",
    "convexity",
    "crossover",
    "entry_gap_bound",
    "first_order_rate",
    "hard_negatives",
    "hessian",
    "log_odds",
    "mixed_margins",
    "negative_mass",
    "norm_parts",
    "relative_odds",
    "sensitivity_ratio",
    "sgd_step",
    "shielding",
    "shift_invariance",
    "slowest_weight",
    "token_amplification",
    "total_variation_bound",
    "unique_rows",
]
