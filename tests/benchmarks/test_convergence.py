"""What the convergence benchmark makes of runs; nothing is trained here."""

import json
import math

import convergence
import convergence_workloads
import numpy as np
import pytest
from convergence_figures import (
    LINKS,
    MEASURES,
    Run,
    compare,
    estimated_seconds,
    mean_curve,
    standard_error,
    steps_to,
    target_quality,
)
from convergence_page import BEGIN, END, section, sentences, table, with_generated

ACCURACY, LOSS = MEASURES["accuracy"], MEASURES["loss"]
STEPS = (10, 20, 30, 40, 50)
RISING, FALLING = (50.0, 80.0, 90.0, 96.0, 97.0), (4.0, 3.0, 2.5, 2.1, 2.0)


def runs(*curves, wire_bytes=1000):
    return {seed: Run(STEPS, curve, wire_bytes) for seed, curve in enumerate(curves)}


def shifted(curve, last):
    return (*curve[:-1], last)


def row_of(measure, name, curves, uncompressed):
    _, row = compare(measure, {"none": runs(*uncompressed), name: runs(*curves)}, 0.01).rows
    return row


@pytest.mark.parametrize(("last", "verdict"), [(98.0, "pass"), (96.5, "pass"), (96.49, "fail"), (math.nan, "fail")])
def test_accuracy_may_be_half_a_point_less(last, verdict):
    assert row_of(ACCURACY, "sign", [shifted(RISING, last)], [RISING]).verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(1.0, "pass"), (2.6, "fail")])
def test_accuracy_may_be_two_standard_errors_less_beside(lost, verdict):
    lasts = (97.0 - lost - 1, 97.0 - lost + 1, 97.0 - lost)  # a standard error of 0.577
    row = row_of(ACCURACY, "sign", [shifted(RISING, last) for last in lasts], [RISING] * 3)
    assert row.cost == pytest.approx(lost)
    assert row.allowed == pytest.approx(0.5 + 2 / math.sqrt(3))
    assert row.verdict == verdict


def test_the_difference_is_taken_seed_by_seed():
    lasts = (90.0, 94.0, 98.0)
    uncompressed = [shifted(RISING, last) for last in lasts]
    row = row_of(ACCURACY, "sign", [shifted(RISING, last - 0.25) for last in lasts], uncompressed)
    assert (row.cost, row.cost_error) == (0.25, 0.0)
    assert row.quality_error > 1


def test_seeds_that_one_side_lacks_are_not_compared():
    uncompressed = runs(RISING, shifted(RISING, 90.0))
    _, row = compare(ACCURACY, {"none": uncompressed, "sign": {1: uncompressed[1]}}, 0.01).rows
    assert (row.num_seeds, row.cost) == (1, 0.0)


@pytest.mark.parametrize(
    ("name", "last", "verdict"),
    [
        ("int8", 2.03, "pass"),
        ("int8", 2.05, "fail"),
        ("bf16", math.nan, "fail"),
        ("topk:0.01", 2.05, "fail"),
        ("powersgd:4", 2.05, "fail"),
        ("sign", 3.0, "no rule"),
    ],
)
def test_the_loss_of_those_that_the_rule_binds_may_be_2_percent_more(name, last, verdict):
    row = row_of(LOSS, name, [shifted(FALLING, last)], [FALLING])
    assert row.verdict == verdict
    assert row.cost == pytest.approx(50 * (last - 2), nan_ok=True)


def test_errors_and_means_are_over_seeds():
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert standard_error([5.0]) == 0.0
    assert math.isnan(standard_error([1.0, math.inf]))
    assert mean_curve(runs((1, 2, 3, 4, 5), (3, 4, 5, 6, 7))) == [2, 3, 4, 5, 6]


def test_the_target_is_what_four_fifths_of_the_steps_give_less_the_margin():
    comparison = compare(ACCURACY, {"none": runs(RISING)}, 0.01)
    assert comparison.target == 95.5
    assert target_quality(LOSS, 2.0) == pytest.approx(2.04)


@pytest.mark.parametrize(
    ("target", "curve", "rises", "steps"),
    [
        (85.0, RISING, True, 25),
        (80.0, RISING, True, 20),
        (30.0, RISING, True, 10),
        (99.0, RISING, True, None),
        (2.75, FALLING, False, 25),
        (1.0, FALLING, False, None),
        (85.0, (50.0, math.nan, 90.0, 96.0, 97.0), True, 30),
        (2.8, (math.nan,) * 5, False, None),
    ],
)
def test_steps_to_a_quality_are_read_off_straight_lines(target, curve, rises, steps):
    assert steps_to(target, STEPS, curve, rises=rises) == steps


