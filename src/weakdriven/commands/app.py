"""The command line: parses, calls one function, prints. Torch is imported by the commands that need it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from weakdriven.commands.common import (
    Debug,
    Force,
    Quiet,
    Rehearse,
    TakeFrom,
    default_command,
    here,
    places,
    quieten_libraries,
)
from weakdriven.commands.data import data_app
from weakdriven.commands.diagnose import diagnose
from weakdriven.commands.eval import eval_app
from weakdriven.commands.hub import Private, PushToHub, export_hub, refuse_push
from weakdriven.commands.plan import plan
from weakdriven.commands.report import report_app
from weakdriven.commands.sweep import sweep
from weakdriven.commands.verify import verify
from weakdriven.commands.watch import watch
from weakdriven.config.file import describe, dump_recipe, extended, load_recipe, recipe_schema, shipped_recipes
from weakdriven.config.recipe import Recipe
from weakdriven.errors import UserError, explain
from weakdriven.runs.processes import first_to_say, leave
from weakdriven.runs.redact import mask_output
from weakdriven.runs.signals import EXIT_CODE, INTERRUPTED, Stopped, stoppable

if TYPE_CHECKING:
    from weakdriven.pipeline.weak_candidates import Separation

app = typer.Typer(
    help="Weak-driven post-training: one command takes a recipe to a stronger model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
recipes_app = typer.Typer(help="The recipes that come with the package.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")
export_app = typer.Typer(help="Save what a run trained in other forms.", no_args_is_help=True)
app.add_typer(export_app, name="export")


select_app = typer.Typer(
    help="WD-DS: weakdriven select RECIPE draws the active set of a recipe (short for select draw RECIPE).",
    cls=default_command("draw"),
)
app.add_typer(select_app, name="select", no_args_is_help=True)
app.add_typer(eval_app, name="eval", no_args_is_help=True)
app.add_typer(data_app, name="data", no_args_is_help=True)
app.add_typer(report_app, name="report", no_args_is_help=True)
app.command()(diagnose)
app.command()(plan)
app.command()(watch)
app.command()(verify)
export_app.command("hub")(export_hub)
app.command()(sweep)

COMPARED = "sft,sft_restart,neftune,undial,spin,ssb,dpo,wmss"
RecipeArgument = Annotated[str, typer.Argument(help="A .yaml file, or the name of a shipped recipe.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.sub=value.")]


Output = Annotated[Path | None, typer.Option(help="Run directory; unset: runs/NAME.", callback=here)]
Launch = Annotated[
    str | None, typer.Option(help="Start several processes: fsdp2-8gpu, ... or a configuration file of accelerate.")
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", callback=here)]


@app.command()
def run(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[
        str | None,
        typer.Option(help="Run directory, or an address that finished stages are copied to; unset: runs/NAME."),
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="With an address: directory to work in; unset: in the cache.", callback=here)
    ] = None,
    push_to_hub: PushToHub = None,
    private: Private = False,
    take_from: TakeFrom = None,
    launch: Launch = None,
    force: Force = False,
    rehearsal: Rehearse = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a recipe: SFT, selection, joint training, evaluation, report. Run again to go on where it stopped."""
    if launch:
        start_processes(launch, recipe, overrides)
    folder, address = places(output, work)
    settings, root, progress = prepare(recipe, overrides, folder, quiet)
    refuse_push(push_to_hub, private=private)
    from weakdriven.pipeline.run import RunOptions, run_recipe
    from weakdriven.runs.take_over import Siblings
    from weakdriven.stages.remote_copy import Mirror

    mirror = Mirror(address, root, progress.note) if address else None
    others = take_from or []
    options = RunOptions(Siblings(others), force, rehearsal, mirror)
    report = run_recipe(settings, root, progress, options)
    if helps():
        return
    print_scores(root)
    print(f"\nReport: {report}")
    if mirror:
        print(f"Copied: {mirror.shown}")
    if push_to_hub:
        export_hub(root, push_to_hub, private)


