"""Every token but a document's first is predicted once, from what precedes it in its window."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lens_diversity.profiling.windows import batches_of, windows_of

BOS = 1
tokens = st.lists(st.integers(2, 99), max_size=40)


@given(tokens, st.booleans(), st.integers(2, 12))
def test_every_token_is_predicted_once(ids, begins, context):
    ids = [BOS, *ids] if begins else ids
    windows = windows_of(7, ids, context, BOS)
    assert [target for window in windows for target in window.targets] == ids[1:]
    for window in windows:
        assert window.document == 7
        assert 0 < len(window.targets) <= len(window.tokens) <= context
        assert window.tokens[0] == (BOS if begins else window.tokens[0])
        # What is read ends one token before what is predicted.
        read = window.tokens[len(window.tokens) - len(window.targets) + 1 :]
        assert read == window.targets[:-1]


def test_a_document_without_bos_gets_none():
    windows = windows_of(0, [5, 6, 7, 8], 2, None)
    assert [window.tokens for window in windows] == [[5, 6], [7]]


@given(st.lists(tokens, max_size=6), st.integers(1, 5))
def test_batches_hold_every_window_with_its_document_and_position(documents, batch_size):
    windows = [
        window
        for index, ids in enumerate(documents)
        for window in windows_of(index, [BOS, *ids], 8, BOS)
    ]
    found = []
    for batch in batches_of(windows, batch_size):
        assert len(batch.tokens) <= batch_size
        assert batch.mask.sum(1).tolist() == sorted(batch.mask.sum(1).tolist(), reverse=True)
        assert not batch.scored[batch.mask == 0].any()
        assert torch.equal(batch.scored.nonzero()[:, 1], batch.positions)
        found += zip(
            batch.documents.tolist(),
            batch.positions.tolist(),
            batch.tokens[batch.scored].tolist(),
            batch.targets.tolist(),
            strict=True,
        )
    expected = [
        (window.document, len(window.tokens) - len(window.targets) + offset, token, target)
        for window in windows
        for offset, (token, target) in enumerate(
            zip(window.tokens[-len(window.targets) :], window.targets, strict=True)
        )
    ]
    assert sorted(found) == sorted(expected)
