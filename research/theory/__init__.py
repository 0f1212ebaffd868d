"""What logits and a pair's gradients look like, token by token, and the paper's statements about them as checks."""

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
