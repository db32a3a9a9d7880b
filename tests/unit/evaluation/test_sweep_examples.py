"""The sweeps that ship with the library are what the paper's tables say."""

from pathlib import Path

import pytest

from lens_diversity.cli._sweep_view import footprint
from lens_diversity.evaluation.sweep_file import load_sweep

EXAMPLES = Path(__file__).parents[3] / "examples"

# Table 4 of the paper: layer sizes, which count members.
MEMBERS = {
    "facebook/MobileLLM-125M": 61,
    "facebook/MobileLLM-125M-layer-share": 121,
    "facebook/MobileLLM-350M": 65,
    "facebook/MobileLLM-350M-layer-share": 129,
    "meta-llama/Llama-3.2-1B-Instruct": 33,
    "meta-llama/Llama-3.2-3B-Instruct": 57,
    "microsoft/Phi-3-mini-128k-instruct": 65,
    "microsoft/Phi-3.5-mini-instruct": 65,
    "meta-llama/Llama-2-7b-hf": 65,
    "mistralai/Mistral-7B-Instruct-v0.1": 65,
    "mistralai/Mistral-7B-Instruct-v0.3": 65,
    "meta-llama/Meta-Llama-3-8B-Instruct": 65,
    "meta-llama/Llama-3.1-8B-Instruct": 65,
    "meta-llama/Llama-2-13b-hf": 81,
    "microsoft/Phi-3-medium-4k-instruct": 81,
    "microsoft/phi-4": 81,
}


def test_the_papers_grid_is_complete():
    grid = load_sweep(EXAMPLES / "reproduce_paper.yaml")
    assert {model.ref: footprint(model).components for model in grid.models} == MEMBERS
    assert [task.name for task in grid.tasks] == [
        *("ag_news", "arc", "boolq", "mnli", "qqp", "rte", "sst2", "wic")
    ]
    assert {task.limit for task in grid.tasks} == {2000}
    assert len(grid.cells) == 128
    # As docs/scaling.md says: eight cells in a row are one model's.
    assert {cell.model.ref for cell in grid.select("104-111")} == {"meta-llama/Llama-2-13b-hf"}


def test_the_papers_models_fit_its_gpu():
    grid = load_sweep(EXAMPLES / "reproduce_paper.yaml")
    widths = {"float32": 4, "bfloat16": 2}
    for model in grid.models:
        assert model.parameters * widths[model.dtype] < 40 * 2**30


def test_every_local_file_of_the_small_sweep_is_in_its_layout(data_dir, monkeypatch):
    from lens_diversity import tasks

    monkeypatch.setenv("LENS_DIVERSITY_DATA", str(data_dir))
    grid = load_sweep(EXAMPLES / "smollm2.yaml")
    assert len(grid.cells) == 8
    for task in grid.tasks:
        assert len(tasks.load(task.name, limit=5, data_files=task.data)) == 5


def test_a_missing_variable_is_named(monkeypatch):
    monkeypatch.delenv("LENS_DIVERSITY_DATA", raising=False)
    with pytest.raises(ValueError, match="variable LENS_DIVERSITY_DATA is not set"):
        load_sweep(EXAMPLES / "smollm2.yaml")
