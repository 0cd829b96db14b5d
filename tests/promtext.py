"""Reads the text of a metrics endpoint as strictly as promtool does."""

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# What promtool says of units: only base ones, spelled out.
UNITS = re.compile(r"_(ms|us|ns|millis\w*|micros\w*|nanos\w*|minutes?|hours?|days?|kb|mb|percent)$")


def check(text: str) -> dict[str, Metric]:
    """Return the families of a text by name; fails on all that promtool would complain about."""
    assert text.endswith("\n")
    _check_order(text)
    families: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families, f"{family.name} is there twice"
        families[family.name] = family
        _check(family)
    return families


def values(families: Mapping[str, Metric], name: str, *labels: str) -> dict[Any, float]:
    """Return the samples of one name by the values of these labels, one value or several."""
    family = families[name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")]
    return {
        tuple(sample.labels[label] for label in labels)
        if len(labels) != 1
        else sample.labels[labels[0]]: sample.value
        for sample in family.samples
        if sample.name == name
    }


def _check_order(text: str) -> None:
    """Every family is announced, by HELP and then by TYPE, before its first sample."""
    announced: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if found := re.match(r"# (HELP|TYPE) (\S+) (\S.*)", line):
            current = found[2]
            announced.setdefault(current, []).append(found[1])
            if found[3] == "counter":  # which the parser would mend
                assert current.endswith("_total"), f"{current} is a counter"
        else:
            assert not line.startswith("#"), f"{line}: says nothing"
            name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)
            assert name, f"{line}: is no sample"
            assert current, f"{line}: is not announced"
            assert name[0].startswith(current), f"{line}: is not announced"
    for name, lines in announced.items():
        assert lines == ["HELP", "TYPE"], f"{name} has {lines}"


def _check(family: Metric) -> None:
    assert family.documentation.strip(), f"{family.name} has no help"
    assert NAME.fullmatch(family.name), family.name
    assert not UNITS.search(family.name), f"{family.name} is not in a base unit"
    assert family.type in ("counter", "gauge", "histogram"), f"{family.name} is {family.type}"
    seen = set()
    for sample in family.samples:
        series = sample.name, *sorted(sample.labels.items())
        assert series not in seen, f"{series} is there twice"
        seen.add(series)
        assert all(NAME.fullmatch(label) for label in sample.labels), sample.labels
        if family.type == "counter":
            assert sample.name == f"{family.name}_total"
            assert sample.value >= 0
        else:
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
    if family.type == "histogram":
        assert family.name.endswith("_seconds")
        _check_histogram(family)


def _check_histogram(family: Metric) -> None:
    for counted in family.samples:
        if not counted.name.endswith("_count"):
            continue
        buckets = [
            (float(sample.labels["le"]), sample.value)
            for sample in family.samples
            if sample.name.endswith("_bucket")
            and {k: v for k, v in sample.labels.items() if k != "le"} == counted.labels
        ]
        edges, sizes = zip(*buckets, strict=True)
        assert list(edges) == sorted(edges)
        assert list(sizes) == sorted(sizes)
        assert buckets[-1] == (float("inf"), counted.value)
