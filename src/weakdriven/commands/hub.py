"""`weakdriven export hub` and `weakdriven run --push-to-hub`: push the model of a run to the Hub."""

from pathlib import Path
from typing import Annotated

import typer

from weakdriven.commands.common import Debug, here, quieten_libraries
from weakdriven.errors import UserError

PushToHub = Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Push the result to the Hub at the end.")]
Private = Annotated[bool, typer.Option("--private", help="Make the new Hub repository a private one.")]


def export_hub(
    run: Annotated[Path, typer.Argument(help="A run directory.", callback=here)],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Model on the Hub; created if it does not exist.")],
    private: Private = False,
    debug: Debug = False,
) -> None:
    """Push the model that a run trained to the Hugging Face Hub: weights, tokenizer, card."""
    quieten_libraries()
    from weakdriven.report.card.hub import push_run

    print(f"Pushed: {push_run(run, repo, private=private)}")


def refuse_push(repo: str | None, *, private: bool = False) -> None:
    """Check the push before the hours of a run, not after them."""
    if private and not repo:
        raise UserError(
            "--private was given without --push-to-hub, so nothing would be pushed; add --push-to-hub OWNER/NAME, or "
            "leave --private out."
        )
    if repo:
        from weakdriven.report.card.hub import check_push

        check_push(repo)


def write_card_again(run: Path) -> None:
    """Write the model card of a run and say where; one that a person edited stays."""
    from weakdriven.report.card import write_cards

    for path, written in write_cards(run).items():
        print(path if written else f"{path} was edited, so it stays as it is; remove it to have it written again.")
