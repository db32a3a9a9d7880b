"""A task made by hand has the same guarantees as a loaded one."""

import pytest

from lens_diversity.tasks import Task

PROMPTS = ["one is", "two is", "three is"]


def test_shared_options():
    task = Task("parity", PROMPTS, ("odd", "even"), [0, 1, 0])
    assert len(task) == 3
    assert task.row_options(-1) == ["odd", "even"]
    assert task.gold == [0, 1, 0]
    assert repr(task) == "Task('parity', version='1', 3 rows, options=['odd', 'even'])"
    with pytest.raises(IndexError):
        task.row_options(3)


def test_options_by_row():
    task = Task("parity", PROMPTS, [["a", "b"], ["a", "b", "c"], ["b", "a"]], [0, 2, 1])
    assert task.row_options(1) == ["a", "b", "c"]
    assert "options by row" in repr(task)


def test_row_options_are_a_copy():
    task = Task("parity", PROMPTS, ["odd", "even"], [0, 1, 0])
    task.row_options(0).clear()
    assert task.options == ["odd", "even"]


def test_the_fingerprint_is_of_prompts_options_and_gold():
    base = Task("a", PROMPTS, ["odd", "even"], [0, 1, 0])
    same = Task("b", PROMPTS, ["odd", "even"], [0, 1, 0], version="2", notes={"x": 1})
    assert len(base.fingerprint) == 64
    assert base.fingerprint == same.fingerprint
    for changed in (
        Task("a", PROMPTS[::-1], ["odd", "even"], [0, 1, 0]),
        Task("a", PROMPTS, ["even", "odd"], [0, 1, 0]),
        Task("a", PROMPTS, ["odd", "even"], [0, 1, 1]),
    ):
        assert changed.fingerprint != base.fingerprint


@pytest.mark.parametrize(
    ("prompts", "options", "gold", "message"),
    [
        ([], ["a", "b"], [], "has no rows"),
        (PROMPTS, ["a", "b"], [0], "has 3 prompts but 1 gold labels"),
        (PROMPTS, [["a", "b"]], [0, 0, 0], "has 3 prompts but 1 lists of options"),
        (PROMPTS, ["a"], [0, 0, 0], "must be two or more"),
        (PROMPTS, [], [0, 0, 0], "must be two or more"),
        (PROMPTS, ["a", "a"], [0, 0, 0], "and differ"),
        (PROMPTS, ["a", "b"], [0, 2, 0], r"gold\[1\] = 2 is out of range"),
        (PROMPTS, ["a", "b"], [0, -1, 0], r"gold\[1\] = -1 is out of range"),
    ],
)
def test_what_is_refused(prompts, options, gold, message):
    with pytest.raises(ValueError, match=message):
        Task("x", prompts, options, gold)


def test_strings_and_fractions_are_type_errors():
    with pytest.raises(TypeError):
        Task("x", "one is", ["a", "b"], [0])
    with pytest.raises(TypeError):
        Task("x", PROMPTS, "ab", [0, 0, 0])
    with pytest.raises(TypeError):
        Task("x", PROMPTS, ["a", "b"], [0.0, 1.0, 0.0])
