"""Private names of the libraries under us: the list is true and whole, and a release that drops a hook is noticed."""

import ast
import inspect
import re
from collections import Counter
from functools import cache
from importlib import import_module

import pytest
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler
from trl.trainer.sft_trainer import SFTTrainer

from helpers import token_rows
from joint_cases import close, make, trained
from repository.test_architecture import SOURCE, trees
from weakdriven.errors import UserError
from weakdriven.training.upstream import PRIVATE, require_hooks
from weakdriven.wmss.trainer import WDJTTrainer

PYTHON = {"_replace", "_asdict", "_fields", "_exit", "_run_exitfuncs", "_socket"}
LISTED = {private.name.partition("(")[0].lstrip(".") for private in PRIVATE} | {"_C"}


def private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def module_of(path):
    return ".".join(["weakdriven", *path.relative_to(SOURCE).with_suffix("").parts])


def defined_here():
    """Private names that our own source defines: functions, classes, variables and attributes of self."""
    found = set()
    for node in (node for tree in trees().values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def taken_from_others():
    """Private names that our source imports, or reads of an object, and does not define itself."""
    own = defined_here()
    for path, tree in trees().items():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Attribute) and node.attr not in own:
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("weakdriven"):
                names = [name.name for name in node.names]
            yield from ((path, name) for name in names if private(name) and name not in PYTHON)


@cache
def names_of(kind):
    """Private names of a class: those it has, and those that its methods give to their instances."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        source = ""
    return {*filter(private, vars(kind)), *re.findall(r"\bself\.(_[a-z]\w*)\s*(?::[^=\n]+)?=", source)}


def shared_with_bases():
    """Private names that a class of ours defines or uses, and that a base from another package has."""
    for path, tree in trees().items():
        for node in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases):
            kind = getattr(import_module(module_of(path)), node.name)
            bases = [base for base in kind.__mro__ if not base.__module__.startswith(("weakdriven", "builtins"))]
            theirs = set().union(*map(names_of, bases))
            used = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and owns(one.value)}
            used |= {name.id for one in node.body if isinstance(one, ast.Assign) for name in one.targets}
            used |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            yield from ((path, name) for name in used & theirs if private(name))


def owns(value):
    return ast.unparse(value) in ("self", "cls", "super()")


def test_every_private_name_of_another_package_is_listed():
    unlisted = {(module_of(path), name) for path, name in (*taken_from_others(), *shared_with_bases())}
    assert not {(module, name) for module, name in unlisted if name not in LISTED}


@pytest.mark.parametrize("hook", PRIVATE, ids=lambda hook: f"{hook.owner}.{hook.name}")
def test_a_listed_name_is_used_and_is_as_upstream_has_it(hook):
    name, _, listed = hook.name.partition("(")
    attribute = name.lstrip(".")
    module = import_module(f"weakdriven.{hook.used}")
    assert attribute in inspect.getsource(module), f"{hook.used} does not use it"
    place, _, last = hook.owner.rpartition(".")
    try:
        owner = getattr(import_module(place), last)
    except (ImportError, AttributeError):
        owner = import_module(hook.owner) if place != "torch.ops" else None
    if name != attribute:
        assert attribute in set().union(*map(names_of, owner.__mro__))
        return
    assert hasattr(owner, attribute)
    if not listed:
        return
    known = listed.rstrip(")").split(", ") if listed != ")" else []
    theirs = list(inspect.signature(getattr(owner, attribute)).parameters.values())[1:]
    assert [one.name for one in theirs][: len(known)] == known
    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    ours = next((vars(kind)[attribute] for kind in kinds if attribute in vars(kind)), None)
    taken = inspect.signature(ours).parameters.values() if inspect.isfunction(ours) else ()
    takes_all = any(one.kind is one.VAR_POSITIONAL for one in taken)
    for one in theirs[len(known) :]:
        optional = one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        assert takes_all or (optional and not taken), f"{one.name} is new"


def overrides(name):
    return callable(own := getattr(WDJTTrainer, name)) and own is not getattr(SFTTrainer, name)


HOOKS = ["get_batch_samples", "training_step", "compute_loss", "create_optimizer", "log", "evaluation_loop"]
HOOKS += ["floating_point_ops"]
HOOKS += sorted(name for name in LISTED if hasattr(SFTTrainer, name) and overrides(name))
HOOKS.remove("_push_from_checkpoint")  # called only with a Hub, as when test_joint_adapters.py pushes a merged model


def test_upstream_calls_every_method_that_the_trainer_overrides(tmp_path, monkeypatch):
    calls = Counter()

    def counting(name, own):
        def method(self, *args, **kwargs):
            calls[name] += 1
            return own(self, *args, **kwargs)

        return method

    for name in HOOKS:
        monkeypatch.setattr(WDJTTrainer, name, counting(name, getattr(WDJTTrainer, name)))
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    options = {**saving, **sizes, "load_best_model_at_end": True}
    trainer = trained(tmp_path, trainer={"eval_dataset": token_rows(2)}, **options)
    assert calls["training_step"] == 4 and calls["get_batch_samples"] == 2
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert [name for name in HOOKS if not calls[name]] == []


def uncounted(self, *args):
    return Trainer.get_batch_samples(self, *args)[0], None


def other_loss(self, model, inputs, *args, **kwargs):
    return model(**inputs).loss


SKIPPED = {
    "TrainerCallback.on_step_begin": (CallbackHandler, lambda self, args, state, control: control),
    "TrainerCallback.on_pre_optimizer_step": (CallbackHandler, lambda self, args, state, control: control),
    "Trainer.training_step": (WDJTTrainer, SFTTrainer.training_step),
    "Trainer.get_batch_samples": (WDJTTrainer, uncounted),
    "Trainer.compute_loss": (WDJTTrainer, other_loss),
}


@pytest.mark.parametrize("hook", SKIPPED)
def test_a_step_without_a_hook_that_checks_or_scales_it_raises(hook, tmp_path, monkeypatch):
    owner, replacement = SKIPPED[hook]
    monkeypatch.setattr(owner, hook.partition(".")[2], replacement)
    with pytest.raises(UserError, match=f"did not call {hook}"):
        trained(tmp_path)


def test_a_method_that_upstream_has_dropped_is_refused_before_training(tmp_path, monkeypatch):
    require_hooks(WDJTTrainer)
    monkeypatch.delattr(Trainer, "_load_best_model")
    with pytest.raises(UserError, match=r"no transformers.Trainer._load_best_model"):
        make(tmp_path)


def test_the_loss_is_scaled_once_whatever_trl_declares(tmp_path, monkeypatch):
    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(SFTTrainer, "loss_is_scaled_for_ga", False, raising=False)
    close(trained(tmp_path / "parts", per_device_train_batch_size=2, gradient_accumulation_steps=2), whole)
