"""The stages that methods are made of, one module each, and what they share (`context.py`).

A stage says what it reads, what decides its result and what it costs; `weakdriven.runs.executor` lists, plans or
computes it. Stages that one method alone needs are in `methods`. Start at `supervised.py`.
"""
