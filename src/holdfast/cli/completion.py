"""`holdfast completion`: scripts that let a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from holdfast.cli.grammar import Command
from holdfast.cli.session import Session, pass_session

_HOMES = {
    "bash": "~/.local/share/bash-completion/completions/holdfast",
    "zsh": '"${fpath[1]}/_holdfast"',
    "fish": "~/.config/fish/completions/holdfast.fish",
}


@click.command(
    cls=Command,
    examples=[
        'eval "$(holdfast completion bash)"',
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    ],
)
@click.argument("shell", type=click.Choice(list(_HOMES)))
@pass_session
@click.pass_context
def completion(ctx: click.Context, session: Session, shell: str) -> None:
    """Print a completion script for bash, zsh or fish."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source()
    session.answer({"shell": shell, "script": script}, lambda: script)
    session.say(f"keep it:  holdfast completion {shell} > {_HOMES[shell]}")
