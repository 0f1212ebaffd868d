"""Settings: what a recipe may say, how its file is read, and what a sweep varies.

`recipe.py` is the whole recipe as pydantic models and the place to start; `settings.py` has what every training phase
shares and `baselines.py` the blocks of single methods. `file.py` reads YAML, overrides and the shipped `recipes/`;
`sweep.py` does the same for grids and the shipped `sweeps/`. `launch/` holds files for accelerate. Nothing here trains
or loads a model.
"""