def test_seconds_are_arithmetic_and_the_bytes_on_the_link():
    assert estimated_seconds(100, 0.01, 250_000, 200e6) == pytest.approx(100 * (0.01 + 0.01))
    row = compare(ACCURACY, {"none": runs(RISING, wire_bytes=250_000)}, 0.01).rows[0]
    assert row.steps_to_target == 40
    assert row.seconds == {link: pytest.approx(40 * (0.01 + 2e6 / rate)) for link, rate in LINKS.items()}


def comparison_of(measure, uncompressed, **curves):
    compressed = {name: runs(curve, curve, wire_bytes=1000) for name, curve in curves.items()}
    return compare(measure, {**compressed, "none": runs(uncompressed, uncompressed, wire_bytes=25_000)}, 0.005)


def test_the_table_has_a_row_for_each_compressor_the_uncompressed_first():
    assert table(comparison_of(ACCURACY, RISING, sign=(40.0, 50.0, 60.0, 70.0, 80.0), bf16=RISING)) == "\n".join(
        [
            "| compression | seeds | accuracy, % | lost, points | rule | steps to 95.50 | bytes a step | s at 200mbit "
            "| s at 1gbit |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            "| `none` | 2 | 97.00 ± 0.00 |  |  | 40 | 25,000 | 0.24 | 0.21 |",
            "| `sign` | 2 | 80.00 ± 0.00 | 17.00 ± 0.00 | **fail** | not reached | 1,000 |  |  |",
            "| `bf16` | 2 | 97.00 ± 0.00 | 0.00 ± 0.00 | pass | 40 | 1,000 | 0.20 | 0.20 |",
        ]
    )


@pytest.mark.parametrize(
    ("measure", "uncompressed", "name", "curve", "sentence"),
    [
        (ACCURACY, RISING, "sign", RISING, None),
        (
            *(ACCURACY, RISING, "sign", shifted(RISING, 96.0)),
            "`sign` on the workload: loses 1.00 ± 0.00 points of accuracy, more than the 0.50 that the rule allows.",
        ),
        (
            *(ACCURACY, RISING, "sign", (50.0, 60.0, 80.0, 90.0, 97.0)),
            "`sign` on the workload: needs 1.20 times the steps of `none`.",
        ),
        (
            *(LOSS, FALLING, "sign", (4.0, 4.0, 4.0, 4.0, 3.0)),
            "`sign` on the workload: ends with a loss 50.00 ± 0.00 % higher, more than the 2.00 that the rule allows "
            "to those that it binds, and does not reach 2.1420 in 50 steps.",
        ),
        (
            *(LOSS, FALLING, "int8", (4.0, *[math.nan] * 4)),
            "`int8` on the workload: diverges, and does not reach 2.1420 in 50 steps.",
        ),
    ],
)
def test_a_sentence_says_what_is_lost(measure, uncompressed, name, curve, sentence):
    found = sentences("workload", comparison_of(measure, uncompressed, **{name: curve}))
    assert found == ([] if sentence is None else [sentence])


def test_a_section_without_losses_says_so():
    text = section("digits", comparison_of(ACCURACY, RISING, bf16=RISING), ["more"], "images/a.png")
    assert "On the digits no compressor loses more than the rule allows" in text
    assert "- more\n" in text
    assert "(images/a.png)" in text


