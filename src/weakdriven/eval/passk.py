"""Statistics of graded samples."""

import math


def wilson_interval(correct: int, items: int, z: float = 1.959964) -> tuple[float, float]:
    """95% confidence interval of a proportion (Wilson score), which behaves at 0 and 1 too.

    >>> [round(x, 4) for x in wilson_interval(50, 100)]
    [0.4038, 0.5962]
    """
    share = correct / items
    centre = share + z * z / (2 * items)
    spread = z * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items))
    scale = 1 + z * z / items
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
