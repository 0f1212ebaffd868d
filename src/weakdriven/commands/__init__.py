"""The command line: one module for each command, which parses, calls one function and prints.

Start with `app.py`, which assembles the commands and turns errors into exit codes. `common.py` has the options that
commands share, `settings.py` the `key=value` settings of commands that have many. Torch is imported inside the commands
that need it, so that `--help` answers at once. What a command does is in the package that it calls.
"""
