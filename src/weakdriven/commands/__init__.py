"""The command line: one module per command, which parses arguments, calls one function and prints.

Start with `app.py`, which assembles the commands and turns errors into exit codes. `common.py` has the options that
commands share; `settings.py` reads `key=value` settings. Torch is imported inside the commands that need it, so that
`--help` is fast. The work itself is in the packages that the commands call.
"""
