"""Decompose a model's next-token predictions over any amount of text, in bounded memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import torch

from lens_diversity import _bridge
from lens_diversity._choices import check_choice
from lens_diversity.decomposition.losses import check_loss
from lens_diversity.ensemble import COMBINES, GAUGES, decompose
from lens_diversity.evaluation._progress import progress_bar
from lens_diversity.evaluation.distributed import is_launched
from lens_diversity.evaluation.evaluate import check_count, check_model
from lens_diversity.evaluation.header import FORMAT, made_now, model_identity
from lens_diversity.evaluation.store import FolderStore, open_store
from lens_diversity.full_vocab.softmax import DEFAULT_BUDGET, check_budget
from lens_diversity.profiling.forward import scored_stack
from lens_diversity.profiling.result import (
    Profile,
    from_tables,
    load_profile,
    module_membership,
)
from lens_diversity.profiling.rows import ShardSums
from lens_diversity.profiling.texts import TextSource, digest, open_texts
from lens_diversity.profiling.windows import batches_of, windows_of
from lens_diversity.readout import CONSTANTS, readout_dtype
from lens_diversity.tasks import tokenize_prompts
from lens_diversity.units import member_names

_CONTEXT = 512


def profile(
    model: Any,
    texts: Any,
    loss: str = "cross_entropy",
    combine: str = "mean",
    gauge: str = "model",
    out: str | os.PathLike[str] | None = None,
    *,
    column: str = "text",
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    limit: int | None = None,
    context: int | None = None,
    batch_size: int = 4,
    constant: str = "spread",
    unit: str = "sublayer",
    dtype: torch.dtype | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    save_every: int = 64,
    progress: bool = True,
) -> Profile:
    """Average the full-vocabulary decomposition of next-token predictions over a corpus.

    Each document is cut into windows of ``context`` tokens in which every token but the first is
    predicted once; a document that begins with BOS has it in front of each window. Documents are
    read, run and summed one shard after the other, so memory does not grow with the corpus.

    Args:
        model: A ``TransformerBridge`` in evaluation mode, with a tokenizer.
        texts: A list of texts; a (streaming) data set of ``datasets``; a ``pathlib.Path`` or a list
            of them (``.txt``: a document a file; ``.jsonl``, ``.json``, ``.csv``, ``.tsv``,
            ``.parquet``: a document a row); or a string: a file if there is one of that name, else
            a data set of the Hub, which is streamed.
        loss: ``"cross_entropy"``, ``"squared"`` (one-hot target), ``"paper"`` or ``"brier"``, see
            [`decompose`][lens_diversity.decompose].
        combine: ``"mean"`` takes members as they are, ``"sum"`` makes the ensemble the model
            itself, so that ``error`` is its own loss.
        gauge: As in `decompose`.
        out: A folder to write to while running, or None to keep the sums only. A second identical
            call goes on where a stopped one ended; a finished folder is read.
        column: Where rows have their text.
        config: Configuration of a data set of the Hub.
        split: Its split.
        revision: Its branch, tag or commit.
        limit: Documents to take at most.
        context: Tokens a window (default: 512, or the model's context where that is shorter).
        batch_size: Windows a forward pass. Activations of one batch are held:
            ``components x batch_size x context x d_model`` numbers, twice.
        constant: As in `decompose`.
        unit: As in `decompose`; with ``"neuron"`` only ``loss="squared"``.
        dtype: Precision of the readout, ``torch.float32`` or ``torch.float64``.
        memory_budget: Bytes the decomposition may use beside the activations.
        save_every: Documents a shard, which is what a stopped run loses at most.
        progress: Show a progress bar on a terminal.

    Returns:
        Means with intervals, by component, module and position.

    Raises:
        TypeError: If ``model`` is no bridge, ``texts`` are none of the above, a document is no
            text, or a setting has a wrong type.
        UnsupportedModelError: If the model's logits are not one sum of component outputs.
        ValueError: If a setting is unknown or out of range, the model is in training mode or has
            no tokenizer, there is no document, components do not sum to what the model computed,
            or the folder holds another profile or is in use, or was begun with other documents.

    Example:
        >>> import lens_diversity as ld
        >>> model = ld.load_model("smollm2")  # doctest: +SKIP
        >>> found = ld.profile(model, ["Once upon a time", "The cat sat."])  # doctest: +SKIP
        >>> found.by_module()  # doctest: +SKIP
    """
    check_model(model)
    for name, count in (("batch_size", batch_size), ("save_every", save_every)):
        check_count(name, count)
    if limit is not None:
        check_count("limit", limit)
    check_loss(loss)
    check_choice("combine", combine, COMBINES)
    check_choice("gauge", gauge, GAUGES)
    check_choice("constant", constant, CONSTANTS)
    check_choice("unit", unit, _bridge.UNITS)
    if unit == "neuron" and loss != "squared":
        raise ValueError(f'unit="neuron" takes loss="squared" over the vocabulary, got {loss!r}')
    check_budget(memory_budget)
    if is_launched():
        raise ValueError(
            "profile works in one process: give each its own part of the documents, for example "
            "dataset.shard(num_shards=size, index=rank), and join the results with "
            "Profile.concatenate"
        )
    precision = readout_dtype(model.cfg.dtype, dtype)
    source = open_texts(
        texts, column=column, config=config, split=split, revision=revision, limit=limit
    )
    settings = {
        "loss": loss,
        "combine": combine,
        "gauge": gauge,
        "constant": constant,
        "unit": unit,
        "context": _window_length(context, int(model.cfg.n_ctx)),
        "readout_dtype": str(precision).removeprefix("torch."),
        "save_every": save_every,
    }
    header = _header(model, source, settings, batch_size)
    options = {
        "loss": loss,
        "combine": combine,
        "gauge": gauge,
        "constant": constant,
        "dtype": precision,
        "memory_budget": memory_budget,
    }
    measure = _Measure(model, header, batch_size, options)
    with progress_bar("profile", "documents", source.total, shown=progress) as advance:
        if out is None:
            return from_tables(measure.shards(source, advance), header)
        with open_store(out, header) as store:
            assert isinstance(store, FolderStore)
            measure.fill(store, source, advance)
    return load_profile(out)


class _Measure:
    """A model and settings, to be applied to one shard of documents after the other."""

    def __init__(
        self,
        model: Any,
        header: Mapping[str, Any],
        batch_size: int,
        options: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._options = options
        self._batch_size = batch_size
        self._unit = str(header["settings"]["unit"])
        self._context = int(header["settings"]["context"])
        self._save_every = int(header["settings"]["save_every"])
        self._membership = torch.from_numpy(module_membership(header["modules"]))

    def shards(self, source: TextSource, advance: Callable[[int], None]) -> Iterator[pa.Table]:
        """Compute every shard."""
        first = 0
        for texts in _in_shards(source, self._save_every):
            yield self._table(first, texts, advance)
            first += len(texts)

    def fill(self, store: FolderStore, source: TextSource, advance: Callable[[int], None]) -> None:
        """Compute the shards that a folder lacks, and check that the others are of these texts."""
        done, first = store.done(), 0
        for index, texts in enumerate(_in_shards(source, self._save_every)):
            if index in done:
                _require_same_texts(store, index, texts)
                advance(len(texts))
            else:
                store.write(index, self._table(first, texts, advance))
            first += len(texts)
        if done and max(done) > index:
            raise ValueError(
                f"{store.folder} holds more documents than the {first} after which the texts now "
                "end; give the same data, or another folder"
            )
        store.finish(first)

    def _table(self, first: int, texts: Sequence[str], advance: Callable[[int], None]) -> pa.Table:
        tokenizer = self._model.tokenizer
        ids = _tokenized(tokenizer, texts, first)
        windows = [
            window
            for document, tokens in enumerate(ids)
            for window in windows_of(document, tokens, self._context, tokenizer.bos_token_id)
        ]
        remaining = Counter(window.document for window in windows)
        advance(len(texts) - len(remaining))
        n_components = self._membership.shape[1]
        sums = ShardSums(len(texts), n_components, self._membership, self._context)
        for batch in batches_of(windows, self._batch_size):
            stack = scored_stack(self._model, batch, self._unit)
            targets = batch.targets.to(stack.device)
            sums.add(batch, decompose(stack, targets, **self._options))
            before = len(remaining)
            remaining -= Counter(batch.documents_of_windows)
            advance(before - len(remaining))
        return sums.table(first, [digest(text) for text in texts])


def _in_shards(source: TextSource, save_every: int) -> Iterator[list[str]]:
    texts = iter(source)
    shard = list(islice(texts, save_every))
    if not shard:
        raise ValueError("there is no document in the data")
    while shard:
        yield shard
        shard = list(islice(texts, save_every))


def _tokenized(tokenizer: Any, texts: Sequence[str], first: int) -> list[list[int]]:
    """Tokens of each text; blank ones have none."""
    found: list[list[int]] = [[] for _ in texts]
    written = [index for index, text in enumerate(texts) if text.strip()]
    try:
        encoded = tokenize_prompts(tokenizer, [texts[index] for index in written])
    except ValueError as error:
        last = first + len(texts) - 1
        raise ValueError(f"in documents {first} to {last}: {error}") from error
    for index, ids in zip(written, encoded, strict=True):
        found[index] = ids
    return found


def _require_same_texts(store: FolderStore, index: int, texts: Sequence[str]) -> None:
    stored = store.shard(index, ["document", "text_sha256"]).to_pydict()
    theirs, ours = stored["text_sha256"], [digest(text) for text in texts]
    if theirs != ours:
        pairs = zip(theirs, ours, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
        raise ValueError(
            f"{store.folder} was begun with other texts: they differ from document "
            f"{stored['document'][0] + place} on. Give the same data in the same order, or another "
            "folder"
        )


def _window_length(context: int | None, n_ctx: int) -> int:
    if context is None:
        return min(_CONTEXT, n_ctx)
    check_count("context", context)
    if not 2 <= context <= n_ctx:
        raise ValueError(
            f"context must lie between 2 and the model's own context of {n_ctx} tokens, got "
            f"{context}"
        )
    return context


def _header(
    model: Any, source: TextSource, settings: Mapping[str, Any], batch_size: int
) -> dict[str, Any]:
    labels, modules = member_names(model, settings["unit"])
    if settings["constant"] == "component":
        labels, modules = [*labels, "constant"], [*modules, "constant"]
    return {
        "format": FORMAT,
        "kind": "profile",
        "model": model_identity(model),
        "data": source.identity,
        "settings": dict(settings),
        "n_examples": None,
        "soft_cap": _bridge.read_readout(model).soft_cap,
        "batch_size": batch_size,
        "device": str(model.W_U.device),
        **made_now(),
        "labels": labels,
        "modules": modules,
    }
