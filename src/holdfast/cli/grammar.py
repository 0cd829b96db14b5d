"""What all commands share: common options, help that fits a screen, errors, exit codes."""

import logging
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from textwrap import wrap
from types import FrameType
from typing import Any, NoReturn

import click

from holdfast.cli.session import Session
from holdfast.errors import HoldfastError, Misuse
from holdfast.uncaught import report

FAILED = HoldfastError.exit_code


class Command(click.Command):
    """A command that takes the common options and whose help ends with examples.

    Options that are `seldom` used are only named, so that help fits a screen; --help-all has all.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        seldom: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.seldom = seldom
        self.params += _common_options()
        if seldom:
            self.params.append(_help_all())

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.BadParameter as error:
            if error.ctx and error.param and (variable := _variable(error.ctx, error.param)):
                said = f"{error.message} {variable} says so."
                raise click.BadParameter(said, error.ctx, error.param) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [p for p in self.params if isinstance(p, click.Option) and p.name not in _COMMON]
        named = () if ctx.meta.get(_ALL) else self.seldom
        with formatter.section("Options"):
            shown = [option for option in own if option.name not in named]
            if records := [record for option in shown if (record := option.get_help_record(ctx))]:
                formatter.write_dl(records)
            more = [option.opts[-1] for option in own if option.name in named]
            if any(param.name == "log_format" for param in self.params):
                more.append("--log-format text|json")
            more += ["--url URL", "--json", "--quiet", "--help"]
            if named:
                more.append("--help-all")
            lines = wrap(
                f"also {', '.join(more)}",
                formatter.width,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
            formatter.write("\n".join(lines) + "\n")
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")


class Group(Command, click.Group):
    """A noun and its verbs, in the order in which they are defined."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            known = f"Commands are: {', '.join(self.commands)}."
            meant = nearest(name, self.commands) or self._under(ctx, name) or f". {known}"
            ctx.fail(f"no such command: {name}{meant}")
        return super().resolve_command(ctx, args)

    def _under(self, ctx: click.Context, name: str) -> str:
        """Say under which nouns there is such a verb."""
        nouns = [
            noun
            for noun, group in self.commands.items()
            if isinstance(group, click.Group) and name in group.commands
        ]
        path = ctx.command_path
        return (
            "; there is  " + ", ".join(f"{path} {noun} {name}" for noun in nouns) if nouns else ""
        )


class Program(Group):
    """The root: turns every error into one message and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; see holdfast --help for the codes."""
        if os.environ.get("NO_COLOR"):
            extra["color"] = False
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run, sys.argv[1:] if args is None else args))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whoever reads the answer may stop reading."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _abandon_stdout()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Options"):
            formatter.write(
                "  --url URL (else HOLDFAST_URL, else ./.holdfast), --json, --quiet, --version\n"
            )
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        shown, others = names[:_MOST_COMMANDS], names[_MOST_COMMANDS:]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(60)) for name in shown]
            )
            if others:
                formatter.write_text(f"also {', '.join(others)}")


def log_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that runs on and logs the option that says how."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        envvar="HOLDFAST_LOG_FORMAT",
        hidden=True,
    )(command)


def fail() -> NoReturn:
    """End the command as failed; what failed was said."""
    click.get_current_context().exit(FAILED)


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant: " (did you mean `retry`?)", or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


_COMMON = ("url", "json", "quiet")
_ALL = "holdfast.help_all"
_OF_EXTRA = re.compile(r"""([\w-]+).*\bextra == ['"](\w+)""")
# With a line for the others, what fits a screen of 24 lines.
_MOST_COMMANDS = 8


def _variable(ctx: click.Context, param: click.Parameter) -> str | None:
    """Return the variable of the environment that gave an option its value, if one did."""
    name = param.name or ""
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    return str(param.envvar or f"{ctx.auto_envvar_prefix}_{name.upper()}")


def unseen(value: str) -> str:
    """Read a value that holds a secret: as it is, @FILE, or - for standard input.

    Others on the machine can read the command line.
    """
    if value != "-" and not value.startswith("@"):
        return value
    try:
        with click.open_file(value.removeprefix("@"), encoding="utf-8") as file:
            return str(file.read()).strip()
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}") from None


def _help_all() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=show
    )


def _common_options() -> list[click.Parameter]:
    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if param.name == "url" and value == "":
            raise click.BadParameter("it is empty; omit it to use the embedded database")
        if value and param.name:
            if param.name == "url":
                value = unseen(value)
            setattr(ctx.ensure_object(Session), param.name, value)

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=remember, **attributes)

    return [
        option("--url", metavar="URL", help="or @FILE, or - ; else HOLDFAST_URL, else ./.holdfast"),
        option("--json", is_flag=True, help="print one JSON document"),
        option("--quiet", is_flag=True, help="print data and errors only"),
    ]


def _exit_code(run: Callable[[], Any], arguments: Sequence[str]) -> int:
    stops = [signal.SIGINT]
    try:
        _refuse_undecodable(arguments)
        with _outages_told(), _terminable(stops):
            code = run()
    except HoldfastError as error:
        report(str(error), error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 128 + stops[-1]
    except Exception as error:
        if missing := _missing(error):
            report(str(missing), error)
            return missing.exit_code
        told = str(error).strip().partition("\n")[0]
        advice = "\n      HOLDFAST_DEBUG=1 shows where it happened."
        report(f"HF000 {type(error).__name__}: {told}{advice}", error)
        return FAILED
    return code if isinstance(code, int) else 0


def _missing(error: Exception) -> Misuse | None:
    """Say which extra brings the module that is not installed, if one does: the smallest."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    with suppress(metadata.PackageNotFoundError):
        needs = metadata.requires("holdfast") or []
        brought = [match.groups() for need in needs if (match := _OF_EXTRA.match(need))]
        sizes = Counter(extra for _, extra in brought)
        fitting = [extra for name, extra in brought if name.replace("-", "_") == module]
        if fitting:
            extra = min(fitting, key=sizes.__getitem__)
            return Misuse(
                f"this command needs {module}, which is not installed",
                fix=f'pip install "holdfast[{extra}]"',
            )
    return None


class _Outages(logging.Handler):
    """Says what is logged: that the database went away and is back, that a duty fails."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = [getattr(record, name, None) for name in ("server", "duty", "reason")]
        told = ": ".join([record.getMessage(), *(fact for fact in facts if fact)])
        seconds = getattr(record, "seconds", None)
        click.echo(told if seconds is None else f"{told} after {seconds:.0f} s", err=True)


@contextmanager
def _outages_told() -> Iterator[None]:
    handler = _Outages(logging.WARNING)
    logging.getLogger("holdfast").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("holdfast").removeHandler(handler)


@contextmanager
def _terminable(stops: list[signal.Signals]) -> Iterator[None]:
    # A supervisor's stop should leave as little behind as Ctrl-C does.
    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(signal.Signals(number))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {argument!a} is not valid UTF-8") from None


def _abandon_stdout() -> None:
    # What is still buffered must not raise again when the interpreter flushes it.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
