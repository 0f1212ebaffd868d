"""The structure that ARCHITECTURE.md prints: who imports whom, and how large a piece may be."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/weakdriven"
MODULES = sorted(SOURCE.rglob("*.py"))
ORDER = re.findall(r"^\| `(\w+)` \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.MULTILINE)


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, wherever in it and whether or not for types only."""
    found = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "weakdriven":
            inner = [f"{node.module}.{name.name}" for name in node.names]
            found |= {one if module_file(one) else node.module for one in inner}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "weakdriven"}
    return found


def module_file(dotted: str) -> Path | None:
    place = SOURCE.parent / dotted.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_the_printed_order_names_every_package():
    packages = {package_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert set(ORDER) == packages and len(ORDER) == len(packages)


def test_imports_go_down_the_printed_order():
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in MODULES
        if package_of(path) in ORDER
        for name in imported(path)
        if name.count(".") and (target := name.split(".")[1]) in ORDER
        if ORDER.index(target) < ORDER.index(package_of(path))
    ]
    assert not upward


def test_no_two_modules_import_each_other():
    graph = {path: {file for name in imported(path) if (file := module_file(name))} - {path} for path in MODULES}
    done: set[Path] = set()

    def walk(path: Path, above: tuple[Path, ...]) -> None:
        assert path not in above, " -> ".join(str(one.relative_to(SOURCE)) for one in (*above, path))
        if path not in done:
            for other in graph.get(path, ()):
                walk(other, (*above, path))
            done.add(path)

    for path in MODULES:
        walk(path, ())


def test_pieces_stay_small():
    assert len(list(SOURCE.glob("*.py"))) <= 3
    for folder in {path.parent for path in MODULES}:
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 16, folder
    for path in MODULES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_no_function_below_the_command_line_takes_more_than_ten_arguments():
    public = {"mixed_cross_entropy"}  # importable from weakdriven
    flat = ("triton.jit", "torch.library.custom_op")  # take every tensor, and kernels every stride, by itself
    for path in MODULES:
        for node in ast.walk(trees()[path]) if package_of(path) != "commands" else ():
            if not isinstance(node, ast.FunctionDef) or node.name in public:
                continue
            if any(ast.unparse(decorator).startswith(flat) for decorator in node.decorator_list):
                continue
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            assert len([name for name in names if name not in ("self", "cls")]) <= 10, f"{path}: {node.name}"
