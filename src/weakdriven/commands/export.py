"""`weakdriven export`: what a run trained, in other forms."""

from typing import Annotated, Literal

import typer

from weakdriven.commands.common import Debug, quieten_libraries
from weakdriven.commands.hub import export_hub

export_app = typer.Typer(help="Save what a run trained in other forms.", no_args_is_help=True)
export_app.command("hub")(export_hub)


@export_app.command("mix")
def export_mix(
    strong: Annotated[str, typer.Argument(help="Model or adapter folder; or a run, a round of it, a checkpoint.")],
    weak: Annotated[str | None, typer.Argument(help="Model or adapter folder; leave it out for the others.")] = None,
    out: Annotated[str | None, typer.Argument(help="New folder; a run or round has one: RUN/round-N/mixture.")] = None,
    strong_weight: Annotated[
        float | None, typer.Option(help="Share of the strong logits; unset: as the run trained it, else 0.5.")
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp32"] | None,
        typer.Option(help="Precision of the saved weights; unset: bf16 if both models are, else fp32."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Save weak and strong as one model that generates from their mixed logits, to evaluate the mixture."""
    quieten_libraries()
    from weakdriven.wmss.export import export_mix as export

    paths = [path for path in (strong, weak, out) if path is not None]
    mix = export(paths, strong_weight=strong_weight, dtype=dtype)
    print(f"strong  {mix.strong.folder}\nweak    {mix.weak.folder}")
    print(f"weight  {mix.strong_weight:g} on the strong logits, from {mix.weight_from}")
    print(f"saved   {mix.out}, which loads as one model with mixed logits")


@export_app.command("vllm")
def export_vllm(
    trained: Annotated[str, typer.Argument(help="Folder of a trained text-only Gemma-3.")],
    base: Annotated[str, typer.Argument(help="Folder or Hub id of the multimodal Gemma-3 it was trained from.")],
    out: Annotated[str, typer.Argument(help="New folder.")],
    debug: Debug = False,
) -> None:
    """Add its base's vision tower to a trained Gemma-3, for servers that load the multimodal form only."""
    quieten_libraries()
    from weakdriven.models.gemma3.wrap import wrap_text_model

    text, vision = wrap_text_model(trained, base, out)
    print(f"text    {text} weights of {trained}")
    print(f"vision  {vision} weights of {base}, unchanged")
    print(f"saved   {out}, read back and found equal")
