"""Evaluate a model on a task: one forward pass per example, kept as option logits."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import torch

from lens_diversity import _bridge
from lens_diversity._choices import check_choice
from lens_diversity.evaluation._progress import progress_bar
from lens_diversity.evaluation.distributed import Team
from lens_diversity.evaluation.forward import option_rows
from lens_diversity.evaluation.header import run_header
from lens_diversity.evaluation.prompts import encode
from lens_diversity.evaluation.run import Run
from lens_diversity.evaluation.store import shard_plan
from lens_diversity.readout import readout_dtype
from lens_diversity.tasks import Task


def evaluate(
    model: Any,
    task: Task | Any,
    batch_size: int = 16,
    out: str | os.PathLike[str] | None = None,
    *,
    dtype: torch.dtype | None = None,
    overlong: str = "error",
    unit: str = "sublayer",
    save_every: int = 128,
    progress: bool = True,
) -> Run:
    """Read out what every component says about every example of a task.

    One forward pass per example yields the logits of its options from every component; bias,
    diversity, junctions and information are arithmetic on those. Prompts of similar length share
    a batch, padded on the left and masked; the answer position is each prompt's last token.

    Where a launcher started several processes (``accelerate launch``, ``torchrun``) and ``out`` is
    given, all of them call this and each computes a part; all return the whole run. Without ``out``
    each process evaluates everything for itself.

    Args:
        model: A ``TransformerBridge`` in evaluation mode, with a tokenizer.
        task: Prompts, options and gold labels, from [`load`][lens_diversity.tasks.load].
        batch_size: Examples a forward pass. It changes results by rounding only.
        out: A folder to write to while running, or None to keep everything in memory. A second
            identical call goes on where a stopped one ended; a finished folder is read.
        dtype: Precision of the readout, ``torch.float32`` (default) or ``torch.float64``. Logits
            are kept in float32.
        overlong: Prompts longer than the model's context: ``"error"`` refuses them before
            anything is run, ``"truncate"`` cuts them from the left and counts them.
        unit: What a member is: ``"sublayer"``, ``"block"``, ``"head"`` or ``"neuron"`` (the run
            then holds ``neurons x options`` numbers an example), see
            [`component_stack`][lens_diversity.component_stack].
        save_every: Examples a shard, which is what a stopped run loses at most.
        progress: Show a progress bar on a terminal.

    Returns:
        The run, in the order of the task's examples.

    Raises:
        TypeError: If ``model`` is no bridge, ``task`` is no task, or a setting has a wrong type.
        UnsupportedModelError: If the model's logits are not one sum of component outputs.
        ValueError: If the model is in training mode or has no tokenizer, prompts are too long,
            options cannot be told apart, components do not sum to the model's logits, or the
            folder holds another run or is in use (``RunLockedError``), or another of several
            processes ended early.

    Example:
        >>> import lens_diversity as ld
        >>> model = ld.load_model("smollm2")  # doctest: +SKIP
        >>> run = ld.evaluate(model, ld.tasks.load("sst2", limit=2000))  # doctest: +SKIP
        >>> run.summary()["diversity"]  # doctest: +SKIP
    """
    check_count("batch_size", batch_size)
    check_count("save_every", save_every)
    check_choice("unit", unit, _bridge.UNITS)
    check_model(model)
    if not isinstance(task, Task):
        raise TypeError(
            f"expected a Task, got {type(task).__name__}; load one with "
            "lens_diversity.tasks.load(name)"
        )
    precision = readout_dtype(model.cfg.dtype, dtype)
    encoded = encode(model.tokenizer, task, int(model.cfg.n_ctx), overlong)
    plan = shard_plan(encoded.n_tokens, save_every)
    settings = {
        "overlong": overlong,
        "readout_dtype": str(precision).removeprefix("torch."),
        "save_every": save_every,
    }
    header = run_header(model, task, encoded, settings, batch_size, unit)
    team = Team() if out is None else Team.launched()
    with team.open(out, header) as store:
        done = store.done()
        mine = team.part([index for index in range(len(plan)) if index not in done])
        n_done, n_mine = (sum(len(plan[index]) for index in part) for part in (done, mine))
        shown = progress and team.rank == 0
        with progress_bar("evaluate", "examples", n_done + n_mine, n_done, shown=shown) as advance:
            for index in mine:
                tables, examples = [], plan[index]
                # Batches never cross a shard, so that neither an interruption nor the number of
                # processes changes anything.
                for start in range(0, len(examples), batch_size):
                    batch = examples[start : start + batch_size]
                    tables.append(option_rows(model, encoded, batch, precision, unit))
                    advance(len(batch))
                store.write(index, pa.concat_tables(tables))
        return Run.from_table(*store.read())


def check_count(name: str, value: Any) -> None:
    """Check that an argument is a positive integer.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is less than 1.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_model(model: Any) -> None:
    """Check that a model can be decomposed and fed with text.

    Raises:
        TypeError: If it is no bridge.
        UnsupportedModelError: If its logits are not one sum of component outputs.
        ValueError: If it is in training mode or has no tokenizer.
    """
    _bridge.require_supported(model)
    _bridge.require_eval_mode(model)
    if model.tokenizer is None:
        raise ValueError(
            "the model has no tokenizer to read text with; boot the bridge with tokenizer=..."
        )