@app.command()
def compare(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas; sft_restart is always one.")] = COMPARED,
    seeds: Annotated[int, typer.Option(min=1, help="How many: the recipe's, and those after it.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Seeds that run at once; several GPUs are taken in turn.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the runs; unset: runs/NAME-compare.", callback=here)
    ] = None,
    take_from: TakeFrom = None,
    force: Force = False,
    rehearsal: Rehearse = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train several methods from the same models and data, under several seeds: one table of scores and costs."""
    quieten_libraries()
    from weakdriven.pipeline.compare import compare_methods
    from weakdriven.pipeline.run import RunOptions
    from weakdriven.runs.progress import choose_progress
    from weakdriven.runs.take_over import Siblings

    names = [name.strip() for name in methods.split(",") if name.strip()]
    progress = choose_progress(Console(), quiet=quiet)
    root = compare_methods(
        recipe,
        overrides or [],
        output,
        progress,
        methods=names,
        seeds=seeds,
        jobs=jobs,
        options=RunOptions(Siblings(take_from or []), force, rehearsal),
    )
    print_comparison(root)


@select_app.command("draw")
def select_draw(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    turn: Annotated[int, typer.Option("--round", help="Round whose active set is drawn.")] = 1,
    output: Output = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw the active set of a round: what it needs is trained first, entropies are computed or taken over.

    Entropies are computed by several processes if started as: accelerate launch -m weakdriven select RECIPE
    """
    settings, root, progress = prepare(recipe, overrides, output, quiet)
    from weakdriven.pipeline.run import select_recipe
    from weakdriven.report.selection_explained import explain_selection

    if select_recipe(settings, root, progress, turn):
        explain_selection(root, turn, Console())


@select_app.command("explain")
def select_explain(
    run: RunArgument,
    turn: Annotated[int | None, typer.Option("--round", help="Round; unset: the last that has a selection.")] = None,
    id: Annotated[str | None, typer.Option(help="Say why this example was chosen or not.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Hardest and most regressed examples to show.")] = 5,
    debug: Debug = False,
) -> None:
    """Say how the active set of a finished selection came about, or why one example is in it or not."""
    from weakdriven.report.selection_explained import explain_example, explain_selection

    if id is None:
        explain_selection(run, turn, Console(), top)
    else:
        explain_example(run, turn, id, Console())


@select_app.command("pairing")
def select_pairing(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    weak: Annotated[list[str] | None, typer.Option(help="An earlier checkpoint; may be given several times.")] = None,
    strong: Annotated[str | None, typer.Option(help="The strong model; unset: the recipe's M1.")] = None,
    examples: Annotated[int, typer.Option(help="Examples to score, drawn at random.")] = 2048,
    output: Output = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare earlier checkpoints as weak model by how far their entropies lie from the strong one's (paper B.5)."""
    settings, root, progress = prepare(recipe, overrides, output, quiet)
    from weakdriven.pipeline.weak_candidates import pair_checkpoints

    print_pairings(pair_checkpoints(settings, root, progress, weak=weak or [], strong=strong, examples=examples))


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List the shipped recipes; those that extend another stand below it."""
    if context.invoked_subcommand is None:
        shipped = shipped_recipes()
        width = max(map(len, shipped)) + 3
        for place, (name, path) in enumerate(shipped.items()):
            below = extended(path) is not None
            if place and not below:
                print()
            print(f"{'  ' * below + name:{width}} {describe(path)}")


@recipes_app.command("show")
def recipes_show(
    name: RecipeArgument,
    whole: Annotated[
        bool, typer.Option("--whole", help="Every setting, with what it extends and the defaults.")
    ] = False,
) -> None:
    """Print a recipe file."""
    shipped = shipped_recipes()
    path = shipped[name] if name in shipped else Path(name)
    recipe = load_recipe(name)
    print(dump_recipe(recipe) if whole else path.read_text(encoding="utf-8"), end="")


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    print(recipe_schema(), end="")


@export_app.command("mix")
def export_mix(
    strong: Annotated[str, typer.Argument(help="Model or adapter folder; or a run, a round of it, a checkpoint.")],
    weak: Annotated[str | None, typer.Argument(help="Model or adapter folder; leave it out for the others.")] = None,
    out: Annotated[str | None, typer.Argument(help="New folder; a run or round has one: RUN/round-N/mixture.")] = None,
    strong_weight: Annotated[
        float | None,
        typer.Option(help="Share of the strong logits; unset: as the run trained it, else 0.5."),
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp32"] | None,
        typer.Option(help="Of the saved weights; unset: bf16 if both models are, else fp32."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Save weak and strong as one model that answers with their mixed logits, to evaluate what was trained."""
    quieten_libraries()
    from weakdriven.wmss.export import export_mix as export

    paths = [path for path in (strong, weak, out) if path is not None]
    mix = export(paths, strong_weight=strong_weight, dtype=dtype)
    print(f"strong  {mix.strong.folder}\nweak    {mix.weak.folder}")
    print(f"weight  {mix.strong_weight:g} on the strong logits, from {mix.weight_from}")
    print(f"saved   {mix.out}, which loads and answers as the two models mixed")


@export_app.command("vllm")
def export_vllm(
    trained: Annotated[str, typer.Argument(help="Folder of a trained text-only Gemma-3.")],
    base: Annotated[str, typer.Argument(help="Folder or Hub id of the multimodal Gemma-3 it was trained from.")],
    out: Annotated[str, typer.Argument(help="New folder.")],
    debug: Debug = False,
) -> None:
    """Put a trained Gemma-3 back beside its base's vision tower, for servers that load the multimodal form only."""
    quieten_libraries()
    from weakdriven.models.gemma3.wrap import wrap_text_model

    made = wrap_text_model(trained, base, out)
    print(f"text    {made.text_weights} weights of {made.trained}")
    print(f"vision  {made.vision_weights} weights of {made.base}, unchanged")
    print(f"saved   {made.out}, read back and found equal")


def prepare(recipe: str, overrides: list[str] | None, output: Path | None, quiet: bool) -> tuple[Recipe, Path, Any]:
    """What the commands that compute share: settings, run directory, and someone who tells of progress."""
    settings = load_recipe(recipe, overrides)
    quieten_libraries()
    from weakdriven.runs.progress import choose_progress

    return settings, output or Path("runs") / settings.name, choose_progress(Console(), quiet=quiet or helps())


def start_processes(config: str, recipe: str, overrides: list[str] | None) -> None:
    """This very command in several processes, once its recipe has been read; ends with their exit code."""
    from weakdriven.runs.launcher import launch, without_launch

    load_recipe(recipe, overrides)
    raise typer.Exit(launch(config, without_launch(sys.argv[1:])))


def helps() -> bool:
    """Whether a launcher started this process beside another that speaks."""
    return os.environ.get("RANK", "0") != "0"


def print_pairings(found: "list[Separation]") -> None:
    if not found:
        return
    table = Table("weak model", "entropy", "change to strong", "distance", "", "rank corr.")
    for one in found:
        table.add_row(
            "/".join(Path(one.weak).parts[-2:]),
            f"{one.weak_entropy:.4f}",
            f"{one.change:+.4f} ± {one.error:.4f}",
            f"{one.distance:.4f}, {one.relative:.1%}",
            "too close" if one.too_close else "",
            "" if one.correlation is None else f"{one.correlation:.3f}",
        )
    print(f"Strong model: entropy {found[0].strong_entropy:.4f} nats per token over {found[0].examples} examples.")
    Console().print(table)
    print("Change: mean of strong minus weak. Distance: mean of its size, also as a share of the strong entropy.")
    for warning in filter(None, (one.warning for one in found)):
        print(f"Warning: {warning}")


def print_comparison(root: Path) -> None:
    """The tables of a comparison; a method without a result makes the command fail."""
    from weakdriven.report.compare.table import COMPARISON, caption, failures, tables
    from weakdriven.runs.files import read_json

    found = read_json(root / f"{COMPARISON}.json")
    for titles, rows in tables(found):
        table = Table(*titles)
        for cells in rows:
            table.add_row(*cells)
        Console().print(table)
    print(f"{caption(found)}\n\nAlso as .md, .csv and .json: {root / COMPARISON}.*")
    if failed := failures(found):
        raise UserError("Without a result: " + "; ".join(failed))


def print_scores(root: Path) -> None:
    from weakdriven.report import accuracy_rows

    rows = accuracy_rows(root)
    if not rows:
        return
    table = Table("model", "benchmark", "correct", "accuracy", "95% interval")
    for row in rows:
        interval = f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"
        correct = f"{row['correct']}/{row['answers']}"
        table.add_row(row["name"], row["benchmark"], correct, f"{100 * row['accuracy']:.1f}%", interval)
    Console().print(table)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2; `--debug` shows where it arose."""
    mask_output()
    try:
        with stoppable():
            app(standalone_mode=True)
    except (SystemExit, KeyboardInterrupt) as end:  # the way out of every command that was not cut short
        interrupted = isinstance(end, KeyboardInterrupt) or end.code == INTERRUPTED  # typer makes one of the other
        if interrupted:
            print("Stopped; run the same command again to go on.", file=sys.stderr)
        leave()
        if interrupted:
            sys.exit(INTERRUPTED)
        raise
    except Stopped as stop:
        say(str(stop))
        leave()  # all processes stop together
        sys.exit(EXIT_CODE)
    except Exception as error:
        sentence = explain(error)
        if sentence is None or "--debug" in sys.argv:
            mask_output()  # typer has put a hook of its own in its place
            raise
        say(f"Error: {sentence}")
        sys.exit(2)


def say(sentence: str) -> None:
    """The last words of a command, which one of its processes says."""
    if "torch" not in sys.modules or first_to_say(sentence):
        print(sentence, file=sys.stderr)