def test_the_page_keeps_what_is_written_by_hand():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_generated(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert with_generated(convergence.PAGE.read_text(), "new").count("new\n\n<!--") == 1


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_its_markers_is_refused(page):
    with pytest.raises(ValueError, match="must hold"):
        with_generated(page, "new")


def test_the_cache_gives_back_what_the_same_settings_have_given(tmp_path):
    job = convergence.Job("digits", "sign", (0, 1, 2), 50, "as now")
    same = {"workload": "digits", "name": "sign", "settings": "as now"}
    finished = {"steps": list(STEPS), "quality": list(RISING), "wire_bytes": 7}
    records = [
        {**same, "seed": 0, **finished, "wire_bytes": 6},
        {**same, "seed": 0, **finished},
        {**same, "seed": 1, **finished, "settings": "as before"},
        {**same, "seed": 2, **finished, "name": "int8"},
        {**same, "arithmetic_seconds": 0.5},
    ]
    cache = tmp_path / "cache.jsonl"
    cache.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"workload": "dig')
    found = convergence.read_cache(cache)
    assert found == records
    assert convergence.runs_in(found, job) == {0: Run(list(STEPS), list(RISING), 7)}
    assert convergence.arithmetic_in(found, job) == 0.5
    assert convergence.read_cache(tmp_path / "not there") == []


def test_names_that_are_none_of_a_compressor_are_left_out(capsys):
    assert convergence.is_known("int8")
    assert not convergence.is_known("int9")
    assert capsys.readouterr().out.startswith("left out: 'int9':")


def test_compressors_that_cannot_train_a_workload_have_no_job():
    assert [job.name for job in convergence.jobs_of("transformer", ["none", "dgc", "sign"], 3, 500)] == ["none", "sign"]


def test_those_that_a_rule_binds_are_trained_from_several_seeds():
    jobs = convergence.jobs_of("transformer without momentum", ["none", "int8", "sign", "topk:0.01"], None, 4000)
    assert [(job.name, len(job.seeds)) for job in jobs] == [("sign", 1), ("topk:0.01", 3)]
    assert [len(job.seeds) for job in convergence.jobs_of("digits", ["none", "sign"], None, 300)] == [10, 10]


def test_a_workload_is_compared_with_another_that_is_trained_too(tmp_path):
    assert convergence.with_references(["transformer without momentum"]) == [
        "transformer",
        "transformer without momentum",
    ]
    jobs = {
        workload: convergence.jobs_of(workload, ["none", "topk:0.01"], 1, 50)
        for workload in ("transformer", "transformer without momentum")
    }
    finished = {"seed": 0, "steps": list(STEPS), "wire_bytes": 7}
    records = [
        {"workload": job.workload, "name": job.name, "settings": job.settings, **finished, "quality": quality}
        for job, quality in zip(
            [*jobs["transformer"], *jobs["transformer without momentum"]],
            [FALLING, shifted(FALLING, 3.0), shifted(FALLING, 2.02)],
            strict=True,
        )
    ]
    none = jobs["transformer"][0]
    records.append({"workload": none.workload, "name": "none", "settings": none.settings, "arithmetic_seconds": 0.5})
    _, first, second = convergence.report(jobs, ["none", "topk:0.01"], {}, records, None).split("\n## ")
    assert "50.00 ± 0.00 | **fail**" in first
    assert "1.00 ± 0.00 | pass" in second
    assert "`none` has Adam's momentum" in second


@pytest.mark.parametrize("name", convergence_workloads.WORKLOADS)
def test_batches_are_whole_epochs_in_an_order_of_the_seed(name):
    workload = convergence_workloads.WORKLOADS[name]
    num_steps, num_examples = 4, 2 * workload.batch_size
    one, other = (convergence_workloads.batches(workload, num_examples, num_steps, 4, seed) for seed in (0, 1))
    assert one.shape == (num_steps, 4, workload.batch_size // 4)
    assert np.array_equal(np.bincount(one.ravel()), [2] * num_examples)
    assert not np.array_equal(one, other)
    assert workload.num_steps % workload.num_evaluations == 0
    assert workload.num_steps // convergence.QUICK_SHARE % workload.num_evaluations == 0


def test_the_examples_of_the_transformer_are_text_and_what_follows_it():
    data = convergence_workloads.transformer_data()
    assert np.array_equal(data.inputs[:, 1:], data.targets[:, :-1])
    assert data.test_inputs.shape == (convergence_workloads.NUM_VALIDATION_WINDOWS, convergence_workloads.CONTEXT)
    assert data.inputs.min() >= 0
    assert data.inputs.max() < convergence_workloads.VOCABULARY


def test_processes_that_fail_are_told_from_those_that_do_not(tmp_path, monkeypatch, capsys):
    reasons = {"int8": "", "sign": "ended with status 1: no"}
    monkeypatch.setattr(convergence, "run_process", lambda job, cache, num_threads: reasons[job.name])
    jobs = convergence.jobs_of("digits", list(reasons), 1, 300)
    assert convergence.run_all(jobs, tmp_path / "cache.jsonl", 2) == {("digits", "sign"): "ended with status 1: no"}
    assert "2 of 2: digits under" in capsys.readouterr().err


def test_what_is_known_is_not_trained_again(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(convergence, "run_process", lambda job, cache, num_threads: started.append(job) or "")
    none, sign = convergence.jobs_of("digits", ["none", "sign"], 2, 300)
    same = {"workload": "digits", "name": "sign", "settings": sign.settings}
    known = [{**same, "seed": 1, "steps": [300], "quality": [97.0], "wire_bytes": 7}]
    convergence.train([none, sign], tmp_path / "folder" / "cache.jsonl", known=known, num_processes=1)
    assert started == [none._replace(seeds=()), none, sign._replace(seeds=(0,))]


def test_a_line_that_was_not_written_to_its_end_is_not_joined_by_another(tmp_path):
    cache = tmp_path / "cache.jsonl"
    cache.write_text('{"a": 1}\n{"b": ')
    convergence.train([], cache, known=[], num_processes=1)
    assert cache.read_text() == '{"a": 1}\n'
