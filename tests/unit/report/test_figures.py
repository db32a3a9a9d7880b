"""The paper's figures show the numbers of their tables."""

import json

import pytest

from lens_diversity import paper
from lens_diversity.plots import paper as figures
from tests.unit.report import runs as home


@pytest.fixture(scope="module")
def grid():
    return [
        home.make("large", "sst2", n_layers=30, parameters=2_000_000_000, seed=1),
        home.make("small", "sst2", seed=3),
        home.constant_accuracy(model="small", task="arc"),
    ]


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_figure_3_underlines_what_is_significant(grid, method):
    frame = paper.junction_correlations(grid, method)
    assert frame["significant"].any()
    figure = figures.correlation_heatmap(frame)
    assert len(figure.data) == 3
    for trace, quantity in zip(figure.data, ("mse", "bias", "diversity"), strict=True):
        assert list(trace.x) == ["ARC", "SST-2", "Avg."]
        assert list(trace.y) == ["small", "large", "Avg."]
        for i, model in enumerate(("small", "large")):
            for j, task in enumerate(("arc", "sst2")):
                where = (frame["model"] == model) & (frame["task"] == task)
                cell = frame[where & (frame["quantity"] == quantity)]
                if len(cell) == 0:
                    assert (trace.z[i][j], trace.text[i][j]) == (None, "")
                elif cell["reason"].item():
                    assert (trace.z[i][j], trace.text[i][j]) == (None, "n/a")
                    assert "accuracy does not vary" in trace.customdata[i][j]
                else:
                    assert trace.z[i][j] == cell["correlation"].item()
                    underlined = trace.text[i][j].startswith("<u>")
                    assert underlined == cell["significant"].item()


def test_figure_3_never_tests_its_margins(grid):
    frame = paper.junction_correlations(grid).assign(significant=True)
    for trace in figures.correlation_heatmap(frame).data:
        margins = [*trace.text[-1], *(line[-1] for line in trace.text)]
        assert not any("<u>" in text for text in margins)
        assert "not tested" in trace.customdata[-1][-1]
        assert trace.z[-1][0] is None
        assert trace.text[-1][0] == "n/a"


def test_figure_3_tells_an_adjusted_p_value():
    frame = paper.junction_correlations([home.make()], correction="holm")
    assert "adjusted" in figures.correlation_heatmap(frame).data[0].customdata[0][0]


def test_figure_4_stacks_the_averages(grid):
    shares = paper.module_shares(grid)
    figure = figures.module_share_bars(shares)
    assert len(figure.data) == 9
    totals = [sum(bar.x[i] for bar in figure.data[6:]) for i in range(2)]
    assert totals == pytest.approx([1, 1])
    means = shares[shares["task"] == "Avg."]
    mlp = means[(means["model"] == "large") & (means["module"] == "mlp")]
    assert figure.data[8].x[1] == mlp["diversity_share"].item()
    assert list(figure.data[8].y) == ["small", "large"]
    assert [bar.showlegend for bar in figure.data] == [True] * 3 + [False] * 6


def test_figure_5_draws_each_task_and_says_what_does_not_vary(grid):
    curves = paper.junction_curves(grid)
    figure = figures.junction_lines(curves, "small")
    assert len(figure.data) == 8
    texts = [note.text for note in figure.layout.annotations]
    assert texts == ["ARC", "SST-2", "accuracy: same at every junction"]
    assert set(figure.data[0].y) == {None}
    curve = curves[(curves["model"] == "small") & (curves["task"] == "sst2")]
    assert list(figure.data[5].y) == curve["mse_standardised"].tolist()
    assert [point[1] for point in figure.data[5].customdata] == curve["mse"].tolist()


def test_figure_5_needs_to_know_which_model(grid):
    curves = paper.junction_curves(grid)
    for name in (None, "huge"):
        with pytest.raises(ValueError, match=r"model must be one of \['small', 'large'\]"):
            figures.junction_lines(curves, name)
    assert len(figures.junction_lines(paper.junction_curves(grid[:1])).data) == 4


def test_figure_6_marks_models_that_the_paper_leaves_out(grid):
    scaling = paper.scaling(grid)
    figure = figures.scaling_points(scaling)
    accuracy, mse = figure.data[1], figure.data[3]
    assert list(accuracy.x) == [5, 61]
    assert list(accuracy.marker.symbol) == ["circle-open", "circle"]
    assert list(accuracy.y) == scaling["accuracy"].tolist()
    assert list(mse.y) == scaling["mse"].tolist()


def test_figure_6_without_a_common_task_says_so(grid):
    empty = paper.scaling([grid[0], grid[2]])
    figure = figures.scaling_points(empty)
    assert figure.layout.annotations[-1].text == "The models have no task in common."


def test_a_model_of_one_layer_and_one_run():
    runs = [home.make(n_layers=1)]
    curves = paper.junction_curves(runs)
    assert figures.junction_lines(curves).data[0].mode == "lines+markers"
    frame = paper.correlate_curves(curves)
    assert frame["n_junctions"].tolist() == [3, 3, 3]
    low, high = figures.scaling_points(paper.scaling(runs)).layout.yaxis.range
    assert low < runs[0].accuracy < high


def test_names_stay_text_and_numbers_stay_json():
    name = "<b>bold</b> & co"
    runs = [home.constant_accuracy(model=name, task="<i>t</i>")]
    curves = paper.junction_curves(runs)
    drawn = [
        figures.correlation_heatmap(paper.correlate_curves(curves)),
        figures.module_share_bars(paper.module_shares(runs)),
        figures.junction_lines(curves),
        figures.scaling_points(paper.scaling(runs)),
    ]
    for figure in drawn:
        text = json.dumps(json.loads(figure.to_json()), allow_nan=False)
        assert "<b>" not in text
        assert "<i>" not in text
