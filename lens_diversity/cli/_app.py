"""The application that commands register with: how errors are shown, and shared options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

_PACKAGE = Path(__file__).parents[1]


class _Group(TyperGroup):
    """Shows our own errors as one message; those of a bug keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, TypeError, OSError) as error:
            if ctx.params.get("debug") or not _is_ours(error):
                raise
            Console(stderr=True, soft_wrap=True).print(Text(f"Error: {error}", style="bold red"))
            raise typer.Exit(2) from error


def _is_ours(error: BaseException) -> bool:
    """Whether the package raised it itself, or a file that the user named is not there."""
    if isinstance(error, FileNotFoundError):
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and _PACKAGE in Path(frame.tb_frame.f_code.co_filename).parents


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Bias-diversity decompositions of transformer layers through the logit lens.",
)


class Precision(StrEnum):
    """Dtypes a model can be loaded in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Unit(StrEnum):
    """What a member of the ensemble can be."""

    sublayer = "sublayer"
    block = "block"
    head = "head"
    neuron = "neuron"


ModelArgument = Annotated[
    str, typer.Argument(help="Hub name, folder, .gguf file or smollm2.", show_default=False)
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Where to run, for example cuda or cpu.", show_default="automatic"),
]
DtypeOption = Annotated[Precision, typer.Option(help="Dtype of the model.")]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model.")]
UnitOption = Annotated[Unit, typer.Option(help="What a member of the ensemble is.")]
DataOption = Annotated[
    list[Path] | None,
    typer.Option(help="Local file instead of the Hub; repeat it for several.", show_default=False),
]


def _print_version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        typer.echo(f"lens-diversity {version('lens-diversity')}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def load_bridge(name: str, device: str | None, dtype: Precision, revision: str | None) -> Any:
    from lens_diversity.models import load_model

    return load_model(name, device=device, dtype=dtype.value, revision=revision)
