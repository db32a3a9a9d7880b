"""The paper's tables follow from option logits, checked against plain loops."""

import math

import numpy as np
import pytest

import lens_diversity as ld
from lens_diversity import paper
from lens_diversity.statistics import adjust_p_values, correlation
from tests.unit.evaluation import toy
from tests.unit.report import runs as home

MIXED = [3, 2, 4, 2, 3, 5]


@pytest.fixture(scope="module")
def grid():
    """Two models; the larger was run on one task only."""
    return [
        home.make("large", "sst2", n_layers=3, parameters=5000, seed=1),
        home.make("small", "zoo", seed=2),
        home.make("small", "sst2", seed=3),
        home.make("small", "arc", widths=MIXED, seed=4),
    ]


def row(frame, **where):
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_table1_is_each_runs_summary(grid):
    frame = paper.table1(grid)
    for run in grid:
        about = run.metadata
        found = row(frame, model=about["model"]["name"], task=about["task"]["name"])
        summary = run.summary()
        for metric in paper.METRICS:
            assert found[metric] == pytest.approx(summary[metric], rel=1e-12)
            assert found[f"{metric}_x100"] == pytest.approx(100 * summary[metric], rel=1e-12)
            assert found[f"{metric}_low"] <= found[metric] <= found[f"{metric}_high"]
        assert found["n_examples"] == len(run)


def test_table1_orders_models_by_size_and_tasks_as_the_paper(grid):
    frame = paper.table1(grid)
    cells = list(zip(frame["model"], frame["task"], strict=True))
    assert cells == [
        ("small", "arc"),
        ("small", "sst2"),
        ("small", "zoo"),
        ("large", "sst2"),
        ("small", "Avg."),
        ("large", "Avg."),
    ]


def test_averages_are_over_the_tasks_there_are(grid):
    frame = paper.table1(grid)
    small = row(frame, model="small", task="Avg.")
    expected = np.mean([run.summary()["mse"] for run in grid[1:]])
    assert small["mse"] == pytest.approx(expected, rel=1e-12)
    assert (small["n_tasks"], small["n_examples"]) == (3, 12 + 12 + 6)
    large = row(frame, model="large", task="Avg.")
    assert large["n_tasks"] == 1
    assert large["accuracy"] == row(frame, model="large", task="sst2")["accuracy"]
    assert math.isnan(large["mse_low"])


@pytest.mark.parametrize(
    ("widths", "uniform"),
    [
        ([4] * 6, 0.1875),
        ([3] * 6, 2 / 9),
        ([2] * 6, 0.25),
        ([4, 2, 3], (0.1875 + 0.25 + 2 / 9) / 3),
    ],
)
def test_the_uniform_predictor_is_the_papers(widths, uniform):
    frame = paper.table1([home.make(widths=widths)])
    assert frame["uniform_mse"].iloc[0] == pytest.approx(uniform, rel=1e-12)


def test_the_most_frequent_answer():
    frame = paper.table1([home.make(widths=[2] * 5)])
    assert frame["majority"].iloc[0] == pytest.approx(3 / 5)


def test_table4_counts_components_and_layers(grid):
    frame = paper.table4(grid)
    assert frame["model"].tolist() == ["small", "large"]
    large = row(frame, model="large")
    assert (large["components"], large["layers"], large["parameters"]) == (7, 3, 5000)
    assert (large["embed"], large["attn"], large["mlp"]) == (1, 3, 3)


@pytest.mark.parametrize(
    ("blocks", "size"), [(30, 61), (60, 121), (32, 65), (64, 129), (16, 33), (28, 57), (40, 81)]
)
def test_table4_gives_the_papers_layer_sizes(blocks, size):
    frame = paper.table4([home.make(n_layers=blocks)])
    assert frame["components"].tolist() == [size]
    assert frame["layers"].tolist() == [blocks]


def test_module_shares_are_those_of_the_decomposition(grid):
    frame = paper.module_shares(grid)
    summary = grid[3].summary()
    for module in ("embed", "attn", "mlp"):
        found = row(frame, model="small", task="arc", module=module)
        assert found["bias_share"] == pytest.approx(summary["bias_share"][module], rel=1e-12)
        assert found["diversity_share"] == pytest.approx(
            summary["diversity_share"][module], rel=1e-12
        )
        assert found["component_share"] == (1 if module == "embed" else 2) / 5
        average = row(frame, model="small", task="Avg.", module=module)
        shares = [run.summary()["diversity_share"][module] for run in grid[1:]]
        assert average["diversity_share"] == pytest.approx(np.mean(shares), rel=1e-12)


def test_curves_are_the_runs_junctions_standardised(grid):
    frame = paper.junction_curves(grid)
    curve = frame[(frame["model"] == "small") & (frame["task"] == "zoo")]
    expected = grid[1].junctions()
    for metric in paper.METRICS:
        raw = expected[metric].to_numpy()
        assert curve[metric].tolist() == raw.tolist()
        standardised = (raw - raw.mean()) / math.sqrt(((raw - raw.mean()) ** 2).mean())
        assert curve[f"{metric}_standardised"].to_numpy() == pytest.approx(standardised)
    assert curve["label"].tolist() == grid[1].labels


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_correlations_are_over_junctions(grid, method):
    frame = paper.junction_correlations(grid, method)
    assert len(frame) == 4 * 3
    junctions = grid[0].junctions()
    for quantity in ("mse", "bias", "diversity"):
        found = row(frame, model="large", task="sst2", quantity=quantity)
        expected = correlation(junctions["accuracy"], junctions[quantity], method)
        assert found["correlation"] == expected.value
        assert found["p"] == found["p_adjusted"] == expected.p
        assert found["significant"] == (expected.p < 0.05)
        assert found["n_junctions"] == 7


