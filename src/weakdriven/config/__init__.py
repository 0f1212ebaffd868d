"""Settings: the recipe as pydantic models, its files, and sweeps.

Start with `recipe.py`, the whole recipe. `settings.py` has the settings that training phases share, `baselines.py`
those of single methods. `file.py` reads YAML, overrides and the shipped `recipes/`; `sweep.py` reads grids and the
shipped `sweeps/`. `launch/` has configuration files for accelerate. Nothing here trains or loads a model."""
