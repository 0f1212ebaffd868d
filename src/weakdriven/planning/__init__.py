"""Know the cost before a run: `plan.py` computes memory, time and disk of every stage, `preflight.py` stops runs that
cannot fit, and `rehearsal.py` tries two real steps of each training stage.

Stages describe their own workloads (`stages/workload.py`), so a plan lists the stages of a run. Start with `plan.py`;
`costs.py` has the cost of one stage, `memory.py` and `speed.py` that of one step.
"""
