"""`weakdriven select`: draw an active set, explain it, and compare checkpoints as weak models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weakdriven.commands import common

if TYPE_CHECKING:
    from weakdriven.pipeline.weak_candidates import Separation

select_app = typer.Typer(
    short_help="Draw the active set of a recipe (WD-DS), or explain it.",
    help="WD-DS: weakdriven select RECIPE draws the active set of a recipe (short for select draw RECIPE).",
    cls=common.default_command("draw"),
    no_args_is_help=True,
)


@select_app.command("draw")
def select_draw(
    recipe: common.RecipeArgument,
    overrides: common.Overrides = None,
    round_number: Annotated[int, typer.Option("--round", help="Round number.")] = 1,
    output: common.Output = None,
    replace: common.Replace = False,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Draw the active set of a round. Missing models and entropies are computed first.

    To compute entropies in several processes: accelerate launch -m weakdriven select RECIPE
    """
    settings, root, progress = common.prepare(recipe, overrides, output, quiet)
    from weakdriven.pipeline.run import select_recipe
    from weakdriven.report.selection_explained import explain_selection

    if select_recipe(settings, root, progress, round_number, replace=replace):
        explain_selection(root, round_number, Console())


@select_app.command("explain")
def select_explain(
    run: common.RunArgument,
    round_number: common.Round = None,
    id: Annotated[str | None, typer.Option(help="Id of one example to explain.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of hardest and of most regressed examples to show.")] = 5,
    debug: common.Debug = False,
) -> None:
    """Explain how a finished active set was drawn, or why one example is in it or not."""
    from weakdriven.report.selection_explained import explain_example, explain_selection

    if id is None:
        explain_selection(run, round_number, Console(), top)
    else:
        explain_example(run, round_number, id, Console())


@select_app.command("pairing")
def select_pairing(
    recipe: common.RecipeArgument,
    overrides: common.Overrides = None,
    weak: Annotated[list[str] | None, typer.Option(help="An earlier checkpoint; can be repeated.")] = None,
    strong: Annotated[str | None, typer.Option(help="The strong model (default: the recipe's M1).")] = None,
    examples: Annotated[int, typer.Option(help="Number of random examples to score.")] = 2048,
    output: common.Output = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Compare checkpoints as weak models: how far are their entropies from the strong model's (paper B.5)?"""
    settings, root, progress = common.prepare(recipe, overrides, output, quiet)
    from weakdriven.pipeline.weak_candidates import pair_checkpoints

    if found := pair_checkpoints(settings, root, progress, weak=weak or [], strong=strong, examples=examples):
        print_separations(found)


def print_separations(found: "list[Separation]") -> None:
    from weakdriven.pipeline.weak_candidates import TOO_CLOSE

    print(f"Strong model: entropy {found[0].strong_entropy:.4f} nats per token over {found[0].examples} examples.")
    rows = [
        (
            "/".join(Path(one.weak).parts[-2:]),
            f"{one.weak_entropy:.4f}",
            f"{one.change:+.4f} ± {one.error:.4f}",
            f"{one.distance:.4f}, {one.relative:.1%}",
            "too close" if one.too_close else "",
            "" if one.correlation is None else f"{one.correlation:.3f}",
        )
        for one in found
    ]
    common.print_table(("weak model", "entropy", "change to strong", "distance", "", "rank corr."), rows)
    print("Change: mean of strong minus weak entropy, in nats per token.")
    print("Distance: mean absolute change, also as a percentage of the strong model's entropy.")
    for one in found:
        if one.too_close:
            print(
                f"Warning: the entropies of {one.weak} differ from the strong model's by only {one.relative:.1%}. "
                f"Below {TOO_CLOSE:.0%} the two models are uncertain about the same tokens, so mixing their logits "
                "adds little (paper B.5)."
            )
