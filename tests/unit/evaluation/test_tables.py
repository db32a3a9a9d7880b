"""Rows survive the way to columns and back, whatever their number of options."""

import torch

from lens_diversity.evaluation.tables import SCHEMA, pack, unpack
from tests.unit.evaluation import toy


def packed(run, order):
    rows = torch.tensor(order)
    return pack(
        example=rows,
        gold=run.gold[rows],
        n_options=run.n_options[rows],
        n_tokens=run.n_tokens[rows],
        reconstruction_error=run.reconstruction_error[rows],
        option_logits=run.option_logits[rows],
        constant=run.constant[rows],
    )


def test_rows_come_back_in_the_order_of_the_examples():
    run = toy.run([3, 2, 4, 2])
    found = unpack(packed(run, [2, 0, 3, 1]))
    assert found["example"].tolist() == [0, 1, 2, 3]
    for name in ("gold", "n_options", "n_tokens", "reconstruction_error"):
        assert torch.equal(found[name], getattr(run, name)), name
    for name in ("option_logits", "constant"):
        expected = getattr(run, name)
        assert torch.equal(found[name].isnan(), expected.isnan())
        assert torch.equal(found[name].nan_to_num(), expected.nan_to_num())


def test_padding_is_not_stored():
    table = packed(toy.run([2, 5]), [0, 1])
    assert table.schema == SCHEMA
    assert [len(row) for row in table["option_logits"].to_pylist()] == [10, 25]
    assert [len(row) for row in table["constant"].to_pylist()] == [2, 5]


def test_shards_of_different_widths_are_padded_to_the_widest():
    import pyarrow as pa

    run = toy.run([2, 2, 5, 3])
    table = pa.concat_tables([packed(run, [0, 1]), packed(run, [2, 3])])
    assert unpack(table)["option_logits"].shape == (4, 5, 5)
