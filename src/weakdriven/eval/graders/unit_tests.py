"""The tests that a training row brings for its program, in the one form that the grader runs."""

import ast
import json
from collections import deque
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
def depth_limit() -> Iterator[None]:
    """Python's parser gives up on thousands of brackets, signs or terms, each in a way of its own."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise UserError("the test is nested too deeply to read") from None


@depth_limit()
def unit_tests_of(row: Row, example: Example) -> dict[str, Any]:
    """What `grade_code` takes for a row; empty if the row has no tests, an error if they would test nothing.

    Read are `test_case` with `test_code` (AM-DeepSeek-R1-Distilled), `tests` as inputs and outputs (contests), `test`
    as a program (HumanEval, MBPP, BigCodeBench), and `tests` or `test_list` as a list of asserts.
    """
    fields = example.meta | row
    if (case := as_object(example.meta.get("test_case"))) and str(case.get("test_code") or "").strip():
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


def as_object(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.strip():
        value = json.loads(value)
    return value if isinstance(value, dict) else {}


@depth_limit()
def program_tests(id: str, test: str, entry_point: str, *, prompt: str = "", style: str = "") -> dict[str, Any]:
    """Tests that are a program; functions that only pytest would call are called here.

    A test that asserts nothing would accept every answer, so it is an error.

    >>> program_tests("7", "def test_f():\\n    assert f(1) == 2", "f")["test"]
    'def test_f():\\n    assert f(1) == 2\\n\\ntest_f()\\n'
    """
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"the test is no Python program: {error}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    if entry_point in functions and (entry_point != "check" or not takes_arguments(functions[entry_point])):
        run, entry_point = [entry_point], ""  # the name is that of the test, not of what is tested
    else:
        run = [name for name in functions if name.startswith("test")]
    style = style or style_of(tree, functions, entry_point)
    if style == "asserts":
        test = with_calls(test, tree, [functions[name] for name in run])
        entry_point = entry_point or called_function(first_assert(tree), "")
    elif (style == "check" and not first_assert(tree)) or (
        style == "unittest" and not any(asserts(node) or calls_assertion(node) for node in living(tree))
    ):
        raise UserError("the test asserts nothing")
    return {"id": id, "prompt": prompt, "entry_point": entry_point, "test": test, "test_style": style}


def style_of(tree: ast.Module, functions: dict[str, Any], entry_point: str) -> str:
    """
    >>> style_of(ast.parse("assert f(1) == 2"), {}, "f")
    'asserts'
    """
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


def with_calls(test: str, tree: ast.Module, functions: list[Any]) -> str:
    """The test with calls of its functions behind it; an error if none of its asserts would run."""
    runnable = [node for node in functions if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    runnable = [node for node in runnable if not takes_arguments(node)]
    if len(runnable) < len(functions):
        raise UserError("a function of the test takes arguments or is decorated, which needs pytest")
    plain = [node for node in tree.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    run = [*plain, *runnable]
    called = {ast.unparse(node.func) for top in run for node in living(top) if isinstance(node, ast.Call)}
    run += [node for node in tree.body if isinstance(node, FUNCTIONS) and node.name in called]
    if not any(asserts(node) for top in run for node in living(top)):
        raise UserError("the test asserts nothing")
    calls = "".join(f"\n{node.name}()" for node in runnable)
    return f"{test.rstrip()}\n{calls}\n" if calls else test


def first_assert(tree: ast.Module) -> str:
    return next((ast.unparse(node) for node in living(tree) if asserts(node)), "")


def living(top: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, as `ast.walk` gives them, without branches that are never taken."""
    waiting = deque([top])
    while waiting:
        node = waiting.popleft()
        yield node
        taken = condition(node.test) if isinstance(node, (ast.If, ast.While)) else None
        if isinstance(node, (ast.If, ast.While)) and taken is not None:
            waiting.extend(node.body if taken else node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def condition(test: ast.expr) -> bool | None:
    """What a condition always is, if that can be seen; the grader gives a program another name than `__main__`."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    return False if ast.unparse(test) == "__name__ == '__main__'" else None


def asserts(node: ast.AST) -> bool:
    """Whether a node is an assert that can fail; `assert False` can, where a test expects an error before it.

    >>> [asserts(node) for node in ast.parse("assert f(1) == 2; assert True; assert (f(1), 2); assert False").body]
    [True, False, False, True]
    """
    if not isinstance(node, ast.Assert):
        return False
    if isinstance(node.test, ast.Constant):
        return not node.test.value
    return not isinstance(node.test, ast.Tuple) and names_something(node.test)


def calls_assertion(node: ast.AST) -> bool:
    """Whether a node calls `self.assertEqual`, `self.fail`, `pytest.raises` or their like on more than constants.

    >>> [calls_assertion(ast.parse(call).body[0].value) for call in ("self.assertTrue(f(1))", "self.assertTrue(True)")]
    [True, False]
    """
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    on_something = not given or any(map(names_something, given))
    return name.startswith("fail") or (name.startswith(("assert", "raises")) and on_something)


def names_something(expression: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) for node in ast.walk(expression))
