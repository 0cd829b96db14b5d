"""`holdfast completion`: scripts that let a shell complete commands and options."""

import os

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
)

from holdfast.cli.grammar import Command
from holdfast.cli.session import Session, pass_session

_KEEP = {
    "bash": "> ~/.local/share/bash-completion/completions/holdfast",
    "zsh": '> "${fpath[1]}/_holdfast"',
    "fish": "> ~/.config/fish/completions/holdfast.fish",
    # `>>` of Windows PowerShell would append UTF-16 to a file of another encoding.
    "powershell": "| Add-Content $PROFILE",
}


@add_completion_class
class PowerShell(ShellComplete):
    """Completion for PowerShell, which click does not know: complete words, and the one begun.

    Where no command or option is known, the script returns nothing, and PowerShell completes files.
    """

    name = "powershell"
    source_template = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = $commandAst.CommandElements |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { if ($_.Value -is [string]) { $_.Value } else { $_.Extent.Text } }
    try {
        $env:COMP_WORDS = @($words) -join "`n"
        $env:COMP_CWORD = $wordToComplete
        $env:%(complete_var)s = "powershell_complete"
        & %(prog_name)s | ForEach-Object {
            $type, $value, $help = $_.Split("`t")
            if ($type -eq "plain") {
                [System.Management.Automation.CompletionResult]::new(
                    $value, $value, "ParameterValue", $help)
            }
        }
    } finally {
        Remove-Item Env:COMP_WORDS, Env:COMP_CWORD, Env:%(complete_var)s -ErrorAction Ignore
    }
}
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, and what is typed of that one."""
        # To PowerShell an environment variable without text is one that is not set.
        words = os.environ.get("COMP_WORDS", "").split("\n")
        return words[1:], os.environ.get("COMP_CWORD", "").strip("'\"")

    def format_completion(self, item: "CompletionItem[str]") -> str:
        """Return a line of type, value and help; PowerShell refuses a result without help."""
        value = str(item.value)
        if " " in value or "'" in value:
            value = "'" + value.replace("'", "''") + "'"
        return f"{item.type}\t{value}\t{' '.join((item.help or '').split()) or value}"


@click.command(
    cls=Command,
    examples=[
        'eval "$(holdfast completion bash)"',
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    ],
)
@click.argument("shell", type=click.Choice(list(_KEEP)))
@pass_session
@click.pass_context
def completion(ctx: click.Context, session: Session, shell: str) -> None:
    """Print a completion script for bash, zsh, fish or PowerShell."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source()
    session.answer({"shell": shell, "script": script}, lambda: script)
    session.say(f"keep it:  holdfast completion {shell} {_KEEP[shell]}")