@pytest.mark.parametrize("correction", ["holm", "benjamini-hochberg"])
def test_the_correction_counts_defined_cells_only(grid, correction):
    mixed = [*grid, home.constant_accuracy(task="rte")]
    frame = paper.junction_correlations(mixed, correction=correction)
    tested = frame[frame["reason"] == ""]
    assert len(tested) == 12
    expected = adjust_p_values(tested["p"].to_numpy(), correction)
    assert tested["p_adjusted"].to_numpy() == pytest.approx(expected)
    assert (tested["significant"] == (tested["p_adjusted"] < 0.05)).all()


def test_constant_accuracy_has_no_correlation_and_says_why():
    run = home.constant_accuracy()
    assert run.junctions()["accuracy"].nunique() == 1
    frame = paper.junction_correlations([run], correction="holm")
    assert set(frame["reason"]) == {"accuracy does not vary"}
    assert frame[["correlation", "p", "p_adjusted"]].isna().all(axis=None)
    assert not frame["significant"].any()
    averages = paper.average_correlations(frame)
    assert averages["n"].tolist() == [0] * 9
    assert averages["correlation"].isna().all()
    curves = paper.junction_curves([run])
    assert curves["accuracy_standardised"].isna().all()
    assert curves["mse_standardised"].notna().all()


def test_average_correlations_skip_what_is_undefined(grid):
    frame = paper.junction_correlations([*grid, home.constant_accuracy(task="rte")])
    averages = paper.average_correlations(frame)
    of_task = row(averages, model="Avg.", task="sst2", quantity="mse")
    both = frame[(frame["task"] == "sst2") & (frame["quantity"] == "mse")]["correlation"]
    assert of_task["correlation"] == pytest.approx(both.mean())
    assert of_task["n"] == 2
    small = row(averages, model="small", task="Avg.", quantity="bias")
    assert small["n"] == 3
    assert row(averages, model="Avg.", task="rte", quantity="bias")["n"] == 0
    assert row(averages, model="Avg.", task="Avg.", quantity="bias")["n"] == 4


def test_scaling_compares_models_on_the_tasks_they_share(grid):
    frame = paper.scaling(grid)
    assert frame["model"].tolist() == ["small", "large"]
    assert frame["components"].tolist() == [5, 7]
    assert set(frame["tasks"]) == {"sst2"}
    expected = [grid[2].summary()["mse"], grid[0].summary()["mse"]]
    assert frame["mse"].tolist() == pytest.approx(expected, rel=1e-12)


def test_scaling_of_large_models_only_has_their_tasks(grid):
    frame = paper.scaling(grid[:1] + grid[2:], min_parameters=2000)
    assert frame["model"].tolist() == ["large"]
    small = paper.scaling(grid[1:])
    assert small["tasks"].tolist() == ["arc, sst2, zoo"]
    expected = np.mean([run.accuracy for run in grid[1:]])
    assert small["accuracy"].tolist() == pytest.approx([expected])


def test_scaling_without_a_common_task_is_empty(grid):
    assert paper.scaling([grid[0], grid[1]]).empty
    assert paper.scaling(grid, min_parameters=10**9).empty


@pytest.mark.parametrize(
    "table", [paper.table1, paper.table4, paper.module_shares, paper.junction_curves, paper.scaling]
)
def test_two_runs_of_one_cell_are_refused(table):
    with pytest.raises(ValueError, match="run 0 and run 2 are both runs of small on sst2"):
        table([home.make(), home.make(task="rte"), home.make(seed=9)])
    with pytest.raises(ValueError, match="no runs were given"):
        table([])
    with pytest.raises(TypeError, match=r"expected runs, got str.*load_run"):
        table(["results/sst2"])


def test_revisions_of_a_model_are_models():
    runs = [
        home.make(revision=None),
        home.make(revision="fedcba9876543210", weights="another"),
        home.make("other"),
    ]
    assert paper.table4(runs)["model"].tolist() == ["other", "small (fedcba98)", "small (none)"]
    dtypes = [home.make(), home.make(dtype="bfloat16", weights="rounded")]
    assert set(paper.table4(dtypes)["model"]) == {"small (float32)", "small (bfloat16)"}
    weights = [home.make(), home.make(weights="another checkpoint")]
    assert set(paper.table4(weights)["model"]) == {"small (01234567)", "small (another )"}


def test_everything_from_evaluated_models(bridge):
    models = ("llama", "gpt2")
    runs = [ld.evaluate(bridge(name), toy.task()) for name in models]
    mixed = ld.evaluate(bridge("llama"), toy.mixed_task(), progress=False)
    frame = paper.table1(runs)
    assert len(frame) == 4
    assert paper.table1([mixed])["accuracy"].iloc[0] == pytest.approx(mixed.accuracy)
    sizes = paper.table4(runs)
    for run in runs:
        name = run.metadata["model"]["name"]
        assert row(sizes, model=name)["components"] == len(run.labels)
    assert len(paper.junction_curves(runs)) == sum(len(run.labels) for run in runs)
    shares = paper.module_shares(runs).groupby(["model", "task"])[["bias_share"]].sum()
    assert shares["bias_share"].tolist() == pytest.approx([1] * 4)
