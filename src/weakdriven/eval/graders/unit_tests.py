"""The tests that a training row brings for its program, in the one form that the grader runs."""

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weakdriven.data.example import Example
from weakdriven.errors import UserError
from weakdriven.eval.benchmarks import contest_item
from weakdriven.eval.hub_rows import called_function

Row = dict[str, Any]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@contextmanager
def refuse_unreadable() -> Iterator[None]:
    """Python's parser gives up on thousands of brackets, signs or terms, each in a way of its own."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise UserError("the test is nested too deeply to read") from None
    except (SyntaxError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"the test cannot be read: {error}") from None


@refuse_unreadable()
def unit_tests_of(row: Row, example: Example) -> dict[str, Any]:
    """What `grade_code` takes for a row; empty if the row has no tests, an error if they would test nothing.

    A row has `test_case` with `test_code` (AM-DeepSeek-R1-Distilled), `tests` as inputs and outputs (contests), `test`
    as a program (HumanEval, MBPP, BigCodeBench), or `tests` or `test_list` as a list of asserts.
    """
    fields, case = example.meta | row, example.meta.get("test_case")
    if isinstance(case, str) and case.strip():
        case = json.loads(case)
    if isinstance(case, dict) and str(case.get("test_code") or "").strip():
        return program_tests(example.id, str(case["test_code"]), str(case.get("test_entry_point") or ""))
    tests = fields.get("tests") or fields.get("test_list")
    if isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        question = {"question": example.prompt[-1]["content"], "id": example.id, "tests": tests}
        return contest_item(fields | question, example.id).gold
    if isinstance(tests, list) and tests:
        fields |= {"test": "\n".join(map(str, tests))}
    test, name = str(fields.get("test") or ""), str(fields.get("entry_point") or "")
    if not test.strip():
        return {}
    prompt = row["prompt"] if isinstance(row.get("prompt"), str) else ""
    return program_tests(example.id, test, name, prompt=prompt, style=str(fields.get("test_style") or ""))


@refuse_unreadable()
def program_tests(id: str, test: str, entry_point: str, *, prompt: str = "", style: str = "") -> dict[str, Any]:
    """Tests that are a program; functions that only pytest would call are called here.

    A test that asserts nothing would accept every answer, so it is an error.

    >>> program_tests("7", "def test_f():\\n    assert f(1) == 2", "f")["test"]
    'def test_f():\\n    assert f(1) == 2\\n\\ntest_f()\\n'
    """
    tree = ast.parse(test)
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    if entry_point in functions and (entry_point != "check" or not takes_arguments(functions[entry_point])):
        called, entry_point = [functions[entry_point]], ""  # the name is that of the test, not of what is tested
    else:
        called = [node for name, node in functions.items() if name.startswith("test")]
    style, parts = style or style_of(tree, functions, entry_point), list[ast.AST]([tree])
    if style == "asserts":
        plain = [node for node in called if isinstance(node, ast.FunctionDef) and not node.decorator_list]
        if len(plain) < len(called) or any(map(takes_arguments, plain)):
            raise UserError("a function of the test takes arguments or is decorated, which needs pytest")
        parts = [node for node in tree.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))] + called
        calls = {ast.unparse(node.func) for part in parts for node in living(part) if isinstance(node, ast.Call)}
        parts += [node for node in tree.body if isinstance(node, FUNCTIONS) and node.name in calls]
        if called:
            test = "\n".join([test.rstrip(), "", *(f"{node.name}()" for node in called), ""])
        first = next((ast.unparse(node) for node in living(tree) if asserts(node)), "")
        entry_point = entry_point or called_function(first, "")
    nodes = [node for part in parts for node in living(part)]
    if not any(asserts(node) or (style == "unittest" and calls_assertion(node)) for node in nodes):
        raise UserError("the test asserts nothing")
    return {"id": id, "prompt": prompt, "entry_point": entry_point, "test": test, "test_style": style}


def style_of(tree: ast.Module, functions: dict[str, Any], entry_point: str) -> str:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if any(ast.unparse(base).endswith("TestCase") for node in classes for base in node.bases):
        return "unittest"
    if entry_point and "check" in functions and takes_arguments(functions["check"]):
        return "check"
    return "asserts"


def takes_arguments(function: Any) -> bool:
    given = function.args
    needed = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return needed > 0 or any(default is None for default in given.kw_defaults)


def living(top: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, as `ast.walk` gives them, without branches that are never taken."""
    nodes = [top]
    for node in nodes:
        yield node
        below = ast.iter_child_nodes(node)
        if isinstance(node, (ast.If, ast.While)):
            if isinstance(node.test, ast.Constant):
                below = node.body if node.test.value else node.orelse
            elif ast.unparse(node.test) == "__name__ == '__main__'":  # the grader gives a program another name
                below = node.orelse
        nodes.extend(below)


def asserts(node: ast.AST) -> bool:
    """Whether a node is an assert that can fail; `assert False` can, after a call that should raise an error."""
    if not isinstance(node, ast.Assert):
        return False
    if isinstance(node.test, ast.Constant):
        return not node.test.value
    return not isinstance(node.test, ast.Tuple) and names_something(node.test)


def calls_assertion(node: ast.AST) -> bool:
    """Whether a node calls `self.assertEqual`, `self.fail`, `pytest.raises` or their like on more than constants."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    on_something = not given or any(map(names_something, given))
    return name.startswith("fail") or (name.startswith(("assert", "raises")) and on_something)


def names_something(expression: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) for node in ast.walk(expression))
