"""Contributions of modules add up to the whole (Eqs. 9-10)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lens_diversity.functional import krogh_vedelsby, module_split
from tests.unit.decomposition.cases import assert_small, cases


@given(case=cases(), data=st.data())
def test_contributions_sum_to_the_whole(case, data):
    count = case.components
    names = st.sampled_from(["embed", "attn", "mlp"])
    modules = data.draw(st.lists(names, min_size=count, max_size=count))
    terms = krogh_vedelsby(case.members, case.labels, case.weights)
    for own, whole in (
        (terms.component_bias, terms.bias),
        (terms.component_diversity, terms.diversity),
    ):
        split = module_split(own, modules, case.weights)
        assert list(split) == list(dict.fromkeys(modules))
        assert all(part.shape == case.batch for part in split.values())
        assert_small(sum(split.values()) - whole, whole, case)


def test_a_module_contributes_its_number_of_members_times_their_average():
    term = torch.tensor([[8.0], [1.0], [2.0], [6.0]])
    split = module_split(term, ["embed", "mlp", "attn", "mlp"])
    expected = {"embed": 8 / 4, "mlp": 2 / 4 * 3.5, "attn": 2 / 4}
    assert {name: float(part) for name, part in split.items()} == expected
