"""Files of limits: what they say, and every way to get one wrong."""

from __future__ import annotations

import json

import pytest

from vllm_neuron.accuracy.tasks.thresholds import PerplexityThreshold, TaskThreshold, Thresholds, load_thresholds
from vllm_neuron.errors import ConfigError

TOML = """
[tasks.plain_facts]
metric = "acc"
min_score = 0.6
max_drop = 0.02
[perplexity]
max_increase = 0.5
"""


def test_toml_and_json_say_the_same(tmp_path):
    (tmp_path / "a.toml").write_text(TOML)
    task = {"metric": "acc", "min_score": 0.6, "max_drop": 0.02}
    document = {"tasks": {"plain_facts": task}, "perplexity": {"max_increase": 0.5}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    expected = Thresholds({"plain_facts": TaskThreshold("acc", 0.6, 0.02)}, PerplexityThreshold(0.5))
    assert load_thresholds(tmp_path / "a.toml") == load_thresholds(tmp_path / "a.json") == expected
    assert expected.of("plain_facts").min_score == 0.6 and expected.of("other") == TaskThreshold()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[task.x]", "thresholds.task: .*Did you mean 'tasks'"),
        ("[tasks.x]\nmin_scor = 1", r"thresholds.tasks.x.min_scor: .*Did you mean 'min_score'"),
        ("[tasks.x]\nmin_score = 60", "from 0 to 1"),
        ("[tasks.x]\nmin_score = true", "from 0 to 1"),
        ("[tasks.x]\nmin_score = nan", "from 0 to 1"),
        ("[tasks.x]\nmax_drop = -0.1", "from 0 to 1"),
        ("[tasks.x]\nmetric = 3", "the name of a metric"),
        ("[tasks]\nx = 0.5", "a table"),
        ("[perplexity]\nmax_increase = inf", "0 or more"),
        ("[perplexity]\nmax = 1", "max_increase"),
        ("tasks = ", "valid TOML"),
    ],
)
def test_what_is_wrong_is_named(text, message, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_thresholds(tmp_path / "a.toml")


def test_files_that_can_not_be_read(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    for name, message in (
        ("a.json", "a table"),
        ("b.toml", "valid TOML"),
        ("c.toml", "can be read"),
        ("d.yml", ".toml"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_thresholds(tmp_path / name)


def test_limits_for_a_task_that_does_not_run():
    limits = Thresholds({"plain_fact": TaskThreshold()})
    with pytest.raises(ConfigError, match="Did you mean 'plain_facts'"):
        limits.check_tasks(["plain_facts"])
    Thresholds({"plain_facts": TaskThreshold()}).check_tasks(["plain_facts"])
