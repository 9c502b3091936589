"""Axes: round ticks, units, and places for every value."""

import numpy as np
import pytest

from atomo.report.scales import BYTES, PLAIN, SECONDS, ChartAxis, axis_scale


@pytest.mark.parametrize(
    ("axis", "values", "label", "ticks"),
    [
        (ChartAxis("x"), [0, 10], "x", ["0", "2", "4", "6", "8", "10"]),
        (ChartAxis("x"), [3, 3], "x", ["1", "2", "3", "4", "5"]),
        (ChartAxis("x"), [0, 0], "x", ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (ChartAxis("t", SECONDS), [0, 0.1], "t (ms)", ["0", "20", "40", "60", "80", "100"]),
        (ChartAxis("t", SECONDS), [0, 7200], "t (h)", ["0", "0.5", "1", "1.5", "2"]),
        (ChartAxis("b", BYTES), [0, 5e6], "b (MB)", ["0", "1", "2", "3", "4", "5"]),
        (ChartAxis("a", percent=True), [0.5, 1], "a (%)", ["50", "60", "70", "80", "90", "100"]),
        (ChartAxis("l", may_be_log=True), [0.01, 10], "l", ["0.01", "0.1", "1", "10"]),
        (ChartAxis("b", BYTES, may_be_log=True), [1e3, 1e5], "b (B)", ["1000", "10k", "100k"]),
        (ChartAxis("l", may_be_log=True), [1, 2], "l", ["1", "1.2", "1.4", "1.6", "1.8", "2"]),
    ],
)
def test_ticks_are_round_numbers_of_a_unit(axis, values, label, ticks):
    scale = axis_scale(axis, np.array(values, dtype=float))
    assert scale.label == label
    assert [text for _, text in scale.ticks] == ticks
    shares = scale.shares(np.array(values, dtype=float))
    assert (shares >= -1e-9).all()
    assert (shares <= 1 + 1e-9).all()


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, -np.inf], [1e300, 1e-300], [-1e30, 1e30],
                                    [1, np.nextafter(1, 2)]])  # fmt: skip
@pytest.mark.parametrize("may_be_log", [False, True])
def test_every_value_has_a_scale(values, may_be_log):
    scale = axis_scale(ChartAxis("x", PLAIN, may_be_log=may_be_log), np.array(values, dtype=float))
    assert 1 <= len(scale.ticks) < 30
    assert scale.high > scale.low


@pytest.mark.parametrize("values", [[0.11, 0.11 + 1e-15], [1.0, 1.0001], [-5.0, -5.001]])
def test_ticks_of_nearly_equal_values_have_different_texts(values):
    texts = [text for _, text in axis_scale(ChartAxis("x", PLAIN), np.array(values)).ticks]
    assert len(texts) > 2
    assert len({*texts}) == len(texts)


def test_a_logarithmic_axis_has_no_place_for_zero():
    scale = axis_scale(ChartAxis("x", may_be_log=True), np.array([1.0, 1000.0]))
    assert np.isnan(scale.shares(np.array([0.0, -1.0]))).all()
