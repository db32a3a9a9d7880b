"""Classification tasks as data: prompts, options and gold labels for an evaluation.

A task is a small YAML file (or a [`TaskSpec`][lens_diversity.tasks.TaskSpec]) with a prompt
template, the options and the columns to read; rows come from the Hub or from local files.

Example:
    >>> from lens_diversity import tasks
    >>> tasks.names()
    ['ag_news', 'arc', 'boolq', 'mnli', 'qqp', 'rte', 'sst2', 'wic']
    >>> tasks.describe("sst2")["options"]
    ['negative', 'positive']
"""

from lens_diversity.tasks.loading import load
from lens_diversity.tasks.option_tokens import OptionTokens, option_token_ids, tokenize_prompts
from lens_diversity.tasks.registry import describe, get_spec, names, register
from lens_diversity.tasks.spec import HubSource, TaskSpec, load_spec
from lens_diversity.tasks.task import Task

__all__ = [
    "HubSource",
    "OptionTokens",
    "Task",
    "TaskSpec",
    "describe",
    "get_spec",
    "load",
    "load_spec",
    "names",
    "option_token_ids",
    "register",
    "tokenize_prompts",
]
