"""A few of the cases of scripts/kills.py: runs ended by a signal, or killed at a given point."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("index", [0, 2, 4])
def test_killed_run_leaves_old_or_complete_files(script, tmp_path, index):
    kills = script("kills")
    writers = kills.writers(400)
    row = kills.kill(writers[index], 2, tmp_path, writers[-1])
    assert row.wrong == []
    assert row.moments == 2
    assert row.counts["old"] + row.counts["whole"] == 2 * len(writers[index].written)


def test_signals_at_any_moment_have_their_exit_code(script, tmp_path):
    kills = script("kills")
    asked = kills.commands(400)
    for command in (asked[1], asked[-3]):
        row = kills.stop(command, 1, tmp_path)
        assert row.wrong == []


def test_killed_jobs_and_workers_recover(script, tmp_path):
    pytest.importorskip("distributed", reason="no Dask")
    kills = script("kills")
    for name, kill in (("jobs", kills.kill_jobs), ("workers", kills.kill_workers)):
        row = kill(1, tmp_path / name)
        assert row.wrong == [] and row.moments >= 1
