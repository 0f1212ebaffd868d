"""Before you pay: memory, time and disk of every stage by arithmetic (`plan.py`), refusal of what cannot fit
(`preflight.py`), and two real steps of each training stage (`rehearsal.py`).

The workloads come from the stages themselves (`stages/workload.py`), so a plan names the stages of a run. Start at
`plan.py`; `costs.py` has the cost of one stage, `memory.py` and `speed.py` that of one step.
"""
