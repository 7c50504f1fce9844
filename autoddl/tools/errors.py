"""What the `autoddl` command says when it fails, and how it ends.

A mistake that the user can fix (ValueError, OSError, ImportError from here) is one message. An
error inside the user's own module, or a `sys.exit` there, is shown with the lines of that module
and of what it called, and none of ours above them. A reader of the output that has seen enough
(`| head`) is no error. What a terminal would take for a command is told as what it is (`plain`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TextIO

import click

MISTAKE = 2  # the exit status of a command that the user can mend, as click's own
INTERRUPTED = 130  # as shells have it for Ctrl-C
_PACKAGE = Path(__file__).parents[1]


class Errors(click.Group):
    """The commands, with errors and warnings printed on stderr as this module says."""

    def make_context(self, *words: Any, **options: Any) -> click.Context:
        with _plain_mistakes():
            return super().make_context(*words, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings(), _plain_mistakes():
                warnings.showwarning = _show_warning
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _forget_stdout()
            ctx.exit(0)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except SystemExit as error:
            if (told := of_user(error)) is None:
                raise  # ours, with the command's status
            self._tell(ctx, told)
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            told = of_user(error)
            if told is None and not isinstance(error, (ValueError, OSError, ImportError)):
                raise
            self._tell(ctx, told or str(error))

    def _tell(self, ctx: click.Context, text: str) -> NoReturn:
        """The command ends with it."""
        click.secho("Error: ", fg="red", nl=False, err=True)
        click.echo(plain(text), err=True)
        ctx.exit(MISTAKE)


def plain(text: str) -> str:
    """The text, with what is no text in it written as Python does: names may come from anywhere."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


@contextlib.contextmanager
def _plain_mistakes() -> Iterator[None]:
    """Of the command line, which click tells."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = plain(error.message)
        raise


def of_user(error: BaseException) -> str | None:
    """The traceback from the user's first line on; None unless the error arose there.

    It arose there if it was raised in the user's module, or in a library that the module called.
    """
    found = first = error.__traceback__
    innermost = found
    while found is not None and not _is_users(found):
        found = found.tb_next
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if first is None or found is None or innermost is None or _is_ours(innermost):
        return None
    lines = traceback.format_exception(type(error), error, found, chain=False)
    return f"in your module\n{''.join(lines)}".rstrip()


def _path(frame: TracebackType) -> Path:
    return Path(frame.tb_frame.f_code.co_filename)


def _is_ours(frame: TracebackType) -> bool:
    return _PACKAGE in _path(frame).parents


def _is_users(frame: TracebackType) -> bool:
    """Not a line of autoddl, of an installed library, of Python's own or of no file at all."""
    path = _path(frame)
    libraries = {Path(sys.prefix), Path(sys.base_prefix), Path(os.__file__).parent}
    return (
        path.is_file()
        and not _is_ours(frame)
        and "site-packages" not in path.parts
        and libraries.isdisjoint(path.parents)
    )


def _forget_stdout() -> None:
    """Nobody reads it: what is left in its buffer must not fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Warnings of autoddl without the source line that raised them."""
    if category.__module__.partition(".")[0] == __name__.partition(".")[0]:
        click.secho("Warning: ", fg="yellow", nl=False, err=True)
        click.echo(plain(str(message)), err=True)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        click.echo(plain(text), nl=False, err=True)
