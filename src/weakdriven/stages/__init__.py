"""The stages that methods are made of, one module each, and what they share (`context.py`).

A stage states its inputs, the settings that determine its result, and its cost; `weakdriven.runs.executor` lists, plans
or computes it. Stages of a single method are in `methods`. Start with `model_stage.py`.
"""
