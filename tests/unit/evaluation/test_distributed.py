"""What a process finds out about the others; tests/integration starts real ones."""

import pytest
import torch

import lens_diversity as ld
from lens_diversity.evaluation.distributed import Team, is_first, own_device
from tests.unit.evaluation import toy


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)


def test_an_ordinary_process_is_alone_and_never_asks_torch_distributed(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    team = Team.launched()
    assert (team.rank, team.size, is_first(), own_device()) == (0, 1, True, None)
    assert not torch.distributed.is_initialized()


def test_every_shard_has_one_owner():
    parts = [Team(rank, 3).part([4, 5, 7, 8, 9]) for rank in range(3)]
    assert parts == [[4, 8], [5, 9], [7]]


def test_each_process_has_the_gpu_of_its_number(second_of_two, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device() == "cuda:1"
    assert not is_first()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device() is None


def test_without_a_folder_each_process_evaluates_for_itself(second_of_two, bridge):
    run = ld.evaluate(bridge("gpt2"), toy.task(4), progress=False)
    assert len(run) == 4
    assert not torch.distributed.is_initialized()
    with pytest.raises(ValueError, match="give out="):
        Team(rank=1, size=2).open(None, {})
